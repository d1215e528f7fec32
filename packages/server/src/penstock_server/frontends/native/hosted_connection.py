"""The base class of AMQP and MQTT connections, which the realm's listener accepts."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, cast

from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.frontends.shared.backpressure import ReadThrottle
from penstock_server.frontends.shared.transports import host_of
from penstock_server.runtime.access.open_connections import ConnectionState
from penstock_server.runtime.access.quota import RequestPace
from penstock_server.runtime.operations.callers import Caller

if TYPE_CHECKING:
    from penstock_server.frontends.native.listener import NativeListener

WRITE_HIGH_WATER: Final = 1 << 20
"""Unsent bytes above which a connection is not read and gets no deliveries."""


class HostedConnection(asyncio.Protocol):
    """A connection of another protocol, with its user, host and times."""

    protocol: str
    quiet_until_s = 0.0

    def __init__(self, listener: NativeListener) -> None:
        self.listener = listener
        self.realm = listener.realm
        self.session = ""
        """Name of the connection's session in the realm; empty until the user is known."""
        self.principal = Principal(ANONYMOUS, "")
        self.publisher = ""
        """Name of the user at the host, which published events show; empty until the user is
        known."""
        self.number = 0
        self.host = ""
        self.is_open = False
        """Whether the peer has opened the connection, and neither side has closed it."""
        self._reading = ReadThrottle(lambda: not listener.is_congested, self._set_heard)
        self.pace = RequestPace(listener.limits.each.requests_per_s_max, listener.realm.clock)
        self._transport: asyncio.Transport | None = None
        self._opened_s = self.heard_s = 0.0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has all methods, but another base class.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self._reading.begin(transport)
        self._opened_s = self.heard_s = self._loop.time()
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.host = host_of(transport)

    def sign_in(self, principal: Principal) -> Caller:
        """Begin a session of an authenticated user. Raises ``AccessDenied``, ``LimitReached``."""
        self.realm.access.require(principal, "session.open")
        self.session, self.principal = f"{self.protocol}-{secrets.token_hex(8)}", principal
        self.publisher = principal.name
        self.listener.greeted(self, self.session)
        return Caller(self.realm, principal, self.session, version=self.listener.version)

    def _set_heard(self, now_s: float) -> None:
        self.heard_s = now_s

    def check_rights(self) -> None:
        """End the subscriptions and sessions that the user has no right to after a change of
        rights."""
        raise NotImplementedError

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason."""
        raise NotImplementedError

    @property
    def owes_answers(self) -> bool:
        """Whether the peer waits for the outcome of a request in progress."""
        return False

    def flush(self) -> None:
        """Send queued output; by default the protocol queues none."""
        return

    def check(self, now_s: float) -> None:
        """End the connection if its peer is silent for too long. Protocols with such a limit
        override this method, which does nothing."""
        return

    def describe(self) -> ConnectionState:
        """Return a description of the connection for administrators."""
        return self._description("", subscriptions=0, requests=0, is_stalled=False)

    def stop_reading(self) -> None:
        """Read no more data, because the listener is draining."""
        self._reading.check()

    def abort(self) -> None:
        """Drop the connection without sending a reason."""
        if self._transport is not None:
            self._transport.abort()

    def cut(self) -> None:
        """Drop the connection because another owner has taken over, so that nothing outdated is
        sent."""
        self.abort()

    def _description(
        self, client: str, *, subscriptions: int, requests: int, is_stalled: bool
    ) -> ConnectionState:
        """Return the description of the connection for administrators."""
        transport = self._transport
        return ConnectionState(
            number=self.number,
            protocol=self.protocol,
            session=self.session,
            user=self.publisher,
            client=client,
            opened_s=self._opened_s,
            heard_s=self.heard_s,
            subscriptions=subscriptions,
            requests=requests,
            unsent_bytes=0 if transport is None else transport.get_write_buffer_size(),
            is_stalled=is_stalled,
        )
