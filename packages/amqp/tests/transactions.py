"""Transactions of Proton clients."""

from __future__ import annotations

from itertools import count
from typing import Any

from proton import Delivery, Described, Message, symbol, ulong
from proton.reactor import LinkOption

from packages.amqp.tests.clients import Client

TRANSACTIONAL = 0x34


_numbers = count()


class Coordinator(LinkOption):  # type: ignore[misc]  # Proton has no types
    def apply(self, link: Any) -> None:
        link.target.type = 3
        link.target.capabilities.put_object(symbol("amqp:local-transactions"))


class Transaction:
    """One transaction, with its links."""

    def __init__(self, client: Client) -> None:
        self._client = client
        make = client.blocking.create_sender
        self._coordinator = make(None, name=f"tx{next(_numbers)}", options=Coordinator())
        state = self._ask(Described(ulong(0x31), [None]))
        self.name = state.remote.data[0]

    def _ask(self, what: Described) -> Delivery:
        delivery = self._coordinator.link.send(Message(body=what))
        self._client.blocking.wait(lambda: delivery.remote_state, msg="an answer")
        return delivery

    def discharge(self, *, fail: bool = False) -> Delivery:
        """Commit or roll back."""
        return self._ask(Described(ulong(0x32), [self.name, fail]))

    def send(self, sender: Any, text: str) -> int:
        """Send a message in the transaction; return the state of its delivery."""
        delivery = sender.link.delivery(sender.link.delivery_tag())
        sender.link.stream(bytes(Message(body=text).encode()))
        delivery.local.data = [self.name]
        delivery.update(TRANSACTIONAL)
        sender.link.advance()
        self._client.blocking.wait(lambda: delivery.remote_state, msg="an answer")
        return int(delivery.remote_state)

    def send_settled(self, sender: Any, text: str) -> None:
        """Send a message as settled, so that the realm does not answer."""
        delivery = sender.link.delivery(sender.link.delivery_tag())
        sender.link.stream(bytes(Message(body=text).encode()))
        delivery.local.data = [self.name]
        delivery.update(TRANSACTIONAL)
        sender.link.advance()
        delivery.settle()

    def leave(self) -> None:
        """Close the link to the coordinator."""
        self._coordinator.close()

    def accept(self, receiver: Any) -> None:
        self.settle(receiver, 0x24)

    def settle(self, receiver: Any, outcome: int, *values: Any) -> None:
        delivery = receiver.fetcher.unsettled.pop()
        delivery.local.data = [self.name, Described(ulong(outcome), list(values))]
        delivery.update(TRANSACTIONAL)
        delivery.settle()
