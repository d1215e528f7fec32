"""A queue or topic of a broker with AMQP 1.0, read by Proton's engine over a blocking socket."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any, Final

from proton import (
    Collector,
    Connection,
    Delivery,
    Event,
    Link,
    Terminus,
    Transport,
)

from penstock_amqp.incoming import batches_of
from penstock_amqp.wire.sections import fields, sections_of
from penstock_server.runtime.writer.clock import SystemClock
from penstock_tools.bridge import sources
from penstock_tools.bridge.sources import (
    SourceBatch,
    SourceBounds,
    SourceLost,
    SourceSocket,
    SourceUrl,
    too_large,
)

IDLE_S: Final = 60.0
"""Seconds of silence after which either side closes the connection."""
RECEIVE_BYTES: Final = 256 << 10
IDENTITY_CHARACTERS_MAX: Final = 100
"""A longer message id is represented by its digest."""


class AmqpSource:
    """A link that receives messages, at most ``window`` of them and ``window_bytes`` before they
    are settled."""

    def __init__(
        self,
        url: SourceUrl,
        name: str,
        bounds: SourceBounds,
        *,
        is_subscription: bool = False,
    ) -> None:
        """``name`` identifies the client and its link at the source. With ``is_subscription`` the
        source keeps the messages of a topic while this client is not connected."""
        self._url = url
        self._name = f"penstock-bridge-{name}"
        self._bounds = bounds
        self._is_subscription = is_subscription
        self._tls = url.tls_context()
        self._clock = SystemClock()
        self._socket: SourceSocket | None = None
        self._begin()

    def _begin(self) -> None:
        self._deliveries: list[Delivery] = []
        """Complete messages that are not settled."""
        self._messages: list[bytes] = []
        self._unusable: set[int] = set()
        """Indexes of the messages that cannot become events."""
        self._partial = bytearray()
        """The message that is being received."""
        self._held_bytes = 0
        self._transport, self._connection = Transport(), Connection()
        self._collector = Collector()
        self._connection.collect(self._collector)
        self._link: Any = None

    # --- connection ----------------------------------------------------------------------

    def connect(self, state: bytes) -> None:
        """Connect. ``state`` is ignored: a source with AMQP has none."""
        self.close()
        self._begin()
        url, connection = self._url, self._connection
        self._socket = SourceSocket(url, self._tls)
        sasl = self._transport.sasl()
        sasl.allowed_mechs("PLAIN" if url.user else "ANONYMOUS")
        # TLS is below Proton, which therefore takes the connection for an open one. The URL has
        # been checked: a password is sent over TLS or inside this machine.
        sasl.allow_insecure_mechs = True
        connection.container, connection.hostname = self._name, url.host
        if url.user:
            connection.user, connection.password = url.user, url.password
        self._transport.idle_timeout = IDLE_S
        self._transport.bind(connection)
        connection.open()
        self._open_link()
        self._wait_for(lambda: self._is_open, sources.CONNECT_S)
        if not self._is_open:
            self.close()
            raise SourceLost(f"{url} does not open the link within {sources.CONNECT_S:g} s")

    @property
    def _is_open(self) -> bool:
        """Whether the source has opened the link. A source that refuses the link first answers
        without an address, and then with the reason."""
        is_answered = self._link.state & Link.REMOTE_ACTIVE
        return bool(is_answered) and self._link.remote_source.type != Terminus.UNSPECIFIED

    def _open_link(self) -> None:
        session = self._connection.session()
        # Bounds the bytes that the source may send before they are read.
        session.incoming_capacity = max(self._bounds.window_bytes, 1 << 20)
        session.open()
        self._link = session.receiver(self._name)
        self._link.source.address = self._url.address
        # A message that is settled before it arrives would be lost by a kill.
        self._link.snd_settle_mode = Link.SND_UNSETTLED
        if self._is_subscription:
            self._link.source.durability = Terminus.DELIVERIES
            self._link.source.expiry_policy = Terminus.EXPIRE_NEVER
        self._link.open()
        self._link.flow(self._bounds.window)

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is None:
            return
        with suppress(OSError, SourceLost):
            self._connection.close()
            self._send(opened)
        opened.close()

    # --- messages ------------------------------------------------------------------------

    def receive(self, timeout_s: float) -> SourceBatch | None:
        partial_bytes = len(self._partial)
        self._wait_for(lambda: bool(self._messages), timeout_s)
        # Messages that have arrived meanwhile belong to the same batch.
        while self._messages and self._may_hold_more and self._exchange(0.0):
            pass
        if not self._messages:
            return SourceBatch() if len(self._partial) > partial_bytes else None
        now_ms = self._clock.now_us() // 1_000
        batches, unusable = batches_of(self._messages, now_ms, was_delivered=True)
        self._unusable = {message.index for message in unusable}
        return SourceBatch(
            [batch.batch for batch in batches],
            [[identity_of(self._messages[index]) for index in batch.indexes] for batch in batches],
            count=len(self._messages),
            unusable=[str(message.error) for message in unusable],
        )

    @property
    def _may_hold_more(self) -> bool:
        return (
            len(self._messages) < self._bounds.window
            and self._held_bytes < self._bounds.window_bytes
        )

    def settle(self) -> None:
        for index, delivery in enumerate(self._deliveries):
            delivery.update(Delivery.REJECTED if index in self._unusable else Delivery.ACCEPTED)
            delivery.settle()
        count = len(self._deliveries)
        self._deliveries, self._messages, self._unusable = [], [], set()
        self._held_bytes = 0
        self._link.flow(count)
        self._send(self._opened)
        self._process()

    def _take(self, delivery: Delivery) -> None:
        """Take the received part of a message. Raises ``EventTooLarge``."""
        while delivery.pending:
            part = self._link.recv(delivery.pending)
            if not part:
                break
            self._partial += part
        if len(self._partial) > self._bounds.message_bytes_max:
            raise too_large(self._url, self._bounds.message_bytes_max)
        if delivery.aborted:
            self._partial.clear()
            delivery.settle()
        elif not delivery.partial:
            self._deliveries.append(delivery)
            self._messages.append(bytes(self._partial))
            self._held_bytes += len(self._partial)
            self._partial.clear()
            self._link.advance()

    # --- engine --------------------------------------------------------------------------

    @property
    def _opened(self) -> SourceSocket:
        if self._socket is None:
            raise SourceLost(f"{self._url} is not connected")
        return self._socket

    def _wait_for(self, is_done: Any, timeout_s: float) -> None:
        """Exchange bytes until ``is_done`` or the time is over. Raises :class:`SourceLost`."""
        end_us = self._clock.steady_us() + int(timeout_s * 1_000_000)
        self._process()
        while not is_done() and (remaining_us := end_us - self._clock.steady_us()) > 0:
            self._exchange(min(remaining_us / 1_000_000, 1.0))

    def _exchange(self, timeout_s: float) -> bool:
        """Send due bytes, receive bytes for up to ``timeout_s``, and return whether any arrived."""
        opened = self._opened
        self._transport.tick(self._clock.now_us() / 1_000_000)
        self._send(opened)
        data = opened.receive(min(RECEIVE_BYTES, max(1, self._transport.capacity())), timeout_s)
        if not data:
            return False
        self._transport.push(data)
        self._process()
        self._send(opened)
        return True

    def _send(self, opened: SourceSocket) -> None:
        while (pending := self._transport.pending()) > 0:
            data = self._transport.peek(pending)
            if not data:
                break
            opened.send(data)
            self._transport.pop(len(data))

    def _process(self) -> None:
        """Handle the events of the engine. Raises :class:`SourceLost` and ``EventTooLarge``."""
        while (event := self._collector.peek()) is not None:
            if event.type == Event.DELIVERY:
                if event.delivery.readable:
                    self._take(event.delivery)
            elif event.type in (
                Event.LINK_REMOTE_CLOSE,
                Event.LINK_REMOTE_DETACH,
                Event.SESSION_REMOTE_CLOSE,
                Event.CONNECTION_REMOTE_CLOSE,
                Event.TRANSPORT_ERROR,
            ):
                condition = _condition_of(event)
                self._collector.pop()
                reason = f": {condition.name}: {condition.description}" if condition else ""
                raise SourceLost(f"{self._url} has ended the link{reason}")
            self._collector.pop()


def _condition_of(event: Event) -> Any:
    if event.type == Event.TRANSPORT_ERROR:
        return event.transport.condition
    for endpoint in (event.link, event.session, event.connection):
        if endpoint is not None and endpoint.remote_condition is not None:
            return endpoint.remote_condition
    return None


def identity_of(message: bytes) -> str | None:
    """Return the type and the message id of an encoded message; None without an id."""
    encoded = sections_of(message).properties
    values = fields(encoded) if encoded else []
    if not values or values[0] is None:
        return None
    message_id = values[0]
    text = message_id.hex() if isinstance(message_id, bytes) else str(message_id)
    if len(text) > IDENTITY_CHARACTERS_MAX:
        text = hashlib.sha256(text.encode()).hexdigest()
    return f"{type(message_id).__name__}:{text}"
