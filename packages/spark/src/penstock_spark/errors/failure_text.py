"""Exceptions that Spark hands on as text: which ones, read from positions that only code writes.

Such a text quotes values of events at many places. So no word is searched in it: from its
beginning on, what Spark, Java and Python write around an exception is recognised and taken off,
and an exception is known by its class, its condition and the beginning of its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_STREAM: Final = re.compile(
    r"\[STREAM_FAILED\] Query \[id = [^\]]*\] terminated with exception: ", re.DOTALL
)
_JOB: Final = re.compile(
    r"Job aborted due to stage failure: Task \d+(?:\.\d+)? in stage [\d.]+ failed \d+ times, "
    r"most recent failure: (?:Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^()\n]*\): )?"
)
_CALL: Final = re.compile(
    r"An error occurred while calling [\w:.$]+\n?: |"
    r"An exception was thrown from the Python worker:\s|"
    r"An exception was raised by the Python Proxy\. Return Message: "
)
FROM_THREAD: Final = "Exception thrown in awaitResult:"
"""The message of Spark's exception for one that another thread has raised, which is its cause."""
_AWAITED: Final = re.compile(rf"{FROM_THREAD}\s*\n(?:[ \t]+(?:at |\.{{3}} )[^\n]*\n)*Caused by: ")
"""That message, with the frames that follow it in a stack trace, up to the cause."""
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]{3,})\] ")
_CLASS: Final = re.compile(r"([A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)+)(?:: |\n|$)")
_BARE: Final = re.compile(r"(Python worker |Timed out while waiting for the Python worker )")
_TRACEBACK: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)*([A-Za-z_][\w.]*)(?:: |\n|$)"
)
_WRAPPING: Final = frozenset(
    (
        "FOREACH_BATCH_USER_FUNCTION_ERROR",
        "PYTHON_DATA_SOURCE_ERROR",
        "PYTHON_EXCEPTION",
        "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
    )
)
"""Conditions whose message begins with the text of another exception."""
_SPARKS: Final = ("org.apache.spark.", "pyspark.errors.", "py4j.")
"""Packages whose exceptions begin their message with the text of another one."""
_HANDING_ON: Final = ("pyspark.errors", "py4j")
"""Packages of Python whose exceptions contain those of another process."""
_DEPTH_MAX: Final = 20
_SAYS_NOTHING: Final = frozenset(("", "null", FROM_THREAD))
"""Messages of exceptions that only pass on another one, or have none."""
_PASSING_ON: Final = frozenset(
    ("InvocationTargetException", "SparkException", "UndeclaredThrowableException")
)
"""Classes whose exceptions say nothing without a message."""

_LOST: Final = {
    "SparkException": (
        "Python worker exited unexpectedly",
        "Python worker failed to connect back",
        "Timed out while waiting for the Python worker to connect back",
    ),
    "ExecutorLostFailure": ("",),
    # Spark's own errors when queries of one session start at the same time.
    "OptionalDataException": ("",),
    "ConcurrentModificationException": ("",),
    "StreamCorruptedException": ("",),
}
"""By class, beginnings of messages. Spark gives a new Python process ten seconds to import what it
needs and to report; a busy machine sometimes takes longer."""

_ELSEWHERE: Final = frozenset(
    (
        "BrokenPipeError",
        "ClosedChannelException",
        "ConnectError",
        "ConnectException",
        "ConnectTimeout",
        "ConnectTimeoutError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "ConnectionTimeout",
        "HttpTimeoutException",
        "MaxRetryError",
        "MemoryError",
        "NameResolutionError",
        "NewConnectionError",
        "OutOfMemoryError",
        "ReadTimeout",
        "SocketException",
        "SocketTimeoutException",
        "Timeout",
        "TimeoutError",
        "TimeoutException",
        "URLError",
        "UnknownHostException",
        "gaierror",
    )
)
"""Classes of errors, in Python and Java, that memory or a network causes."""
_SYSTEM: Final = re.compile(r"\[Errno \d+\] |No space left on device")
_SHUT_DOWN: Final = re.compile(r"Job \d+ cancelled because SparkContext was shut down")


class Raised(NamedTuple):
    """An exception in a text."""

    kind: str
    """The class, with its package if it is shown, or the condition of an exception of Spark."""
    text: str
    """The message, and what follows it."""

    @property
    def name(self) -> str:
        """The class without its package."""
        return self.kind.rpartition(".")[2]


def raised_in(text: str) -> Iterator[Raised]:
    """The exceptions that a text begins with, from the outermost to the innermost."""
    rest: str | None = text
    for _ in range(_DEPTH_MAX):
        if rest is None:
            return
        rest = rest.lstrip()
        wrapper = (
            _STREAM.match(rest) or _JOB.match(rest) or _CALL.match(rest) or _AWAITED.match(rest)
        )
        if wrapper is not None:
            rest = rest[wrapper.end() :]
            continue
        raised, rest = _first(rest)
        if raised is not None:
            yield raised


def _first(text: str) -> tuple[Raised | None, str | None]:
    """The exception that a text begins with, and the text of the one that it passes on; None:
    what follows may be a value of an event."""
    if text.startswith("ExecutorLostFailure ("):
        return Raised("ExecutorLostFailure", text), None
    if _BARE.match(text) is not None:
        return Raised("SparkException", text), None
    if (condition := _CONDITION.match(text)) is not None:
        rest = text[condition.end() :]
        first_line, _, _ = rest.partition("\n")
        inner = rest[max(0, first_line.find("Traceback (")) :]
        return Raised(condition[1], rest), inner if condition[1] in _WRAPPING else None
    if (named := _TRACEBACK.match(text) or _CLASS.match(text)) is not None:
        rest = text[named.end() :]
        return Raised(named[1], rest), rest if named[1].startswith(_SPARKS) else None
    return None, None


def layers(error: BaseException) -> Iterator[BaseException]:
    """An error, its cause, the cause of that, and so on.

    An error that PySpark has converted from Java keeps its cause in ``_cause``.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        below = getattr(current, "_cause", None)
        current = below if isinstance(below, BaseException) else current.__cause__


def whole_text(error: BaseException) -> str:
    """The texts of an error and of its causes."""
    return "\n".join(map(str, layers(error)))


def chain(error: BaseException) -> Iterator[Raised]:
    """The exceptions of an error, of its causes, and of their texts."""
    for layer in layers(error):
        kind = type(layer)
        yield Raised(f"{kind.__module__}.{kind.__qualname__}", str(layer))
        if _hands_on(layer):
            yield from raised_in(str(layer))


def line_of(error: BaseException, text: str) -> str:
    """The first line of the innermost exception in an error's text; empty if it only passes on its
    cause."""
    raised = list(raised_in(text)) if _hands_on(error) else []
    inner = raised[-1] if raised else Raised("", _STREAM.sub("", text, count=1))
    line = inner.text.strip().partition("\n")[0].strip()
    is_class = "." in inner.kind
    if line in _SAYS_NOTHING:
        return inner.kind if is_class and inner.name not in _PASSING_ON else ""
    return f"{inner.kind}: {line}" if is_class and inner.name != "SparkException" else line


def _hands_on(error: BaseException) -> bool:
    """Whether it is of a class whose text contains exceptions of another process."""
    return type(error).__module__.startswith(_HANDING_ON)


def is_lost_process(error: BaseException) -> bool:
    """Whether a process of Spark's was killed, or came too late because the machine is busy."""
    return any(_is_lost_process(raised) for raised in chain(error))


def is_elsewhere(error: BaseException) -> bool:
    """Whether an error is of a kind that no event is to blame for."""
    return any(_is_lost_process(raised) or _is_elsewhere(raised) for raised in chain(error))


def _is_lost_process(raised: Raised) -> bool:
    return raised.text.startswith(_LOST.get(raised.name, ()))


def _is_elsewhere(raised: Raised) -> bool:
    if raised.name in _ELSEWHERE:
        return True
    if raised.name == "SparkException":
        return _SHUT_DOWN.match(raised.text) is not None
    return raised.name in ("OSError", "IOException") and bool(_SYSTEM.match(raised.text))
