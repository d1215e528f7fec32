"""How many bytes of messages are kept for clients that do not acknowledge: by client, by user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from penstock.frontends.mqtt.messages import TopicMessage
from penstock.wire.mqtt.properties import NO_PROPERTIES
from penstock.wire.mqtt.reasons import MqttViolation, Reason

if TYPE_CHECKING:
    from penstock.frontends.mqtt.session import MqttSession

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


class UserBytes:
    """The sums of all clients, by user."""

    def __init__(self, sessions: Callable[[], Iterable[MqttSession]]) -> None:
        """``sessions`` are those that messages are kept for."""
        self._sessions = sessions
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
        own = [each for each in self._sessions() if each.principal.user == user]
        self._held[user] = sum(each.outbox.bytes.counted for each in own)
        connected = [each for each in own if each.connection is not None]
        if self._held[user] > USER_BYTES_MAX and connected:
            largest = max(connected, key=lambda each: each.outbox.bytes.held)
            text = (
                f"{largest.outbox.bytes.held} bytes wait to be acknowledged, and more than "
                f"{USER_BYTES_MAX} of all clients of the user; acknowledge sooner, or take less"
            )
            assert largest.connection is not None, "it is one of those"
            largest.connection.end(MqttViolation(Reason.QUOTA_EXCEEDED, text))
