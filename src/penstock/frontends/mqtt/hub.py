"""State shared by all MQTT connections of a realm: who is there, and who wants which topics."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

from penstock.api import topics as api
from penstock.core.ids.ids import Spans
from penstock.core.vocabulary.definitions import Definition
from penstock.core.vocabulary.errors import (
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
    PenstockError,
    Unavailable,
)
from penstock.core.vocabulary.identities import ChannelId
from penstock.core.vocabulary.start_positions import FromLatest
from penstock.frontends.mqtt.connection import MqttConnection
from penstock.frontends.mqtt.fan_out import FanOut
from penstock.frontends.mqtt.following import CREDIT, FollowedChannels, Replenishment
from penstock.frontends.mqtt.held_bytes import UserBytes
from penstock.frontends.mqtt.messages import (
    Gathered,
    GatheredTogether,
    Received,
    TopicMessage,
    body_of_messages,
    body_of_plain,
    body_of_retained,
    messages_in,
    one_by_one,
)
from penstock.frontends.mqtt.newest_events import make_channel
from penstock.frontends.mqtt.reasons import reported
from penstock.frontends.mqtt.retained import RetainedMessages
from penstock.frontends.mqtt.session import ClientKey, MqttSession, turn_of
from penstock.frontends.mqtt.session_store import NEVER
from penstock.frontends.mqtt.sessions import MqttSessions
from penstock.frontends.mqtt.signing_in import ROOM_BYTES
from penstock.frontends.mqtt.topic_channels import TopicChannel, TopicChannels
from penstock.frontends.shared.buffers import Buffers
from penstock.frontends.shared.front_end_service import FrontEndService
from penstock.loggers import logger
from penstock.runtime.access.open_connections import MessageCounts, MqttFigures
from penstock.runtime.operations.internal_stores import serve_mqtt
from penstock.runtime.store.bodies import Body, body_from
from penstock.runtime.store.outgoing_batch import OutgoingBatch
from penstock.wire.mqtt.packets import MQTT_3, MQTT_5
from penstock.wire.mqtt.reasons import MqttViolation, Reason

if TYPE_CHECKING:
    from penstock.columns.selectors import Selector
    from penstock.frontends.native.listener import NativeListener

VERSIONS: Final = {MQTT_3: "3.1.1", MQTT_5: "5"}
"""What people call the versions of MQTT."""
UNKNOWN_BYTES_MAX: Final = 16 << 20
"""Bytes of packets of clients that are not signed in, all together."""
UNKNOWN_SMALL_BYTES: Final = 4_096
"""Bytes of each of them that are not counted."""
INCOMPLETE_BYTES_MAX: Final = 256 << 20
"""Bytes of packets of clients that are signed in and that are not complete, all together; at least
four times the largest packet."""
INCOMPLETE_SMALL_BYTES: Final = 1 << 16
"""Bytes of each of them that are not counted."""
LAST_USER: Final = "\U0010ffff"
"""Comes behind the names of users."""
FILTERS_SHOWN: Final = 100
"""Most subscriptions that are told of each session."""

_log = logger("penstock.mqtt")


class MqttHub(FrontEndService):
    """Makes MQTT connections, gathers what they publish, and gives out what they want."""

    session = "mqtt"
    writable = True
    selector: Selector | None = None

    def __init__(self, listener: NativeListener, channel: str) -> None:
        """``channel`` is the name of the channel that has all topics."""
        self.listener = listener
        self.realm = listener.realm
        self.channel = channel
        self.unknown = Buffers(UNKNOWN_BYTES_MAX, UNKNOWN_SMALL_BYTES)
        """What clients have sent that are not signed in."""
        packet_bytes_max = listener.realm.limits.event_bytes_max + ROOM_BYTES
        self.incomplete = Buffers(
            max(INCOMPLETE_BYTES_MAX, 4 * packet_bytes_max), INCOMPLETE_SMALL_BYTES
        )
        """What clients have sent of packets that are not complete."""
        self.held = UserBytes(self._held_for)
        serve_mqtt(self.realm, channel)
        self.traffic = listener.realm.connections.traffic["mqtt"]
        self.counts = MessageCounts()
        self._fan_out = FanOut(self.realm.access, self.counts)
        self.filters = self._fan_out.filters
        self._clients: dict[ClientKey, MqttConnection] = {}
        self._gathered: dict[str, list[Gathered | GatheredTogether]] = {}
        self.is_held_up = False
        """Whether clients that publish may have to wait; looked at once in a turn of the loop."""
        self._subscription = 0
        self._credit = Replenishment(listener.realm.subscriptions)
        self.retained = RetainedMessages(listener.realm, channel)
        self.topics = TopicChannels(listener.realm, channel)
        self.following = FollowedChannels(self)
        self._opening = asyncio.Lock()
        self.loop = asyncio.get_running_loop()
        self.sessions = MqttSessions(self)
        self.fault: PenstockError | None = None
        """Why nobody can be served."""

    def connection(self) -> MqttConnection:
        """Make the protocol of a new connection."""
        return MqttConnection(self)

    async def listen(self, host: str, port: int) -> int:
        """Accept MQTT connections, also over the HTTP port's WebSockets; gives the port. In a
        cluster channels that are not fit for MQTT do not keep the realm, or the local channels of a
        node, from being served: each client is refused, with the reason. Raises ``NoQuorum``
        when nobody grants the names of local channels; it may be called again then."""
        try:
            async with self._opening:
                await self.open_channel()
                await self.sessions.load()
        except (InvalidArgument, NameAlreadyBound) as error:
            if self.listener.gate is None and not self.realm.names.asks:
                raise
            # every other node of the cluster would fail like this one, and nobody would be served
            self.fault = Unavailable(f"MQTT is not served here: {error}")
            _log.error("mqtt.not_served", reason=str(error))
        self.listener.offer("mqtt", self.connection)
        self.realm.connections.mqtt = self
        return await self.listener.listen(host, port, self.connection)

    async def open_channel(self) -> ChannelId:
        """The channel of all topics. It and the channel of what is retained are made when they are
        missing. What sessions have consumed stays in it, as what nobody waited for does."""
        try:
            found = self.channel_id()
        except NameDoesNotExist:
            await make_channel(self.realm, self.channel, Definition(retain_consumed=True))
            found = self.channel_id()
        await self.retained.open_channel()
        return found

    def channel_id(self) -> ChannelId:
        """The channel of all topics. Raises ``NameDoesNotExist``, ``InvalidArgument``."""
        store = self.realm.view.named(self.channel)
        if store is None:
            raise NameDoesNotExist(f"there is no channel {self.channel!r} (listen.mqtt_channel)")
        if store.kind != "channel":
            raise InvalidArgument(f"listen.mqtt_channel is {self.channel!r}, which is a queue")
        return store.number

    # --- who is there --------------------------------------------------------------------

    def enter(self, connection: MqttConnection) -> None:
        """Register a client, and end an older connection of it."""
        older = self._clients.get(connection.key)
        if older is not None:
            older.replaced()
        self._clients[connection.key] = connection

    def leave(self, connection: MqttConnection) -> None:
        """Forget a connection that has ended."""
        if self._clients.get(connection.key) is connection:
            del self._clients[connection.key]

    def _held_for(self) -> list[MqttSession]:
        """The sessions that messages may be kept for."""
        return [
            *self.sessions.away().values(),
            *(each.client for each in self._clients.values()),
        ]

    def connections(self) -> list[MqttConnection]:
        """The connections of all clients."""
        return list(self._clients.values())

    def figures(self) -> MqttFigures:
        """What there is now; the work is by the number of connections."""
        found = [each.client.figures for each in self._clients.values()]
        versions = Counter(each.version for each in self._clients.values())
        away = self.sessions.away_figures
        store = self.retained.store
        return MqttFigures(
            connections={name: versions[each] for each, name in VERSIONS.items()},
            away=away.sessions,
            subscriptions=away.filters + sum(each.filters for each in found),
            in_flight=away.in_flight + sum(each.in_flight for each in found),
            wills=away.wills,
            retained=0 if store is None else store.events,
        )

    def sessions_after(self, after: str, limit: int) -> api.SessionsPage:
        """The next sessions, by client id and user, with a connection and without."""
        found = self._sessions()
        client_id, separator, user = after.partition("\0")
        behind = ClientKey(client_id, user) if separator else ClientKey(client_id, LAST_USER)
        keys = nsmallest(limit + 1, (each for each in found if not after or each > behind))
        following = None
        if len(keys) > limit:
            last, is_same = keys[limit - 1], keys[limit].client_id == keys[limit - 1].client_id
            following = turn_of(last) if is_same else last.client_id
        return api.SessionsPage(
            sessions=tuple(self._described(found[each]) for each in keys[:limit]), next=following
        )

    async def end_session(self, client: str, user: str) -> None:
        """End a session with its connection. ``user`` is a user, or one with a host as sessions
        are listed, and may be empty where only one has the client id. Raises
        ``NameDoesNotExist``, ``InvalidArgument``."""
        there = {key: each for key, each in self._sessions().items() if key.client_id == client}
        keys = [key for key, each in there.items() if user in ("", key.user, each.principal.name)]
        if not keys:
            whose = f" of user {user!r}" if user else ""
            raise NameDoesNotExist(f"client {client[:80]!r}{whose} has no session of MQTT")
        if len(keys) > 1:
            users = ", ".join(sorted(each.user for each in keys)[:10])
            raise InvalidArgument(
                f"the client id {client[:80]!r} has sessions of several users; name one of: {users}"
            )
        await self._end_session(keys[0])

    async def end_sessions_of(self, user: str) -> None:
        """End all sessions of a user."""
        for key in self._sessions():
            if key.user == user:
                await self._end_session(key)

    def _sessions(self) -> dict[ClientKey, MqttSession]:
        connected = {key: each.client for key, each in self._clients.items()}
        return self.sessions.away() | connected

    async def _end_session(self, key: ClientKey) -> None:
        connection = self._clients.get(key)
        if connection is not None:
            connection.client.is_over = True
            connection.end(MqttViolation(Reason.ADMINISTRATIVE_ACTION, "the session was ended"))
        await self.sessions.end(key)

    def _described(self, session: MqttSession) -> api.MqttSessionInfo:
        connection, view = session.connection, self.realm.view
        filters = session.stored_filters()
        return api.MqttSessionInfo(
            client_id=session.client_id,
            user=session.principal.name,
            version=None if connection is None else VERSIONS[connection.version],
            ended_us=session.ended_us or None,
            expires_us=session.expires_us,
            expiry_s=None if session.expiry_s == NEVER else session.expiry_s,
            in_flight=len(session.outbox.in_flight),
            will_us=session.will_us,
            filter_count=len(filters),
            filters=tuple(
                api.SessionFilter(
                    filter=each.filter,
                    qos=each.qos,
                    durable=each.durable,
                    waiting=sum(
                        durable.info(view.now_us).outstanding
                        for _, durable in (view.with_durable(each.durable) if each.durable else ())
                    ),
                )
                for each in filters[:FILTERS_SHOWN]
            ),
        )

    def new_client_id(self) -> str:
        """A client id that nobody has."""
        return f"auto-{secrets.token_hex(12)}"

    # --- messages come -------------------------------------------------------------------

    def gather(self, publisher: str, message: Gathered | GatheredTogether) -> None:
        """Publish messages with the others of this turn of the loop."""
        if not self._gathered:
            self.loop.call_soon(self._publish)
            self.is_held_up = self.listener.is_congested or self.listener.is_draining
        own = self._gathered.get(publisher)
        if own is None:
            own = self._gathered[publisher] = []
        own.append(message)

    def _publish(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for publisher, messages in gathered.items():
            try:
                self._publish_of(publisher, messages)
            except Exception as error:  # noqa: BLE001  other publishers' messages do not share it
                self._refuse(one_by_one(messages), reported(error))

    def _publish_of(self, publisher: str, messages: Sequence[Gathered | GatheredTogether]) -> None:
        plain = [each for each in messages if isinstance(each, GatheredTogether)]
        if (
            len(plain) < len(messages)
            or self.topics.every
            or not self._submit_plain(publisher, plain)
        ):
            self.submit(publisher, one_by_one(messages))

    def _submit_plain(self, publisher: str, messages: Sequence[GatheredTogether]) -> bool:
        """Publish plain messages for the channel of all topics now; False: they do not fit one
        batch."""
        try:
            body = body_of_plain(messages)
            publishes = [(self.channel_id(), [body_from(body)])] if body is not None else []
        except Exception as error:  # noqa: BLE001  each message is tried by itself
            self._failed(publisher, one_by_one(messages), error)
            return True

        def stored() -> None:
            for each in messages:
                try:
                    each.whose.stored_together(each.messages)
                except Exception:  # noqa: BLE001  the other clients are answered
                    _log.exception("mqtt.failed")

        def failed(error: BaseException) -> None:
            self._failed(publisher, one_by_one(messages), error)

        if publishes:
            self._send(publisher, publishes, stored, failed)
        return bool(publishes)

    def submit(self, publisher: str, messages: Sequence[Gathered]) -> None:
        """Publish messages now, with what is stored of sessions in the same step."""
        try:
            publishes, refused = self._publishes(messages)
        except Exception as error:  # noqa: BLE001  each message is tried by itself
            self._failed(publisher, messages, error)
            return
        self._send(
            publisher,
            publishes,
            lambda: _answer(messages, refused),
            lambda error: self._failed(publisher, messages, error),
        )

    def _send(
        self,
        publisher: str,
        publishes: Sequence[tuple[ChannelId, list[Body]]],
        stored: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        size = sum(body.weight for _, bodies in publishes for body in bodies)

        def reply(_: Any, error: BaseException | None) -> None:
            self.listener.pending_bytes -= size
            if error is None:
                stored()
            else:
                failed(error)

        self.listener.pending_bytes += size
        try:
            if len(publishes) > 1:
                self.realm.transactions.publish_together(publishes, reply, publisher)
            elif publishes:
                self.realm.publish(*publishes[0], "", 0, reply, publisher=publisher)
            else:
                reply(None, None)
        except Exception as error:  # noqa: BLE001  its messages are answered, whatever it is
            reply(None, error)

    def _publishes(
        self, messages: Sequence[Gathered]
    ) -> tuple[list[tuple[ChannelId, list[Body]]], dict[int, MqttViolation]]:
        """Events for the channels of the topics, for that of what is retained, and for that of
        sessions; and by its place what is wrong with each message that can be no event."""
        publishes, refused = self._events_of([each.message for each in messages])
        kept = [each for at, each in enumerate(messages) if at not in refused]
        if retained := [each.message for each in kept if each.message.packet.retain]:
            self.retained.check_room(retained, self.listener.limits.mqtt_retained_messages_max)
            newest = body_from(body_of_retained(retained))
            publishes.append((self.retained.channel(), [newest]))
        if entries := [entry for each in kept for entry in each.entries]:
            publishes.append(self.sessions.part(entries))
        return publishes, refused

    def _events_of(
        self, received: Sequence[Received]
    ) -> tuple[list[tuple[ChannelId, list[Body]]], dict[int, MqttViolation]]:
        if not self.topics.every:
            return [(self.channel_id(), [body_from(body_of_messages(received))])], {}
        publishes: list[tuple[ChannelId, list[Body]]] = []
        refused: dict[int, MqttViolation] = {}
        sorted_ = self.topics.sorted(received)
        if sorted_.others:
            others = body_of_messages([received[at] for at in sorted_.others])
            publishes.append((self.channel_id(), [body_from(others)]))
        for channel, owned in sorted_.owned.values():
            body, wrong = channel.body_of([(received[at], by) for at, by in owned])
            refused |= {owned[at][0]: why for at, why in wrong.items()}
            if body is not None:
                publishes.append((channel.number, [body]))
        return publishes, refused

    def _failed(self, publisher: str, messages: Sequence[Gathered], error: BaseException) -> None:
        """Publish one by one what was refused together, so that only what is wrong is refused."""
        if len(messages) > 1:
            for each in messages:
                self.submit(publisher, [each])
        else:
            self._refuse(messages, reported(error))

    def _refuse(self, messages: Sequence[Gathered], error: PenstockError) -> None:
        _answer(messages, dict.fromkeys(range(len(messages)), error))

    # --- events go out -------------------------------------------------------------------

    async def follow(self) -> None:
        """See to it that what is published from now on is given out."""
        async with self._opening:
            if self._subscription:
                return
            channel = await self.open_channel()
            opened = await self.realm.subscriptions.subscribe(
                channel, FromLatest(), self, credit=CREDIT
            )
            self._subscription = opened.number
            await self.following.begin()

    def deliver(self, rows: OutgoingBatch, redeliveries: object) -> None:
        """Give events to everybody who wants their topics. Never raises: its caller serves others,
        too."""
        try:
            self._give_out(rows)
        except Exception:  # noqa: BLE001  whatever it is, the others must live on
            _log.exception("mqtt.failed")
        self._credit.given_on(self._subscription, rows.count)

    def _give_out(self, rows: OutgoingBatch) -> None:
        if not self.filters.is_empty:  # otherwise only durables have them
            self.give(messages_in(rows, counts=self.counts))

    def give(
        self, messages: Sequence[TopicMessage | None], channel: TopicChannel | None = None
    ) -> None:
        """Give messages of a channel, that of all topics if it is None, to whoever wants them."""
        self._fan_out.give_out((each for each in messages if each is not None), channel)

    def rights_changed(self) -> None:
        """A client has shown anew who it is: other messages may be for it."""
        self._fan_out.forget()

    def recall(self, spans: Spans) -> None:
        """Nothing is taken back from a plain subscription."""

    def finished(self) -> None:
        """A plain subscription has no end."""

    def closed(self, reason: PenstockError) -> None:
        """End whoever has subscribed: the channel is gone."""
        self._subscription = 0
        self._credit.end()
        for connection in list(self._clients.values()):
            if connection.has_filters:
                connection.end(reason)


def _answer(messages: Sequence[Gathered], refused: Mapping[int, PenstockError]) -> None:
    """Answer messages that are stored, or of which it is known what is wrong, in their order. A
    client that cannot be answered keeps nobody else from being."""
    for at, each in enumerate(messages):
        try:
            if (why := refused.get(at)) is None:
                each.whose.stored(each.message.packet)
            else:
                each.whose.not_stored(each.message.packet, why)
        except Exception:  # noqa: BLE001  the other clients are answered
            _log.exception("mqtt.failed")
