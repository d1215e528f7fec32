"""Reads sealed files from a copy of the realm's data directory, such as one in an object store.

The length of a file is requested once, when it is opened. Then the wanted record batches are read
in ranges of some megabytes, adjacent ones together, and some ranges ahead of the one in use. A read
waits at most :data:`ANSWER_S` for a store; after a failure this process does not use the store for
:data:`PAUSE_S`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from penstock.client.copies.object_store_uri import (
    CopyLocation,
    first_line,
    place,
)
from penstock_core.columns.files.segments import SegmentBatch
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.uris import shown, without_secrets

T = TypeVar("T")
ReadBatch = tuple[pa.RecordBatch, Any, Any]
"""A batch, a mask of its wanted rows, and their publishers."""

RANGE_BYTES: Final = 8 << 20
"""Adjacent record batches are read together, up to about so many bytes."""
GAP_BYTES: Final = 256 << 10
"""Largest gap between two wanted batches, in bytes, that one request reads across: another request
would take as long."""
RANGES_IN_FLIGHT: Final = 4
"""Ranges in flight: a store with a latency of 50 ms then delivers 640 MB/s."""
ANSWER_S: Final = 20.0
"""Seconds after which a store that has not answered counts as unavailable."""
PAUSE_S: Final = 60.0
"""Seconds without requests to an unavailable store."""

_log = logging.getLogger("penstock.spark")


class MissingInCopy(Exception):
    """The copy lacks a file, or a part of it; the text names the file and the reason."""


class Range(NamedTuple):
    """Bytes of a file that one request reads."""

    offset: int
    length: int
    batches: int
    """Number of record batches in the range."""


class Copy:
    """A copy of a realm's data directory; one object for each URI and process."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._location: CopyLocation | None = None
        self._failure = ""
        self._paused_until_s = 0.0
        self._is_reported = False
        self.answer_s = ANSWER_S
        self.pause_s = PAUSE_S

    def __repr__(self) -> str:
        return f"Copy({shown(self._uri)!r})"

    def is_first_report(self) -> bool:
        """Return True at the first call after a failure of the store; the caller then warns."""
        was_reported, self._is_reported = self._is_reported, True
        return not was_reported

    def open(self, name: str, size: int) -> Any:
        """Open a file of the copy that must have at least ``size`` bytes.

        Raises ``MissingInCopy``, and ``OSError`` for a store that does not answer or refuses; for
        ``pause_s`` after that, it raises without a request to the store.
        """
        if self._failure and time.perf_counter() < self._paused_until_s:
            raise OSError(self._failure)
        location = self._location or self._ask(lambda: place(self._uri, "option files"), name)
        self._location = location
        try:
            file, length = self._ask(lambda: _open_file(location, name), name)
        except FileNotFoundError:
            raise MissingInCopy(f"{location.shown} has no {name}") from None
        if length < size:  # a single file grows, and the copy follows later
            raise MissingInCopy(f"{name} at {location.shown} has {length} bytes of {size}")
        return file

    def messages(self, file: Any, name: str, places: Sequence[SegmentBatch]) -> Iterator[pa.Buffer]:
        """Yield the bytes of record batches, in the order of the file. Raises ``OSError``."""
        started: deque[tuple[Range, Future[bytes]]] = deque()
        remaining_ranges = iter(ranges(places))
        first = 0
        while True:
            while (
                len(started) < RANGES_IN_FLIGHT
                and (part := next(remaining_ranges, None)) is not None
            ):
                started.append((part, _start_call(partial(file.read_at, part.length, part.offset))))
            if not started:
                return
            part, reading = started.popleft()
            read = pa.py_buffer(self._answer(reading, name))
            if read.size < part.length:
                raise OSError(
                    f"option files: {name} at {shown(self._uri)} ends within bytes "
                    f"{part.offset}-{part.offset + part.length}"
                )
            for batch in places[first : first + part.batches]:
                yield read.slice(batch.offset - part.offset, batch.length)
            first += part.batches

    def _ask(self, question: Callable[[], T], name: str) -> T:
        return self._answer(_start_call(question), name)

    def _answer(self, answer: Future[T], name: str) -> T:
        try:
            return answer.result(self.answer_s)
        except FileNotFoundError:
            raise
        except TooLate:
            reason = f"no answer within {self.answer_s:g} s"
        except (OSError, pa.ArrowException, InvalidArgument) as error:
            reason = without_secrets(first_line(error), self._uri)
        self._failure = f"option files: {name} cannot be read at {shown(self._uri)}: {reason}"
        self._paused_until_s = time.perf_counter() + self.pause_s
        self._location = None
        self._is_reported = False
        raise OSError(self._failure)


class Tally:
    """Counts the events of a task by origin; logs the counts if a copy was requested."""

    def __init__(self, channel: str, span: Span, copy: Copy | None) -> None:
        self._channel = channel
        self._span = span
        self._copy = copy
        self._file_rows = self._wire_rows = self._tail_rows = 0
        self._wire_reason = ""

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, *of_error: object) -> None:
        if self._copy is None:
            return
        text = "channel %s, events %d-%d: %d of %r, %d over the wire, %d not sealed%s"
        why = f"; {self._wire_reason}" if self._wire_reason else ""
        counts = (self._file_rows, self._copy, self._wire_rows, self._tail_rows)
        is_first_report = bool(why) and self._copy.is_first_report()
        level = logging.WARNING if is_first_report else logging.INFO
        _log.log(level, text, self._channel, self._span.first, self._span.end - 1, *counts, why)

    def read(self, batch: pa.RecordBatch, rows: Any) -> None:
        """Count the wanted rows of a batch of a file (None: all)."""
        self._file_rows += batch.num_rows if rows is None else int(rows.sum())

    def tail(self, batches: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
        """Count events that are not in a file yet and are read over the wire."""
        for read in batches:
            self._tail_rows += read[0].num_rows
            yield read

    def instead(self, batches: Iterator[ReadBatch], why: str) -> Iterator[ReadBatch]:
        """Count events that are read over the wire because their file could not be read."""
        self._wire_reason = self._wire_reason or why
        for read in batches:
            self._wire_rows += read[0].num_rows
            yield read


_copies: dict[str, Copy] = {}


def copy_at(uri: str) -> Copy:
    """Return the copy at a URI; connections are kept for the life of the process."""
    return _copies.setdefault(uri, Copy(uri))


def ranges(places: Sequence[SegmentBatch]) -> Iterator[Range]:
    """Yield the ranges to read for these record batches; adjacent batches share a range."""
    first, end, batches = 0, 0, 0
    for batch in places:
        batch_end = batch.offset + batch.length
        if batches and (batch.offset - end > GAP_BYTES or batch_end - first > RANGE_BYTES):
            yield Range(first, end - first, batches)
            batches = 0
        if not batches:
            first = batch.offset
        end, batches = batch_end, batches + 1
    if batches:
        yield Range(first, end - first, batches)


def _open_file(location: CopyLocation, name: str) -> tuple[Any, int]:
    file = location.files.open_input_file(location.path(name))
    return file, file.size()


def _start_call(call: Callable[[], T]) -> Future[T]:
    """Run ``call`` on a new daemon thread. A pool would delay the end of the process, because a
    store may never answer."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)

    threading.Thread(target=run, name="penstock-copy", daemon=True).start()
    return future
