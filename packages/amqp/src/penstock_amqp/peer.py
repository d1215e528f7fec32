"""Protocols for the parts of an AMQP connection (links, transactions, sign-in) to refer to the
connection. :class:`~penstock_amqp.connection.AmqpConnection` creates the parts, so they cannot
import it; a part that uses more of it defines an additional protocol in its module."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol

from penstock_amqp.amqp_service import AmqpService
from penstock_amqp.engine import AmqpEngine
from penstock_amqp.fault_barrier import FaultBarrier
from penstock_amqp.link_ends import IncomingLink, OutgoingLink
from penstock_core.access.rights import Principal

P = ParamSpec("P")


class Spawner(Protocol):
    """A connection that runs tasks."""

    def spawn(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run, as a task of this connection, a coroutine that waits for the realm."""
        ...


class AmqpPeer(Spawner, Protocol):
    """The part of a connection that all users of links need."""

    service: AmqpService
    engine: AmqpEngine
    containing: FaultBarrier
    """Contains exceptions, so that they do not affect the realm."""
    container: str
    """The peer's container id; empty if it has no name."""
    principal: Principal
    """The signed-in user."""
    publisher: str
    """Name of the signed-in user, as the publisher of events."""

    def end_link(self, link: IncomingLink | OutgoingLink, condition: str, description: str) -> None:
        """End a link from this side, with the reason."""
        ...

    def free_if_answered(self, link: IncomingLink | OutgoingLink) -> None:
        """Account for settled deliveries of a link, and give its sender new credit if possible."""
        ...
