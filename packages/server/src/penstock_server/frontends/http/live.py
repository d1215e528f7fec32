"""Live views of a channel's events as they are published, and of the realm's counters.

A view is a browse that does not end. So it does not count as a subscriber, the realm keeps no
events for it, and it uses no more memory than its window. A view has credit for a few events at a
time. If it falls too far behind, it continues at the newest events, and its viewer gets the ids of
the missed events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final, TypeVar

import msgspec

from penstock_core.api.reading import WatchEvents
from penstock_core.api.realm import ReadRates
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.protobuf import Messages
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.errors import PenstockError, RealmStopping
from penstock_core.vocabulary.start_positions import AnyStart, FromId
from penstock_server.frontends.http.event_documents import document_of, messages_of
from penstock_server.frontends.http.finding import Store, start_of
from penstock_server.frontends.http.realm_shapes import Rates, RatesQuery
from penstock_server.frontends.http.routing import Call, Events
from penstock_server.frontends.http.shapes import ErrorDetail, LiveQuery, Lost, answer_from
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.door import open_subscription
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

WINDOW: Final = 100
"""Maximum number of events granted to a viewer and not yet sent to it."""
BEHIND_MAX: Final = 2_000
"""Maximum lag of a viewer in events; if it is larger, the view continues at the newest events."""
KEEP_ALIVE_S: Final = 10.0
"""Seconds without an event after which the viewer gets a comment, which keeps proxies from closing
the connection."""
LINE_BYTES_MAX: Final = 256 << 10
"""Maximum size in bytes of an event that is shown with its data and properties."""
RATES_S: Final = 1.0
"""Seconds between two reports of the counters."""

LiveQueryT = TypeVar("LiveQueryT", bound=LiveQuery)


class Viewer:
    """Receives the delivered events of a view and encodes them as lines."""

    def __init__(
        self,
        selector: Selector | None,
        messages: Messages | None,
        data_bytes: int,
        *,
        channel: str = "",
        wake: asyncio.Event | None = None,
        line_bytes_max: int = LINE_BYTES_MAX,
    ) -> None:
        self.session = "http"
        self.selector = selector
        self.lines: deque[bytes] = deque()
        self.reason: PenstockError | None = None
        """Reason why the view ended; None while it is open."""
        self.wake = asyncio.Event() if wake is None else wake
        self.channel = channel
        """Name to add to each event in a view of several channels; empty in a view of one."""
        self._messages = messages
        self._data_bytes = data_bytes
        self._line_bytes_max = line_bytes_max

    @property
    def is_writable(self) -> bool:
        return True

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        for event in EventBatch(rows.batch, publishers=rows.publishers):
            document = document_of(event, self._messages, self._data_bytes)
            line = msgspec.json.encode(document)
            if len(line) > self._line_bytes_max:
                # The viewer gets the event without its content, and can request all of it with
                # events/{id}.
                small = msgspec.structs.replace(
                    document,
                    properties={},
                    headers={},
                    data="",
                    data_base64=None,
                    message=None,
                    is_cut=True,
                    origin=None,
                )
                line = msgspec.json.encode(small)
            self.lines.append(self._event(document.event_id, line))
        self.wake.set()

    def _event(self, event_id: int, document: bytes) -> bytes:
        """Return an event as a server-sent event; for a view of several channels, with the
        channel's name."""
        if not self.channel:
            return b"id: %d\nevent: event\ndata: %b\n\n" % (event_id, document)
        name = msgspec.json.encode(self.channel)
        # The name is put in front of the fields of the document, whose first byte is its brace.
        return b'event: event\ndata: {"channel":%b,%b\n\n' % (name, document[1:])

    def recall(self, spans: Spans) -> None:
        """Do nothing: a viewer has no seat, so events cannot be taken back."""

    def finished(self) -> None:
        """Do nothing: a view has no last event."""

    def closed(self, reason: PenstockError) -> None:
        self.reason = reason
        self.wake.set()

    def take_lines(self) -> list[bytes]:
        """Return the waiting lines and remove them."""
        lines = list(self.lines)
        self.lines.clear()
        return lines


class ChannelView:
    """A live view of one channel or queue."""

    def __init__(self, caller: Caller, store: Store, viewer: Viewer, window: int = WINDOW) -> None:
        self._caller = caller
        self._window = window
        self._realm = caller.realm
        self._store = store
        self._viewer = viewer
        self._subscription = 0

    async def open(self, start: AnyStart) -> None:
        request = WatchEvents(self._store.number, start, self._window)
        opened = await open_subscription(self._caller, request, self._viewer)
        self._subscription = opened.number

    def close(self) -> None:
        self._realm.subscriptions.detach(self._subscription)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield the lines for the viewer until the channel is deleted."""
        viewer = self._viewer
        yield b": watching\n\n"
        while viewer.reason is None:
            await woken(viewer.wake)
            lines = viewer.take_lines()
            yield b"".join(lines) or b": nothing new\n\n"
            if (skipped_ids := await self.skip_if_behind()) is not None:
                yield message("lost", skipped_ids)
            # A view that has skipped events was opened again, and so has credit for a full window.
            elif lines:
                self.credit(len(lines))
        reason = viewer.reason
        yield message("end", ErrorDetail(code=reason.code, message=str(reason)))

    def credit(self, count: int) -> None:
        """Grant the subscription credit for as many events as were sent to the viewer."""
        self._realm.subscriptions.credit(self._subscription, count)

    async def skip_if_behind(self) -> Lost | None:
        """If the view is too far behind, reopen it at the newest events and return the skipped ids;
        otherwise return None."""
        store = self._realm.view.store(self._store.number)
        first = None if store is None else store.cursor(self._subscription)
        if store is None or first is None or store.next_id - first <= BEHIND_MAX:
            return None
        # The newest events that fit the window are still shown.
        begin = store.next_id - WINDOW
        self.close()
        try:
            await self.open(FromId(begin))
        except PenstockError as error:
            # The channel was deleted or the right revoked. `lines` sends the reason to the viewer.
            self._viewer.closed(error)
            return None
        return Lost(first_id=first, last_id=begin - 1, events=begin - first)


def message(name: str, document: Any) -> bytes:
    """Encode one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(document))


async def woken(wake: asyncio.Event) -> None:
    """Wait until a viewer has lines or a keep-alive comment is due."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KEEP_ALIVE_S):
            await wake.wait()
    wake.clear()


async def selector_of(call: Call[LiveQueryT, None]) -> Selector | None:
    """Parse the selector of a view; None if it has no selector. Raises ``InvalidSelector``."""
    text = call.query.selector
    return await call.caller.realm.dispatch.choosing.parse(text) if text else None


async def open_channel_view(call: Call[LiveQuery, None], store: Store) -> Events:
    """Open a live view. Raises ``InvalidSelector``, ``InvalidArgument``."""
    query = call.query
    viewer = Viewer(await selector_of(call), messages_of(store), query.data_bytes)
    view = ChannelView(call.caller, store, viewer)
    await view.open(start_of(query.start))
    return Events(view.lines(), close=view.close, stop=viewer.closed)


def rates(call: Call[RatesQuery, None], request: ReadRates) -> Events:
    """Return a stream of the counters, with one document per second."""
    end = _End()
    return Events(_rates(call, request, end), close=end.wake.set, stop=end.stop)


class _End:
    """The signal that a stream of counters must end, with the reason."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.reason: PenstockError = RealmStopping("the realm is shutting down")

    def stop(self, reason: PenstockError) -> None:
        self.reason = reason
        self.wake.set()


async def _rates(
    call: Call[RatesQuery, None], request: ReadRates, end: _End
) -> AsyncGenerator[bytes, None]:
    """Yield the counters as a server-sent event every ``RATES_S`` seconds, and the reason at the
    end."""
    while not end.wake.is_set():
        yield message("rates", answer_from(await call.answer(request), Rates))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RATES_S):
                await end.wake.wait()
    yield message("end", ErrorDetail(code=end.reason.code, message=str(end.reason)))
