"""The state of one client: its subscriptions, and the messages in flight in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock_core.access.rights import Principal
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import LimitReached, PenstockError
from penstock_mqtt.durable_feed import (
    DurableFeed,
    durable_of,
    retire_durable,
    shared_durable_of,
)
from penstock_mqtt.filters import ClientConnection, Filter
from penstock_mqtt.held_bytes import HeldMessages
from penstock_mqtt.in_flight import MessageSource
from penstock_mqtt.outbox import Outbox
from penstock_mqtt.session_store import (
    NEVER,
    Entry,
    SessionRecord,
    StoredFilter,
    StoredWill,
    session_entry,
    stored_principal,
)
from penstock_mqtt.wire.packets import Packet, TopicSubscription
from penstock_server.runtime.delivery.byte_credit import RoughRoom

if TYPE_CHECKING:
    from penstock_mqtt.mqtt_realm import MqttRealm


_log = logger("penstock.mqtt")


class SessionFigures(NamedTuple):
    """Figures of a session, or sums over several sessions."""

    sessions: int
    filters: int
    in_flight: int
    wills: int


NOTHING: Final = SessionFigures(sessions=0, filters=0, in_flight=0, wills=0)


class ClientKey(NamedTuple):
    """The key of a session. Client ids belong to a user; other users may use the same one."""

    client_id: str
    user: str


def turn_of(key: ClientKey) -> str:
    """Return the key of the lock that puts a client's operations in order."""
    return f"{key.client_id}\0{key.user}"


OVERHEAD_BYTES: Final = 512
"""Approximate bytes of a stored session without its entry."""


class SessionShares:
    """Sizes of stored sessions by user. Their number and bytes are limited, so that one user cannot
    fill the disk and the memory of all."""

    def __init__(self, sessions_max: int, bytes_max: int) -> None:
        """A limit of 0 means no limit."""
        self._sessions_max, self._bytes_max = sessions_max, bytes_max
        self._sizes: dict[str, dict[ClientKey, int]] = {}
        self._sums: dict[str, int] = {}

    def keep(self, key: ClientKey, size: int, *, is_checked: bool = True) -> None:
        """Count a session whose entry has ``size`` bytes. Raises ``LimitReached`` if a new or
        larger session exceeds the limits of its user; then the counts do not change."""
        size += OVERHEAD_BYTES
        sizes = self._sizes.get(key.user, {})
        old_size = sizes.get(key, 0)
        total = self._sums.get(key.user, 0) - old_size + size
        if is_checked and not old_size and self._sessions_max and len(sizes) >= self._sessions_max:
            raise LimitReached(
                f"user {key.user} has {len(sizes)} stored MQTT sessions; at most "
                f"{self._sessions_max} are allowed (limits.mqtt_sessions_per_user_max): end some "
                f"with `penstock topic end`, or connect with session expiry 0"
            )
        if is_checked and size > old_size and self._bytes_max and total > self._bytes_max:
            raise LimitReached(
                f"the stored MQTT sessions of user {key.user} would take {total} bytes; at most "
                f"{self._bytes_max} are allowed (limits.mqtt_session_bytes_per_user_max): "
                f"subscribe to less, end some with `penstock topic end`, or use smaller wills"
            )
        self._sizes.setdefault(key.user, {})[key] = size
        self._sums[key.user] = total

    def forget(self, key: ClientKey) -> None:
        """Remove a session that is not stored any more."""
        sizes = self._sizes.get(key.user)
        if sizes is None or key not in sizes:
            return
        self._sums[key.user] -= sizes.pop(key)
        if not sizes:
            del self._sizes[key.user], self._sums[key.user]


class MqttSession:
    """The state of a session (4.1). A lasting session is stored and outlives its connection."""

    def __init__(self, mqtt: MqttRealm, client_id: str, principal: Principal, place: str) -> None:
        """``place`` is the key that the session is stored under."""
        self._mqtt = mqtt
        self.client_id = client_id
        self.key = ClientKey(client_id, principal.user)
        self.turn = turn_of(self.key)
        self.place = place
        self.principal = principal
        self.connection: ClientConnection | None = None
        """The current connection."""
        self.is_lasting = False
        self.is_over = False
        """Whether the session has ended and cannot be resumed."""
        self.has_record = False
        """Whether entries of the session are stored."""
        self.expiry_s = 0
        self.ended_us = 0
        """End of the last connection in microseconds since 1970; 0 while the client is
        connected."""
        self.will: StoredWill | None = None
        self.filters: dict[str, Filter] = {}
        self._stored_filters: dict[str, StoredFilter] = {}
        """Stored form of the session's subscriptions, by filter; empty while the client is
        connected."""
        self.outbox = Outbox(self, mqtt.counts, mqtt.realm.clock, limits=mqtt.limits)
        self.received: dict[int, bool] = {}
        """Unreleased received messages of QoS 2, by packet id: whether they are stored."""
        self.room = RoughRoom(mqtt.limits.seat_bytes_max)
        """Bytes of events that the session's durables may still send to the client."""
        self._returned_bytes = 0
        """Bytes given back by `return_room` that the seats were not notified of yet."""
        self._stored = asyncio.Event()
        """Set when a received message of QoS 2 was stored or refused."""
        self.counted = NOTHING
        """The session's share in the sums of disconnected sessions."""

    def has(self, topic_filter: Filter) -> bool:
        """Return whether the client still subscribes with this filter, over the connection that the
        filter was made for."""
        return self.filters.get(topic_filter.text) is topic_filter

    def stored_filters(self) -> tuple[StoredFilter, ...]:
        """Return the session's subscriptions in their stored form."""
        return (
            tuple(self._stored_filters.values())
            if self.connection is None
            else self._stored_form_of_filters()
        )

    @property
    def figures(self) -> SessionFigures:
        """The current figures of the session."""
        filters = len(self._stored_filters if self.connection is None else self.filters)
        return SessionFigures(
            sessions=1,
            filters=filters,
            in_flight=len(self.outbox.in_flight),
            wills=int(self.will is not None),
        )

    # --- times ---------------------------------------------------------------------------

    @property
    def expires_us(self) -> int | None:
        """Time when the session ends unless its client reconnects, in microseconds since 1970. None
        if the session never ends or its client is connected."""
        if not self.ended_us or self.expiry_s == NEVER:
            return None
        return self.ended_us + self.expiry_s * 1_000_000

    @property
    def will_us(self) -> int | None:
        """Time when the session's will is published, in microseconds since 1970. None if the
        session has no will or its client is connected."""
        if self.will is None or not self.ended_us:
            return None
        # A will is published at the end of its session at the latest (3.1.3.2.2).
        due_us = self.ended_us + self.will.delay_s * 1_000_000
        expires_us = self.expires_us
        return due_us if expires_us is None else min(due_us, expires_us)

    # --- storage -------------------------------------------------------------------------

    @property
    def entry(self) -> Entry:
        """The session in its stored form."""
        filters_and_durables = self.stored_filters() if self.is_lasting else ()
        return session_entry(
            self.place,
            SessionRecord(
                self.client_id,
                stored_principal(self.principal),
                self.expiry_s,
                ended_us=self.ended_us,
                will=self.will,
                filters=filters_and_durables,
            ),
        )

    def _stored_form_of_filters(self) -> tuple[StoredFilter, ...]:
        return tuple(
            StoredFilter(
                subscribed.text,
                subscribed.qos,
                no_local=subscribed.no_local,
                retain_as_published=subscribed.retain_as_published,
                number=subscribed.number,
                durable=subscribed.durable,
                owes_retained=subscribed.retained.is_owed,
            )
            for subscribed in self.filters.values()
        )

    def restore(self, record: SessionRecord) -> None:
        """Restore a session that was stored before the server started."""
        self.has_record, self.is_lasting = True, record.expiry_s > 0
        self.expiry_s, self.ended_us = record.expiry_s, record.ended_us
        self.will = record.will
        self.is_over = record.expiry_s == 0
        self._stored_filters = {stored.filter: stored for stored in record.filters}

    def store(
        self,
        entries: Sequence[Entry],
        then: Callable[[], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Store entries with others of this turn of the loop. ``then`` is called once they are on
        disk. If they cannot be stored, ``failed`` is called and the connection ends, so that the
        client resumes from the stored state."""

        if self.is_over and self.connection is None:
            return

        def reply(error: PenstockError | None) -> None:
            if error is None:
                if then is not None:
                    then()
                return
            if failed is not None:
                failed()
            if self.connection is not None:
                self.connection.end(error)

        self._mqtt.store.write(entries, reply)

    @property
    def durables(self) -> list[str]:
        """The names of the session's durables, including shared ones."""
        return [name for _, name in self.filters_and_durables]

    @property
    def filters_and_durables(self) -> list[tuple[str, str]]:
        """The session's subscriptions that have durables, as pairs of filter and durable name."""
        return [
            (stored.filter, stored.durable) for stored in self.stored_filters() if stored.durable
        ]

    # --- connecting and disconnecting ----------------------------------------------------

    def bind(self, connection: ClientConnection) -> None:
        """Bind the session to a connection and restore its filters; feeds start later."""
        self.connection = connection
        self.room, self._returned_bytes = RoughRoom(self._mqtt.limits.seat_bytes_max), 0
        self.ended_us = 0
        for stored in self._stored_filters.values():
            options = TopicSubscription(
                stored.filter,
                stored.qos,
                no_local=stored.no_local,
                retain_as_published=stored.retain_as_published,
            )
            restored = Filter(connection, self.outbox, options, number=stored.number)
            restored.durable, restored.retained.is_owed = stored.durable, stored.owes_retained
            self.filters[restored.text] = restored
        self._stored_filters = {}

    async def start_feeds(self, topic_filter: Filter) -> None:
        """Start the delivery of a filter's messages, unless it has already been started: a client
        may subscribe with a filter while its session is being resumed. Raises the errors of
        attaching to the durable."""
        if topic_filter.is_open:
            return
        if not topic_filter.durable:
            topic_filter.is_live = True
            self._mqtt.fan_out.add(topic_filter)
            return
        if topic_filter.may_read(None):
            feed = topic_filter.feed = DurableFeed(self._mqtt, self, topic_filter)
            try:
                await self._start_feed(topic_filter, feed)
            except BaseException:
                topic_filter.feed = None
                raise
        await self.start_topic_feeds(topic_filter)
        self.drop_deleted_channels(topic_filter)
        if topic_filter.is_draining:
            await self.end_draining(topic_filter)

    async def end_draining(self, topic_filter: Filter) -> None:
        """Delete the durable of a filter that was lowered to QoS 0 if it has no outstanding message
        for the client. Later messages are then sent as they are published."""
        if not topic_filter.is_draining:
            return

        def go_live() -> bool:
            if not (self.has(topic_filter) and topic_filter.is_draining):
                return False
            self._close(topic_filter)
            topic_filter.durable, topic_filter.is_live = "", True
            self._mqtt.fan_out.add(topic_filter)
            return True

        subscriptions = self._mqtt.realm.subscriptions
        channels = [feed.channel_id for feed in topic_filter.open_feeds]
        try:
            if await subscriptions.delete_consumed(topic_filter.durable, channels, go_live):
                self.store((self.entry,))
        except PenstockError as error:  # the next message or connection tries again
            _log.warning("mqtt.durable_kept", client=self.client_id, reason=str(error))

    def drop_deleted_channels(self, topic_filter: Filter) -> None:
        """End the redelivery of events in flight from channels that were deleted."""
        for name in self.outbox.channels_of(topic_filter.text):
            if self._mqtt.realm.view.named(name) is None:
                event_ids = self.outbox.unacknowledged(topic_filter.text, name)
                self.outbox.end_redelivery(topic_filter.text, event_ids, name)

    async def start_topic_feeds(self, topic_filter: Filter) -> None:
        """Start the feeds of a filter with a durable, from the channels whose topics it matches and
        from channels where its durable still has events. Raises the errors of attaching to the
        durable."""
        topics = self._mqtt.topics
        former_channels = topics.stores_without_topics(topic_filter.durable, topic_filter.text)
        for channel in (*topics.matching_channels(topic_filter.text), *former_channels):
            if channel.name in topic_filter.feeds or not topic_filter.may_read(channel):
                continue
            feed = DurableFeed(self._mqtt, self, topic_filter, topics=channel)
            topic_filter.feeds[channel.name] = feed
            try:
                await self._start_feed(topic_filter, feed)
            except BaseException:
                topic_filter.feeds.pop(channel.name, None)
                raise
        if former_channels:
            await retire_durable(
                self._mqtt.realm, topics, name=topic_filter.durable, text=topic_filter.text
            )

    async def _start_feed(self, topic_filter: Filter, feed: DurableFeed) -> None:
        # First, so that the durable does not deliver messages again that the client has received.
        unsettled = self.outbox.unsettled(topic_filter.text, feed.channel)
        await feed.skip_received(unsettled)
        self.outbox.end_redelivery(topic_filter.text, unsettled, feed.channel)
        await feed.open()

    def detach(self) -> None:
        """Detach from the lost connection. Durables deliver messages in flight again."""
        self.outbox.connection_lost()
        for subscribed in self.filters.values():
            self._close(subscribed)
        if self.is_lasting or any(subscribed.is_shared for subscribed in self.filters.values()):
            filters_and_durables = self._stored_form_of_filters()
            self._stored_filters = {stored.filter: stored for stored in filters_and_durables}
        self.filters = {}
        self.connection = None
        if not self.is_lasting:
            self.outbox.bytes.close()
        self.ended_us = self._mqtt.realm.clock.now_us()

    def _close(self, topic_filter: Filter) -> None:
        """Stop the delivery of a filter's messages."""
        if topic_filter.durable:
            feeds, topic_filter.feed, topic_filter.feeds = topic_filter.open_feeds, None, {}
            for feed in feeds:
                feed.close()
        elif topic_filter.is_live:
            topic_filter.is_live = False
            self._mqtt.fan_out.remove(topic_filter)

    # --- subscriptions -------------------------------------------------------------------

    def subscribe(self, subscription: TopicSubscription, number: int | None) -> tuple[Filter, bool]:
        """Add a filter, or replace the client's earlier filter with the same text. Return the
        filter and whether it is new. It receives no messages before `start_feeds`."""
        assert self.connection is not None, "only a connected client subscribes"
        new_filter = Filter(self.connection, self.outbox, subscription, number=number)
        older = self.filters.get(new_filter.text)
        if new_filter.is_shared:
            # QoS 2 would bind a message in flight to this member of the group (SEM M9).
            new_filter.durable, new_filter.qos = (
                shared_durable_of(new_filter.text),
                min(new_filter.qos, 1),
            )
        elif self.is_lasting and new_filter.qos:
            new_filter.durable = durable_of(self.place, new_filter.text)
        if older is None:
            self.filters[new_filter.text] = new_filter
            return new_filter, True
        if older.durable:  # its waiting messages must be kept (3.8.4-4), even if QoS is 0 now
            older.qos, older.no_local, older.number = new_filter.qos, new_filter.no_local, number
            older.retain_as_published = new_filter.retain_as_published
            return older, False
        self._close(older)
        self.filters[new_filter.text] = new_filter
        return new_filter, False

    def unsubscribe(self, text: str) -> Filter | None:
        """Remove a filter. Return it, or None if it does not exist."""
        removed = self.filters.pop(text, None)
        if removed is not None:
            self._close(removed)
            if removed.durable:
                self.outbox.end_subscription(text)
        return removed

    # --- bytes held for the client -------------------------------------------------------

    def count_bytes(self, change: int) -> None:
        """Change the bytes held for all clients of the session's user."""
        if change:
            self._mqtt.held.add(self.principal.user, change)

    @property
    def held_messages(self) -> HeldMessages:
        """The messages that are held for the session's client."""
        end = None if self.connection is None else self.connection.end
        return HeldMessages(self.outbox.bytes, end)

    def return_room(self, size: int) -> None:
        """Return ``size`` bytes of room for events of durables. The session's seats are notified
        once a quarter of the room was returned."""
        self._returned_bytes += size
        if self._returned_bytes * 4 >= self.room.bytes_max:
            returned_bytes, self._returned_bytes = self._returned_bytes, 0
            feeds = [feed for subscribed in self.filters.values() for feed in subscribed.open_feeds]
            if not feeds:
                self.room.consumed(returned_bytes)
            # Every seat may wait for room, so each gets at least 1 byte; the sum is exact.
            for index, feed in enumerate(feeds):
                feed.report_free_bytes(1 if index else returned_bytes - len(feeds) + 1)

    # --- messages in flight --------------------------------------------------------------

    def answer(self, packet: Packet) -> None:
        """Send a packet to the client if it is connected."""
        if self.connection is not None and self.connection.is_open:
            self.connection.send(packet)

    def settle(
        self,
        text: str,
        channel: str,
        event_ids: Sequence[int],
        then: Callable[[], None] | None = None,
        *,
        from_retained: bool,
    ) -> None:
        """Settle events that the client has, of a filter's durable in a channel or of retained
        messages. ``then`` is called for each event once its durable has stored the settlement.
        Without a seat at the durable ``then`` is not called, and the events are delivered again."""
        topic_filter = self.filters.get(text)
        if topic_filter is None:
            return
        if from_retained:
            if any([topic_filter.retained.end_message(event_id) for event_id in event_ids]):
                self._end_retained(topic_filter)
        elif (feed := topic_filter.feed_of(channel)) is not None:
            feed.acknowledge(event_ids, then)

    def will_resend(self, source: MessageSource) -> bool:
        """Return whether the next connection receives a message in flight from its durable or from
        the retained messages."""
        topic_filter = self.filters.get(source.text)
        if topic_filter is None:
            return False
        return topic_filter.retained.is_owed if source.from_retained else bool(topic_filter.durable)

    def begin_receive(self, packet_id: int) -> None:
        """Add a received message of QoS 2 that is being stored."""
        self.received[packet_id] = False
        self._stored.clear()

    def end_receive(self, packet_id: int, *, is_stored: bool) -> None:
        """Mark a received message of QoS 2 as stored, or remove it because it was refused."""
        if is_stored:
            self.received[packet_id] = True
        else:
            del self.received[packet_id]
        self._stored.set()

    async def received_all(self) -> None:
        """Wait until all received messages are stored."""
        while not all(self.received.values()):
            await self._stored.wait()
            self._stored.clear()

    def end_retained_search(self, topic_filter: Filter) -> None:
        """End a search for a filter's retained messages that has found all of them. If the client
        has all of them, store this."""
        if topic_filter.retained.end_search() and self.has(topic_filter):
            self._end_retained(topic_filter)

    def _end_retained(self, topic_filter: Filter) -> None:
        """Store that the client has all retained messages of a filter."""
        self.store((self.entry,))
        self.outbox.end_retained(topic_filter.text)
