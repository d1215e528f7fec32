"""The MQTT front end of a realm: its connections, its sessions, and what administrators do with
them."""

from __future__ import annotations

from collections import Counter
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from penstock_core.api import topics as api
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
    PenstockError,
    Unavailable,
)
from penstock_mqtt.connection import MqttConnection
from penstock_mqtt.following import FollowedChannels
from penstock_mqtt.held_bytes import HeldMessages, UserBytes
from penstock_mqtt.mqtt_realm import MqttRealm
from penstock_mqtt.session import ClientKey, MqttSession, turn_of
from penstock_mqtt.session_store import NEVER
from penstock_mqtt.sessions import MqttSessions, SessionConnection
from penstock_mqtt.wire.packets import MQTT_3, MQTT_5
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_server.frontends.shared.front_end_service import FrontEndService
from penstock_server.runtime.access.open_connections import MqttFigures

if TYPE_CHECKING:
    from penstock_server.frontends.native.listener import NativeListener

VERSIONS: Final = {MQTT_3: "3.1.1", MQTT_5: "5"}
"""What people call the versions of MQTT."""
LAST_USER: Final = "\U0010ffff"
"""Comes behind the names of users."""
FILTERS_SHOWN: Final = 100
"""Most subscriptions that are told of each session."""

_log = logger("penstock.mqtt")


class MqttHub(FrontEndService):
    """Makes MQTT connections, and describes and ends sessions for administrators."""

    def __init__(self, listener: NativeListener, channel: str) -> None:
        """``channel`` is the name of the channel that has all topics."""
        self.listener = listener
        self.realm = listener.realm
        self.channel = channel
        self.mqtt = MqttRealm(listener, channel, UserBytes(self._held_for))
        self.counts = self.mqtt.counts
        self.sessions = MqttSessions(self.mqtt)
        self.following = FollowedChannels(
            self.mqtt, on_closed=self._closed, on_topics_changed=self.sessions.topics_changed
        )

    @property
    def fault(self) -> PenstockError | None:
        """Why nobody can be served."""
        return self.mqtt.fault

    def connection(self) -> MqttConnection:
        """Make the protocol of a new connection."""
        return MqttConnection(self.mqtt, self.sessions, self.following)

    async def listen(self, host: str, port: int) -> int:
        """Accept MQTT connections, also over the HTTP port's WebSockets; gives the port. In a
        cluster channels that are not fit for MQTT do not keep the realm, or the local channels of a
        node, from being served: each client is refused, with the reason. Raises ``NoQuorum``
        when nobody grants the names of local channels; it may be called again then."""
        try:
            async with self.mqtt.opening:
                await self.mqtt.open_channel()
                await self.sessions.load()
        except (InvalidArgument, NameAlreadyBound) as error:
            if self.listener.gate is None and not self.realm.names.asks:
                raise
            # every other node of the cluster would fail like this one, and nobody would be served
            self.mqtt.fault = Unavailable(f"MQTT is not served here: {error}")
            _log.error("mqtt.not_served", reason=str(error))
        self.listener.offer("mqtt", self.connection)
        self.realm.connections.mqtt = self
        return await self.listener.listen(host, port, self.connection)

    # --- who is there --------------------------------------------------------------------

    def _held_for(self, user: str) -> list[HeldMessages]:
        """The messages that are kept for the clients of a user."""
        sessions = [
            *self.sessions.away().values(),
            *(each.client for each in self.sessions.connections()),
        ]
        return [each.held_messages for each in sessions if each.principal.user == user]

    def connections(self) -> list[SessionConnection]:
        """The connections of all clients."""
        return self.sessions.connections()

    def figures(self) -> MqttFigures:
        """What there is now; the work is by the number of connections."""
        connections = self.connections()
        found = [each.client.figures for each in connections]
        versions = Counter(each.version for each in connections)
        away = self.sessions.away_figures
        store = self.mqtt.retained.store
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
        found = self.sessions.every()
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
        there = {
            key: each for key, each in self.sessions.every().items() if key.client_id == client
        }
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
        for key in self.sessions.every():
            if key.user == user:
                await self._end_session(key)

    async def _end_session(self, key: ClientKey) -> None:
        connection = self.sessions.connection_of(key)
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

    def _closed(self, reason: PenstockError) -> None:
        """End the connections of clients that have subscribed: the channel of all topics is
        gone."""
        for connection in self.connections():
            if connection.client.filters:
                connection.end(reason)
