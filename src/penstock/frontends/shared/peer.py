"""The realm's knowledge of a connection, for every protocol."""

from __future__ import annotations

from typing import Protocol

from penstock.core.access.rights import Principal
from penstock.core.vocabulary.errors import PenstockError
from penstock.runtime.access.open_connections import ConnectionState


class Peer(Protocol):
    """One connection, to those who look after all of them."""

    number: int
    """Connection number, unique until the realm restarts."""
    protocol: str
    """``native`` or ``amqp``."""

    @property
    def session(self) -> str:
        """Its session; empty while nobody knows who it is."""
        ...

    @property
    def principal(self) -> Principal | None:
        """The user of the connection."""
        ...

    def check(self, now_s: float) -> None:
        """Called regularly: end it if its peer is not there any more."""
        ...

    def check_rights(self) -> None:
        """Rights have changed: end what it may not have any more."""
        ...

    def flush(self) -> None:
        """Send what is queued."""
        ...

    def describe(self) -> ConnectionState:
        """A description of the connection for administrators."""
        ...

    def end(self, reason: PenstockError | None) -> None:
        """Tell the peer why, and close it."""
        ...

    def abort(self) -> None:
        """Drop it."""
        ...
