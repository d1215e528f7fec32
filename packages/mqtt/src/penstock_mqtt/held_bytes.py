"""How many bytes are held for clients: of messages that they do not acknowledge, by client and by
user, and of what they have sent that cannot be processed yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Final, NamedTuple

from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.vocabulary.errors import PenstockError
from penstock_mqtt.messages import TopicMessage
from penstock_mqtt.wire.properties import NO_PROPERTIES
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_server.frontends.shared.buffers import Buffers

CLIENT_BYTES_MAX: Final = 64 << 20
"""Bytes of messages that wait for one client, or for its acknowledgements; a single message may be
larger."""
USER_BYTES_MAX: Final = 256 << 20
"""Bytes of messages that are kept for all clients of a user, but for what is below `STEP_BYTES` of
each."""
STEP_BYTES: Final = 1 << 16
"""Bytes by which what is kept for a client changes before its user's sum does."""
SEAT_BYTES_MAX: Final = 16 << 20
"""Bytes of events of durables that are with one client: the realm holds back the others."""
_MESSAGE_BYTES: Final = 500
"""Bytes of a message in memory, about, beside its parts."""


def size_of(message: TopicMessage) -> int:
    """Return the bytes that a message takes in memory, about."""
    size = _MESSAGE_BYTES + len(message.payload) + len(message.topic)
    own = message.properties
    if own is not NO_PROPERTIES:
        size += sum(len(name) + len(value) for name, value in own.user_properties)
        size += len(own.correlation_data or b"") + len(own.content_type or "")
    return size


class ClientBytes:
    """The bytes of messages that are kept for one client."""

    __slots__ = ("_tell", "counted", "held")

    def __init__(self, tell: Callable[[int], None]) -> None:
        """``tell`` is called with each change of what is in the sum of its user."""
        self._tell = tell
        self.held = 0
        self.counted = 0
        """Bytes that are in the sum of its user."""

    def add(self, size: int) -> None:
        """Count bytes of a message that is kept; negative: of one that is not any more."""
        self.held += size
        change = self.held - self.counted
        if change >= STEP_BYTES or change <= -STEP_BYTES:
            self.counted = self.held
            self._tell(change)

    def close(self) -> None:
        """Count nothing any more, because the session has ended."""
        self._tell(-self.counted)
        self.held = self.counted = 0

    def fault(self, size: int) -> str:
        """Return why so much may not be kept; empty: it may. The last message has ``size``
        bytes."""
        if self.held <= CLIENT_BYTES_MAX or self.held <= size:
            return ""
        return f"{self.held} bytes wait to be acknowledged; at most {CLIENT_BYTES_MAX} may"


class HeldMessages(NamedTuple):
    """The messages that are kept for one client."""

    bytes: ClientBytes
    end: Callable[[PenstockError], None] | None
    """Ends the client's connection with a reason; None: it has none."""


class UserBytes:
    """The sums of all clients, by user."""

    def __init__(self, clients_of: Callable[[str], Iterable[HeldMessages]]) -> None:
        """``clients_of`` returns what is kept for the clients of a user."""
        self._clients_of = clients_of
        self._held: Counter[str] = Counter()

    def add(self, user: str, change: int) -> None:
        """Change the sum of a user. Above `USER_BYTES_MAX` the user's client for which most is
        kept is disconnected."""
        self._held[user] += change
        if self._held[user] <= 0:
            del self._held[user]
        elif change > 0 and self._held[user] > USER_BYTES_MAX:
            self._relieve(user)

    def _relieve(self, user: str) -> None:
        clients = list(self._clients_of(user))
        self._held[user] = sum(client.bytes.counted for client in clients)
        connected = [(client.bytes.held, client.end) for client in clients if client.end]
        if self._held[user] > USER_BYTES_MAX and connected:
            held, end = max(connected, key=itemgetter(0))
            text = (
                f"{held} bytes wait to be acknowledged, and more than "
                f"{USER_BYTES_MAX} of all clients of the user; acknowledge sooner, or take less"
            )
            end(MqttViolation(Reason.QUOTA_EXCEEDED, text))


class ReceivedBytes:
    """The bytes of one client that are held before it is signed in, and of a packet that is not
    complete."""

    def __init__(self, unknown: Buffers, incomplete: Buffers) -> None:
        """``unknown`` counts the bytes of clients that are not signed in, ``incomplete`` those of
        frames and packets that are not complete."""
        nobody = Principal(ANONYMOUS, "")
        self._all_unknown, self._all_incomplete = unknown, incomplete
        self._unknown, self._incomplete = unknown.open(nobody), incomplete.open(nobody)
        self._unknown_bytes = 0

    def begin(self, host: str) -> None:
        """Count for a host what comes until its client is signed in."""
        self._unknown = self._all_unknown.open(Principal(ANONYMOUS, host))

    def add(self, size: int) -> None:
        """Count bytes of a client that is not signed in. Raises ``Unavailable`` without room for
        them."""
        self._unknown_bytes += size
        self._unknown.grow(self._unknown_bytes)

    def signed_in(self) -> None:
        """Give back what was counted before the client was signed in."""
        self._unknown.close()

    @property
    def is_incomplete(self) -> bool:
        """Whether an incomplete packet is counted."""
        return self._incomplete.counted > 0

    def hold(self, principal: Principal, size: int) -> None:
        """Count an incomplete packet with those of the other clients of the user; 0: the client has
        no large one. Raises :class:`MqttViolation` without room for it."""
        if not self.is_incomplete:
            self._incomplete = self._all_incomplete.open(principal)
        if not self._incomplete.fits(size):
            text = (
                "too many large messages of the user are incomplete; send fewer of them at the "
                "same time"
            )
            raise MqttViolation(Reason.QUOTA_EXCEEDED, text)

    def end(self) -> None:
        """Give everything back, because the connection is lost."""
        self.signed_in()
        self._incomplete.close()
