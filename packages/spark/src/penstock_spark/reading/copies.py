"""Reads sealed files where a copy of the realm's data directory is, such as an object store.

The length of a file is asked for once, when it is opened. Then the record batches that a task wants
are read in ranges of some megabytes, neighbours together, some ranges ahead of the one in use.
Nobody waits longer than :data:`ANSWER_S` for a store; after a failure this process leaves it alone
for a minute.
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
Found = tuple[pa.RecordBatch, Any, Any]
"""A batch, which of its rows are wanted, and their publishers."""

RANGE_BYTES: Final = 8 << 20
"""Record batches that lie together are read together, up to about so many bytes."""
HOLE_BYTES: Final = 256 << 10
"""Unwanted bytes that are read along, because another request to a store takes as long."""
AHEAD: Final = 4
"""Ranges on their way: a store that takes 50 ms for each gives 640 MB/s."""
ANSWER_S: Final = 20.0
"""Seconds after which a store that has not answered counts as unavailable."""
PAUSE_S: Final = 60.0
"""Seconds for which an unavailable store is not asked again."""

_log = logging.getLogger("penstock.spark")


class MissingInCopy(Exception):
    """The copy lacks a file, or a part of it; the text says which and why."""


class Range(NamedTuple):
    """Bytes of a file that are read in one piece."""

    offset: int
    length: int
    batches: int
    """Number of record batches in the file."""


class Copy:
    """A copy of a realm's data directory; one object for each URI and process."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._place: CopyLocation | None = None
        self._failed = ""
        self._until = 0.0
        self._warned = False
        self.answer_s = ANSWER_S

    def __repr__(self) -> str:
        return f"Copy({shown(self._uri)!r})"

    def is_news(self) -> bool:
        """Whether this process has not warned yet that events had to be read from the realm."""
        was, self._warned = self._warned, True
        return not was

    def open(self, name: str, size: int) -> Any:
        """Open the file of that name, which has at least ``size`` bytes.

        Raises ``MissingInCopy``, and ``OSError`` for a store that does not answer or refuses; for
        a minute after that it raises without asking the store again.
        """
        if self._failed and time.perf_counter() < self._until:
            raise OSError(self._failed)
        found = self._place or self._asked(lambda: place(self._uri, "option files"), name)
        self._place = found
        try:
            file, length = self._asked(lambda: _opened(found, name), name)
        except FileNotFoundError:
            raise MissingInCopy(f"{found.shown} has no {name}") from None
        if length < size:  # a single file grows, and the copy follows later
            raise MissingInCopy(f"{name} at {found.shown} has {length} bytes of {size}")
        return file

    def messages(self, file: Any, name: str, places: Sequence[SegmentBatch]) -> Iterator[pa.Buffer]:
        """The bytes of record batches, in the order of the file. Raises ``OSError``."""
        ahead: deque[tuple[Range, Future[bytes]]] = deque()
        waiting = iter(ranges(places))
        at = 0
        while True:
            while len(ahead) < AHEAD and (part := next(waiting, None)) is not None:
                ahead.append((part, _begun(partial(file.read_at, part.length, part.offset))))
            if not ahead:
                return
            part, reading = ahead.popleft()
            read = pa.py_buffer(self._answer(reading, name))
            if read.size < part.length:
                raise OSError(
                    f"option files: {name} at {shown(self._uri)} ends within bytes "
                    f"{part.offset}-{part.offset + part.length}"
                )
            for batch in places[at : at + part.batches]:
                yield read.slice(batch.offset - part.offset, batch.length)
            at += part.batches

    def _asked(self, question: Callable[[], T], name: str) -> T:
        return self._answer(_begun(question), name)

    def _answer(self, asked: Future[T], name: str) -> T:
        try:
            return asked.result(self.answer_s)
        except FileNotFoundError:
            raise
        except TooLate:
            reason = f"no answer within {self.answer_s:g} s"
        except (OSError, pa.ArrowException, InvalidArgument) as error:
            reason = without_secrets(first_line(error), self._uri)
        self._failed = f"option files: {name} cannot be read at {shown(self._uri)}: {reason}"
        self._until = time.perf_counter() + PAUSE_S
        self._place = None
        self._warned = False
        raise OSError(self._failed)


class Tally:
    """Counts where the events of a task came from; logs it where a copy was to be read."""

    def __init__(self, channel: str, span: Span, copy: Copy | None) -> None:
        self._channel = channel
        self._span = span
        self._copy = copy
        self._read = self._instead = self._tail = 0
        self._why = ""

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, *of_error: object) -> None:
        if self._copy is None:
            return
        text = "channel %s, events %d-%d: %d of %r, %d over the wire, %d not sealed%s"
        why = f"; {self._why}" if self._why else ""
        counts = (self._read, self._copy, self._instead, self._tail)
        is_news = bool(why) and self._copy.is_news()
        level = logging.WARNING if is_news else logging.INFO
        _log.log(level, text, self._channel, self._span.first, self._span.end - 1, *counts, why)

    def read(self, batch: pa.RecordBatch, rows: Any) -> None:
        """A batch of a file, and which of its rows (None: all)."""
        self._read += batch.num_rows if rows is None else int(rows.sum())

    def tail(self, found: Iterator[Found]) -> Iterator[Found]:
        """Count events that are in no file yet and come over the wire."""
        for each in found:
            self._tail += each[0].num_rows
            yield each

    def instead(self, found: Iterator[Found], why: str) -> Iterator[Found]:
        """Count events that come over the wire because their file could not be read."""
        self._why = self._why or why
        for each in found:
            self._instead += each[0].num_rows
            yield each


_copies: dict[str, Copy] = {}


def copy_at(uri: str) -> Copy:
    """The copy at a place; connections are kept for the life of the process."""
    return _copies.setdefault(uri, Copy(uri))


def ranges(places: Sequence[SegmentBatch]) -> Iterator[Range]:
    """The ranges in which record batches are read; neighbours are read together."""
    first, end, batches = 0, 0, 0
    for batch in places:
        after = batch.offset + batch.length
        if batches and (batch.offset - end > HOLE_BYTES or after - first > RANGE_BYTES):
            yield Range(first, end - first, batches)
            batches = 0
        if not batches:
            first = batch.offset
        end, batches = after, batches + 1
    if batches:
        yield Range(first, end - first, batches)


def _opened(found: CopyLocation, name: str) -> tuple[Any, int]:
    file = found.files.open_input_file(found.path(name))
    return file, file.size()


def _begun(call: Callable[[], T]) -> Future[T]:
    """Runs on a thread of its own: no pool that the end of a process would wait for, as a store
    may never answer."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised where the answer is waited for
            future.set_exception(error)

    threading.Thread(target=run, name="penstock-copy", daemon=True).start()
    return future
