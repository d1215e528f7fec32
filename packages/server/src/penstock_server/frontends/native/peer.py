"""What the parts of a native connection (sign-in, requests, deliveries) use of it. They are made by
:class:`~penstock_server.frontends.native.connection.Connection`, so they do not import it."""

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
    """Bytes of publishes that are not answered yet, over all connections."""

    def given_back(self, session: str, opened: asyncio.Event) -> None:
        """Note that the seat of ``opened`` is given back."""
        ...

    async def seats_given_back(
        self, session: str, own: Collection[asyncio.Event] = frozenset()
    ) -> None:
        """Wait until the seats that an earlier connection of the session was about to take are
        given back (SEM D14)."""
        ...


class PeerDeliveries(Protocol):
    """The deliveries of the connection."""

    def send(
        self, number: int, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]
    ) -> None:
        """Send events to the subscription that the client calls ``number``."""
        ...


class NativePeer(Protocol):
    """A native connection."""

    session: str
    """Name of the client's session; empty before it is welcomed."""
    writable: bool
    """Whether deliveries may be sent."""
    limits: ConnectionLimits
    announced: SchemaTable
    subscriptions: dict[int, int]
    """The realm's number of each subscription, by the client's number; 0 while it is being
    opened."""
    watches: dict[int, ChannelWatch]
    """Watches of patterns, by the client's number."""
    opening: dict[int, asyncio.Event]
    """Subscriptions that are being opened, oldest first."""
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
        """The content of the peer's verified certificate; None: it has none."""
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

    def opened(self, number: int) -> None:
        """Process the messages that came early for a subscription that is now open, or refused."""
        ...

    def forget(self, number: int) -> int | None:
        """Forget a subscription. Returns the realm's number of it, or None if there is none."""
        ...

    def end_watch(self, number: int) -> None:
        """Stop watching the pattern of this number, if one is watched."""
        ...

    def check_rights(self) -> None:
        """End the subscriptions that this connection may no longer have (SEM A3)."""
        ...

    def welcome(self, hello: wire.Hello, principal: Principal) -> None:
        """Welcome a client that has signed in. Raises ``LimitReached`` and ``AccessDenied``."""
        ...

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason."""
        ...
