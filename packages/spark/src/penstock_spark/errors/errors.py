"""Penstock's errors in Spark's types, for programs that catch either.

Each is both: ``except penstock.InvalidArgument`` and ``except PySparkValueError`` catch the same
error. Errors that Spark passes on from another process, as ``AnalysisException`` when it plans and
as ``StreamingQueryException`` when a stream runs, contain the message.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pyspark.errors import (
    AnalysisException,
    PySparkException,
    PySparkRuntimeError,
    PySparkValueError,
)

from penstock_core.vocabulary.errors import (
    EventTooLarge,
    InvalidArgument,
    InvalidDescriptor,
    InvalidEvent,
    InvalidName,
    InvalidSelector,
    NameDoesNotExist,
    PenstockError,
)

C = TypeVar("C", bound=type)

_VALUES: Final = (
    EventTooLarge,
    InvalidArgument,
    InvalidDescriptor,
    InvalidEvent,
    InvalidName,
    InvalidSelector,
)
_WORKERS_ONLY: Final = "SPARK_BUFFER_SIZE"
"""Spark sets it for the Python processes that it starts."""
_HIDES_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark looks at it when a process hands an exception to the JVM."""
_hides: list[str] = []
"""Not empty while this module has set the variable."""

_ASKED: Final = (
    "schema",
    "reader",
    "streamReader",
    "writer",
    "streamWriter",
    "partitions",
    "read",
    "initialOffset",
    "latestOffset",
    "reportLatestOffset",
    "write",
    "commit",
    "abort",
    "prepareForTriggerAvailableNow",
)
"""The methods that Spark calls on a source, its readers and its writers."""


def in_sparks_type(error: PenstockError) -> PenstockError:
    """The error as an instance of its own class and of one of Spark's."""
    if isinstance(error, PySparkException):
        return error
    kind = _both(type(error), _kind(error))
    found: Any = kind.__new__(kind, *error.args)
    found.__dict__.update(error.__dict__)
    condition = f"PENSTOCK_{error.code.upper().replace('-', '_')}"
    found._message, found._errorClass = str(error), condition
    found._messageParameters, found._contexts = {}, []
    return found  # type: ignore[no-any-return]  # a class made just now


def _kind(error: PenstockError) -> type[PySparkException]:
    if isinstance(error, _VALUES):
        return PySparkValueError
    return AnalysisException if isinstance(error, NameDoesNotExist) else PySparkRuntimeError


def _both(own: type[PenstockError], sparks: type[PySparkException]) -> type[Exception]:
    known = _classes.get((own, sparks))
    if known is None:
        known = _classes[own, sparks] = _made(own, sparks)
    return known


_classes: dict[tuple[type[PenstockError], type[PySparkException]], type[Exception]] = {}


def _made(own: type[PenstockError], sparks: type[PySparkException]) -> type[Exception]:
    def getSqlState(self: Any) -> None:  # noqa: N802  Spark's name
        """Spark has none for these."""

    members = {"__module__": __name__, "__doc__": own.__doc__, "getSqlState": getSqlState}
    return type(own.__name__, (own, sparks), members)


@contextmanager
def in_sparks_types(called: object = None) -> Iterator[None]:
    """Turn errors of Penstock that are raised inside into errors that are also Spark's.

    If the options of ``called`` have a driver's secret, they are marked for this driver.
    """
    try:
        yield
    except PenstockError as error:
        hide_traceback()
        # Spark loads this module in processes that only look which formats there are.
        from penstock_spark.errors.error_marks import attach

        both = in_sparks_type(error)
        attach(both, _secret_of(called))
        if both is error:
            raise
        raise both from error.__cause__


def hide_traceback() -> None:
    """Have PySpark hand over the sentence of an expected error without a traceback before it.

    Does nothing outside of Spark's processes: such a process ends with the error of a task, or it
    runs nothing but the methods of a source.
    """
    if _WORKERS_ONLY in os.environ and _HIDES_TRACEBACK not in os.environ:
        os.environ[_HIDES_TRACEBACK] = "1"
        _hides.append(_HIDES_TRACEBACK)


def _show_traceback() -> None:
    """End the effect of an earlier call: what fails now may be unexpected."""
    if _hides:
        os.environ.pop(_hides.pop(), None)


def tells_spark(called: C) -> C:
    """A class that Spark calls, and whose errors are in Spark's types."""
    for name in _ASKED:
        if name in vars(called):
            setattr(called, name, _converting(vars(called)[name]))
    return called


def _converting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        _show_traceback()
        with in_sparks_types(self):
            result = method(self, *given, **named)
        return _each(result, self) if inspect.isgenerator(result) else result

    return call


def _secret_of(called: Any) -> str:
    """The secret in the options that a source, or its reader or writer, was made with."""
    from penstock_spark.errors.error_marks import secret_in

    parsed = getattr(getattr(called, "_options", None), "error_secret", None)
    return secret_in(getattr(called, "options", {})) if parsed is None else str(parsed)


def _each(items: Iterator[Any], called: object) -> Iterator[Any]:
    with in_sparks_types(called):
        yield from items
