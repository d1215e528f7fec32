"""Configures the log, which is JSON lines for machines or aligned text for people.

Only programs configure logging. The client library logs through Python's ``logging``, so the
application configures it. An embedded realm logs warnings and errors to standard error.
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
"""Maximum number of lines per second for one event, so that clients that have not signed in cannot
fill the disk, for example by opening many connections. The limit does not apply to ``debug``,
which is off by default."""
LEFT_OUT: Final = "lines.left_out"
"""The event that reports how many lines of another event were omitted."""

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
    """Write lines of ``level`` and above to ``stream`` (standard error if None).

    ``auto`` is text on a terminal and JSON lines elsewhere. Lines of other libraries, which use
    Python's ``logging``, have the same format.
    """
    out = _FailsafeStream(sys.stderr if stream is None else stream)
    as_text = style == "text" or (style == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        _local_time if as_text else structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering = _text(coloured=out.isatty()) if as_text else _json()
    level_number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[_RateLimit(steady_us or SystemClock().steady_us), *shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level_number),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", out)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(cast("TextIO", out))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(level_number, logging.WARNING), force=True)


class _RateLimit:
    """Omits lines of an event above :data:`LINES_A_SECOND`, and reports their number: a second
    later if an event loop runs, otherwise before the next line of any event."""

    def __init__(self, steady_us: Callable[[], int]) -> None:
        self._steady_us = steady_us
        self._second = 0
        self._written: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._lock = Lock()
        """Protects the counters, because several threads may log."""

    def __call__(
        self, _: Any, method: str, entry: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event = str(entry.get("event"))
        # The report itself must never be omitted.
        if method == "debug" or event == LEFT_OUT:
            return entry
        with self._lock:
            second = self._steady_us() // 1_000_000
            is_new_second, is_first = second != self._second, False
            if is_new_second:
                self._second, self._written = second, Counter()
            self._written[event] += 1
            is_written = self._written[event] <= LINES_A_SECOND
            if not is_written:
                is_first = not self._left_out
                self._left_out[event] += 1
        if is_written:
            if is_new_second:
                self.report()
            return entry
        if is_first:
            with suppress(RuntimeError):  # no loop runs in this thread
                asyncio.get_running_loop().call_later(1, self.report)
        raise structlog.DropEvent

    def report(self) -> None:
        """Log how many lines were omitted since the last report."""
        with self._lock:
            left_out, self._left_out = self._left_out, Counter()
        for event, lines in left_out.items():
            _log.warning("lines.left_out", of=event, lines=lines)


class _FailsafeStream:
    """A stream that drops lines which cannot be written, for example to a closed pipe or a full
    disk, so that a failing log does not stop the realm."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def configure_unless_done() -> None:
    """Log warnings and errors to standard error, unless the application has configured
    structlog."""
    if not structlog.is_configured():
        configure("warning", "text")


def _local_time(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the local time with its zone, because machines may be in different zones."""
    entry["timestamp"] = datetime.now().astimezone().isoformat(" ", "milliseconds")
    return entry


def _text(*, coloured: bool) -> list[Processor]:
    """Return the processors that turn a log line into text for people."""
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
    """Escape values, because clients may have chosen them: they must not control a terminal or
    look like a separate line. A value that is not text becomes its ``repr`` on one line."""
    for name, value in entry.items():
        if name in ("stack", "exception") and isinstance(value, str):
            entry[name] = _indented(value)
        elif isinstance(value, str):
            entry[name] = on_one_line(value)
        elif name != "exc_info":
            entry[name] = _Rendered(on_one_line(repr(value)))
    return entry


class _Rendered:
    """A value with a prepared ``repr``."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _traceback(out: TextIO, exc_info: ExcInfo) -> None:
    """Write a traceback with indentation, because the text of an error may imitate a log line."""
    traceback = io.StringIO()
    structlog.dev.plain_traceback(traceback, exc_info)
    out.write(_indented(traceback.getvalue()))


def _indented(text: str) -> str:
    return textwrap.indent(plain(text), "    ", lambda line: bool(line.strip()))


def _json() -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        _event_first,
        structlog.processors.JSONRenderer(sort_keys=False),
    ]


def _event_first(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Put time, level and event before the values."""
    lead = {name: entry.pop(name) for name in ("timestamp", "level", "event") if name in entry}
    return {**lead, **entry}
