"""Penstock's errors in Spark's types, for programs that catch either.

``except penstock.InvalidArgument`` and ``except PySparkValueError`` catch the same error. Errors
that Spark passes on from another process, as ``AnalysisException`` during planning and as
``StreamingQueryException`` while a stream runs, contain the message.
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
"""Environment variable that Spark sets only for the Python processes that it starts."""
_HIDES_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Environment variable that makes PySpark pass an exception to the JVM without its traceback."""
_set_variables: list[str] = []
"""Names of the environment variables that this module has set: empty, or only
``SPARK_HIDE_TRACEBACK``."""

_METHODS: Final = (
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


def as_spark_error(error: PenstockError) -> PenstockError:
    """Return the error as an instance of both its class and a class of Spark."""
    if isinstance(error, PySparkException):
        return error
    converted_class = _cached_class(type(error), _spark_class(error))
    converted: Any = converted_class.__new__(converted_class, *error.args)
    converted.__dict__.update(error.__dict__)
    condition = f"PENSTOCK_{error.code.upper().replace('-', '_')}"
    converted._message, converted._errorClass = str(error), condition
    converted._messageParameters, converted._contexts = {}, []
    return converted  # type: ignore[no-any-return]  # a class made just now


def _spark_class(error: PenstockError) -> type[PySparkException]:
    if isinstance(error, _VALUES):
        return PySparkValueError
    return AnalysisException if isinstance(error, NameDoesNotExist) else PySparkRuntimeError


def _cached_class(
    penstock_class: type[PenstockError], spark_class: type[PySparkException]
) -> type[Exception]:
    # Cached, so that all errors of one kind have the same class.
    combined = _classes.get((penstock_class, spark_class))
    if combined is None:
        combined = _classes[penstock_class, spark_class] = _make_class(penstock_class, spark_class)
    return combined


_classes: dict[tuple[type[PenstockError], type[PySparkException]], type[Exception]] = {}


def _make_class(
    penstock_class: type[PenstockError], spark_class: type[PySparkException]
) -> type[Exception]:
    def getSqlState(self: Any) -> None:  # noqa: N802  Spark's name
        """Return None: Spark has no SQL state for these errors."""

    members = {
        "__module__": __name__,
        "__doc__": penstock_class.__doc__,
        "getSqlState": getSqlState,
    }
    return type(penstock_class.__name__, (penstock_class, spark_class), members)


@contextmanager
def convert_errors(called: object = None) -> Iterator[None]:
    """Convert errors of Penstock that are raised in the ``with`` block to errors that are also
    Spark's.

    If the options of ``called``, a source, reader or writer, have the secret of a driver, the
    errors are marked for this driver.
    """
    try:
        yield
    except PenstockError as error:
        hide_traceback()
        # Imported late: Spark loads this module in processes that only list the formats.
        from penstock_spark.errors.error_marks import attach

        converted = as_spark_error(error)
        attach(converted, _secret_of(called))
        if converted is error:
            raise
        raise converted from error.__cause__


def hide_traceback() -> None:
    """Make PySpark report the message of an expected error without a traceback.

    The function does nothing outside of Spark's processes. Such a process ends with the error of a
    task, or runs only the methods of a source, so the setting has no other effect.
    """
    if _WORKERS_ONLY in os.environ and _HIDES_TRACEBACK not in os.environ:
        os.environ[_HIDES_TRACEBACK] = "1"
        _set_variables.append(_HIDES_TRACEBACK)


def _show_traceback() -> None:
    """Undo :func:`hide_traceback`, because the next error may be unexpected."""
    if _set_variables:
        os.environ.pop(_set_variables.pop(), None)


def converts_errors(called: C) -> C:
    """Decorate a class that Spark calls, so that its methods raise errors in Spark's types."""
    for name in _METHODS:
        if name in vars(called):
            setattr(called, name, _converting(vars(called)[name]))
    return called


def _converting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        _show_traceback()
        with convert_errors(self):
            result = method(self, *arguments, **keywords)
        return _convert_in_iterator(result, self) if inspect.isgenerator(result) else result

    return call


def _secret_of(called: Any) -> str:
    """Return the secret in the options of a source, a reader or a writer."""
    from penstock_spark.errors.error_marks import secret_in

    parsed = getattr(getattr(called, "_options", None), "error_secret", None)
    return secret_in(getattr(called, "options", {})) if parsed is None else str(parsed)


def _convert_in_iterator(items: Iterator[Any], called: object) -> Iterator[Any]:
    with convert_errors(called):
        yield from items
