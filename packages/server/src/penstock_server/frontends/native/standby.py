"""Native connections at a standby node: a client is redirected to the owner and closed; a client
that follows the owners receives each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock_core.api.realm import Ping
from penstock_core.bounds import HEADER_BYTES_MAX
from penstock_core.vocabulary.errors import PenstockError, RemoteProtocolViolation, Unavailable
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, frame
from penstock_server.frontends.native.connection import GREETING_BYTES_MAX
from penstock_server.frontends.shared.arrivals import Arrivals, StandbyProtocol
from penstock_server.frontends.shared.serving_node import part
from penstock_server.frontends.shared.transports import close

FOLLOWERS_MAX: Final = 10_000
"""Maximum number of clients that follow the owners at one node."""
FOLLOWER_IDLE_S: Final = 45.0
"""Seconds of silence after which a following client is dropped; clients ping more often."""


def wants_relay(data: bytes) -> bool | None:
    """Return whether a connection that begins with ``data`` is relayed to the owner; None if more
    bytes are needed to decide. Connections that begin with Hello are relayed. The node itself
    answers pings, and serves clients that follow the owners."""
    reader = FrameReader(
        preface=PREFACE, frame_bytes_max=GREETING_BYTES_MAX, header_bytes_max=HEADER_BYTES_MAX
    )
    try:
        reader.receive(data)
        parsed = reader.next_frame()
        if parsed is None:
            return None
        return isinstance(wire.decode_from_client(parsed[0]), wire.Hello)
    except PenstockError:
        return False  # the node itself answers with the error


class OwnerFollowers:
    """The clients that receive changes of owners from a standby node."""

    def __init__(self, owners: Callable[[], wire.Owners]) -> None:
        self.owners = owners
        self._connections: dict[StandbyConnection, None] = {}
        self._sent = owners()

    def enter(self, connection: StandbyConnection) -> bool:
        """Count a client, and return whether it is admitted."""
        if len(self._connections) >= FOLLOWERS_MAX:
            return False
        self._connections[connection] = None
        return True

    def leave(self, connection: StandbyConnection) -> None:
        self._connections.pop(connection, None)

    def tell(self) -> None:
        """Send the owners to all clients if they have changed."""
        if (owners := self.owners()) != self._sent:
            self._sent = owners
            # A copy, because a failed send may close the connection, which leaves the dictionary.
            for connection in list(self._connections):
                connection.send(owners)

    def close(self) -> None:
        """Send the current owners to all clients and close their connections."""
        owners = self.owners()
        for connection in list(self._connections):
            connection.send(owners)
            connection.close()


class StandbyConnection(StandbyProtocol, asyncio.BufferedProtocol):
    """Waits for the first frame, and answers a Hello with the address of the owner."""

    def __init__(self, arrivals: Arrivals, followers: OwnerFollowers) -> None:
        super().__init__(arrivals)
        self._followers = followers
        self._idle: asyncio.TimerHandle | None = None
        """Timer that drops a silent following client; None if the client does not follow."""
        self._reader = FrameReader(
            preface=PREFACE,
            frame_bytes_max=GREETING_BYTES_MAX,
            header_bytes_max=HEADER_BYTES_MAX,
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> None:
        if self._has_answered:
            return
        self._reader.buffer_updated(count)
        try:
            while not self._has_answered and (parsed := self._reader.next_frame()) is not None:
                self._receive(wire.decode_from_client(parsed[0]))
        except PenstockError as error:
            self._answer(error, "")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._followers.leave(self)
        if self._idle is not None:
            self._idle.cancel()

    def send(self, message: wire.Message) -> None:
        """Send a message."""
        if self._transport is not None:
            self._transport.write(b"".join(map(bytes, frame(wire.encode(message)))))

    def close(self) -> None:
        """Close the connection after its peer has read all sent data."""
        close(self._transport)

    def _receive(self, message: wire.FromClient | wire.Asked | wire.Unreadable) -> None:
        match message:
            case wire.Hello():
                self._answer(*self._redirection())
            case wire.Follow() if self._idle is None:
                if not self._followers.enter(self):
                    raise Unavailable(
                        f"{FOLLOWERS_MAX} clients follow the owners at this node, which is the "
                        "limit; use another node"
                    )
                self._restart_idle_timer()
                self.send(self._followers.owners())
            case wire.Asked(number, Ping()) if self._idle is not None:
                self._restart_idle_timer()
                self.send(wire.Done(number, None))
            case wire.Asked(number, Ping()):
                self.send(wire.Done(number, None))
            case _:
                raise RemoteProtocolViolation("the first frame must be a Hello")

    def _restart_idle_timer(self) -> None:
        """Restart the timer that drops a silent following client."""
        if self._idle is not None:
            self._idle.cancel()
        if self._transport is not None:
            # A following client stays, so the time limit for short connections no longer applies.
            self._arrivals.leave(self._transport)
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(FOLLOWER_IDLE_S, self._transport.abort)

    def _redirection(self) -> tuple[PenstockError, str]:
        """Return the reason for closing, and the owner's address without its scheme."""
        owner = self._arrivals.owner()
        url = "" if owner is None else owner.url("native")
        return self._arrivals.refusal("native"), url.partition("://")[2]

    def _answer(self, reason: PenstockError, address: str) -> None:
        self._has_answered = True
        message: wire.Goodbye = wire.Goodbye(reason.code, str(reason))
        if address:
            message = wire.Redirect(reason.code, str(reason), address)
        if self._transport is not None:
            part(self._transport, b"".join(map(bytes, frame(wire.encode(message)))))
