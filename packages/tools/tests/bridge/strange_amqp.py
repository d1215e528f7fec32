"""A broker with AMQP 1.0 that sends any bytes as messages, valid or not."""

from __future__ import annotations

from itertools import count
from threading import Event as Flag
from threading import Thread
from types import TracebackType
from typing import Any, Self

from proton.handlers import MessagingHandler
from proton.reactor import Container

from penstock_testing.ports import free_port


class StrangeAmqp(MessagingHandler):  # type: ignore[misc]  # Proton has no type information
    """Sends encoded messages to each receiver, and keeps those that were not settled."""

    def __init__(self, messages: list[bytes]) -> None:
        super().__init__(auto_settle=False)
        self.port = free_port()
        self.url = f"amqp://127.0.0.1:{self.port}/old"
        self.accepted: list[bytes] = []
        self.rejected: list[bytes] = []
        self._waiting = messages
        self._sent: dict[str, tuple[Any, bytes]] = {}
        """Connection and message of each delivery that is not settled."""
        self._tags = map(str, count())
        self._listening, self._stopping = Flag(), Flag()
        self._thread = Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _serve(self) -> None:
        container = Container(self)
        container.timeout = 0.05
        container.start()
        while container.process() and not self._stopping.is_set():
            pass
        self._acceptor.close()
        container.stop()
        container.process()

    def on_start(self, event: Any) -> None:
        self._acceptor = event.container.listen(f"127.0.0.1:{self.port}")
        self._listening.set()

    def on_link_opening(self, event: Any) -> None:
        link = event.link
        link.source.address = link.remote_source.address
        link.open()

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._waiting:
            message = self._waiting.pop(0)
            tag = next(self._tags)
            self._sent[tag] = event.connection, message
            event.sender.delivery(tag)
            event.sender.stream(message)
            event.sender.advance()

    def on_accepted(self, event: Any) -> None:
        self.accepted.append(self._sent.pop(event.delivery.tag)[1])

    def on_rejected(self, event: Any) -> None:
        self.rejected.append(self._sent.pop(event.delivery.tag)[1])

    def on_connection_closing(self, event: Any) -> None:
        self.on_disconnected(event)
        event.connection.close()

    def on_disconnected(self, event: Any) -> None:
        unsettled = {
            tag: message
            for tag, (connection, message) in self._sent.items()
            if connection == event.connection
        }
        self._waiting = [*unsettled.values(), *self._waiting]
        for tag in unsettled:
            del self._sent[tag]
