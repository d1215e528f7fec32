"""What a client has at the realm under a number of its own: a subscription, a seat or a watch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.delivery_route import DeliveryRoute
from penstock_core.api.requests import Request
from penstock_core.vocabulary.errors import ConnectionLost

T = TypeVar("T")


class Attachment:
    """A subscription, seat or watch, from its first request until it is left.

    It belongs to one connection: on each new one its route requests it again.
    """

    def __init__(self, connection: RealmConnection) -> None:
        self.connection = connection
        self.number = 0
        """Its number at the realm; another one each time it is opened."""
        self.is_open = False
        self.generation = 0
        """Counts the seats that were taken and lost: what came in an earlier generation has gone
        back to the realm."""

    async def open(self, route: DeliveryRoute, attach: Callable[[], Awaitable[T]]) -> T:
        """Register it, request it by ``attach`` and return what that returns. Raises what the realm
        refuses it with."""
        answer = await self.enter(route, attach)
        self.is_open = True
        return answer

    async def enter(self, route: DeliveryRoute, attach: Callable[[], Awaitable[T]]) -> T:
        """Do as :meth:`open`, but leave it to the caller whether it counts as open."""
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
        """Send the ``message`` that requests it, and return the answer.

        If the connection is lost before the answer, ``forget`` drops the events that have come, and
        the request is repeated on the next connection.
        """
        while True:
            try:
                return await self.connection.ask(message(), answer, resend=False)
            except ConnectionLost:
                if self.connection.is_reopening:
                    raise  # the next connection requests everything again
                if forget is not None:
                    forget()

    async def leave(self) -> None:
        """End it at the realm."""
        self.is_open = False
        await self.connection.unsubscribe(self.number)
