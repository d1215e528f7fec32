"""Limits on bytes in memory: unacknowledged messages by client and by user, and received data that
cannot be processed yet."""

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

USER_BYTES_MAX: Final = 256 << 20
"""Maximum number of bytes of messages held for all clients of a user. Up to `STEP_BYTES` of each
client are not counted."""
STEP_BYTES: Final = 1 << 16
"""Change of a client's held bytes that updates the sum of its user."""
_MESSAGE_BYTES: Final = 500
"""Approximate bytes of a message in memory without its payload, topic and properties."""


def size_of(message: TopicMessage) -> int:
    """Return the approximate bytes that a message takes in memory."""
    size = _MESSAGE_BYTES + len(message.payload) + len(message.topic)
    properties = message.properties
    if properties is not NO_PROPERTIES:
        size += sum(len(name) + len(value) for name, value in properties.user_properties)
        size += len(properties.correlation_data or b"") + len(properties.content_type or "")
    return size


class ClientBytes:
    """The bytes of messages that are held for one client."""

    __slots__ = ("_bytes_max", "_on_change", "counted", "held")

    def __init__(self, on_change: Callable[[int], None], bytes_max: int) -> None:
        """``on_change`` is called with each change of the client's share in the sum of its user."""
        self._on_change, self._bytes_max = on_change, bytes_max
        self.held = 0
        self.counted = 0
        """The part of ``held`` that ``on_change`` has reported so far."""

    def add(self, size: int) -> None:
        """Count a message of this size. A negative size removes one."""
        self.held += size
        change = self.held - self.counted
        if change >= STEP_BYTES or change <= -STEP_BYTES:
            self.counted = self.held
            self._on_change(change)

    def close(self) -> None:
        """Remove the client's bytes from the sums because its session has ended."""
        self._on_change(-self.counted)
        self.held = self.counted = 0

    def fault(self, size: int) -> str:
        """Return why the held bytes exceed the limit, or an empty text. ``size`` is that of the
        newest message, which alone may exceed the limit."""
        if self.held <= self._bytes_max or self.held <= size:
            return ""
        return f"{self.held} bytes wait to be acknowledged; at most {self._bytes_max} may"


class HeldMessages(NamedTuple):
    """The messages that are held for one client."""

    bytes: ClientBytes
    end: Callable[[PenstockError], None] | None
    """Ends the client's connection with a reason; None if it is not connected."""


class UserBytes:
    """Bytes of messages that are held for all clients of each user."""

    def __init__(
        self,
        clients_of: Callable[[str], Iterable[HeldMessages]],
        bytes_max: int = USER_BYTES_MAX,
    ) -> None:
        """``clients_of`` returns the messages held for each client of a user."""
        self._clients_of, self._bytes_max = clients_of, bytes_max
        self._held: Counter[str] = Counter()

    def add(self, user: str, change: int) -> None:
        """Change the sum of a user by ``change`` bytes. Above the limit, disconnect the user's
        client with the most held bytes."""
        self._held[user] += change
        if self._held[user] <= 0:
            del self._held[user]
        elif change > 0 and self._held[user] > self._bytes_max:
            self._disconnect_largest(user)

    def _disconnect_largest(self, user: str) -> None:
        clients = list(self._clients_of(user))
        self._held[user] = sum(client.bytes.counted for client in clients)
        connected = [(client.bytes.held, client.end) for client in clients if client.end]
        if self._held[user] > self._bytes_max and connected:
            held, end = max(connected, key=itemgetter(0))
            text = (
                f"{held} bytes wait to be acknowledged, and more than "
                f"{self._bytes_max} of all clients of the user; acknowledge sooner, or take less"
            )
            end(MqttViolation(Reason.QUOTA_EXCEEDED, text))


class ReceivedBytes:
    """The bytes of one client that are held before its sign-in, and those of an incomplete
    packet."""

    def __init__(self, unknown: Buffers, incomplete: Buffers) -> None:
        """``unknown`` counts the bytes of clients before their sign-in, ``incomplete`` those of
        incomplete frames and packets."""
        anonymous = Principal(ANONYMOUS, "")
        self._all_unknown, self._all_incomplete = unknown, incomplete
        self._unknown, self._incomplete = unknown.open(anonymous), incomplete.open(anonymous)
        self._unknown_bytes = 0

    def begin(self, host: str) -> None:
        """Count bytes for the client's host until the client is signed in."""
        self._unknown = self._all_unknown.open(Principal(ANONYMOUS, host))

    def add(self, size: int) -> None:
        """Count bytes of a client that is not signed in. Raises ``Unavailable`` beyond the
        limit."""
        self._unknown_bytes += size
        self._unknown.grow(self._unknown_bytes)

    def signed_in(self) -> None:
        """Release the bytes counted before the client was signed in."""
        self._unknown.close()

    @property
    def is_incomplete(self) -> bool:
        """Whether an incomplete packet is counted."""
        return self._incomplete.counted > 0

    def hold(self, principal: Principal, size: int) -> None:
        """Count an incomplete packet of ``size`` bytes for the user; 0 releases it. Raises
        :class:`MqttViolation` beyond the limit."""
        if not self.is_incomplete:
            self._incomplete = self._all_incomplete.open(principal)
        if not self._incomplete.fits(size):
            text = (
                "too many large messages of the user are incomplete; send fewer of them at the "
                "same time"
            )
            raise MqttViolation(Reason.QUOTA_EXCEEDED, text)

    def end(self) -> None:
        """Release all bytes because the connection is lost."""
        self.signed_in()
        self._incomplete.close()
