"""Messages that receivers have not settled and that their links may have to send again: by link,
with the bytes of all links of a connection and of a user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from penstock_core.ids.ids import IdSet
from penstock_server.runtime.delivery.byte_credit import RoughRoom

if TYPE_CHECKING:
    from penstock_amqp.outgoing import EncodedMessages
    from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

KEPT_BYTES_MAX: Final = 64 << 20
"""Bytes of messages that are kept for one connection; a single message may be larger."""
USER_KEPT_BYTES_MAX: Final = 256 << 20
"""Bytes of messages that are kept for all connections of a user; each may have one message more."""


KeptMessage = tuple["EncodedMessages", int, int, int]
"""What it takes to make a message again: its row among messages, how often it came before, and its
size in bytes. A plain tuple, because one is made for each message that is sent."""


class UserKept:
    """The bytes that are kept for all connections of a user."""

    def __init__(self) -> None:
        self.bytes = 0
        self._held_back: dict[LinkRoom, None] = {}
        """Links that the realm holds messages back from."""

    @property
    def free(self) -> int:
        return USER_KEPT_BYTES_MAX - self.bytes

    def hold_back(self, room: LinkRoom) -> None:
        """Wake a link when there is room again."""
        self._held_back[room] = None

    def forget(self, room: LinkRoom) -> None:
        """Wake a link no more, for it has ended."""
        self._held_back.pop(room, None)

    def go_on(self) -> None:
        """Wake the links that have room again, those that wait longest first."""
        for room in [room for room in self._held_back if room.is_half_free]:
            self._held_back.pop(room, None)
            room.wake()


class ConnectionKept:
    """The bytes that are kept for all links of a connection."""

    def __init__(self, user: UserKept) -> None:
        self.user = user
        self.bytes = 0

    @property
    def free(self) -> int:
        return KEPT_BYTES_MAX - self.bytes


class LinkRoom(RoughRoom):
    """The room of one link for messages that are kept; the realm holds back what does not fit.

    A link may have half of what is left for its connection, and a connection half of what is left
    for its user: a receiver that settles nothing leaves room for the others.
    """

    __slots__ = ("_connection", "wake")

    def __init__(self, connection: ConnectionKept, wake: Callable[[], None]) -> None:
        """``wake`` is called when there is room again after there was none."""
        super().__init__(KEPT_BYTES_MAX)
        self._connection = connection
        self.wake = wake

    @property
    def left(self) -> int:
        own = self._connection
        return min(own.free - self.in_flight, own.user.free - own.bytes) // 2

    @property
    def is_half_free(self) -> bool:
        """Whether more may come. A connection for which nothing is kept may have a message whatever
        is kept for the others of its user."""
        return not self._connection.bytes or self.in_flight <= self.left

    def fitting(self, rows: OutgoingBatch) -> OutgoingBatch | None:
        fits = super().fitting(rows)
        if fits is not rows:
            self._connection.user.hold_back(self)
        return fits

    def sent(self, size: int) -> None:
        """The link has counted what it keeps of them."""
        if not self.is_half_free:
            self._connection.user.hold_back(self)

    def taken(self, size: int) -> None:
        """Count nothing: the link counts what it keeps no longer."""

    def kept(self, size: int) -> None:
        """Count messages that the link keeps from now on; negative: that it keeps no longer."""
        self.in_flight += size
        self._connection.bytes += size
        self._connection.user.bytes += size
        if size < 0:
            self._connection.user.go_on()

    def close(self) -> None:
        """The link has ended, and keeps nothing."""
        self._connection.user.forget(self)
        self.kept(-self.in_flight)


class KeptMessages:
    """The messages that one link may have to send again."""

    __slots__ = ("_room", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[int, KeptMessage] = {}
        """By the id of the event. A link adds to it while it sends, and then calls `grown`."""
        self._room: LinkRoom | None = None

    def within(self, room: LinkRoom) -> None:
        """Count what is kept in ``room``."""
        self._room = room

    def __iter__(self) -> Iterator[int]:
        """The ids of their events, in the order in which they came."""
        return iter(self.by_id)

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, event_id: int) -> KeptMessage | None:
        return self.by_id.get(event_id)

    def grown(self, size: int) -> None:
        """Count so many bytes of messages that were added."""
        if size and self._room is not None:
            self._room.kept(size)

    def replace(self, event_id: int, message: KeptMessage) -> None:
        """Keep another form of a message that is kept."""
        self.by_id[event_id] = message

    def forget(self, ids: Iterable[int]) -> None:
        """Keep these no longer, as far as they are kept."""
        pop, size = self.by_id.pop, 0
        for event_id in ids:
            message = pop(event_id, None)
            if message is not None:
                size += message[3]
        if size and self._room is not None:
            self._room.kept(-size)

    def forget_all(self, ids: IdSet) -> None:
        """Keep none of a set of ids any longer."""
        self.forget([event_id for event_id in self.by_id if event_id in ids])

    def close(self) -> None:
        """Keep nothing any more, because the link has ended."""
        self.by_id.clear()
        if self._room is not None:
            self._room.close()
            self._room = None  # it refers to the consumer that has these messages
