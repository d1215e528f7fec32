"""Records of messages on their way to one client."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from penstock_mqtt.expressing import EXPIRY_S_MAX
from penstock_mqtt.messages import TopicMessage
from penstock_mqtt.wire.properties import PacketProperties

_KEPT: Final = (
    "payload_format",
    "content_type",
    "response_topic",
    "correlation_data",
    "user_properties",
)
"""Properties that reach receivers as they were sent."""


class MessageSource(NamedTuple):
    """Where a message of a lasting session comes from, and can be read again."""

    text: str
    """The filter by which it goes to the client."""
    event_id: int
    from_retained: bool = False
    channel: str = ""
    """The channel with topics that it is in; empty: the one of all topics."""


class WaitingMessage(NamedTuple):
    message: TopicMessage
    qos: int
    numbers: tuple[int, ...]
    """Subscription identifiers of the filters that take it. The filters themselves belong to a
    connection, which the message may outlive."""
    retain: bool
    source: MessageSource | None
    size: int
    """Bytes that it takes in memory."""

    def properties_at(self, now_us: int) -> PacketProperties | None:
        """Return the properties that a receiver is sent; None: the message has expired."""
        message = self.message
        numbers = self.numbers
        if not numbers and not message.ends_us:
            return message.properties
        left_us = message.ends_us - now_us
        if message.ends_us and left_us <= 0:
            return None
        # The clock may have been set back since the event was published.
        expiry_s = min(-(-left_us // 1_000_000), EXPIRY_S_MAX) if message.ends_us else None
        kept = {name: getattr(message.properties, name) for name in _KEPT}
        return PacketProperties(**kept, message_expiry_s=expiry_s, subscription_ids=numbers)


class InFlight(Struct, eq=False):
    """A message that the client has not acknowledged to the end."""

    qos: int
    waiting: WaitingMessage | None
    """What is sent again; None: it is read again."""
    source: MessageSource | None
    is_stored: bool
    """Whether it may be sent: the id of one of QoS 2 has to be on disk before."""
    is_sent: bool = False
    """Whether the client may have heard of it."""
    is_released: bool = False
    """Whether the client has said that it has the message (PUBREC), or is not sent it again."""
    is_complete: bool = False
    """Whether the client is done with it (PUBCOMP)."""
    is_settled: bool = False
    """Whether nothing gives it to the client again: its durable knows, or the client has all that
    is retained."""
