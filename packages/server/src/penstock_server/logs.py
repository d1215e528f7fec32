"""How the log is written: JSON lines for machines, aligned text for people.

Only programs configure logging. The client library logs through Python's own ``logging``, so
an application decides; an embedded realm says warnings and worse on standard error.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from datetime import datetime
from threading import Lock
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.typing import ExcInfo, Processor

from penstock_core.printable import on_one_line, plain
from penstock_server.runtime.writer.clock import SystemClock

LINES_A_SECOND: Final = 100
"""Most lines of one event in a second: what strangers cause, such as a storm of connections, fills
no disk. Lines of ``debug`` are all written, for who asks for them wants them."""
LEFT_OUT: Final = "lines.left_out"
"""The event that tells how many lines of another were not written."""

_log = structlog.get_logger("penstock.logs")

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "text", "json"]


def configure(
    level: Level,
    style: Format = "auto",
    stream: TextIO | None = None,
    *,
    steady_us: Callable[[], int] | None = None,
) -> None:
    """Write lines of ``level`` and above to ``stream`` (standard error when None).

    ``auto`` is text on a terminal and JSON lines elsewhere. Lines of other libraries, which use
    Python's ``logging``, come out in the same form.
    """
    out = _Tolerant(sys.stderr if stream is None else stream)
    as_text = style == "text" or (style == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        _local_time if as_text else structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering = _text(coloured=out.isatty()) if as_text else _json()
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[_Bounded(steady_us or SystemClock().steady_us), *shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", out)),
        cache_logger_on_first_use=False,
    )
    lines = logging.StreamHandler(cast("TextIO", out))
    lines.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[lines], level=max(number, logging.WARNING), force=True)


class _Bounded:
    """Leaves out what is more than :data:`LINES_A_SECOND` of one event, and tells how many lines
    that were: a second later where a loop runs, otherwise with the next line of any event."""

    def __init__(self, steady_us: Callable[[], int]) -> None:
        self._steady_us = steady_us
        self._second = 0
        self._written: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._lock = Lock()
        """Threads log, too."""

    def __call__(
        self, _: Any, method: str, entry: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event = str(entry.get("event"))
        if method == "debug" or event == LEFT_OUT:
            return entry
        with self._lock:
            second = self._steady_us() // 1_000_000
            is_new, is_first = second != self._second, False
            if is_new:
                self._second, self._written = second, Counter()
            self._written[event] += 1
            is_written = self._written[event] <= LINES_A_SECOND
            if not is_written:
                is_first = not self._left_out
                self._left_out[event] += 1
        if is_written:
            if is_new:
                self.tell()
            return entry
        if is_first:
            with suppress(RuntimeError):  # no loop runs in this thread
                asyncio.get_running_loop().call_later(1, self.tell)
        raise structlog.DropEvent

    def tell(self) -> None:
        """Say what was left out since this was said last."""
        with self._lock:
            left_out, self._left_out = self._left_out, Counter()
        for event, lines in left_out.items():
            _log.warning("lines.left_out", of=event, lines=lines)


class _Tolerant:
    """A stream that may have lost its reader, or be on a full disk: a line that cannot be written
    is lost, and stops neither what it tells about nor the realm."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def configure_unless_done() -> None:
    """Warnings and worse on standard error, unless the application has set up structlog."""
    if not structlog.is_configured():
        configure("warning", "text")


def _local_time(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """What the clock on the wall shows, with its zone: two machines may have two."""
    entry["timestamp"] = datetime.now().astimezone().isoformat(" ", "milliseconds")
    return entry


def _text(*, coloured: bool) -> list[Processor]:
    return [
        _printable,
        structlog.dev.ConsoleRenderer(
            colors=coloured,
            pad_event_to=20,
            pad_level=True,
            sort_keys=False,
            exception_formatter=_traceback,
        ),
    ]


def _printable(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Values hold what strangers have chosen: nothing of it is obeyed by a terminal, or looks like
    a line of its own. What is no text is shown by its ``repr``, which keeps to one line."""
    for name, value in entry.items():
        if name in ("stack", "exception") and isinstance(value, str):
            entry[name] = _indented(value)
        elif isinstance(value, str):
            entry[name] = on_one_line(value)
        elif name != "exc_info":
            entry[name] = _Shown(on_one_line(repr(value)))
    return entry


class _Shown:
    """A value whose text is made already."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _traceback(out: TextIO, exc_info: ExcInfo) -> None:
    """Its lines stand apart from those of the log: the text of an error may have any."""
    traceback = io.StringIO()
    structlog.dev.plain_traceback(traceback, exc_info)
    out.write(_indented(traceback.getvalue()))


def _indented(text: str) -> str:
    return textwrap.indent(plain(text), "    ", lambda line: bool(line.strip()))


def _json() -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        _what_first,
        structlog.processors.JSONRenderer(sort_keys=False),
    ]


def _what_first(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """When, how bad and what, then the values."""
    lead = {name: entry.pop(name) for name in ("timestamp", "level", "event") if name in entry}
    return {**lead, **entry}
