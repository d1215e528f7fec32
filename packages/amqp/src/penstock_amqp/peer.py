"""An AMQP connection, as its parts (links, transactions, sign-in) use it. They are made by
:class:`~penstock_amqp.connection.AmqpConnection`, so they do not import it; a part that
uses more of it has a protocol of its own beside it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol

from penstock_amqp.amqp_service import AmqpService
from penstock_amqp.engine import AmqpEngine
from penstock_amqp.fault_barrier import FaultBarrier
from penstock_amqp.link_ends import IncomingLink, OutgoingLink

P = ParamSpec("P")


class Spawner(Protocol):
    """A connection that runs tasks."""

    def spawn(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run something that has to wait for the realm."""
        ...


class AmqpPeer(Spawner, Protocol):
    """A connection, as all parts use it that have links."""

    service: AmqpService
    engine: AmqpEngine
    containing: FaultBarrier
    """Keeps an exception inside it from harming the realm."""
    container: str
    """The peer's container id; empty if it has no name."""
    publisher: str
    """Name of the signed-in user, as the publisher of events."""

    def end_link(self, link: IncomingLink | OutgoingLink, condition: str, description: str) -> None:
        """End a link from this side, with the reason."""
        ...

    def answered(self, link: IncomingLink | OutgoingLink) -> None:
        """Note that deliveries of a link were settled, which may give its sender credit again."""
        ...
