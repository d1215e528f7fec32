"""Unsettled messages that a link may have to send again, and the accounting of their bytes per
link, connection and user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from penstock_core.ids.ids import IdSet
from penstock_server.runtime.delivery.byte_credit import RoughRoom

if TYPE_CHECKING:
    from penstock_amqp.outgoing import EncodedMessages
    from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

KEPT_BYTES_MAX: Final = 64 << 20
"""Maximum bytes kept for one connection; a single message may be larger."""
USER_KEPT_BYTES_MAX: Final = 256 << 20
"""Maximum bytes kept for all connections of a user; each of them may exceed it by one message."""


KeptMessage = tuple["EncodedMessages", int, int, int]
"""The encoded batch, the message's row in it, its redelivery count, and its size in bytes: enough
to build the message again. A plain tuple, because one is created for each message sent."""


class UserKept:
    """The account of bytes kept for all connections of a user."""

    def __init__(self, bytes_max: int = USER_KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self._held_back: dict[LinkRoom, None] = {}
        """Links whose messages the realm holds back, the longest waiting first."""

    @property
    def free(self) -> int:
        """Bytes that may still be kept; negative if a message has exceeded the limit."""
        return self._bytes_max - self.bytes

    def hold_back(self, room: LinkRoom) -> None:
        """Register a link to be woken when it has room again."""
        self._held_back[room] = None

    def forget(self, room: LinkRoom) -> None:
        """Stop waiting to wake a link, because it has ended."""
        self._held_back.pop(room, None)

    def wake_links(self) -> None:
        """Wake the links that have room again, the longest waiting first."""
        for room in [room for room in self._held_back if room.is_half_free]:
            self._held_back.pop(room, None)
            room.wake()


class ConnectionKept:
    """The account of bytes kept for all links of a connection."""

    def __init__(self, user: UserKept, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.user = user
        self.bytes_max = bytes_max
        self.bytes = 0

    @property
    def free(self) -> int:
        """Bytes that may still be kept; negative if a message has exceeded the limit."""
        return self.bytes_max - self.bytes


class LinkRoom(RoughRoom):
    """A link's share of the kept bytes; the realm holds back events that do not fit.

    A link may use half of its connection's free bytes, and a connection half of its user's free
    bytes, so a receiver that settles nothing leaves room for the others.
    """

    __slots__ = ("_connection", "wake")

    def __init__(self, connection: ConnectionKept, wake: Callable[[], None]) -> None:
        """``wake`` is called when a link that had no room has room again."""
        super().__init__(connection.bytes_max)
        self._connection = connection
        self.wake = wake

    @property
    def free_bytes(self) -> int:
        """Bytes that the link may still use. Its share is half of the bytes that would be free
        without it, ``(free + in_flight) / 2``; minus ``in_flight``, this is ``(free - in_flight) /
        2``. The connection's share of its user's bytes is computed in the same way."""
        connection = self._connection
        return min(connection.free - self.in_flight, connection.user.free - connection.bytes) // 2

    @property
    def is_half_free(self) -> bool:
        """Whether the link may get more. A connection with nothing kept may always get a message,
        however much its user's other connections use."""
        return not self._connection.bytes or self.in_flight <= self.free_bytes

    def fitting(self, rows: OutgoingBatch) -> OutgoingBatch | None:
        """Return the events that fit; None if none of them does. Without room for all, the link is
        woken when it has room again."""
        fitting_rows = super().fitting(rows)
        if fitting_rows is not rows:
            self._connection.user.hold_back(self)
        return fitting_rows

    def sent(self, size: int) -> None:
        """Register for a wake-up if the room is used up; the link itself counts what it keeps."""
        if not self.is_half_free:
            self._connection.user.hold_back(self)

    def consumed(self, size: int) -> None:
        """Do nothing: the link itself counts the messages that it stops keeping."""

    def kept(self, size: int) -> None:
        """Add ``size`` bytes to the accounts; negative for messages that are no longer kept."""
        self.in_flight += size
        self._connection.bytes += size
        self._connection.user.bytes += size
        if size < 0:
            self._connection.user.wake_links()

    def close(self) -> None:
        """Release everything, because the link has ended."""
        self._connection.user.forget(self)
        self.kept(-self.in_flight)


class KeptMessages:
    """The messages that a link may have to send again."""

    __slots__ = ("_room", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[int, KeptMessage] = {}
        """Messages by event id. The link adds to it directly while it sends, then calls
        `count_added` once per batch: a call per message would be too slow."""
        self._room: LinkRoom | None = None

    def set_room(self, room: LinkRoom) -> None:
        """Count the bytes of messages kept from now on in ``room``."""
        self._room = room

    def __iter__(self) -> Iterator[int]:
        """Iterate over the event ids in order of first sending."""
        return iter(self.by_id)

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, event_id: int) -> KeptMessage | None:
        return self.by_id.get(event_id)

    def count_added(self, size: int) -> None:
        """Account for ``size`` bytes of messages added to `by_id`."""
        if size and self._room is not None:
            self._room.kept(size)

    def replace(self, event_id: int, message: KeptMessage) -> None:
        """Replace a kept message, for example to raise its redelivery count."""
        self.by_id[event_id] = message

    def forget(self, ids: Iterable[int]) -> None:
        """Stop keeping these events; ids that are not kept are ignored."""
        pop, size = self.by_id.pop, 0
        for event_id in ids:
            message = pop(event_id, None)
            if message is not None:
                size += message[3]
        if size and self._room is not None:
            self._room.kept(-size)

    def forget_all(self, ids: IdSet) -> None:
        """Stop keeping all events of a set."""
        self.forget([event_id for event_id in self.by_id if event_id in ids])

    def close(self) -> None:
        """Forget all kept events, because the link has ended."""
        self.by_id.clear()
        if self._room is not None:
            self._room.close()
            self._room = None  # breaks the cycle: the room's `wake` refers to our consumer
