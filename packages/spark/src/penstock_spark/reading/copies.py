"""Reads sealed files from a copy of the realm's data directory, such as one in an object store.

The length of a file is requested once, when the file is opened. Its record batches are read in
ranges of up to :data:`RANGE_BYTES`, with up to :data:`RANGES_IN_FLIGHT` requests at a time. A read
waits at most :data:`ANSWER_S` for the store; after a failure this process does not use the store
for :data:`PAUSE_S`.
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
"""A stored batch, a mask of the rows to read (None for all rows), and the publishers."""

RANGE_BYTES: Final = 8 << 20
"""Largest number of bytes that one request reads, unless a single record batch has more. Adjacent
record batches are read together."""
GAP_BYTES: Final = 256 << 10
"""Largest gap between two record batches, in bytes, that one request reads across: a second request
would take as long."""
RANGES_IN_FLIGHT: Final = 4
"""Number of ranges that are requested at the same time. With four, a store with a latency of 50 ms
delivers 640 MB/s."""
ANSWER_S: Final = 20.0
"""Seconds after which a store that has not answered counts as unavailable."""
PAUSE_S: Final = 60.0
"""Seconds without requests to a store after it was unavailable."""

_log = logging.getLogger("penstock.spark")


class MissingInCopy(Exception):
    """The copy does not contain a file, or only its beginning. The text names the file."""


class Range(NamedTuple):
    """A range of a file that one request reads."""

    offset: int
    length: int
    """Length in bytes."""
    batches: int
    """Number of record batches in the range."""


class Copy:
    """A copy of a realm's data directory. A process has one object for each URI."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._location: CopyLocation | None = None
        self._failure = ""
        """Error text of the last failure; empty before the first."""
        self._paused_until_s = 0.0
        """Time of ``time.perf_counter`` until which the store gets no requests."""
        self._is_reported = False
        self.answer_s = ANSWER_S
        self.pause_s = PAUSE_S

    def __repr__(self) -> str:
        return f"Copy({shown(self._uri)!r})"

    def is_first_report(self) -> bool:
        """Return whether this is the first call since the last failure of the store. The caller
        logs a warning then, so that a failure causes one warning for each process."""
        was_reported, self._is_reported = self._is_reported, True
        return not was_reported

    def open(self, name: str, size: int) -> Any:
        """Open a file of the copy.

        Raises ``MissingInCopy`` if the copy does not have the file with at least ``size`` bytes,
        and ``OSError`` if the store does not answer or refuses. For ``pause_s`` seconds after such
        a failure, every call raises ``OSError`` without a request to the store.
        """
        if self._failure and time.perf_counter() < self._paused_until_s:
            raise OSError(self._failure)
        location = self._location or self._call_store(
            lambda: place(self._uri, "option files"), name
        )
        self._location = location
        try:
            file, length = self._call_store(lambda: _open_file(location, name), name)
        except FileNotFoundError:
            raise MissingInCopy(f"{location.shown} has no {name}") from None
        if length < size:  # the single file of a channel grows, and the copy follows later
            raise MissingInCopy(f"{name} at {location.shown} has {length} bytes of {size}")
        return file

    def messages(self, file: Any, name: str, places: Sequence[SegmentBatch]) -> Iterator[pa.Buffer]:
        """Yield the bytes of each record batch of ``places``, in the order of the file.

        Raises ``OSError`` if the store fails or the file is too short.
        """
        requests: deque[tuple[Range, Future[bytes]]] = deque()
        remaining_ranges = iter(ranges(places))
        batch_index = 0
        while True:
            # Further requests start before the oldest answer is used, so that the store's latency
            # is paid once and not for each range.
            while (
                len(requests) < RANGES_IN_FLIGHT
                and (part := next(remaining_ranges, None)) is not None
            ):
                request = _start_call(partial(file.read_at, part.length, part.offset))
                requests.append((part, request))
            if not requests:
                return
            part, request = requests.popleft()
            content = pa.py_buffer(self._result_of(request, name))
            if content.size < part.length:
                raise OSError(
                    f"option files: {name} at {shown(self._uri)} ends within bytes "
                    f"{part.offset}-{part.offset + part.length}"
                )
            for batch in places[batch_index : batch_index + part.batches]:
                yield content.slice(batch.offset - part.offset, batch.length)
            batch_index += part.batches

    def _call_store(self, call: Callable[[], T], name: str) -> T:
        """Run ``call``, a request for the file ``name``, with the timeout of the store."""
        return self._result_of(_start_call(call), name)

    def _result_of(self, request: Future[T], name: str) -> T:
        """Return the result of a request for the file ``name``.

        Raises ``OSError`` if the request fails or has no result in time, and pauses the store.
        ``FileNotFoundError`` does not pause it, because the store works.
        """
        try:
            return request.result(self.answer_s)
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
    """Counts the events of a task by their source, and logs the counts if the task uses a copy.

    Sources are files, the wire instead of an unreadable file, and the wire for events that are not
    in a file yet.
    """

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

    def count_file(self, batch: pa.RecordBatch, rows: Any) -> None:
        """Count rows read from a file. ``rows`` is a mask of ``batch``; None counts all rows."""
        self._file_rows += batch.num_rows if rows is None else int(rows.sum())

    def count_tail(self, batches: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
        """Yield ``batches``, and count their events as not in a file yet."""
        for batch in batches:
            self._tail_rows += batch[0].num_rows
            yield batch

    def count_wire(self, batches: Iterator[ReadBatch], why: str) -> Iterator[ReadBatch]:
        """Yield ``batches``, and count their events as read over the wire because a file could not
        be read. ``why`` is the reason; the first one is logged."""
        self._wire_reason = self._wire_reason or why
        for batch in batches:
            self._wire_rows += batch[0].num_rows
            yield batch


_copies: dict[str, Copy] = {}


def copy_at(uri: str) -> Copy:
    """Return the copy at a URI. Its connections stay open until the process ends."""
    return _copies.setdefault(uri, Copy(uri))


def ranges(places: Sequence[SegmentBatch]) -> Iterator[Range]:
    """Yield the ranges of a file that contain the record batches ``places``, in order. Record
    batches that are close to each other share a range."""
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
    """Open a file of a copy; return the file and its size in bytes."""
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
