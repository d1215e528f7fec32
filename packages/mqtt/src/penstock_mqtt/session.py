"""What there is of one client: what it subscribes to, and what is in flight in both directions."""

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
from penstock_mqtt.held_bytes import SEAT_BYTES_MAX, HeldMessages
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
    """Numbers of a session, or sums of several."""

    sessions: int
    filters: int
    in_flight: int
    wills: int


NOTHING: Final = SessionFigures(sessions=0, filters=0, in_flight=0, wills=0)


class ClientKey(NamedTuple):
    """What a session is known by: a client id is its user's, and others may choose the same."""

    client_id: str
    user: str


def turn_of(key: ClientKey) -> str:
    """The name under which what one client does waits for its turn."""
    return f"{key.client_id}\0{key.user}"


OVERHEAD_BYTES: Final = 512
"""Bytes of a stored session beside its entry, about."""


class SessionShares:
    """The sizes of stored sessions, by user: their number and bytes are bounded, so that no user
    fills the disk and the memory of all."""

    def __init__(self, sessions_max: int, bytes_max: int) -> None:
        """0: no limit."""
        self._sessions_max, self._bytes_max = sessions_max, bytes_max
        self._sizes: dict[str, dict[ClientKey, int]] = {}
        self._sums: dict[str, int] = {}

    def keep(self, key: ClientKey, size: int, *, is_checked: bool = True) -> None:
        """Count a session whose entry has ``size`` bytes. Raises ``LimitReached`` for one that is
        new, or has grown, beyond what its user may have; then nothing is changed."""
        size += OVERHEAD_BYTES
        sizes = self._sizes.get(key.user, {})
        old = sizes.get(key, 0)
        total = self._sums.get(key.user, 0) - old + size
        if is_checked and not old and self._sessions_max and len(sizes) >= self._sessions_max:
            raise LimitReached(
                f"user {key.user} has {len(sizes)} sessions of MQTT that are stored, and "
                f"{self._sessions_max} may be (limits.mqtt_sessions_per_user_max); end some with "
                f"`penstock topic end`, or connect with session expiry 0"
            )
        if is_checked and size > old and self._bytes_max and total > self._bytes_max:
            raise LimitReached(
                f"the stored sessions of user {key.user} would take {total} bytes, and "
                f"{self._bytes_max} may be (limits.mqtt_session_bytes_per_user_max); subscribe to "
                f"less, end some with `penstock topic end`, or have smaller wills"
            )
        self._sizes.setdefault(key.user, {})[key] = size
        self._sums[key.user] = total

    def forget(self, key: ClientKey) -> None:
        """A session is not stored any more."""
        sizes = self._sizes.get(key.user)
        if sizes is None or key not in sizes:
            return
        self._sums[key.user] -= sizes.pop(key)
        if not sizes:
            del self._sizes[key.user], self._sums[key.user]


class MqttSession:
    """The state of a session (4.1). One that lasts is stored, and outlives its connection."""

    def __init__(self, mqtt: MqttRealm, client_id: str, principal: Principal, place: str) -> None:
        """``place`` is where it is stored."""
        self._mqtt = mqtt
        self.client_id = client_id
        self.key = ClientKey(client_id, principal.user)
        self.turn = turn_of(self.key)
        self.place = place
        self.principal = principal
        self.connection: ClientConnection | None = None
        """The connection that it has now."""
        self.is_lasting = False
        self.is_over = False
        """Whether it has ended and nobody may go on with it."""
        self.has_record = False
        """Whether something of it is stored."""
        self.expiry_s = 0
        self.ended_us = 0
        """When its connection ended, in microseconds since 1970; 0: it has one."""
        self.will: StoredWill | None = None
        self.filters: dict[str, Filter] = {}
        self._away: dict[str, StoredFilter] = {}
        """Its subscriptions, while it has no connection."""
        self.outbox = Outbox(self, mqtt.counts, mqtt.realm.clock)
        self.received: dict[int, bool] = {}
        """Messages of QoS 2 that have come and are not released, by id: whether they are stored."""
        self.room = RoughRoom(SEAT_BYTES_MAX)
        """The bytes of events of its durables that are with its client."""
        self._taken_bytes = 0
        self._stored = asyncio.Event()
        self.counted = NOTHING
        """What is in the sums of sessions that are away."""

    def has(self, wanted: Filter) -> bool:
        """Whether the client is still subscribed by this filter."""
        return self.filters.get(wanted.text) is wanted

    def stored_filters(self) -> tuple[StoredFilter, ...]:
        """Its subscriptions, as they are stored of one that lasts."""
        return tuple(self._away.values()) if self.connection is None else self._kept()

    @property
    def figures(self) -> SessionFigures:
        """What there is of it."""
        filters = len(self._away if self.connection is None else self.filters)
        return SessionFigures(
            sessions=1,
            filters=filters,
            in_flight=len(self.outbox.in_flight),
            wills=int(self.will is not None),
        )

    # --- times ---------------------------------------------------------------------------

    @property
    def expires_us(self) -> int | None:
        """When it ends unless its client comes back; None: never, or it has a connection."""
        if not self.ended_us or self.expiry_s == NEVER:
            return None
        return self.ended_us + self.expiry_s * 1_000_000

    @property
    def will_us(self) -> int | None:
        """When its will is published; None: it has none, or a connection."""
        if self.will is None or not self.ended_us:
            return None
        due_us = self.ended_us + self.will.delay_s * 1_000_000
        expires_us = self.expires_us
        return due_us if expires_us is None else min(due_us, expires_us)

    # --- what is stored ------------------------------------------------------------------

    @property
    def entry(self) -> Entry:
        """The session as it is stored now."""
        kept = self.stored_filters() if self.is_lasting else ()
        return session_entry(
            self.place,
            SessionRecord(
                self.client_id,
                stored_principal(self.principal),
                self.expiry_s,
                ended_us=self.ended_us,
                will=self.will,
                filters=kept,
            ),
        )

    def _kept(self) -> tuple[StoredFilter, ...]:
        return tuple(
            StoredFilter(
                each.text,
                each.qos,
                no_local=each.no_local,
                retain_as_published=each.retain_as_published,
                number=each.number,
                durable=each.durable,
                owes_retained=each.retained.is_owed,
            )
            for each in self.filters.values()
        )

    def restore(self, record: SessionRecord) -> None:
        """Restore a session that was stored before the server started."""
        self.has_record, self.is_lasting = True, record.expiry_s > 0
        self.expiry_s, self.ended_us = record.expiry_s, record.ended_us
        self.will = record.will
        self.is_over = record.expiry_s == 0
        self._away = {each.filter: each for each in record.filters}

    def store(
        self,
        entries: Sequence[Entry],
        then: Callable[[], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Store entries with others of this turn of the loop; ``then`` is called once they are on
        disk. If they cannot be stored ``failed`` is called, and the connection ends, so that it
        goes on from what is."""

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
        """The names of its durables, and of those that it shares."""
        return [name for _, name in self.kept]

    @property
    def kept(self) -> list[tuple[str, str]]:
        """Its subscriptions that have durables, each with the name of that."""
        return [(each.filter, each.durable) for each in self.stored_filters() if each.durable]

    # --- connections come and go ---------------------------------------------------------

    def bind(self, connection: ClientConnection) -> None:
        """Use a connection, and give its filters back; feeds start later."""
        self.connection = connection
        self.room, self._taken_bytes = RoughRoom(SEAT_BYTES_MAX), 0
        self.ended_us = 0
        for stored in self._away.values():
            options = TopicSubscription(
                stored.filter,
                stored.qos,
                no_local=stored.no_local,
                retain_as_published=stored.retain_as_published,
            )
            made = Filter(connection, self.outbox, options, number=stored.number)
            made.durable, made.retained.is_owed = stored.durable, stored.owes_retained
            self.filters[made.text] = made
        self._away = {}

    async def start_feeds(self, wanted: Filter) -> None:
        """Start the delivery of a filter's messages, unless it has started: a client may subscribe
        by a filter that its session is about to resume. Raises what taking a seat raises."""
        if wanted.is_open:
            return
        if not wanted.durable:
            wanted.is_live = True
            self._mqtt.fan_out.add(wanted)
            return
        if wanted.may_have(None):
            feed = wanted.feed = DurableFeed(self._mqtt, self, wanted)
            try:
                await self._start_feed(wanted, feed)
            except BaseException:
                wanted.feed = None
                raise
        await self.start_topic_feeds(wanted)
        self.drop_deleted_channels(wanted)
        if wanted.is_draining:
            await self.end_draining(wanted)

    async def end_draining(self, wanted: Filter) -> None:
        """Delete the durable of a filter that was lowered to QoS 0 if no message waits there that
        the client may have, and give the client later messages as they are published."""
        if not wanted.is_draining:
            return

        def go_live() -> bool:
            if not (self.has(wanted) and wanted.is_draining):
                return False
            self._close(wanted)
            wanted.durable, wanted.is_live = "", True
            self._mqtt.fan_out.add(wanted)
            return True

        subscriptions = self._mqtt.realm.subscriptions
        channels = [feed.channel_id for feed in wanted.open_feeds]
        try:
            if await subscriptions.delete_consumed(wanted.durable, channels, go_live):
                self.store((self.entry,))
        except PenstockError as error:  # the next message, or connection, tries it again
            _log.warning("mqtt.durable_kept", client=self.client_id, reason=str(error))

    def drop_deleted_channels(self, wanted: Filter) -> None:
        """End the redelivery of events in flight from channels that were deleted."""
        for name in self.outbox.channels_of(wanted.text):
            if self._mqtt.realm.view.named(name) is None:
                left = self.outbox.unacknowledged(wanted.text, name)
                self.outbox.end_redelivery(wanted.text, left, name)

    async def start_topic_feeds(self, wanted: Filter) -> None:
        """Start the feeds of a filter with a durable from the channels whose topics it matches,
        and from channels where its durable still has events. Raises what taking a seat raises."""
        topics = self._mqtt.topics
        left = topics.left_with(wanted.durable, wanted.text)
        for channel in (*topics.met_by(wanted.text), *left):
            if channel.name in wanted.feeds or not wanted.may_have(channel):
                continue
            feed = DurableFeed(self._mqtt, self, wanted, topics=channel)
            wanted.feeds[channel.name] = feed
            try:
                await self._start_feed(wanted, feed)
            except BaseException:
                wanted.feeds.pop(channel.name, None)
                raise
        if left:
            await retire_durable(self._mqtt.realm, topics, name=wanted.durable, text=wanted.text)

    async def _start_feed(self, wanted: Filter, feed: DurableFeed) -> None:
        known = self.outbox.unsettled(wanted.text, feed.channel)
        await feed.skip_received(known)
        self.outbox.end_redelivery(wanted.text, known, feed.channel)
        await feed.open()

    def detach(self) -> None:
        """The connection is gone. What is in flight goes back to the durables."""
        self.outbox.connection_lost()
        for each in self.filters.values():
            self._close(each)
        if self.is_lasting or any(each.is_shared for each in self.filters.values()):
            kept = self._kept()
            self._away = {each.filter: each for each in kept}
        self.filters = {}
        self.connection = None
        if not self.is_lasting:
            self.outbox.bytes.close()
        self.ended_us = self._mqtt.realm.clock.now_us()

    def _close(self, wanted: Filter) -> None:
        if wanted.durable:
            feeds, wanted.feed, wanted.feeds = wanted.open_feeds, None, {}
            for feed in feeds:
                feed.close()
        elif wanted.is_live:
            wanted.is_live = False
            self._mqtt.fan_out.remove(wanted)

    # --- subscriptions -------------------------------------------------------------------

    def subscribe(self, wanted: TopicSubscription, number: int | None) -> tuple[Filter, bool]:
        """Have a filter, in place of an earlier one of its text; gives it, and whether it is new.
        Nothing comes by it before it is opened."""
        assert self.connection is not None, "it has asked for it"
        made = Filter(self.connection, self.outbox, wanted, number=number)
        older = self.filters.get(made.text)
        if made.is_shared:
            made.durable, made.qos = shared_durable_of(made.text), min(made.qos, 1)
        elif self.is_lasting and made.qos:
            made.durable = durable_of(self.place, made.text)
        if older is None:
            self.filters[made.text] = made
            return made, True
        if older.durable:  # no waiting message is lost (3.8.4-4), also if this one has QoS 0
            older.qos, older.no_local, older.number = made.qos, made.no_local, number
            older.retain_as_published = made.retain_as_published
            return older, False
        self._close(older)
        self.filters[made.text] = made
        return made, False

    def unsubscribe(self, text: str) -> Filter | None:
        """Give a filter up; gives what it was, and None if there was none."""
        known = self.filters.pop(text, None)
        if known is not None:
            self._close(known)
            if known.durable:
                self.outbox.end_subscription(text)
        return known

    # --- bytes that are kept for it ------------------------------------------------------

    def count_bytes(self, change: int) -> None:
        """Change the sum of what is kept for clients of its user."""
        if change:
            self._mqtt.held.add(self.principal.user, change)

    @property
    def held_messages(self) -> HeldMessages:
        """The messages that are kept for its client."""
        end = None if self.connection is None else self.connection.end
        return HeldMessages(self.outbox.bytes, end)

    def give_back_room(self, size: int) -> None:
        """Give back room for events of durables; its seats are told once it is worth it."""
        self._taken_bytes += size
        if self._taken_bytes * 4 >= self.room.bytes_max:
            given_back, self._taken_bytes = self._taken_bytes, 0
            feeds = [feed for each in self.filters.values() for feed in each.open_feeds]
            if not feeds:
                self.room.taken(given_back)
            for at, feed in enumerate(feeds):  # each of them may be waiting for room
                feed.has_room(1 if at else given_back - len(feeds) + 1)

    # --- what is on its way --------------------------------------------------------------

    def answer(self, packet: Packet) -> None:
        """Send the client a packet, if it is there."""
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
        """The client has events of a filter's durable in a channel, or retained messages. ``then``
        is called for each that a durable has on disk; without a seat it never has, and they come
        again."""
        wanted = self.filters.get(text)
        if wanted is None:
            return
        if from_retained:
            if any([wanted.retained.end_message(each) for each in event_ids]):
                self._end_retained(wanted)
        elif (feed := wanted.feed_of(channel)) is not None:
            feed.acknowledge(event_ids, then)

    def will_resend(self, source: MessageSource) -> bool:
        """Whether the next connection is sent a message in flight from its durable, or from the
        retained messages."""
        wanted = self.filters.get(source.text)
        if wanted is None:
            return False
        return wanted.retained.is_owed if source.from_retained else bool(wanted.durable)

    def begin_receive(self, packet_id: int) -> None:
        """Remember a received message of QoS 2 that is being stored."""
        self.received[packet_id] = False
        self._stored.clear()

    def end_receive(self, packet_id: int, *, is_stored: bool) -> None:
        """Mark a received message of QoS 2 as stored, or forget it because it was refused."""
        if is_stored:
            self.received[packet_id] = True
        else:
            del self.received[packet_id]
        self._stored.set()

    async def received_all(self) -> None:
        """Wait until nothing that has come is still being stored."""
        while not all(self.received.values()):
            await self._stored.wait()
            self._stored.clear()

    def end_retained_search(self, wanted: Filter) -> None:
        """Count a search for a filter's retained messages that has found all of them."""
        if wanted.retained.end_search() and self.has(wanted):
            self._end_retained(wanted)

    def _end_retained(self, wanted: Filter) -> None:
        """Store that the client has all retained messages of a filter."""
        self.store((self.entry,))
        self.outbox.end_retained(wanted.text)
