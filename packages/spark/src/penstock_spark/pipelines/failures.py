"""Determines why a step failed, in one readable line, and whether a retry may succeed."""

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
"""Seconds to wait for the exit of a JVM whose connection is broken."""
_PYTHON_ERROR: Final = re.compile(
    r"^(?:pyspark\.errors\.exceptions\.\w+\.)?([A-Za-z_][\w.]*(?:Error|Exception|Exit)): ([^\n]*)",
    re.MULTILINE,
)
_SPARK_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]{3,})\] ")
_JAVA_ERROR: Final = "Py4JJavaError"
"""Python's error for an exception of Java. Its first line names only the called method."""
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


_STATE_REMEDY: Final = (
    "the checkpoint has the state of other aggregates, groups, windows or keys than the step has "
    "now: revert the change, or remove the step's folder in the checkpoints and give the step a "
    "new target, so that it starts over"
)
_REMEDIES: Final = {
    "STATE_STORE_COMMIT_VALIDATION_FAILED": (
        "the function that writes the step's micro-batches must compute all rows of each "
        "micro-batch, even if the micro-batch is already stored"
    ),
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE": _STATE_REMEDY,
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE": _STATE_REMEDY,
}
"""Remedies for error conditions of Spark whose messages do not contain one."""
_VALUE_CONDITIONS: Final = frozenset(
    ("ARITHMETIC_OVERFLOW", "CAST_INVALID_INPUT", "CAST_OVERFLOW", "DIVIDE_BY_ZERO")
)
"""Error conditions of Spark that values of events cause. Spark does not name the events."""
FIND_EVENT: Final = (
    'to learn which event causes it, give the source a durable and the step poison = "bury"'
)


class FailureCause(Struct, frozen=True):
    """The cause of the failure of a step."""

    text: str
    """The failure in one readable line."""

    may_pass: bool
    """Whether a retry may succeed."""

    is_of_value: bool = False
    """Whether the cause is a value in an event that the text does not name."""


def cause_of(error: BaseException) -> FailureCause:
    """Return the original cause of an error, searched through all errors that wrap it."""
    carried_error = carried(error) if isinstance(error, PenstockError) else None
    if (
        penstock_error := carried_error or marked_error(whole_text(error), active_secret())
    ) is not None:
        return _cause_of_penstock_error(penstock_error)
    text, condition = _outermost_text(error)
    if condition in _REMEDIES:
        text = f"{text}; {_REMEDIES[condition]}"
    return FailureCause(text, is_lost_process(error), is_of_value=condition in _VALUE_CONDITIONS)


def _is_broken_connection(error: BaseException | None) -> bool:
    """Return whether an error means that a call to the JVM got no answer. An exception of Java is
    an answer."""
    kind = type(error)
    is_of_gateway = kind.__module__.startswith("py4j.") and kind.__name__ != "Py4JJavaError"
    return is_of_gateway or isinstance(error, OSError)


def jvm_loss(error: BaseException | None = None) -> FailureCause | None:
    """Return the cause for all steps if the JVM of this process has ended; None if the JVM runs.

    ``error`` is the error of a step. If it is a broken connection, this function waits up to
    :data:`JVM_ENDS_S`, because the connection may break before the JVM has ended.
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
        "the pipeline again, and it continues from its checkpoints",
        may_pass=False,
    )


def _cause_of_penstock_error(error: CarriedError) -> FailureCause:
    """Return the cause that an error of Penstock states itself."""
    first_line = error.text.partition("\n")[0]
    return FailureCause(f"{first_line} [{error.code}]", error.may_pass)


def _outermost_text(error: BaseException) -> tuple[str, str]:
    """Return a text that describes the failure, and Spark's condition; see
    :func:`_innermost_error`.

    The text is that of ``error``, or of the first of its causes that is not only a wrapper. If
    there is none, the text is the name of the error's class.
    """
    texts = (_innermost_error(layer, unmarked(str(layer))) for layer in layers(error))
    return next(
        (text_and_condition for text_and_condition in texts if text_and_condition[0]),
        (type(error).__name__, ""),
    )


def _innermost_error(error: BaseException, text: str) -> tuple[str, str]:
    """Return the cause that ``text``, the text of ``error``, names last, and Spark's condition.

    The cause is a Python error, otherwise a condition of Spark, otherwise a line of the text. The
    condition is empty if the cause is not a condition of Spark.
    """
    raised = [
        (kind, message)
        for kind, message in _PYTHON_ERROR.findall(text)
        if not (_SPARK_CONDITION.search(message) or message.strip() == FROM_THREAD)
    ]
    if raised and not raised[-1][0].endswith(_JAVA_ERROR):
        kind, message = raised[-1]
        return f"{kind.rpartition('.')[2]}: {message}{_user_line(text)}", ""
    conditions = [match for match in _SPARK_CONDITION.finditer(text) if match[1] not in _WRAPPERS]
    if conditions:
        message = text[conditions[-1].end() :].partition("\n")[0].partition(" SQLSTATE")[0]
        return f"{message.strip()} [{conditions[-1][1]}]", conditions[-1][1]
    return line_of(error, text), ""


def _user_line(text: str) -> str:
    """Return the last place in a traceback that is in the user's code, in brackets; empty if no
    place is."""
    places = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
    user_places = [
        place
        for place in places
        if not re.search(r"/(?:pyspark|py4j|penstock|lib/python[\d.]+)/|pyspark\.zip|^<", place[0])
    ]
    if not user_places:
        return ""
    path, line, function = user_places[-1]
    return f" ({path.rpartition('/')[2]}, line {line}, in {function})"
