"""Why a step failed: one line for people, and whether trying again may help."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from penstock.core.vocabulary.errors import (
    CannotConnect,
    ConnectionLost,
    PenstockError,
    SessionClosed,
    error_classes,
)

_OURS: Final = re.compile(rf"{re.escape(PenstockError.__module__)}\.(\w+): ([^\n]*)")
"""An error of Penstock in a traceback that Spark hands on as text: its class and its message."""
_PYTHON: Final = re.compile(
    r"^(?:pyspark\.errors\.exceptions\.\w+\.)?([A-Za-z_][\w.]*(?:Error|Exception|Exit)): ([^\n]*)",
    re.MULTILINE,
)
_SPARKS: Final = re.compile(r"\[([A-Z][A-Z0-9_.]{3,})\] ")
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

_PASSING: Final = (
    # Spark's own error when queries of one session start at the same time.
    "OptionalDataException",
    "ConcurrentModificationException",
    "StreamCorruptedException",
    # A process of Spark that was killed from outside.
    "Python worker exited unexpectedly",
    "ExecutorLostFailure",
    # Spark gives a new process ten seconds to import what it needs and to report, in several
    # different words; a busy machine sometimes takes longer.
    "Python worker failed to connect back",
    "waiting for the Python worker to connect back",
)
_RECONNECT: Final = (CannotConnect, ConnectionLost, SessionClosed)


class FailureCause(Struct, frozen=True):
    """Why something failed."""

    text: str
    """The failure in one readable line."""

    may_pass: bool
    """Whether a retry may succeed."""


def cause_of(error: BaseException) -> FailureCause:
    """The error at the origin of another, through however many layers it came."""
    if isinstance(error, PenstockError):
        return _ours(type(error), str(error))
    text = str(error)
    passing = next((sign for sign in _PASSING if sign in text), None)
    if found := _OURS.findall(text):
        name, message = found[-1]
        known = {kind.__name__: kind for kind in error_classes().values()}
        return _ours(known.get(name, PenstockError), message)
    return FailureCause(_read(error, text), passing is not None)


def _ours(kind: type[PenstockError], text: str) -> FailureCause:
    may_pass = kind.retryable or issubclass(kind, _RECONNECT)
    return FailureCause(f"{text} [{kind.code}]", may_pass)


def _read(error: BaseException, text: str) -> str:
    """The innermost thing that says anything: a Python error, a condition of Spark's, a line."""
    raised = [found for found in _PYTHON.findall(text) if not _SPARKS.search(found[1])]
    if raised:
        kind, message = raised[-1]
        return f"{kind.rpartition('.')[2]}: {message}{_where(text)}"
    conditions = [found for found in _SPARKS.finditer(text) if found[1] not in _WRAPPERS]
    if conditions:
        message = text[conditions[-1].end() :].partition("\n")[0].partition(" SQLSTATE")[0]
        return f"{message.strip()} [{conditions[-1][1]}]"
    first = text.strip().partition("\n")[0]
    if first.startswith("[STREAM_FAILED]"):
        first = first.partition("terminated with exception: ")[2] or first
    return first or type(error).__name__


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
