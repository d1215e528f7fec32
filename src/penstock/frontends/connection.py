"""One native connection: frames in, requests to the realm; answers and deliveries out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import structlog

from penstock.columns.check import check_body
from penstock.columns.ipc import batch_from, schema_from
from penstock.columns.selectors import Selector
from penstock.core.errors import (
    ConnectionLost,
    InvalidArgument,
    InvalidEvent,
    PenstockError,
    RemoteProtocolViolation,
    Unavailable,
)
from penstock.core.ids import Span
from penstock.core.messages import Spans
from penstock.frontends.requests import Requests
from penstock.runtime.bodies import Body
from penstock.runtime.rows import Rows
from penstock.runtime.schemas import Schemas
from penstock.wire.native import messages as wire
from penstock.wire.native.frames import (
    FRAME_BYTES_MAX,
    PREFACE,
    FrameReader,
    coalesced,
    frame,
)

if TYPE_CHECKING:
    from penstock.frontends.native import NativeListener

GREETING_BYTES_MAX = 64 << 10
"""Largest frame of a peer that has not said hello."""
CONGESTION_CHECK_S = 0.01
WRITE_HIGH_WATER = 1 << 20
"""Bytes waiting to be sent above which a connection gets no more deliveries, and is not read:
a peer that takes no answers gets no further questions in."""
REQUESTS_MAX = 1_024
"""Requests of one connection being worked on, above which it is not read."""
SCHEMAS_MAX = 10_000
"""Schemas a connection may announce."""
LINGER_S = 2.0
"""How long a connection that was ended has to take its last bytes."""

_log = structlog.get_logger("penstock.native")


class Subscription:
    """The outlet of one subscription of this connection."""

    def __init__(
        self, connection: Connection, client_number: int, selector: Selector | None
    ) -> None:
        self._connection = connection
        self.client_number = client_number
        self.session = connection.session
        self.selector = selector

    @property
    def writable(self) -> bool:
        return self._connection.writable

    def deliver(self, rows: Rows, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        self._connection.deliver(self.client_number, rows, redeliveries)

    def recall(self, spans: Spans) -> None:
        self._connection.send(wire.Recalled(self.client_number, spans))

    def finished(self) -> None:
        self._connection.send(wire.Finished(self.client_number))

    def closed(self, reason: PenstockError) -> None:
        self._connection.forget(self.client_number)
        self._connection.send(wire.Closed(self.client_number, reason.code, str(reason)))


class Connection(asyncio.BufferedProtocol):
    def __init__(self, listener: NativeListener) -> None:
        self.listener = listener
        self.realm = listener.realm
        self.session = ""
        self.publisher = ""
        """``user@host``: stamped on what this connection publishes (SEM E3)."""
        self.writable = True
        self.subscriptions: dict[int, int] = {}
        """Realm-wide number of each subscription, by the client's number; 0 while it is opened."""
        self.opening: dict[int, asyncio.Event] = {}
        """Those that are being opened, the first one first; set once that is through."""
        self._reader = FrameReader(preface=PREFACE, frame_bytes_max=GREETING_BYTES_MAX)
        self._requests = Requests(self)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._flush_is_due = False
        self._schemas_in: dict[int, bytes] = {}
        self._schemas_out: set[int] = set()
        self._opened_s = 0.0
        self._heard_s = 0.0
        self._unsent = 0
        self._in_progress = 0
        self._reads_paused = False
        self._is_open = False
        self._loop = asyncio.get_running_loop()

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self._transport = transport
        self._opened_s = self._heard_s = self._loop.time()
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self._is_open = self.listener.opened(self)
        if not self._is_open:
            self.end(Unavailable("the realm takes no more connections now"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> None:
        self._heard_s = self._loop.time()
        self._reader.buffer_updated(count)
        try:
            for header, body in self._reader.frames():
                self._receive(wire.decode_from_client(header), body)
        except PenstockError as error:
            _log.warning("connection.refused", peer=self._peer(), reason=str(error))
            self.end(error)
        if not self._may_read:
            self._pause_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._is_open = False
        self.writable = False
        self.listener.closed(self)
        self._leave(lost=True)

    def _leave(self, *, lost: bool) -> None:
        """Give up all seats: what they held goes back at once (SEM D13). Those of a connection
        that is ``lost`` may come back (SEM J5)."""
        subscriptions = self.realm.subscriptions
        for subscription in self.subscriptions.values():
            (subscriptions.lose if lost else subscriptions.detach)(subscription)
        self.subscriptions.clear()
        self._requests.transfers.leave()

    def pause_writing(self) -> None:
        self.writable = False
        self.realm.subscriptions.stall(self.session, stalled=True)
        self._pause_reading()

    def resume_writing(self) -> None:
        self.writable = True
        self.realm.subscriptions.stall(self.session, stalled=False)

    # --- in ------------------------------------------------------------------------------

    def _receive(self, message: wire.FromClient, body: memoryview) -> None:
        if not self._is_open:
            return
        match message:
            case wire.Hello():
                self._greet(message)
            case _ if not self.session:
                raise RemoteProtocolViolation("the first frame has to be a Hello")
            case wire.Schema(number):
                self._learn(number, bytes(body))
            case wire.Bye():
                self.end(None)
            case wire.Credit() | wire.Demand() | wire.RecallSeen():
                self._told(message)
            case _:
                self._requests.take(message, body)

    def _told(self, message: wire.Credit | wire.Demand | wire.RecallSeen) -> None:
        """What a subscription is told, and does not answer."""
        subscription = self.subscriptions.get(message.subscription)
        if subscription is None:
            return
        match message:
            case wire.Credit(_, count, next_id):
                self.realm.subscriptions.credit(subscription, count, next_id)
            case wire.Demand(_, count):
                self.realm.subscriptions.demand(subscription, count)
            case wire.RecallSeen():
                self.realm.subscriptions.recall_seen(subscription)

    def _greet(self, hello: wire.Hello) -> None:
        if self.session or not hello.session:
            raise RemoteProtocolViolation("a connection says Hello once, with a session id")
        self.session = hello.session
        self.publisher = f"{hello.user}@{self._host()}"
        self._reader.frame_bytes_max = FRAME_BYTES_MAX
        self.listener.greeted(self)
        self.send(
            wire.Welcome(
                self.realm.identity,
                self.realm.name,
                self.listener.version,
                self.realm.limits.event_bytes_max,
                FRAME_BYTES_MAX,
            )
        )

    def _learn(self, number: int, schema: bytes) -> None:
        if len(self._schemas_in) >= SCHEMAS_MAX:
            raise RemoteProtocolViolation(
                f"more than {SCHEMAS_MAX} schemas on one connection; publish events of like kind "
                "together, or open another session"
            )
        schema_from(schema)
        self._schemas_in[number] = schema

    def bodies(self, schema: int, sizes: tuple[int, ...], body: memoryview) -> list[Body]:
        """The batches of a frame, checked. Raises ``InvalidEvent``."""
        encoded = self._schemas_in.get(schema)
        if encoded is None:
            raise InvalidArgument(f"schema {schema} was never sent on this connection")
        if sum(sizes) != len(body) or any(size <= 0 for size in sizes):
            raise InvalidEvent(f"batches of {sum(sizes)} bytes in a body of {len(body)}")
        arrow = schema_from(encoded)
        found, at = [], 0
        for size in sizes:
            part = body[at : at + size]
            batch = batch_from(part, arrow)
            check_body(batch)
            if batch.num_rows == 0:
                raise InvalidEvent("a batch without events")
            found.append(Body(part, batch, encoded))
            at += size
        return found

    @property
    def _may_read(self) -> bool:
        return self.writable and self._in_progress < REQUESTS_MAX and not self.listener.is_congested

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._reads_paused:
            self._reads_paused = True
            self._transport.pause_reading()
            self._loop.call_later(CONGESTION_CHECK_S, self._resume_reading)

    def _resume_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not self._may_read:
            self._loop.call_later(CONGESTION_CHECK_S, self._resume_reading)
            return
        self._heard_s = self._loop.time()
        self._reads_paused = False
        self._transport.resume_reading()

    def check(self, now_s: float) -> None:
        """Called regularly: end a connection whose peer is silent, or takes nothing, for long."""
        limits = self.listener.limits
        if self._transport is None:
            return
        if not self.session:
            if now_s - self._opened_s > limits.hello_timeout_s:
                self.end(ConnectionLost(f"no Hello within {limits.hello_timeout_s:g} s"))
            return
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent or (self._reads_paused and self.writable):
            self._heard_s = now_s  # it takes something; or it is this side that does not listen
        self._unsent = unsent
        if now_s - self._heard_s > limits.idle_timeout_s:
            self.end(ConnectionLost(f"nothing was heard for {limits.idle_timeout_s:g} s"))

    # --- out -----------------------------------------------------------------------------

    def send(self, message: wire.Message, *bodies: bytes | bytearray | memoryview) -> None:
        """Queue a frame; frames of one turn of the loop leave together."""
        if self._transport is None:
            return
        self._out += frame(wire.encode(message), *bodies)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        out, self._out = self._out, []
        if self._transport is None or self._transport.is_closing() or not out:
            return
        for part in coalesced(out):
            self._transport.write(part)

    def fail(self, request: int, error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            raise error
        self.send(wire.Failed(request, error.code, str(error)))

    def deliver(self, number: int, rows: Rows, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        schemas = self.realm.shard.state.schemas
        schema = rows.piece.number if rows.piece else schemas.transient(rows.batch.schema)
        if schema not in self._schemas_out:
            self._announce(schema, schemas)
        counted = redeliveries
        if redeliveries:
            around = Span(rows.spans[0][0], rows.spans[-1][1])
            counted = tuple(
                (count, mine) for count, spans in redeliveries if (mine := _within(spans, around))
            )
        body = rows.body
        self.send(
            wire.Delivery(
                number, schema, rows.count, rows.first_id, rows.at_us, counted, rows.publishers
            ),
            body,
        )

    def _announce(self, schema: int, schemas: Schemas) -> None:
        self._schemas_out.add(schema)
        self.send(wire.Schema(schema), schemas.bytes_of(schema))

    def end(self, reason: PenstockError | None) -> None:
        """Say why, and close; a peer that does not take it in time is dropped."""
        transport = self._transport
        if reason is not None and transport is not None and not transport.is_closing():
            self.send(wire.Goodbye(reason.code, str(reason)))
        self._is_open = False
        self._flush()
        self._leave(lost=reason is not None)
        if transport is not None and not transport.is_closing():
            transport.close()
            if transport.get_write_buffer_size():
                self._loop.call_later(LINGER_S, transport.abort)

    def abort(self) -> None:
        """Drop the connection: its peer had its time."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def unsent_bytes(self) -> int:
        """What waits because the peer does not take it."""
        waiting = sum(map(len, self._out))
        return waiting + (self._transport.get_write_buffer_size() if self._transport else 0)

    def forget(self, number: int) -> None:
        self.subscriptions.pop(number, None)

    def spawn(self, request: int, work: Callable[[], Any]) -> None:
        """Answer a request that has to wait for the realm."""
        self._in_progress += 1
        self.listener.spawn(self._answer(request, work))

    async def _answer(self, request: int, work: Callable[[], Any]) -> None:
        try:
            answer = await work()
        except PenstockError as error:
            self.fail(request, error)
        except Exception as error:  # noqa: BLE001  a task's root: the others must live on
            _log.exception("request.failed", peer=self._peer())
            self.fail(request, PenstockError(f"the realm failed to do this: {error!r}"))
        else:
            self.send(wire.Done(request, answer))
        finally:
            self._in_progress -= 1

    def _host(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport else None
        return str(peer[0]) if isinstance(peer, tuple) and peer else "localhost"

    def _peer(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport else None
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and peer else "local"


def _within(spans: Spans, around: Span) -> Spans:
    """The part of ``spans`` inside a range; the receiver looks up only ids it was sent."""
    if around.first <= spans[0][0] and spans[-1][1] <= around.end:
        return spans  # the usual case
    parts = [Span(*span).clipped(around) for span in spans]
    return tuple(part for part in parts if part.size)
