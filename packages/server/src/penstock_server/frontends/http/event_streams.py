"""Streams of all selected events of a channel, queue or durable.

A stream is a browse that ends at the event that is the newest one at the time of the request. The
realm reads a block of events, and reads the next one when the client has received this one. So a
slow client takes no more memory than one encoded block.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from penstock_core.api.channels import DescribeColumns
from penstock_core.api.reading import BrowseEvents, BrowseOutstanding
from penstock_core.api.subscriptions import BrowseDurable, Subscribe
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.schema.ipc import schema_from
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.errors import InvalidArgument, PenstockError
from penstock_core.vocabulary.start_positions import FromId
from penstock_server.frontends.http.accepting import (
    ARROW,
    CSV,
    JSON,
    NDJSON,
    STREAMED,
    accepted_form,
)
from penstock_server.frontends.http.event_documents import messages_of
from penstock_server.frontends.http.finding import Store, cursor_of, find_store, start_of
from penstock_server.frontends.http.routing import Call, EventStream
from penstock_server.frontends.http.shapes import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    PREVIEW_BYTES,
    EventsQuery,
    OutstandingQuery,
)
from penstock_server.frontends.http.stream_forms import (
    ArrowForm,
    CsvForm,
    FlatTables,
    LinesForm,
    StreamForm,
)
from penstock_server.runtime.delivery.byte_credit import RoughRoom
from penstock_server.runtime.operations.callers import HTTP_SESSION
from penstock_server.runtime.operations.door import open_subscription
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

BLOCK_EVENTS_MAX: Final = 1 << 13
"""Largest number of events of a block."""
BLOCK_BYTES_MAX: Final = 1 << 20
"""Estimated size in bytes of the events of a block; a single event may be larger."""
PART_BYTES: Final = 256 << 10
"""Number of bytes that are sent at once. A client that needs longer than ``http.send_timeout_s``
seconds for them is dropped."""
PAUSE_S: Final = 0.05
"""Longest pause in seconds between two blocks."""
FIRST_S: Final = 10.0
"""Seconds to wait for the first block before the answer begins. An error before that has a status
of its own; a later one breaks off the body."""


FORMATS: Final[Mapping[str, str]] = MappingProxyType({"arrow": ARROW, "csv": CSV, "ndjson": NDJSON})
"""Content types of streams by the values of the parameter ``format``."""


class EventBlock(NamedTuple):
    """Events that are encoded together."""

    batches: list[EventBatch]
    events: int
    size: int
    """Estimated size in bytes, as the byte credit of the browse counts it."""


class _BlockOutlet:
    """Receives the events of a browse until the next block is taken."""

    def __init__(self, selector: Selector | None, limit: int | None) -> None:
        """``limit`` is the largest number of events of all blocks together; None for all."""
        self.session = HTTP_SESSION
        self.selector = selector
        self._left = limit
        self._block = EventBlock([], 0, 0)
        self._has_ended = False
        self._reason: PenstockError | None = None
        self._wake = asyncio.Event()

    @property
    def is_writable(self) -> bool:
        return True

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        batch = rows.batch
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
            self._has_ended |= not self._left
        batches, events, size = self._block
        if batch.num_rows:
            batches.append(EventBatch(batch, publishers=rows.publishers))
        self._block = EventBlock(batches, events + batch.num_rows, size + rows.weight)
        self._wake.set()

    def recall(self, spans: Spans) -> None:
        """Do nothing: a browse has no seat, so events cannot be taken back."""

    def finished(self) -> None:
        self._has_ended = True
        self._wake.set()

    def closed(self, reason: PenstockError) -> None:
        """End the stream with an error, whatever it has received."""
        self._reason = reason
        self._wake.set()

    async def wait(self) -> None:
        """Wait until :meth:`next` returns at once."""
        await self._wake.wait()

    async def next(self) -> EventBlock | None:
        """Wait for events and take them; None after the last event. Raises the error that has ended
        the browse."""
        await self._wake.wait()
        if self._reason is not None:
            raise self._reason
        block, self._block = self._block, EventBlock([], 0, 0)
        if not self._has_ended:
            self._wake.clear()
        return block if block.events else None


class _Reader:
    """Reads the blocks of one stream and encodes them."""

    _form: StreamForm

    def __init__(self, call: Call[Any, Any], outlet: _BlockOutlet) -> None:
        self._call = call
        self._outlet = outlet
        self._subscription = 0
        self._taken = EventBlock([], 0, 0)
        """The block that is being sent."""
        self._is_complete = False
        self._pieces: list[memoryview] | None = None
        """The encoded block, if the answer waits for it."""

    async def open(
        self, opening: Subscribe | BrowseDurable, form_of: Callable[[], Awaitable[StreamForm]]
    ) -> None:
        """Begin the browse, and read the first block unless that takes long. Raises the errors of
        the browse, and ``InvalidArgument`` for an unknown column."""
        caller = self._call.caller
        caller.check(opening)
        room = RoughRoom(BLOCK_BYTES_MAX)
        opened = await open_subscription(caller, opening, self._outlet, room=room)
        self._subscription = opened.number
        # The columns are read after the last event of the stream is known, so that they include the
        # properties of all its events.
        self._form = await form_of()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                await self._outlet.wait()
            self._pieces = await self._next()

    def close(self) -> None:
        self._call.realm.subscriptions.detach(self._subscription)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the encoded stream in parts. Raises the error that has ended the browse."""
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            pieces = self._pieces if self._pieces is not None else await self._next()
            self._pieces = None
            took_s = clock() - began_s
            for part in _parts_of(pieces):
                yield part
                await asyncio.sleep(0)  # a fast client must not keep the loop from the others
            if self._is_complete:
                return
            self._call.realm.subscriptions.credit(
                self._subscription, self._taken.events, taken=self._taken.size
            )
            # Three quarters of the time are left to other clients.
            await asyncio.sleep(min(3 * took_s, PAUSE_S))

    async def _next(self) -> list[memoryview]:
        """Return the next encoded block, or the end of the stream."""
        block = await self._outlet.next()
        if block is None:
            self._is_complete = True
            return await self._call.realm.offload(self._form.end)
        self._taken = block
        return await self._call.realm.offload(partial(self._form.block, block.batches))


def _parts_of(pieces: Sequence[memoryview]) -> Iterator[bytes]:
    """Yield the bytes in parts of at most ``PART_BYTES``."""
    for piece in pieces:
        for offset in range(0, len(piece), PART_BYTES):
            yield bytes(piece[offset : offset + PART_BYTES])


def stream_kind(call: Call[Any, None]) -> str | None:
    """Return the content type of the stream that the client requests by ``format`` or ``Accept``;
    None for a page of JSON."""
    if call.query.format is not None:
        return FORMATS.get(call.query.format)
    kind = accepted_form(call.headers.get("accept", ""), (JSON, *STREAMED))
    return None if kind == JSON else kind


def page_limit(limit: int | None) -> int:
    """Return the largest number of events of a page. Raises ``InvalidArgument``."""
    if limit is None:
        return LIMIT_DEFAULT
    if limit > LIMIT_MAX:
        raise InvalidArgument(
            f"limit={limit} is above {LIMIT_MAX}, the largest page of JSON; request a stream for "
            f"more events (format={'|'.join(FORMATS)})"
        )
    return limit


async def stream_of_channel(call: Call[EventsQuery, None], kind: str) -> EventStream:
    """Return a stream of the stored events of a channel, of the content type ``kind``.

    Raises ``InvalidArgument``, ``InvalidSelector``, and the errors of the browse.
    """
    query = call.query
    if query.newest:
        raise InvalidArgument("newest=true is available in pages of JSON only, not in a stream")
    cursor = cursor_of(query.after)
    start = start_of(query.start) if cursor is None else FromId(cursor)
    if isinstance(start, FromId) and query.end is not None and start.event_id > query.end:
        raise InvalidArgument(
            f"start is {start.event_id} and end is {query.end}, an empty range; end is the last id "
            f"of the range and must be at least start"
        )
    store = await find_store(call, BrowseEvents)
    opening = Subscribe(
        store.number,
        subscription=0,
        start=start,
        credit=_window(query),
        browse=True,
        last_id=query.end,
    )
    return await _stream(call, kind, store, opening=opening)


async def stream_of_outstanding(
    call: Call[OutstandingQuery, None], kind: str, durable: str
) -> EventStream:
    """Return a stream of the outstanding events of a durable or queue, of the content type
    ``kind``, as :func:`stream_of_channel` does."""
    if call.query.after:
        raise InvalidArgument("after is for pages of JSON; a stream begins at the first event")
    store = await find_store(call, BrowseOutstanding)
    opening = BrowseDurable(
        store.number, subscription=0, durable=durable, credit=_window(call.query)
    )
    return await _stream(call, kind, store, opening=opening)


def _window(query: EventsQuery | OutstandingQuery) -> int:
    """Return the number of events to read at once."""
    return min(BLOCK_EVENTS_MAX, query.limit or BLOCK_EVENTS_MAX)


async def _stream(
    call: Call[Any, None], kind: str, store: Store, opening: Subscribe | BrowseDurable
) -> EventStream:
    """Return a stream of the events that the request ``opening`` selects, in the content type
    ``kind``. Raises ``InvalidArgument``, ``InvalidSelector``."""
    query = call.query
    if query.data_bytes != PREVIEW_BYTES:
        raise InvalidArgument("data_bytes is for pages of JSON; a stream has all data")
    choosing = call.realm.dispatch.choosing
    selector = await choosing.parse(query.selector) if query.selector else None
    outlet = _BlockOutlet(selector, query.limit)
    reader = _Reader(call, outlet)
    try:
        await reader.open(opening, partial(_form, call, kind, store))
    except BaseException:
        reader.close()
        raise
    return EventStream(reader.parts(), kind=kind, close=reader.close, stop=outlet.closed)


async def _form(call: Call[Any, None], kind: str, store: Store) -> StreamForm:
    """Return the encoder of a stream. Raises ``InvalidArgument`` for an unknown column."""
    if kind == NDJSON:
        return LinesForm(messages_of(store), call.query.columns)
    columns = await call.answer(DescribeColumns(store.number))
    schema = ChannelSchema.empty().grown(schema_from(columns))
    tables = FlatTables(schema, call.query.columns)
    return ArrowForm(tables) if kind == ARROW else CsvForm(tables)
