"""The adapter of AMQP for the matrix of operations and rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from proton import ConnectionException, Message
from proton.reactor import Copy
from proton.utils import BlockingConnection, LinkDetached

import penstock
from packages.amqp.tests.clients import WAIT_S, Source, Target
from penstock_core.api.operations import OPERATIONS
from penstock_core.vocabulary import errors
from penstock_core.vocabulary.errors import AccessDenied, PenstockError
from tests.access.matrix import CHANNEL, QUEUE, Caller, register

_BY_CODE = {
    error_class.code: error_class
    for error_class in vars(errors).values()
    if isinstance(error_class, type) and issubclass(error_class, PenstockError)
}
_names = count()


def _error(description: str) -> PenstockError:
    code, _, text = description.partition(": ")
    return _BY_CODE[code](text)


class AmqpCaller:
    """Does each operation with a link, or with a message over an anonymous link."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection
        self._ways: dict[str, tuple[Callable[[], None], ...]] = {
            "session.open": (lambda: None,),
            "channel.create": (lambda: self._send(self._fresh(), "topic"),),
            "queue.create": (
                lambda: self._send(self._fresh(), "queue"),
                lambda: self._relay(self._fresh()),
            ),
            "channel.publish": (
                lambda: self._send(CHANNEL, "topic"),
                lambda: self._relay(CHANNEL),
            ),
            "queue.push": (lambda: self._send(QUEUE), lambda: self._relay(QUEUE)),
            "channel.subscribe": (lambda: self._receive(CHANNEL, Source("topic")),),
            "queue.pop": (lambda: self._receive(QUEUE, Source("queue")),),
            "queue.peek": (lambda: self._receive(QUEUE, [Source("queue"), Copy()]),),
            "durable.attach": (
                lambda: self._receive(
                    CHANNEL, Source("topic", "shared", "global", durable=True), "kept|global"
                ),
            ),
        }

    @property
    def operations(self) -> frozenset[str]:
        return frozenset(self._ways)

    def try_(self, operation: str) -> None:
        """Try all ways to do an operation: either all are refused, or none."""
        outcomes = [self._outcome(way) for way in self._ways[operation]]
        refused = [isinstance(error, AccessDenied) for error in outcomes]
        if any(refused) and not all(refused):
            raise AssertionError(f"{operation} is not refused every way: {outcomes}")
        for error in outcomes:
            if error is not None:
                raise error

    def _outcome(self, way: Callable[[], None]) -> PenstockError | None:
        try:
            way()
        except LinkDetached as error:
            return _error(error.link.remote_condition.description)
        except PenstockError as error:
            return error
        return None

    def _fresh(self) -> str:
        return f"matrix/amqp{next(_names)}"

    def _send(self, address: str, *capabilities: str) -> None:
        name = f"s{next(_names)}"
        self._connection.create_sender(address, name=name, options=Target(*capabilities)).close()

    def _relay(self, address: str) -> None:
        sender = self._connection.create_sender(None, name=f"s{next(_names)}")
        delivery = sender.link.send(Message(address=address, body="a"))
        self._connection.wait(lambda: delivery.remote_state)
        condition = delivery.remote.condition
        sender.close()
        if condition is not None:
            raise _error(condition.description)

    def _receive(self, address: str, options: Any, name: str = "") -> None:
        make = self._connection.create_receiver
        make(address, credit=1, name=name or f"r{next(_names)}", options=options).link.detach()


class Amqp:
    name = "amqp"
    # AMQP moves messages, and makes what they need; nothing of a realm is managed by it. Making
    # and ending durables is a part of attaching to them and closing: there is a test of its own in
    # packages/amqp/tests/test_security.py.
    without = frozenset(OPERATIONS.keys() - AmqpCaller(None).operations)

    def __init__(self) -> None:
        self._urls: dict[penstock.Realm, str] = {}

    @contextmanager
    def signed_in(self, realm: penstock.Realm, user: str, password: str) -> Iterator[Caller]:
        if realm not in self._urls:
            self._urls[realm] = realm.listen_amqp()
        try:
            connection = BlockingConnection(
                self._urls[realm].replace("//", f"//{user}:{password.replace(' ', '%20')}@"),
                timeout=WAIT_S,
                sasl_enabled=True,
                allowed_mechs="PLAIN",
            )
        except ConnectionException as error:  # SASL does not name the missing right
            if "Authentication failed" not in str(error):
                raise
            raise AccessDenied("'access' on the realm, or a password") from error
        try:
            yield AmqpCaller(connection)
        finally:
            connection.close()


register(Amqp)
