"""The MQTT service of a realm: its connections, its sessions, and the requests of administrators
about them."""

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
"""The usual names of the versions of MQTT."""
LAST_USER: Final = "\U0010ffff"
"""A text that sorts after all names of users."""
FILTERS_SHOWN: Final = 100
"""Maximum number of subscriptions that are listed for each session."""

_log = logger("penstock.mqtt")


class MqttHub(FrontEndService):
    """Creates MQTT connections, and describes and ends sessions for administrators."""

    def __init__(self, listener: NativeListener, channel: str) -> None:
        """``channel`` is the name of the channel of all topics."""
        self.listener = listener
        self.realm = listener.realm
        self.channel = channel
        self.mqtt = MqttRealm(listener, channel, UserBytes(self._held_for))
        self.counts = self.mqtt.counts
        self.sessions = MqttSessions(self.mqtt)
        self.following = FollowedChannels(
            self.mqtt,
            on_closed=self._end_subscribers,
            on_topics_changed=self.sessions.topics_changed,
        )

    @property
    def fault(self) -> PenstockError | None:
        """The reason why clients cannot be served, or None."""
        return self.mqtt.fault

    def connection(self) -> MqttConnection:
        """Create the protocol of a new connection."""
        return MqttConnection(self.mqtt, self.sessions, self.following)

    async def listen(self, host: str, port: int) -> int:
        """Accept MQTT connections, also over the HTTP port's WebSockets, and return the port. If a
        channel is unfit for MQTT, a node of a cluster still serves the rest: it refuses MQTT
        clients with the reason. Raises ``NoQuorum`` when the names of local channels cannot be
        granted; call it again then."""
        try:
            async with self.mqtt.opening:
                await self.mqtt.open_channel()
                await self.sessions.load()
        except (InvalidArgument, NameAlreadyBound) as error:
            if self.listener.gate is None and not self.realm.names.asks:
                raise
            # Every other node of the cluster would fail in the same way. Serving the realm without
            # MQTT is better than not serving it.
            self.mqtt.fault = Unavailable(f"MQTT is not served here: {error}")
            _log.error("mqtt.not_served", reason=str(error))
        self.listener.offer("mqtt", self.connection)
        self.realm.connections.mqtt = self
        return await self.listener.listen(host, port, self.connection)

    # --- connections and sessions --------------------------------------------------------

    def _held_for(self, user: str) -> list[HeldMessages]:
        """Return the messages that are held for the clients of a user."""
        sessions = [
            *self.sessions.away().values(),
            *(connection.client for connection in self.sessions.connections()),
        ]
        return [session.held_messages for session in sessions if session.principal.user == user]

    def connections(self) -> list[SessionConnection]:
        """Return the connections of all clients."""
        return self.sessions.connections()

    def figures(self) -> MqttFigures:
        """Return the current figures. The cost grows with the number of connections."""
        connections = self.connections()
        session_figures = [connection.client.figures for connection in connections]
        versions = Counter(connection.version for connection in connections)
        away = self.sessions.away_figures
        store = self.mqtt.retained.store
        return MqttFigures(
            connections={name: versions[version] for version, name in VERSIONS.items()},
            away=away.sessions,
            subscriptions=away.filters + sum(session.filters for session in session_figures),
            in_flight=away.in_flight + sum(session.in_flight for session in session_figures),
            wills=away.wills,
            retained=0 if store is None else store.events,
        )

    def sessions_after(self, after: str, limit: int) -> api.SessionsPage:
        """Return the next sessions by client id and user, connected or not."""
        by_key = self.sessions.all_sessions()
        client_id, separator, user = after.partition("\0")
        start_key = ClientKey(client_id, user) if separator else ClientKey(client_id, LAST_USER)
        keys = nsmallest(limit + 1, (key for key in by_key if not after or key > start_key))
        next_key = None
        if len(keys) > limit:
            # The user is part of the cursor only if a page ends between two users of a client id.
            last, is_same = keys[limit - 1], keys[limit].client_id == keys[limit - 1].client_id
            next_key = turn_of(last) if is_same else last.client_id
        return api.SessionsPage(
            sessions=tuple(self._describe(by_key[key]) for key in keys[:limit]), next=next_key
        )

    async def end_session(self, client: str, user: str) -> None:
        """End a session and its connection. ``user`` is a user, or user and host as in the list of
        sessions; it may be empty if only one session has the client id. Raises
        ``NameDoesNotExist``, ``InvalidArgument``."""
        candidates = {
            key: session
            for key, session in self.sessions.all_sessions().items()
            if key.client_id == client
        }
        keys = [
            key
            for key, session in candidates.items()
            if user in ("", key.user, session.principal.name)
        ]
        if not keys:
            of_user = f" of user {user!r}" if user else ""
            raise NameDoesNotExist(f"client {client[:80]!r}{of_user} has no session of MQTT")
        if len(keys) > 1:
            users = ", ".join(sorted(key.user for key in keys)[:10])
            raise InvalidArgument(
                f"the client id {client[:80]!r} has sessions of several users; name one of: {users}"
            )
        await self._end_session(keys[0])

    async def end_sessions_of(self, user: str) -> None:
        """End all sessions of a user."""
        for key in self.sessions.all_sessions():
            if key.user == user:
                await self._end_session(key)

    async def _end_session(self, key: ClientKey) -> None:
        connection = self.sessions.connection_of(key)
        if connection is not None:
            # Set before the connection ends, so that the session does not outlive it.
            connection.client.is_over = True
            connection.end(MqttViolation(Reason.ADMINISTRATIVE_ACTION, "the session was ended"))
        await self.sessions.end(key)

    def _describe(self, session: MqttSession) -> api.MqttSessionInfo:
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
                    filter=stored.filter,
                    qos=stored.qos,
                    durable=stored.durable,
                    waiting=sum(
                        durable.info(view.now_us).outstanding
                        for _, durable in (
                            view.with_durable(stored.durable) if stored.durable else ()
                        )
                    ),
                )
                for stored in filters[:FILTERS_SHOWN]
            ),
        )

    def _end_subscribers(self, reason: PenstockError) -> None:
        """End the connections of clients with subscriptions because the channel of all topics was
        deleted."""
        for connection in self.connections():
            if connection.client.filters:
                connection.end(reason)
