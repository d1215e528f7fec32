"""The base of subscriptions, seats and watches, which the realm knows by a number."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.delivery_route import DeliveryRoute
from penstock.client.connection.tracing import OperationSource
from penstock_core.api.requests import Request
from penstock_core.vocabulary.errors import ConnectionLost

T = TypeVar("T")


class Attachment:
    """A subscription, seat or watch, from its first request until it is left.

    An attachment belongs to one connection. After a reconnect its route requests it again.
    """

    def __init__(self, connection: RealmConnection) -> None:
        self.connection = connection
        self.source = OperationSource(connection, "")
        """The channel or queue and the durable, for a tracer."""
        self.number = 0
        """Number of the attachment at the realm, new each time it is opened."""
        self.is_open = False
        self.generation = 0
        """Increases each time the seat is taken or lost. Events of an earlier generation have
        returned to the durable."""

    @property
    def state(self) -> str:
        """``open`` or ``not open``, for the ``repr`` of subscriptions."""
        return "open" if self.is_open else "not open"

    async def open(self, route: DeliveryRoute, attach: Callable[[], Awaitable[T]]) -> T:
        """Register the attachment, request it by ``attach`` and return the answer. Raises the
        errors of ``attach``."""
        answer = await self.enter(route, attach)
        self.is_open = True
        return answer

    async def enter(self, route: DeliveryRoute, attach: Callable[[], Awaitable[T]]) -> T:
        """Register and request the attachment as :meth:`open` does, without setting ``is_open``."""
        self.number = self.connection.add(route)
        try:
            return await attach()
        except BaseException as error:
            self.connection.give_up(self.number, error)
            raise

    async def request(
        self,
        message: Callable[[], Request[Any]],
        answer: type[T],
        forget: Callable[[], None] | None = None,
    ) -> T:
        """Send the request for the attachment, and return the answer.

        If the connection is lost before the answer arrives, ``forget`` drops the events received so
        far, and the request is repeated on the next connection.
        """
        while True:
            try:
                return await self.connection.ask(message(), answer, resend=False)
            except ConnectionLost:
                if self.connection.is_reopening:
                    raise  # this is the task that reconnects: it must not wait for itself
                if forget is not None:
                    forget()

    async def leave(self) -> None:
        """End the attachment at the realm."""
        self.is_open = False
        await self.connection.unsubscribe(self.number)
