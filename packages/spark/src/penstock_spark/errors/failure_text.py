"""Parses the texts of exceptions that Spark passes from other processes.

Such a text quotes values of events in many places, so the parser never searches the text for words.
It starts at the beginning, removes the wrappers that Spark, Java and Python write around an
exception, and recognises the exception by its class, its condition and the beginning of its
message.
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
"""Message of the exception with which Spark wraps an exception of another thread."""
_AWAITED: Final = re.compile(rf"{FROM_THREAD}\s*\n(?:[ \t]+(?:at |\.{{3}} )[^\n]*\n)*Caused by: ")
"""``FROM_THREAD`` and the stack frames that follow it, up to the cause."""
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]{3,})\] ")
_CLASS: Final = re.compile(r"([A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)+)(?:: |\n|$)")
_WITHOUT_CLASS: Final = re.compile(
    r"(Python worker |Timed out while waiting for the Python worker )"
)
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
_SPARK_PACKAGES: Final = ("org.apache.spark.", "pyspark.errors.", "py4j.")
"""Packages whose exceptions begin their message with the text of another one."""
_PASSES_ON_TEXT: Final = ("pyspark.errors", "py4j")
"""Packages of Python whose exceptions contain those of another process."""
_DEPTH_MAX: Final = 20
"""Largest number of wrappers that the parser removes from one text."""
_NOT_UNDONE: Final = "Writing job failed."
"""Message of the exception with which Spark wraps the failure of a write that it could not abort
either."""
_UNINFORMATIVE: Final = frozenset(("", "null", FROM_THREAD, _NOT_UNDONE))
"""Messages of exceptions that only wrap another one, or have no text."""
_WRAPPER_CLASSES: Final = frozenset(
    ("InvocationTargetException", "SparkException", "UndeclaredThrowableException")
)
"""Classes that carry no information without a message."""

_LOST_PROCESS: Final = {
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
"""Beginnings of the messages of lost processes, by class. Spark allows a new Python process ten
seconds for its imports and its first report; a busy machine sometimes needs longer."""

_ENVIRONMENT_ERRORS: Final = frozenset(
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
"""Classes of errors, in Python and Java, whose cause is the network or a lack of memory."""
_SYSTEM: Final = re.compile(r"\[Errno \d+\] |No space left on device")
_SHUT_DOWN: Final = re.compile(r"Job \d+ cancelled because SparkContext was shut down")


class Raised(NamedTuple):
    """An exception that a text names."""

    kind: str
    """The class, with its package if it is shown, or Spark's error condition, such as
    PYTHON_EXCEPTION."""
    text: str
    """The message, and everything that follows it in the text."""

    @property
    def name(self) -> str:
        """The class without its package."""
        return self.kind.rpartition(".")[2]


def raised_in(text: str) -> Iterator[Raised]:
    """Yield the exceptions that a text begins with, from the outermost to the innermost."""
    remaining_text: str | None = text
    for _ in range(_DEPTH_MAX):
        if remaining_text is None:
            return
        remaining_text = remaining_text.lstrip()
        wrapper = (
            _STREAM.match(remaining_text)
            or _JOB.match(remaining_text)
            or _CALL.match(remaining_text)
            or _AWAITED.match(remaining_text)
        )
        if wrapper is not None:
            remaining_text = remaining_text[wrapper.end() :]
            continue
        raised, remaining_text = _outermost(remaining_text)
        if raised is not None:
            yield raised


def _outermost(text: str) -> tuple[Raised | None, str | None]:
    """Return the exception at the beginning of a text, and the text of the exception that it wraps.

    The second value is None unless the exception is known to wrap another one: any other text may
    quote data of an event, which must not be parsed as an exception.
    """
    if text.startswith("ExecutorLostFailure ("):
        return Raised("ExecutorLostFailure", text), None
    if _WITHOUT_CLASS.match(text) is not None:
        return Raised("SparkException", text), None
    if (condition := _CONDITION.match(text)) is not None:
        message = text[condition.end() :]
        first_line, _, _ = message.partition("\n")
        wrapped_text = message[max(0, first_line.find("Traceback (")) :]
        return Raised(condition[1], message), wrapped_text if condition[1] in _WRAPPING else None
    if (match := _TRACEBACK.match(text) or _CLASS.match(text)) is not None:
        message = text[match.end() :]
        return Raised(match[1], message), message if match[1].startswith(_SPARK_PACKAGES) else None
    return None, None


def layers(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of the cause, and so on.

    An error that PySpark has converted from Java keeps its cause in ``_cause``.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        cause = getattr(current, "_cause", None)
        current = cause if isinstance(cause, BaseException) else current.__cause__


def whole_text(error: BaseException) -> str:
    """Return the texts of an error and of its causes, one below the other."""
    return "\n".join(map(str, layers(error)))


def chain(error: BaseException) -> Iterator[Raised]:
    """Yield an error, its causes, and the exceptions that the texts of these name."""
    for layer in layers(error):
        kind = type(layer)
        yield Raised(f"{kind.__module__}.{kind.__qualname__}", str(layer))
        if _has_foreign_text(layer):
            yield from raised_in(str(layer))


def line_of(error: BaseException, text: str) -> str:
    """Return the first line of the innermost exception in an error's text; empty if the error only
    wraps its cause."""
    raised = list(raised_in(text)) if _has_foreign_text(error) else []
    innermost = raised[-1] if raised else Raised("", _STREAM.sub("", text, count=1))
    line = innermost.text.strip().partition("\n")[0].strip()
    is_class = "." in innermost.kind
    if line in _UNINFORMATIVE:
        return innermost.kind if is_class and innermost.name not in _WRAPPER_CLASSES else ""
    return f"{innermost.kind}: {line}" if is_class and innermost.name != "SparkException" else line


def _has_foreign_text(error: BaseException) -> bool:
    """Return whether the text of an error contains exceptions of another process."""
    return type(error).__module__.startswith(_PASSES_ON_TEXT)


def is_lost_process(error: BaseException) -> bool:
    """Return whether a process of Spark was killed, or started too slowly on a busy machine."""
    return any(_is_lost_process(raised) for raised in chain(error))


def is_of_environment(error: BaseException) -> bool:
    """Return whether an error is of a kind that events cannot cause."""
    return any(_is_lost_process(raised) or _is_of_environment(raised) for raised in chain(error))


def _is_lost_process(raised: Raised) -> bool:
    return raised.text.startswith(_LOST_PROCESS.get(raised.name, ()))


def _is_of_environment(raised: Raised) -> bool:
    if raised.name in _ENVIRONMENT_ERRORS:
        return True
    if raised.name == "SparkException":
        return _SHUT_DOWN.match(raised.text) is not None
    return raised.name in ("OSError", "IOException") and bool(_SYSTEM.match(raised.text))
