"""The interface of a client's connection, for all protocols."""

from __future__ import annotations

from typing import Protocol

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.runtime.access.open_connections import ConnectionState


class PeerConnection(Protocol):
    """A connection, as the listener manages it."""

    number: int
    """Connection number, unique until the realm restarts."""
    protocol: str
    """``native``, ``amqp`` or ``mqtt``."""
    heard_s: float
    """Time of the last received data, in seconds of the loop's clock."""
    quiet_until_s: float
    """Time of the loop's clock until which :meth:`check` would do nothing; 0 if it must be called
    regularly."""

    @property
    def session(self) -> str:
        """Name of the connection's session; empty until the user is known."""
        ...

    @property
    def principal(self) -> Principal | None:
        """The user of the connection."""
        ...

    @property
    def owes_answers(self) -> bool:
        """Whether the peer waits for the outcome of a request in progress."""
        ...

    def stop_reading(self) -> None:
        """Read no more data, because the listener is draining."""
        ...

    def check(self, now_s: float) -> None:
        """End the connection if its peer is silent for too long; called regularly."""
        ...

    def check_rights(self) -> None:
        """End the subscriptions and sessions that the user has no right to after a change of
        rights."""
        ...

    def flush(self) -> None:
        """Send the queued output."""
        ...

    def describe(self) -> ConnectionState:
        """Return a description of the connection for administrators."""
        ...

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason."""
        ...

    def abort(self) -> None:
        """Drop the connection without sending a reason."""
        ...

    def cut(self) -> None:
        """Drop the connection because another owner has taken over. It must send nothing more about
        the realm, which may have changed."""
        ...
