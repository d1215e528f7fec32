"""The connections of a node that stands by: a native one is told who serves, and ended; one that
follows the owners is told of each change."""

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
"""Most clients that follow the owners at one node."""
FOLLOWER_IDLE_S: Final = 45.0
"""Seconds of silence after which a client that follows counts as gone; it pings more often."""


def wants_relay(data: bytes) -> bool | None:
    """Whether a connection that begins so at the native port is relayed to the owner: one that says
    Hello. Who asks for the owners, or whether a realm is here, is answered by the node itself."""
    reader = FrameReader(
        preface=PREFACE, frame_bytes_max=GREETING_BYTES_MAX, header_bytes_max=HEADER_BYTES_MAX
    )
    try:
        reader.receive(data)
        found = reader.next_frame()
        return None if found is None else isinstance(wire.decode_from_client(found[0]), wire.Hello)
    except PenstockError:
        return False


class OwnerFollowers:
    """The clients that are told which node owns what, by a node that stands by."""

    def __init__(self, owners: Callable[[], wire.Owners]) -> None:
        self.owners = owners
        self._connections: dict[StandbyConnection, None] = {}
        self._told = owners()

    def enter(self, connection: StandbyConnection) -> bool:
        """Count a client; gives whether there is room."""
        if len(self._connections) >= FOLLOWERS_MAX:
            return False
        self._connections[connection] = None
        return True

    def leave(self, connection: StandbyConnection) -> None:
        self._connections.pop(connection, None)

    def tell(self) -> None:
        """Tell all of them what has changed."""
        if (owners := self.owners()) != self._told:
            self._told = owners
            for connection in list(self._connections):
                connection.say(owners)

    def close(self) -> None:
        """Tell all of them what is so now, and end their connections."""
        owners = self.owners()
        for connection in list(self._connections):
            connection.say(owners)
            connection.close()


class StandbyConnection(StandbyProtocol, asyncio.BufferedProtocol):
    """Waits for the first frame, and answers a Hello with the address of the owner."""

    def __init__(self, arrivals: Arrivals, followers: OwnerFollowers) -> None:
        super().__init__(arrivals)
        self._followers = followers
        self._idle: asyncio.TimerHandle | None = None
        """Ends a client that follows the owners and has fallen silent; None: it does not follow."""
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
            while not self._has_answered and (found := self._reader.next_frame()) is not None:
                self._take(wire.decode_from_client(found[0]))
        except PenstockError as error:
            self._answer(error, "")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._followers.leave(self)
        if self._idle is not None:
            self._idle.cancel()

    def say(self, message: wire.Message) -> None:
        """Send a message."""
        if self._transport is not None:
            self._transport.write(b"".join(map(bytes, frame(wire.encode(message)))))

    def close(self) -> None:
        """End the connection once its peer has read what was said."""
        close(self._transport)

    def _take(self, message: wire.FromClient | wire.Asked | wire.Unreadable) -> None:
        match message:
            case wire.Hello():
                self._answer(*self._where())
            case wire.Follow() if self._idle is None:
                if not self._followers.enter(self):
                    raise Unavailable("too many clients follow the owners at this node")
                self._remain()
                self.say(self._followers.owners())
            case wire.Asked(number, Ping()) if self._idle is not None:
                self._remain()
                self.say(wire.Done(number, None))
            case wire.Asked(number, Ping()):
                self.say(wire.Done(number, None))
            case _:
                raise RemoteProtocolViolation("the first frame must be a Hello")

    def _remain(self) -> None:
        """Give a client that follows its time again."""
        if self._idle is not None:
            self._idle.cancel()
        if self._transport is not None:
            self._arrivals.leave(self._transport)
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(FOLLOWER_IDLE_S, self._transport.abort)

    def _where(self) -> tuple[PenstockError, str]:
        owner = self._arrivals.owner()
        url = "" if owner is None else owner.url("native")
        return self._arrivals.refusal("native"), url.partition("://")[2]

    def _answer(self, reason: PenstockError, address: str) -> None:
        self._has_answered = True
        said: wire.Goodbye = wire.Goodbye(reason.code, str(reason))
        if address:
            said = wire.Redirect(reason.code, str(reason), address)
        if self._transport is not None:
            part(self._transport, b"".join(map(bytes, frame(wire.encode(said)))))
