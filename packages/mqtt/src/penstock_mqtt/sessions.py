"""All sessions: their clients, their stored entries and their end (SEM M6)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from penstock_core.access.rights import Principal
from penstock_core.api.publishing import PublishEvents
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import NameDoesNotExist, PenstockError
from penstock_core.vocabulary.session_durables import is_of_session
from penstock_core.vocabulary.start_positions import FromId
from penstock_mqtt.durable_feed import is_shared_durable, make_durable, retire_durable
from penstock_mqtt.filters import ClientConnection, Filter
from penstock_mqtt.messages import Gathered, Received
from penstock_mqtt.session import (
    NOTHING,
    ClientKey,
    MqttSession,
    SessionFigures,
    SessionShares,
    turn_of,
)
from penstock_mqtt.session_store import (
    NEVER,
    Entry,
    StoredEntries,
    StoredWill,
    place_of,
    received_entry,
    sent_entry,
    session_removed,
    will_packet,
)
from penstock_mqtt.wire.packets import MQTT_3, MQTT_5, ConnectPacket, PublishPacket, Will
from penstock_mqtt.wire.writing import packet_bytes
from penstock_server.runtime.access.internal_errors import new_incident_id

if TYPE_CHECKING:
    from penstock_mqtt.mqtt_realm import MqttRealm

ALARM_S_MAX = 60.0
"""Longest timer in seconds. The clock may be set while the timer runs, so it is read again after
this time."""

_log = logger("penstock.mqtt")


class SessionConnection(ClientConnection, Protocol):
    """The connection of a client that has a session or will get one."""

    client: MqttSession
    """The session; a placeholder without a client id until the client is signed in."""

    @property
    def key(self) -> ClientKey:
        """The key of the session."""
        ...

    def close_replaced(self) -> None:
        """Close the connection because its client has connected again."""
        ...


class MqttSessions:
    """The sessions of all clients, stored or not."""

    def __init__(self, mqtt: MqttRealm) -> None:
        self._mqtt = mqtt
        self.store = mqtt.store
        self._connected: dict[ClientKey, SessionConnection] = {}
        """The connections of all clients."""
        self._stored_sessions: dict[ClientKey, MqttSession] = {}
        """Stored sessions, connected or not."""
        self._places: dict[str, MqttSession] = {}
        """Stored sessions by the key that they are stored under."""
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        """Locks of clients that connect or disconnect, each with the number of tasks that use
        it."""
        limits = mqtt.listener.limits
        self._shares = SessionShares(
            limits.mqtt_sessions_per_user_max, limits.mqtt_session_bytes_per_user_max
        )
        self._members: dict[str, set[MqttSession]] = {}
        """The sessions that share a durable, by its name."""
        self._due: list[tuple[int, ClientKey]] = []
        """Times in microseconds since 1970 when a session's will or end is due."""
        self._alarm: asyncio.TimerHandle | None = None
        self._is_loaded = False
        self.unreadable_count = 0
        """Stored entries that could not be read when the front end started."""
        self.away_figures = NOTHING
        """Sums over the sessions without a connection."""

    def __len__(self) -> int:
        return len(self._stored_sessions)

    def away(self) -> dict[ClientKey, MqttSession]:
        """Return the sessions without a connection."""
        return {
            key: session
            for key, session in self._stored_sessions.items()
            if session.connection is None
        }

    def connections(self) -> list[SessionConnection]:
        """Return the connections of all clients."""
        return list(self._connected.values())

    def connection_of(self, key: ClientKey) -> SessionConnection | None:
        """Return the connection of a client."""
        return self._connected.get(key)

    def all_sessions(self) -> dict[ClientKey, MqttSession]:
        """Return the sessions of all clients, connected or not."""
        connected = {key: connection.client for key, connection in self._connected.items()}
        return self.away() | connected

    def get(self, key: ClientKey) -> MqttSession | None:
        """Return a stored session."""
        return self._stored_sessions.get(key)

    def _count(self, session: MqttSession) -> None:
        """Update the sums of disconnected sessions after a change of this one."""
        is_away = session.connection is None and self._stored_sessions.get(session.key) is session
        counted = session.figures if is_away else NOTHING
        before = session.counted
        sums = zip(self.away_figures, counted, before, strict=True)
        self.away_figures = SessionFigures(
            *(total + current - previous for total, current, previous in sums)
        )
        session.counted = counted

    # --- the start -----------------------------------------------------------------------

    async def load(self) -> None:
        """Load the stored sessions. All of them are disconnected since the server has restarted."""
        if self._is_loaded:
            return
        stored = await self.store.load()
        self._is_loaded = True
        now_us = self._now_us
        if stored.unreadable_count:
            self._report_unreadable(stored)
        for place, record in stored.sessions.items():
            session = MqttSession(
                self._mqtt, record.client_id, record.principal.principal, place=place
            )
            # The clock of an earlier start may have been ahead: no session ended later than now.
            session.restore(replace(record, ended_us=min(record.ended_us or now_us, now_us)))
            self._stored_sessions[session.key] = self._places[place] = session
            self._shares.keep(session.key, len(session.entry[1]), is_checked=False)
            for name in filter(is_shared_durable, session.durables):
                self._members.setdefault(name, set()).add(session)
            self._schedule(session)
        for place, session in self._places.items():
            session.received = dict.fromkeys(stored.received.get(place, ()), True)
            for packet_id, sent in stored.sent.get(place, {}).items():
                session.outbox.restore(packet_id, sent)
        for session in self._stored_sessions.values():
            self._count(session)
        await self._reconcile_durables()

    def _report_unreadable(self, stored: StoredEntries) -> None:
        """Report stored entries that cannot be read, in the log. They stay in the store."""
        incident = new_incident_id()
        self.unreadable_count = stored.unreadable_count
        _log.error(
            "mqtt.entries_unreadable",
            incident=incident,
            store=self.store.name,
            count=stored.unreadable_count,
            entries=stored.unreadable,
        )

    async def _reconcile_durables(self) -> None:
        """Delete durables of sessions that a crash has left behind, and create those on channels
        that gained topics while MQTT was not served."""
        names = {name for session in self._stored_sessions.values() for name in session.durables}
        existing = {
            (store.number, name)
            for store in self._mqtt.realm.view.stores()
            for name, _ in store.durables
            if is_of_session(name)
        }
        for channel, name in existing:
            if name not in names:
                await self._mqtt.realm.subscriptions.delete_durable(channel, name)
        if self._mqtt.topics.all_channels:
            for session in list(self._stored_sessions.values()):
                await self._make_durables(session, existing)

    async def topics_changed(self) -> None:
        """Create the durables of sessions on channels that have gained topics, also for
        disconnected clients, and retire those without matching topics."""
        for session in list(self._stored_sessions.values()):
            async with self._turn(session.turn):
                if self._stored_sessions.get(session.key) is session:
                    await self._make_durables(session)
            for text, name in session.filters_and_durables:
                await retire_durable(self._mqtt.realm, self._mqtt.topics, name=name, text=text)
        for connection in self.connections():
            session = connection.client
            for subscribed in list(session.filters.values()):
                if subscribed.durable and subscribed.is_open:
                    await session.start_topic_feeds(subscribed)

    async def _make_durables(
        self, session: MqttSession, existing: Collection[tuple[int, str]] = ()
    ) -> None:
        """Create the durables that a session lacks on channels with topics. ``existing`` lists
        existing ones."""
        rights = self._mqtt.rights_of(session.principal, session.client_id)
        for text, name in session.filters_and_durables:
            for channel in self._mqtt.topics.matching_channels(text):
                if (channel.number, name) in existing:
                    continue
                if not rights.may_read(text, channel, makes_durable=True):
                    continue
                start = FromId(self._mqtt.topics.since(channel.number))
                with contextlib.suppress(NameDoesNotExist):  # the channel has been deleted
                    await make_durable(
                        self._mqtt.realm,
                        channel.number,
                        name=name,
                        text=text,
                        topics=channel,
                        start=start,
                    )

    # --- clients connect -----------------------------------------------------------------

    async def enter(
        self, connection: SessionConnection, packet: ConnectPacket, principal: Principal
    ) -> tuple[MqttSession, bool]:
        """Return the session of a connecting client, and whether it already existed. An older
        connection of the client ends."""
        key = connection.key
        async with self._turn(turn_of(key)):
            older = self._connected.get(key)
            if older is not None:
                older.close_replaced()
            self._connected[key] = connection
            existing = self._stored_sessions.get(key)
            if existing is not None and (packet.clean_start or existing.is_over):
                await self._end(existing)
                existing = None
            if existing is not None and _is_due(existing.will_us, self._now_us):
                await self._publish_will(existing)
            session = existing or MqttSession(
                self._mqtt, key.client_id, principal, place=self._place(key)
            )
            present = session.is_lasting
            session.principal = principal
            session.expiry_s, session.will = expiry_of(packet), _stored_will(packet.will)
            session.bind(connection)
            self._count(session)
            session.is_lasting = present or session.expiry_s > 0
            if session.is_lasting or session.will is not None:
                try:
                    self._shares.keep(key, len(session.entry[1]))
                    self._stored_sessions[key] = self._places[session.place] = session
                    session.has_record = True
                    await self.store.put((session.entry,))
                # This includes cancellation of the task: the connection must not stay bound to a
                # session that is not stored.
                except BaseException:
                    session.detach()
                    self._count(session)
                    raise
            return session, present

    def _place(self, key: ClientKey) -> str:
        """Return the key under which a new session is stored: its client id as in every version,
        unless another user's session has that key."""
        occupant = self._places.get(key.client_id)
        if occupant is None or occupant.key == key:
            return key.client_id
        return place_of(key.user, key.client_id)

    @property
    def _now_us(self) -> int:
        return self._mqtt.realm.clock.now_us()

    @asynccontextmanager
    async def _turn(self, client_id: str) -> AsyncIterator[None]:
        """Run the operations of one client one after the other."""
        lock, count = self._turns.get(client_id, (asyncio.Lock(), 0))
        self._turns[client_id] = lock, count + 1
        try:
            async with lock:
                yield
        finally:
            _, count = self._turns.pop(client_id)
            if count > 1:
                self._turns[client_id] = lock, count - 1

    async def resume(self, session: MqttSession, connection: SessionConnection) -> list[Filter]:
        """Resume deliveries over a connection unless it has ended. Return the filters with
        outstanding retained messages. Raises the errors of attaching to a durable."""
        if session.connection is not connection:
            return []  # another connection resumes after its sign-in
        session.outbox.resume()
        for topic_filter in list(session.filters.values()):
            if session.connection is not connection or not connection.is_open:
                return []
            if session.has(topic_filter):
                await self.open(session, topic_filter)
        return [
            subscribed for subscribed in session.filters.values() if subscribed.retained.is_owed
        ]

    # --- clients disconnect --------------------------------------------------------------

    def forget(self, connection: SessionConnection) -> None:
        """Remove a connection that has ended or was refused."""
        if self._connected.get(connection.key) is connection:
            del self._connected[connection.key]

    def leave(self, session: MqttSession) -> None:
        """Detach a session from its ended connection. End the session or publish its will if that
        is due now, otherwise store and schedule it."""
        session.detach()
        self._count(session)
        session.is_over = (
            session.is_over or session.expiry_s == 0 or self._is_without_effect(session)
        )
        if not session.has_record:
            if shared := session.durables:
                self._mqtt.listener.spawn(self._leave_groups, session, shared)
            return
        if session.is_over or _is_due(session.will_us, session.ended_us):
            self._mqtt.listener.spawn(self._process, session)
            return
        session.store((session.entry,))
        self._schedule(session)

    def _is_without_effect(self, session: MqttSession) -> bool:
        """Return whether a session can never have an effect: it has no subscription, and its user
        has no right to subscribe or to publish its will."""
        if session.stored_filters():
            return False
        rights = self._mqtt.rights_of(session.principal, session.client_id)
        return not rights.has_any_right()

    async def _process(self, session: MqttSession) -> None:
        """Publish the will of a session or end the session if that is due. A session whose client
        has connected again is left alone."""
        async with self._turn(session.turn):
            if (
                self._stored_sessions.get(session.key) is not session
                or session.connection is not None
            ):
                return
            now_us = self._now_us
            if _is_due(session.expires_us, now_us):
                session.is_over = True
            try:
                if session.is_over:
                    await self._end(session)
                    return
                if _is_due(session.will_us, now_us):
                    await self._publish_will(session)
            except PenstockError as error:  # the next start repeats this
                _log.warning("mqtt.session_kept", client=session.client_id, reason=str(error))
                return
            self._schedule(session)

    async def _end(self, session: MqttSession) -> None:
        """Delete a session and publish its will. The session's entries are removed first: after a
        crash in between, the next start deletes durables that belong to no session."""
        session.is_over = True
        # The entries of messages that are still being stored also have to be removed.
        await session.received_all()
        place = session.place
        entries = [session_removed(place)]
        entries += [
            received_entry(place, packet_id, is_present=False) for packet_id in session.received
        ]
        entries += [
            sent_entry(place, packet_id, None)
            for packet_id, flight in session.outbox.in_flight.items()
            if flight.qos == 2 and flight.source is not None
        ]
        if session.will is None:
            await self.store.put(entries)
        else:
            await self.publish_will(session, session.will, entries)
        self._stored_sessions.pop(session.key, None)
        self._places.pop(place, None)
        self._shares.forget(session.key)
        session.outbox.bytes.close()
        self._count(session)
        await self.delete_durables(session, session.durables)

    async def end(self, key: ClientKey) -> None:
        """End a session that is not connected."""
        async with self._turn(turn_of(key)):
            session = self._stored_sessions.get(key)
            if session is not None and session.connection is None:
                await self._end(session)

    async def save(self, session: MqttSession) -> None:
        """Store the current state of a session. Raises ``LimitReached`` and the errors of a
        publish."""
        self._shares.keep(session.key, len(session.entry[1]))
        await self.store.put((session.entry,))

    async def open(self, session: MqttSession, topic_filter: Filter) -> None:
        """Start the delivery of a filter's messages. Raises the errors of attaching to a
        durable."""
        if not topic_filter.is_shared:
            await session.start_feeds(topic_filter)
            return
        async with self._turn(topic_filter.durable):
            await session.start_feeds(topic_filter)
            self._members.setdefault(topic_filter.durable, set()).add(session)

    async def delete_durables(self, session: MqttSession, names: Sequence[str]) -> None:
        """Delete the durables of removed subscriptions. A shared one is deleted with the last
        member of its group."""
        for name in names:
            async with self._turn(name):
                members = self._members.get(name, set())
                members.discard(session)
                if members:
                    continue
                self._members.pop(name, None)
                # A durable may also be left on a channel that has lost its topics.
                for store, _ in self._mqtt.realm.view.with_durable(name):
                    with contextlib.suppress(NameDoesNotExist):
                        await self._mqtt.realm.subscriptions.delete_durable(store.number, name)

    async def _leave_groups(self, session: MqttSession, names: Sequence[str]) -> None:
        """Remove a session that is not stored from its groups."""
        try:
            await self.delete_durables(session, names)
        except PenstockError as error:  # the next start deletes the durable
            _log.warning("mqtt.durable_kept", client=session.client_id, reason=str(error))

    # --- wills ---------------------------------------------------------------------------

    async def _publish_will(self, session: MqttSession) -> None:
        """Publish the will of a session that continues. Its removal is stored in the same step, so
        that it is published only once."""
        will, session.will = session.will, None
        assert will is not None, "only a due will is published"
        try:
            await self.publish_will(session, will, (session.entry,))
        except PenstockError:
            session.will = will
            raise
        finally:
            self._count(session)

    async def publish_will(
        self, session: MqttSession, will: StoredWill, entries: Sequence[Entry]
    ) -> None:
        """Publish a will and store entries in the same step. Skip the will if the client has no
        right to publish it. Raises the errors of a publish."""
        principal = session.principal
        try:
            packet = will_packet(will)  # a will stored under a higher size limit is refused
            rights = self._mqtt.rights_of(principal, session.client_id)
            rights.check_publish(packet.topic, PublishEvents)
        except PenstockError as error:
            _log.warning("mqtt.will_refused", client=session.client_id, reason=str(error))
            await self.store.put(entries)
            return
        self.store.flush()  # earlier entries of the session must be stored before these
        farewell = Farewell(self._mqtt.loop.create_future())
        message = Received(packet.topic, packet, session.client_id)
        self._mqtt.publisher.submit(principal.name, [Gathered(farewell, message, tuple(entries))])
        try:
            await farewell.done
        finally:
            del farewell  # an error in it refers to this frame: a cycle

    # --- times ---------------------------------------------------------------------------

    def _schedule(self, session: MqttSession) -> None:
        """Schedule the next due time of a session: its will or its expiry."""
        times = [
            time_us for time_us in (session.will_us, session.expires_us) if time_us is not None
        ]
        if times:
            heappush(self._due, (min(times), session.key))
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if self._due and not self._mqtt.listener.is_stopping:
            wait_s = (self._due[0][0] - self._now_us) / 1e6
            self._alarm = self._mqtt.loop.call_later(
                min(max(wait_s, 0.0), ALARM_S_MAX), self._process_due
            )

    def _process_due(self) -> None:
        now_us = self._now_us
        while self._due and self._due[0][0] <= now_us and not self._mqtt.listener.is_stopping:
            _, key = heappop(self._due)
            session = self._stored_sessions.get(key)
            if session is not None and session.connection is None:
                self._mqtt.listener.spawn(self._process, session)
        self._set_alarm()


class Farewell:
    """A will that is being published; ``done`` is set when it is stored or refused."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done

    def stored(self, packet: PublishPacket) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def not_stored(self, packet: PublishPacket, error: PenstockError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def _is_due(time_us: int | None, now_us: int) -> bool:
    return time_us is not None and time_us <= now_us


def expiry_of(packet: ConnectPacket) -> int:
    """Return how many seconds the session of a client outlives its connection."""
    if packet.version == MQTT_3:
        return 0 if packet.clean_start else NEVER
    return packet.properties.session_expiry_s or 0


def _stored_will(will: Will | None) -> StoredWill | None:
    """Return the will of a CONNECT in its stored form: an encoded PUBLISH and its delay."""
    if will is None:
        return None
    properties = replace(will.properties, will_delay_s=None)
    packet = PublishPacket(
        will.topic,
        will.payload,
        will.qos,
        packet_id=1 if will.qos else 0,
        retain=will.retain,
        properties=properties,
    )
    return StoredWill(packet_bytes(packet, MQTT_5), will.properties.will_delay_s or 0)
