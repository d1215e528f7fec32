"""Records of messages that are being delivered to one client."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from penstock_mqtt.expressing import EXPIRY_S_MAX
from penstock_mqtt.messages import TopicMessage
from penstock_mqtt.wire.properties import PacketProperties

_FORWARDED: Final = (
    "payload_format",
    "content_type",
    "response_topic",
    "correlation_data",
    "user_properties",
)
"""Properties that receivers get unchanged."""


class MessageSource(NamedTuple):
    """The event of a lasting session's message; the message can be read from it again."""

    text: str
    """Text of the filter that delivers it to the client."""
    event_id: int
    from_retained: bool = False
    channel: str = ""
    """Name of the channel with topics that holds the event; empty for the channel of all topics."""


class WaitingMessage(NamedTuple):
    """A message for one client, with the options that its subscriptions set."""

    message: TopicMessage
    qos: int
    numbers: tuple[int, ...]
    """Subscription identifiers of the matching filters. The filters themselves belong to a
    connection, which the message may outlive."""
    retain: bool
    source: MessageSource | None
    size: int
    """Bytes of the message in memory."""

    def properties_at(self, now_us: int) -> PacketProperties | None:
        """Return the properties to send at ``now_us`` (microseconds since 1970), or None if the
        message has expired."""
        message = self.message
        numbers = self.numbers
        if not numbers and not message.ends_us:
            return message.properties
        remaining_us = message.ends_us - now_us
        if message.ends_us and remaining_us <= 0:
            return None
        # Rounded up, because 0 s would mean that the message has expired. Limited, because the
        # clock may have been set back since the event was published.
        expiry_s = min(-(-remaining_us // 1_000_000), EXPIRY_S_MAX) if message.ends_us else None
        forwarded = {name: getattr(message.properties, name) for name in _FORWARDED}
        return PacketProperties(**forwarded, message_expiry_s=expiry_s, subscription_ids=numbers)


class InFlight(Struct, eq=False):
    """A message that the client has not acknowledged completely."""

    qos: int
    waiting: WaitingMessage | None
    """The message, if it may have to be sent again; None if it would be read again from its
    source."""
    source: MessageSource | None
    is_stored: bool
    """Whether the message may be sent: the packet id of a message of QoS 2 must be on disk
    first."""
    is_sent: bool = False
    """Whether the client may have received its packet id."""
    is_released: bool = False
    """Whether the client has the message (PUBREC) or will not be sent it again."""
    is_complete: bool = False
    """Whether the client has completed the message (PUBCOMP)."""
    is_settled: bool = False
    """Whether the message will not be delivered again, because its durable has stored the
    acknowledgement or the client has all retained messages."""
