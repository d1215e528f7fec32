"""An engine and a Proton client, connected in memory. The test decides when data is sent, and which
frames arrive together."""

from __future__ import annotations

from typing import Any

from proton import Collector, Connection, Event, Message, Transport

from penstock_amqp.engine import AmqpEngine
from penstock_amqp.link_ends import IncomingLink, OutgoingLink


class Pair:
    """One open connection. The engine's side opens everything that the client opens."""

    def __init__(
        self,
        *,
        message_bytes_max: int = 1 << 20,
        parts_bytes_max: int = 1 << 20,
        idle_timeout_s: float = 0,
    ) -> None:
        self.message_bytes_max = message_bytes_max
        self.engine = AmqpEngine(self, idle_timeout_s, parts_bytes_max)
        self.connection = Connection()
        self._transport = Transport(Transport.CLIENT)
        self._collector = Collector()
        self.connection.collect(self._collector)
        self._transport.bind(self.connection)
        self.incoming: list[IncomingLink] = []
        self.outgoing: list[OutgoingLink] = []
        self.too_large_by: list[IncomingLink] = []
        self.too_many_parts_by: list[IncomingLink] = []
        self.too_early_by: list[Any] = []
        self.held_parts_bytes = 0
        self.parts_room = 1 << 30
        """Bytes that other connections of the user leave to this one for unfinished messages."""
        self.messages: list[bytes] = []
        self.outcomes: list[Any] = []
        self.accepted: list[int] = []
        self.connection.open()
        self.session = self.connection.session()
        self.session.open()
        self.pump()

    # --- bytes ---------------------------------------------------------------------------

    def sent(self) -> bytes:
        """Return the bytes that the client has to send now."""
        output = b""
        while (pending := self._transport.pending()) > 0:
            output += self._transport.peek(pending)
            self._transport.pop(pending)
        return output

    def pump(self) -> None:
        """Exchange data until both sides have received everything."""
        while True:
            data, back = self.sent(), self.engine.output()
            if not data and not back:
                return
            if data:
                self.engine.feed(data)
            if back:
                self._transport.push(back)
            while self._collector.peek() is not None:
                self._collector.pop()

    # --- the client ----------------------------------------------------------------------

    def sender(self, name: str = "s") -> Any:
        link = self.session.sender(name)
        link.target.address = "jobs"
        link.open()
        self.pump()
        return link

    def receiver(self, name: str = "r", credit: int = 10) -> Any:
        link = self.session.receiver(name)
        link.source.address = "jobs"
        link.open()
        link.flow(credit)
        self.pump()
        return link

    # --- the engine's peer ---------------------------------------------------------------

    def received(self, link: IncomingLink) -> None:
        self.messages += link.messages
        link.messages.clear()
        link.deliveries.clear()

    def settled(self, link: OutgoingLink) -> None:
        self.outcomes += link.outcomes
        self.accepted += link.accepted
        link.outcomes, link.accepted = [], []

    def too_large(self, link: IncomingLink) -> None:
        self.too_large_by.append(link)
        self.engine.drop(link)

    def too_early(self, link: Any) -> None:
        self.too_early_by.append(link)

    def too_many(self, link: IncomingLink) -> None:
        raise AssertionError("Proton's own client keeps to its credit")

    def may_hold(self, size: int) -> bool:
        self.held_parts_bytes = size
        return size <= self.parts_room

    def too_many_parts(self, link: IncomingLink) -> None:
        self.too_many_parts_by.append(link)
        self.engine.drop(link)

    def process_event(self, event: Event) -> None:
        if event.type == Event.CONNECTION_REMOTE_OPEN:
            self.engine.connection.open()
        elif event.type == Event.SESSION_REMOTE_OPEN:
            event.session.open()
        elif event.type == Event.LINK_REMOTE_OPEN:
            event.link.source.copy(event.link.remote_source)
            event.link.target.copy(event.link.remote_target)
            event.link.open()
            if event.link.is_receiver:
                most = self.message_bytes_max
                self.incoming.append(IncomingLink(event.link, credit=10, message_bytes_max=most))
                self.engine.add_incoming(self.incoming[-1])
            else:
                self.outgoing.append(OutgoingLink(event.link, settled=False))
                self.engine.add_outgoing(self.outgoing[-1])


def encoded(body: bytes) -> bytes:
    message: bytes = Message(body=body).encode()
    return message
