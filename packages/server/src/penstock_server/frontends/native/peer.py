"""The interface of a native connection for its parts (sign-in, requests, deliveries).

:class:`~penstock_server.frontends.native.connection.Connection` creates the parts, so they cannot
import it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from penstock_core.access.rights import Principal
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.wire.native import messages as wire
from penstock_server.frontends.native.schemas import SchemaTable
from penstock_server.runtime.access.quota import ConnectionLimits
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.subscriptions.watches import ChannelWatch

if TYPE_CHECKING:
    from penstock_server.runtime.realm import RunningRealm


class PeerListener(Protocol):
    """The listener that has accepted the connection."""

    pending_bytes: int
    """Bytes of unanswered publishes of all connections."""

    def opening_ended(self, session: str, finished: asyncio.Event) -> None:
        """Record that an opening has ended, so that later connections of the session no longer wait
        for it. ``finished`` is the opening's asyncio.Event."""
        ...

    async def seats_given_back(
        self, session: str, current: Collection[asyncio.Event] = frozenset()
    ) -> None:
        """Wait until the session's earlier connections have given back seats that they were still
        taking when they ended (SEM D14)."""
        ...


class PeerDeliveries(Protocol):
    """The deliveries of the connection."""

    def send(
        self, number: int, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]
    ) -> None:
        """Send events to the subscription with the client's ``number``."""
        ...


class NativePeer(Protocol):
    """A native connection."""

    session: str
    """Name of the client's session; empty before it is welcomed."""
    is_writable: bool
    """Whether deliveries may be sent."""
    limits: ConnectionLimits
    announced: SchemaTable
    subscriptions: dict[int, int]
    """The realm's number of each subscription, by the client's number; 0 while it is being
    opened."""
    watches: dict[int, ChannelWatch]
    """Watches of patterns, by the client's number."""
    openings: dict[int, asyncio.Event]
    """Subscriptions that are being opened, oldest first, by the client's number. The asyncio.Event
    of an opening is set when the opening has ended."""
    interrupted: set[int]
    """Subscriptions that were being opened when the connection was lost."""

    @property
    def host(self) -> str: ...

    @property
    def realm(self) -> RunningRealm: ...

    @property
    def listener(self) -> PeerListener: ...

    @property
    def deliveries(self) -> PeerDeliveries: ...

    @property
    def is_secure(self) -> bool:
        """Whether the connection uses TLS."""
        ...

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Content of the peer's verified certificate; None without one."""
        ...

    def send(self, message: wire.Message, *bodies: bytes | bytearray | memoryview) -> None:
        """Queue a frame."""
        ...

    def answer(self, request: int, answer: Any, error: BaseException | None) -> None:
        """Answer a request with its result, or with the error."""
        ...

    def fail(self, request: int, error: BaseException) -> None:
        """Answer a request with an error."""
        ...

    def spawn(self, request: int, work: Callable[[], Any]) -> None:
        """Run a request that has to wait for the realm, and answer it."""
        ...

    def process_early_messages(self, number: int) -> None:
        """Process early messages for a subscription that is now open or was refused."""
        ...

    def forget(self, number: int) -> int | None:
        """Remove a subscription, and return the realm's number of it; None if it does not exist."""
        ...

    def end_watch(self, number: int) -> None:
        """End the watch with this number; do nothing if it does not exist."""
        ...

    def check_rights(self) -> None:
        """End the subscriptions that this connection may no longer have (SEM A3)."""
        ...

    def welcome(self, hello: wire.Hello, principal: Principal) -> None:
        """Welcome a client that has signed in. Raises ``LimitReached``, ``AccessDenied``."""
        ...

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason."""
        ...
