"""Why a step failed: one line for people, and whether trying again may help."""

from __future__ import annotations

import re
from contextlib import suppress
from subprocess import TimeoutExpired
from typing import Final

from msgspec import Struct

from penstock_core.vocabulary.errors import PenstockError
from penstock_spark.errors.error_marks import (
    CarriedError,
    active_secret,
    carried,
    marked_error,
    unmarked,
)
from penstock_spark.errors.failure_text import (
    FROM_THREAD,
    is_lost_process,
    layers,
    line_of,
    whole_text,
)

JVM_ENDS_S: Final = 2.0
"""How long a JVM that answers no more is given to end."""
_PYTHON: Final = re.compile(
    r"^(?:pyspark\.errors\.exceptions\.\w+\.)?([A-Za-z_][\w.]*(?:Error|Exception|Exit)): ([^\n]*)",
    re.MULTILINE,
)
_SPARKS: Final = re.compile(r"\[([A-Z][A-Z0-9_.]{3,})\] ")
_JAVAS: Final = "Py4JJavaError"
"""The error of Python for an exception of Java: its own line says only which method was called."""
_WRAPPERS: Final = frozenset(
    (
        "STREAM_FAILED",
        "FAILED_EXECUTE_UDF",
        "FOREACH_BATCH_USER_FUNCTION_ERROR",
        "PYTHON_EXCEPTION",
        "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
    )
)
"""Error conditions of Spark that only wrap another error."""


_OF_STATE: Final = (
    "the checkpoint has the state of other aggregates, groups, windows or keys than the step has "
    "now: take the change back, or remove the step's folder in the checkpoints and give the step a "
    "new target, so that it begins anew"
)
_REMEDIES: Final = {
    "STATE_STORE_COMMIT_VALIDATION_FAILED": (
        "the function that writes the step's micro-batches must compute all rows of each, also of "
        "one that is stored already"
    ),
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE": _OF_STATE,
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE": _OF_STATE,
}
"""By condition of Spark, what to do where its own message does not say it."""
_OF_VALUES: Final = frozenset(
    ("ARITHMETIC_OVERFLOW", "CAST_INVALID_INPUT", "CAST_OVERFLOW", "DIVIDE_BY_ZERO")
)
"""Conditions that values of some events cause, without a word on which events these are."""
FIND_EVENT: Final = (
    'to learn which event causes it, give the source a durable and the step poison = "bury"'
)


class FailureCause(Struct, frozen=True):
    """Why something failed."""

    text: str
    """The failure in one readable line."""

    may_pass: bool
    """Whether a retry may succeed."""

    is_of_value: bool = False
    """Whether a value of some event causes it, and the text does not say of which event."""


def cause_of(error: BaseException) -> FailureCause:
    """The error at the origin of another, through however many layers it came."""
    own = carried(error) if isinstance(error, PenstockError) else None
    if (found := own or marked_error(whole_text(error), active_secret())) is not None:
        return _ours(found)
    text, condition = _read(error)
    if condition in _REMEDIES:
        text = f"{text}; {_REMEDIES[condition]}"
    return FailureCause(text, is_lost_process(error), is_of_value=condition in _OF_VALUES)


def _is_broken_connection(error: BaseException | None) -> bool:
    """Whether a call of the JVM had no answer, rather than one that is an exception of Java."""
    kind = type(error)
    is_of_gateway = kind.__module__.startswith("py4j.") and kind.__name__ != "Py4JJavaError"
    return is_of_gateway or isinstance(error, OSError)


def jvm_loss(error: BaseException | None = None) -> FailureCause | None:
    """The failure of every step if the JVM that this process has started is gone; None: it runs.
    ``error`` is what was seen first: a connection to it that breaks may do so before it has ended.
    """
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    if _is_broken_connection(error):
        with suppress(TimeoutExpired):
            process.wait(JVM_ENDS_S)
    if (status := process.poll()) is None:
        return None
    return FailureCause(
        f"Spark's JVM has ended with status {status}: it was killed, or had too little memory; run "
        "the pipeline again, and it goes on where it was",
        may_pass=False,
    )


def _ours(error: CarriedError) -> FailureCause:
    first_line = error.text.partition("\n")[0]
    return FailureCause(f"{first_line} [{error.code}]", error.may_pass)


def _read(error: BaseException) -> tuple[str, str]:
    """The outermost of an error and its causes that says anything; see :func:`_told`."""
    told = (_told(layer, unmarked(str(layer))) for layer in layers(error))
    return next((found for found in told if found[0]), (type(error).__name__, ""))


def _told(error: BaseException, text: str) -> tuple[str, str]:
    """The innermost thing in a text that says anything: a Python error, a condition of Spark's, a
    line; and that condition, if any."""
    raised = [
        (kind, message)
        for kind, message in _PYTHON.findall(text)
        if not (_SPARKS.search(message) or message.strip() == FROM_THREAD)
    ]
    if raised and not raised[-1][0].endswith(_JAVAS):
        kind, message = raised[-1]
        return f"{kind.rpartition('.')[2]}: {message}{_where(text)}", ""
    conditions = [found for found in _SPARKS.finditer(text) if found[1] not in _WRAPPERS]
    if conditions:
        message = text[conditions[-1].end() :].partition("\n")[0].partition(" SQLSTATE")[0]
        return f"{message.strip()} [{conditions[-1][1]}]", conditions[-1][1]
    return line_of(error, text), ""


def _where(text: str) -> str:
    """The last line of code of the user's in a traceback."""
    places = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
    theirs = [
        found
        for found in places
        if not re.search(r"/(?:pyspark|py4j|penstock|lib/python[\d.]+)/|pyspark\.zip|^<", found[0])
    ]
    if not theirs:
        return ""
    path, line, function = theirs[-1]
    return f" ({path.rpartition('/')[2]}, line {line}, in {function})"
