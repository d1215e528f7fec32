"""What the realm knows of a connection, whatever its protocol."""

from __future__ import annotations

from typing import Protocol

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.runtime.access.open_connections import ConnectionState


class PeerConnection(Protocol):
    """One connection, as those see it that manage all."""

    number: int
    """Connection number, unique until the realm restarts."""
    protocol: str
    """``native``, ``amqp`` or ``mqtt``."""
    heard_s: float
    """When something came from the peer, by the loop's clock in seconds."""

    @property
    def session(self) -> str:
        """Its session; empty until the user is known."""
        ...

    @property
    def principal(self) -> Principal | None:
        """The user of the connection."""
        ...

    @property
    def owes_answers(self) -> bool:
        """Whether something is in progress whose outcome the peer waits for."""
        ...

    def stop_reading(self) -> None:
        """Take nothing more, because the listener is draining."""
        ...

    def check(self, now_s: float) -> None:
        """End the connection if its peer is gone; called regularly."""
        ...

    def check_rights(self) -> None:
        """Rights have changed: end what it may no longer have."""
        ...

    def flush(self) -> None:
        """Send the queued output."""
        ...

    def describe(self) -> ConnectionState:
        """A description of the connection for administrators."""
        ...

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason."""
        ...

    def abort(self) -> None:
        """Drop the connection without a word."""
        ...

    def cut(self) -> None:
        """End the connection, because another owner has taken over: nothing may be said of the
        realm."""
        ...
