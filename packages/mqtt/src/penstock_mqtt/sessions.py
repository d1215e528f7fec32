"""All sessions: who has one, what is stored of it, and when it ends (SEM M6)."""

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

LOOK_S_MAX = 60.0
"""Most seconds until the clock is looked at again: it may have been set."""

_log = logger("penstock.mqtt")


class SessionConnection(ClientConnection, Protocol):
    """The connection of a client that has a session, or is about to have one."""

    client: MqttSession
    """The session; one without a client id until the client is let in."""

    @property
    def key(self) -> ClientKey:
        """What the session is known by."""
        ...

    def replaced(self) -> None:
        """Close the connection, because its client has connected again."""
        ...


class MqttSessions:
    """The sessions of all clients, those that are stored and those that are not."""

    def __init__(self, mqtt: MqttRealm) -> None:
        self._mqtt = mqtt
        self._store = mqtt.store
        self._connected: dict[ClientKey, SessionConnection] = {}
        """The connections of all clients."""
        self._known: dict[ClientKey, MqttSession] = {}
        """Sessions of which something is stored."""
        self._places: dict[str, MqttSession] = {}
        """Sessions of which something is stored, by the place where it is."""
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        """Clients that come or go at the moment, and how many wait for their turn."""
        limits = mqtt.listener.limits
        self._shares = SessionShares(
            limits.mqtt_sessions_per_user_max, limits.mqtt_session_bytes_per_user_max
        )
        self._members: dict[str, set[MqttSession]] = {}
        """Who shares a durable, by its name."""
        self._due: list[tuple[int, ClientKey]] = []
        """When which client's session has something to do, in microseconds since 1970."""
        self._alarm: asyncio.TimerHandle | None = None
        self._is_loaded = False
        self.unreadable_count = 0
        """Stored entries that could not be read when the front end started."""
        self.away_figures = NOTHING
        """The sums of the sessions without a connection."""

    def __len__(self) -> int:
        return len(self._known)

    def away(self) -> dict[ClientKey, MqttSession]:
        """The sessions without a connection."""
        return {key: each for key, each in self._known.items() if each.connection is None}

    def connections(self) -> list[SessionConnection]:
        """The connections of all clients."""
        return list(self._connected.values())

    def connection_of(self, key: ClientKey) -> SessionConnection | None:
        """The connection of a client."""
        return self._connected.get(key)

    def every(self) -> dict[ClientKey, MqttSession]:
        """The sessions of all clients, with a connection and without."""
        connected = {key: each.client for key, each in self._connected.items()}
        return self.away() | connected

    def get(self, key: ClientKey) -> MqttSession | None:
        """A session of which something is stored."""
        return self._known.get(key)

    def _count(self, session: MqttSession) -> None:
        """Keep the sums of the sessions that are away: one may have come, gone or changed."""
        is_away = session.connection is None and self._known.get(session.key) is session
        counted = session.figures if is_away else NOTHING
        before = session.counted
        sums = zip(self.away_figures, counted, before, strict=True)
        self.away_figures = SessionFigures(*(every + now - old for every, now, old in sums))
        session.counted = counted

    # --- the start -----------------------------------------------------------------------

    async def load(self) -> None:
        """Take up what is stored; connections that there were have ended with the server."""
        if self._is_loaded:
            return
        found = await self._store.load()
        self._is_loaded = True
        now_us = self._now_us
        if found.unreadable_count:
            self._report_unreadable(found)
        for place, record in found.sessions.items():
            session = MqttSession(
                self._mqtt, record.client_id, record.principal.principal, place=place
            )
            # not later than now, although the clock of an earlier start may have been ahead
            session.restore(replace(record, ended_us=min(record.ended_us or now_us, now_us)))
            self._known[session.key] = self._places[place] = session
            self._shares.keep(session.key, len(session.entry[1]), is_checked=False)
            for name in filter(is_shared_durable, session.durables):
                self._members.setdefault(name, set()).add(session)
            self._watch(session)
        for place, known in self._places.items():
            known.received = dict.fromkeys(found.received.get(place, ()), True)
            for packet_id, sent in found.sent.get(place, {}).items():
                known.outbox.restore(packet_id, sent)
        for known in self._known.values():
            self._count(known)
        await self._tidy_durables()

    def _report_unreadable(self, found: StoredEntries) -> None:
        """Log entries that were left out. They stay where they are."""
        incident = new_incident_id()
        self.unreadable_count = found.unreadable_count
        _log.error(
            "mqtt.entries_unreadable",
            incident=incident,
            store=self._store.name,
            count=found.unreadable_count,
            entries=found.unreadable,
        )

    async def _tidy_durables(self) -> None:
        """Delete durables of sessions that have ended, or never began, because a kill came between;
        and make those on channels that have got topics while nobody served MQTT."""
        known = {name for each in self._known.values() for name in each.durables}
        there = {
            (store.number, name)
            for store in self._mqtt.realm.view.stores()
            for name, _ in store.durables
            if is_of_session(name)
        }
        for channel, name in there:
            if name not in known:
                await self._mqtt.realm.subscriptions.delete_durable(channel, name)
        if self._mqtt.topics.every:
            for session in list(self._known.values()):
                await self._make_durables(session, there)

    async def topics_changed(self) -> None:
        """A channel has got topics, or lost them: the durables of sessions are where their
        messages are, also of clients that are away."""
        for session in list(self._known.values()):
            async with self._turn(session.turn):
                if self._known.get(session.key) is session:
                    await self._make_durables(session)
            for text, name in session.kept:
                await retire_durable(self._mqtt.realm, self._mqtt.topics, name=name, text=text)
        for connection in self.connections():
            session = connection.client
            for each in list(session.filters.values()):
                if each.durable and each.is_open:
                    await session.start_topic_feeds(each)

    async def _make_durables(
        self, session: MqttSession, there: Collection[tuple[int, str]] = ()
    ) -> None:
        """Make the durables that a session lacks on channels with topics; ``there`` are some that
        it does not lack."""
        rights = self._mqtt.rights_of(session.principal, session.client_id)
        for text, name in session.kept:
            for channel in self._mqtt.topics.met_by(text):
                if (channel.number, name) in there:
                    continue
                if not rights.may_have(text, channel, makes_durable=True):
                    continue
                start = FromId(self._mqtt.topics.since(channel.number))
                with contextlib.suppress(NameDoesNotExist):  # it is gone again
                    await make_durable(
                        self._mqtt.realm,
                        channel.number,
                        name=name,
                        text=text,
                        topics=channel,
                        start=start,
                    )

    # --- clients come --------------------------------------------------------------------

    async def enter(
        self, connection: SessionConnection, packet: ConnectPacket, principal: Principal
    ) -> tuple[MqttSession, bool]:
        """The session of a client that connects, and whether it is one that there was. An older
        connection of the client ends."""
        key = connection.key
        async with self._turn(turn_of(key)):
            older = self._connected.get(key)
            if older is not None:
                older.replaced()
            self._connected[key] = connection
            known = self._known.get(key)
            if known is not None and (packet.clean_start or known.is_over):
                await self._end(known)
                known = None
            if known is not None and _is_due(known.will_us, self._now_us):
                await self._say_will(known)
            session = known or MqttSession(
                self._mqtt, key.client_id, principal, place=self._place(key)
            )
            present = session.is_lasting
            session.principal = principal
            session.expiry_s, session.will = expiry_of(packet), _stored(packet.will)
            session.bind(connection)
            self._count(session)
            session.is_lasting = present or session.expiry_s > 0
            if session.is_lasting or session.will is not None:
                try:
                    self._shares.keep(key, len(session.entry[1]))
                    self._known[key] = self._places[session.place] = session
                    session.has_record = True
                    await self._store.put((session.entry,))
                except BaseException:
                    session.detach()
                    self._count(session)
                    raise
            return session, present

    def _place(self, key: ClientKey) -> str:
        """Where a new session is stored: by its client id, as every version does, unless another
        user's session is there."""
        there = self._places.get(key.client_id)
        if there is None or there.key == key:
            return key.client_id
        return place_of(key.user, key.client_id)

    @property
    def _now_us(self) -> int:
        return self._mqtt.realm.clock.now_us()

    @asynccontextmanager
    async def _turn(self, client_id: str) -> AsyncIterator[None]:
        """One after the other, of the same client."""
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
        """Go on by a connection where the earlier one ended, unless it has ended, too; gives the
        filters that are owed retained messages. Raises what taking a seat raises."""
        if session.connection is not connection:
            return []  # another one goes on by itself, once it is let in
        session.outbox.resume()
        for wanted in list(session.filters.values()):
            if session.connection is not connection or not connection.is_open:
                return []
            if session.has(wanted):
                await self.open(session, wanted)
        return [each for each in session.filters.values() if each.retained.is_owed]

    # --- clients go ----------------------------------------------------------------------

    def forget(self, connection: SessionConnection) -> None:
        """A connection has ended, or its client was not let in."""
        if self._connected.get(connection.key) is connection:
            del self._connected[connection.key]

    def leave(self, session: MqttSession) -> None:
        """The connection of a session has ended."""
        session.detach()
        self._count(session)
        session.is_over = session.is_over or session.expiry_s == 0 or self._is_useless(session)
        if not session.has_record:
            if shared := session.durables:
                self._mqtt.listener.spawn(self._part, session, shared)
            return
        if session.is_over or _is_due(session.will_us, session.ended_us):
            self._mqtt.listener.spawn(self._seen_to, session)
            return
        session.store((session.entry,))
        self._watch(session)

    def _is_useless(self, session: MqttSession) -> bool:
        """Whether nothing can ever come of a session: it has no subscription, and its user has no
        right that one could have, or to publish its will."""
        if session.stored_filters():
            return False
        rights = self._mqtt.rights_of(session.principal, session.client_id)
        return not rights.may_anything()

    async def _seen_to(self, session: MqttSession) -> None:
        """Do what is due for a session without a connection: its will, or its end."""
        async with self._turn(session.turn):
            if self._known.get(session.key) is not session or session.connection is not None:
                return
            now_us = self._now_us
            if _is_due(session.expires_us, now_us):
                session.is_over = True
            try:
                if session.is_over:
                    await self._end(session)
                    return
                if _is_due(session.will_us, now_us):
                    await self._say_will(session)
            except PenstockError as error:  # what is stored is seen to after the next start
                _log.warning("mqtt.session_kept", client=session.client_id, reason=str(error))
                return
            self._watch(session)

    async def _end(self, session: MqttSession) -> None:
        """Publish the will, and forget a session with all it has. What is stored of it goes first:
        durables without a session are deleted at the next start."""
        session.is_over = True
        await session.received_all()
        place = session.place
        entries = [session_removed(place)]
        entries += [received_entry(place, each, is_there=False) for each in session.received]
        entries += [
            sent_entry(place, packet_id, None)
            for packet_id, each in session.outbox.in_flight.items()
            if each.qos == 2 and each.source is not None
        ]
        if session.will is None:
            await self._store.put(entries)
        else:
            await self._say(session, session.will, entries)
        self._known.pop(session.key, None)
        self._places.pop(place, None)
        self._shares.forget(session.key)
        session.outbox.bytes.close()
        self._count(session)
        await self.delete_durables(session, session.durables)

    async def end(self, key: ClientKey) -> None:
        """End a session that has lost its connection, or never had one since the start."""
        async with self._turn(turn_of(key)):
            session = self._known.get(key)
            if session is not None and session.connection is None:
                await self._end(session)

    async def save(self, session: MqttSession) -> None:
        """Store a session as it is now. Raises ``LimitReached``, and what a publish raises."""
        self._shares.keep(session.key, len(session.entry[1]))
        await self._store.put((session.entry,))

    async def open(self, session: MqttSession, wanted: Filter) -> None:
        """Have messages come by a filter. Raises what taking a seat raises."""
        if not wanted.is_shared:
            await session.start_feeds(wanted)
            return
        async with self._turn(wanted.durable):
            await session.start_feeds(wanted)
            self._members.setdefault(wanted.durable, set()).add(session)

    async def delete_durables(self, session: MqttSession, names: Sequence[str]) -> None:
        """Delete the durables of subscriptions that are given up; one that is shared goes with the
        last of its group."""
        for name in names:
            async with self._turn(name):
                members = self._members.get(name, set())
                members.discard(session)
                if members:
                    continue
                self._members.pop(name, None)
                # also on a channel that has no topics any more
                for store, _ in self._mqtt.realm.view.with_durable(name):
                    with contextlib.suppress(NameDoesNotExist):
                        await self._mqtt.realm.subscriptions.delete_durable(store.number, name)

    async def _part(self, session: MqttSession, names: Sequence[str]) -> None:
        """A client without a session that lasts has left the groups that it was in."""
        try:
            await self.delete_durables(session, names)
        except PenstockError as error:  # it is deleted at the next start
            _log.warning("mqtt.durable_kept", client=session.client_id, reason=str(error))

    # --- wills ---------------------------------------------------------------------------

    async def _say_will(self, session: MqttSession) -> None:
        """Publish the will of a session that goes on. That it has none any more is stored in the
        same step, so that it is published once."""
        will, session.will = session.will, None
        assert will is not None, "it is due"
        try:
            await self._say(session, will, (session.entry,))
        except PenstockError:
            session.will = will
            raise
        finally:
            self._count(session)

    async def _say(self, session: MqttSession, will: StoredWill, entries: Sequence[Entry]) -> None:
        """Publish a will, and store entries in the same step. One that its client may not publish
        is left out. Raises what keeps it from being published for now."""
        principal = session.principal
        try:
            packet = will_packet(will)  # one that was stored when wills could be larger is refused
            rights = self._mqtt.rights_of(principal, session.client_id)
            rights.check_publish(packet.topic, PublishEvents)
        except PenstockError as error:
            _log.warning("mqtt.will_refused", client=session.client_id, reason=str(error))
            await self._store.put(entries)
            return
        self._store.flush()  # in the order in which it was said
        farewell = Farewell(self._mqtt.loop.create_future())
        message = Received(packet.topic, packet, session.client_id)
        self._mqtt.publisher.submit(principal.name, [Gathered(farewell, message, tuple(entries))])
        try:
            await farewell.done
        finally:
            del farewell  # an error in it refers to this frame: a cycle

    # --- times ---------------------------------------------------------------------------

    def _watch(self, session: MqttSession) -> None:
        """See to a session when its will is due, or it expires."""
        times = [each for each in (session.will_us, session.expires_us) if each is not None]
        if times:
            heappush(self._due, (min(times), session.key))
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if self._due and not self._mqtt.listener.is_stopping:
            wait_s = (self._due[0][0] - self._now_us) / 1e6
            self._alarm = self._mqtt.loop.call_later(min(max(wait_s, 0.0), LOOK_S_MAX), self._look)

    def _look(self) -> None:
        now_us = self._now_us
        while self._due and self._due[0][0] <= now_us and not self._mqtt.listener.is_stopping:
            _, key = heappop(self._due)
            session = self._known.get(key)
            if session is not None and session.connection is None:
                self._mqtt.listener.spawn(self._seen_to, session)
        self._set_alarm()


class Farewell:
    """Who hears what has become of a will."""

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
    """How long the session of a client outlives its connection, in seconds."""
    if packet.version == MQTT_3:
        return 0 if packet.clean_start else NEVER
    return packet.properties.session_expiry_s or 0


def _stored(will: Will | None) -> StoredWill | None:
    if will is None:
        return None
    own = replace(will.properties, will_delay_s=None)
    packet = PublishPacket(
        will.topic,
        will.payload,
        will.qos,
        packet_id=1 if will.qos else 0,
        retain=will.retain,
        properties=own,
    )
    return StoredWill(packet_bytes(packet, MQTT_5), will.properties.will_delay_s or 0)
