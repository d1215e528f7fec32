"""Topic filters of clients, and the connections, outboxes and seats at durables that they belong
to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_mqtt.messages import TopicMessage
from penstock_mqtt.wire.packets import Packet, TopicSubscription
from penstock_mqtt.wire.reading import SHARED

if TYPE_CHECKING:
    from penstock_mqtt.topic_channels import TopicChannel
    from penstock_mqtt.topic_rights import ClientRights


class ClientConnection(Protocol):
    """The connection of a client, as seen by the parts that send it messages. The connection or its
    session creates these parts, so they do not import it."""

    client_id: str
    version: int
    number: int
    """Number of the connection in the realm."""
    session: str
    """Name of the connection's session in the realm, which takes seats at durables."""
    rights: ClientRights
    packet_bytes_max: int
    """Maximum number of bytes of a packet that the client accepts."""
    is_open: bool
    is_writable: bool
    """Whether the client reads what it is sent."""

    def send(self, packet: Packet) -> bool:
        """Send a packet. Return False if it is larger than the client accepts."""
        ...

    def write(self, data: bytes) -> None:
        """Send encoded packets."""
        ...

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason."""
        ...

    def abort(self) -> None:
        """Drop the connection without a reason."""
        ...


class MessageSink(Protocol):
    """Accepts messages for a client."""

    def send_messages(self, messages: Sequence[TopicMessage], filters: Sequence[Filter]) -> None:
        """Send messages that these filters of the client match."""
        ...


class Feed(Protocol):
    """A seat at the durable of a filter."""

    @property
    def channel_id(self) -> ChannelId:
        """The channel of the durable. Raises ``NameDoesNotExist``."""
        ...

    def close(self) -> None:
        """Leave the seat. The durable delivers unacknowledged events again."""
        ...

    def report_free_bytes(self, size: int) -> None:
        """Report to the realm how many bytes of the window are free again."""
        ...

    def acknowledge(self, event_ids: Sequence[int], then: Callable[[], None] | None = None) -> None:
        """Acknowledge events to the durable. ``then`` is called for each event once its
        acknowledgement is on disk."""
        ...


class RetainedProgress:
    """The deliveries of retained messages that one subscription has begun and not ended.

    A subscription of a lasting session owes its client the retained messages that matched when the
    client subscribed (SEM M5). The delivery is complete once no search runs and the client has
    acknowledged every message that was sent. Ending a message twice has no effect, nor does ending
    a message that was sent over an earlier connection.
    """

    __slots__ = ("_event_ids", "_searches", "is_owed")

    def __init__(self, *, is_owed: bool = False) -> None:
        self.is_owed = is_owed
        """Whether the client may lack retained messages; stored with the session."""
        self._searches = 0
        """Number of running searches for retained messages."""
        self._event_ids: set[int] = set()
        """Retained messages that the outbox has accepted and the client has not acknowledged."""

    def begin_search(self) -> None:
        self._searches += 1

    def end_search(self) -> bool:
        """End a search that has found all its messages. Return whether the client now has all
        retained messages that it was owed."""
        self._searches -= 1
        return self._complete()

    def begin_message(self, event_id: int) -> None:
        self._event_ids.add(event_id)

    def end_message(self, event_id: int) -> bool:
        """Remove a message that the client has received or that cannot be sent. Return whether the
        client now has all retained messages that it was owed."""
        if event_id not in self._event_ids:
            return False
        self._event_ids.remove(event_id)
        return self._complete()

    def _complete(self) -> bool:
        is_complete = self.is_owed and not self._searches and not self._event_ids
        if is_complete:
            self.is_owed = False
        return is_complete


class Filter:
    """A topic filter that a client has subscribed to."""

    __slots__ = (
        "connection",
        "durable",
        "feed",
        "feeds",
        "is_live",
        "no_local",
        "number",
        "outbox",
        "qos",
        "retain_as_published",
        "retained",
        "text",
    )

    def __init__(
        self,
        connection: ClientConnection,
        outbox: MessageSink,
        subscription: TopicSubscription,
        number: int | None,
    ) -> None:
        self.connection = connection
        self.outbox = outbox
        self.text = subscription.filter
        self.qos = subscription.qos
        self.no_local = subscription.no_local
        self.retain_as_published = subscription.retain_as_published
        self.number = number
        """The client's subscription identifier; None if it has set none."""
        self.durable = ""
        """Name of the durable that holds the subscription's messages; empty if the subscription
        receives only messages that are published while it is live."""
        self.feed: Feed | None = None
        """The seat at the subscription's durable in the channel of all topics."""
        self.feeds: dict[str, Feed] = {}
        """The seats at the subscription's durable in channels with topics, by channel name."""
        self.is_live = False
        """Whether `FanOut` sends published messages to the subscription."""
        self.retained = RetainedProgress()
        """The retained messages that the client does not have yet."""

    @property
    def is_shared(self) -> bool:
        """Whether a group of clients shares the subscription, so that each message goes to one
        member (SEM M9)."""
        return self.text.startswith(SHARED)

    @property
    def open_feeds(self) -> list[Feed]:
        """The open seats at the subscription's durable."""
        return [feed for feed in (self.feed, *self.feeds.values()) if feed is not None]

    @property
    def is_draining(self) -> bool:
        """Whether the client has lowered the subscription to QoS 0 while its durable may still
        hold messages."""
        return bool(self.durable) and not self.qos and not self.is_shared

    @property
    def is_open(self) -> bool:
        """Whether the subscription receives messages."""
        return self.feed is not None or bool(self.feeds) or self.is_live

    def feed_of(self, channel: str) -> Feed | None:
        """Return the seat at the durable in a channel; an empty name is the channel of all
        topics."""
        return self.feeds.get(channel) if channel else self.feed

    def may_read(self, channel: TopicChannel | None) -> bool:
        """Return whether the subscription's client may read a channel; None is the channel of all
        topics."""
        rights = self.connection.rights
        return rights.may_read(self.text, channel, makes_durable=bool(self.durable))

    def accepts(self, message: TopicMessage) -> bool:
        """Return whether the client receives a matching message. The option No Local excludes the
        messages that the client has published itself."""
        return not (self.no_local and self.connection.client_id == message.client_id)
