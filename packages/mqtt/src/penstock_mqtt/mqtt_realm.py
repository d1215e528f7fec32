"""The state that all MQTT clients of a realm share: topics, live filters, the publisher, limits and
counts. :class:`~penstock_mqtt.hub.MqttHub` holds the connections and sessions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NameDoesNotExist, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.topics import TOPIC_BYTES_MAX
from penstock_mqtt.fan_out import FanOut
from penstock_mqtt.held_bytes import UserBytes
from penstock_mqtt.newest_events import make_channel
from penstock_mqtt.publishing import MessagePublisher
from penstock_mqtt.retained import RetainedMessages
from penstock_mqtt.retained_topics import RetainedLimits
from penstock_mqtt.session_store import SessionStore
from penstock_mqtt.topic_channels import TopicChannels
from penstock_mqtt.topic_rights import ClientRights
from penstock_mqtt.wire.properties import PROPERTIES_BYTES_MAX
from penstock_server.frontends.shared.buffers import Buffers
from penstock_server.runtime.access.open_connections import MessageCounts
from penstock_server.runtime.operations.internal_stores import serve_mqtt

if TYPE_CHECKING:
    from penstock_server.frontends.native.listener import NativeListener

ROOM_BYTES: Final = PROPERTIES_BYTES_MAX + TOPIC_BYTES_MAX + 64
"""Maximum number of bytes of a packet without its payload."""
UNKNOWN_BYTES_MAX: Final = 16 << 20
"""Maximum number of bytes of packets held for all clients that are not signed in."""
UNKNOWN_SMALL_BYTES: Final = 4_096
"""Bytes of packets that a client before its sign-in may hold without being counted."""


RECEIVE_MAXIMUM: Final = 1_000
WAITING_MAX: Final = 10_000
CLIENT_BYTES_MAX: Final = 64 << 20
SEAT_BYTES_MAX: Final = 16 << 20


class MqttLimits(Struct, frozen=True):
    """Limits for MQTT clients."""

    receive_maximum: int = RECEIVE_MAXIMUM
    """Maximum number of messages of QoS 1 and 2 that a client may send before the first is
    acknowledged completely."""
    waiting_max: int = WAITING_MAX
    """Maximum number of messages of QoS 1 and 2 that wait until the client acknowledges earlier
    ones."""
    packet_ids: int = 65_535
    """Number of packet ids for the messages to a client."""
    client_bytes_max: int = CLIENT_BYTES_MAX
    """Maximum number of bytes of messages that wait for one client or for its acknowledgements. A
    single message may be larger."""
    seat_bytes_max: int = SEAT_BYTES_MAX
    """Maximum number of bytes of durables' events at one client; the realm holds back further
    events."""
    page_max: int | None = None
    """Maximum number of retained messages that are read at once; None means the page size of other
    reads."""
    together: int = 256
    """Maximum number of retained messages in one write to a client."""
    flush_bytes: int = 1 << 16
    """Bytes of payload of retained messages after which pending output is sent."""


class MqttRealm:
    """The state that all MQTT clients of a realm share."""

    def __init__(self, listener: NativeListener, channel: str, held: UserBytes) -> None:
        """``channel`` is the name of the channel of all topics. ``held`` counts the bytes of
        messages held for clients."""
        self.listener = listener
        self.realm = listener.realm
        self.loop = asyncio.get_running_loop()
        self.held = held
        self.limits = MqttLimits()
        self.unknown = Buffers(UNKNOWN_BYTES_MAX, UNKNOWN_SMALL_BYTES)
        """Bytes received from clients that are not signed in."""
        self.packet_bytes_max = self.realm.limits.event_bytes_max + ROOM_BYTES
        serve_mqtt(self.realm, channel)
        self.traffic = self.realm.connections.traffic["mqtt"]
        self.counts = MessageCounts()
        self.fan_out = FanOut(self.realm.access, self.counts)
        self.retained = RetainedMessages(
            self.realm,
            channel,
            RetainedLimits(
                listener.limits.mqtt_retained_messages_max,
                listener.limits.mqtt_retained_bytes_max,
            ),
        )
        self.topics = TopicChannels(self.realm, channel)
        self.store = SessionStore(self.realm, channel)
        self.publisher = MessagePublisher(listener, self.topics, self.retained, sessions=self.store)
        self.opening = asyncio.Lock()
        """Held while the front end creates its channels or subscribes to them."""
        self.fault: PenstockError | None = None
        """The reason why clients cannot be served, or None."""

    async def open_channel(self) -> ChannelId:
        """Return the channel of all topics. Create it and the channel of retained messages if they
        are missing. The new channel keeps its events after all subscribers have consumed them."""
        try:
            channel_id = self.topics.channel_id()
        except NameDoesNotExist:
            definition = Definition(retain_consumed=True)
            await make_channel(self.realm, self.topics.all_topics, definition)
            channel_id = self.topics.channel_id()
        await self.retained.open_channel()
        return channel_id

    def rights_of(self, principal: Principal, client_id: str) -> ClientRights:
        """Return the rights of a client with this principal."""
        return ClientRights(self.realm, self.topics, principal, client_id=client_id)
