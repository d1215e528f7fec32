"""Who an MQTT client is: by its CONNECT, or by the packets AUTH of enhanced authentication
(4.12)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.api.publishing import PublishEvents
from penstock.core.access.rights import Principal
from penstock.core.vocabulary.errors import AuthenticationFailed, ConnectionLost, PenstockError
from penstock.core.vocabulary.topics import TOPIC_BYTES_MAX, name_fault
from penstock.frontends.mqtt.incoming import ALIASES_MAX, RECEIVE_MAXIMUM
from penstock.frontends.mqtt.reasons import connack_reason
from penstock.frontends.mqtt.subscribing import give_retained
from penstock.frontends.mqtt.topic_rights import ClientRights
from penstock.frontends.shared.sasl_responses import BEARER, bearer_of, check_own
from penstock.loggers import logger
from penstock.wire import scram
from penstock.wire.mqtt.packets import PACKET_BYTES_MAX, AuthPacket, ConnackPacket, ConnectPacket
from penstock.wire.mqtt.properties import PROPERTIES_BYTES_MAX, PacketProperties
from penstock.wire.mqtt.reasons import MqttViolation, Reason, protocol_error

if TYPE_CHECKING:
    from penstock.frontends.mqtt.connection import MqttConnection

ROOM_BYTES: Final = PROPERTIES_BYTES_MAX + TOPIC_BYTES_MAX + 64
"""Bytes of a packet beside its payload."""
TOKEN_USER: Final = "token"
"""The user name of a client whose password is a bearer token, unless a user is called so."""

_log = logger("penstock.mqtt")


_NOT_TAKEN: Final = "the client takes no packet as large as the one that it waits for"


class ProvenIdentity(NamedTuple):
    """A client that has shown who it is."""

    principal: Principal
    data: bytes | None = None
    """What the last packet of the exchange tells it."""


class MqttSignIn:
    """Finds out who the client of one connection is, when it connects and whenever it wants to
    show it again."""

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self._access = connection.realm.access
        self._method: str | None = None
        """The authentication method of the CONNECT, which holds for the whole connection."""
        self._response: asyncio.Future[bytes] | None = None
        """The client's next AUTH, while it is waited for."""
        self._is_running = False

    @property
    def holds_packets(self) -> bool:
        """Whether what the client has sent has to wait until it is known who it is."""
        return self._is_running and not self._connection.is_open and self._response is None

    # --- what comes ----------------------------------------------------------------------

    def begin(self, packet: ConnectPacket) -> None:
        """A CONNECT has come: its client is to be let in, or refused."""
        self._is_running = True
        connection = self._connection
        connection.listener.spawn(connection.contained, self._first, packet)

    async def _first(self, packet: ConnectPacket) -> None:
        connection, access = self._connection, self._access
        try:
            found = await self._identity(packet)
            access.require(found.principal, "session.open")
            access.signed_in(found.principal, "mqtt")
            if not connection.is_gone:
                await _welcome(connection, packet, found.principal, self._properties(found.data))
        except PenstockError as error:
            _log.warning("mqtt.sign_in_refused", host=connection.host, reason=str(error))
            connection.realm.connections.refused(error)
            if not connection.is_gone:
                connection.refuse(connack_reason(error), str(error))
        finally:
            self._is_running = False
        connection.reads_on()

    def received(self, packet: AuthPacket) -> None:
        """Take an AUTH of the client. Raises :class:`MqttViolation` for one that is not expected
        now."""
        said = packet.properties.authentication_method
        if self._method is None:
            raise protocol_error("an AUTH came, but the CONNECT named no authentication method")
        if said != self._method:
            text = f"an AUTH names the method {said!r}, and the CONNECT {self._method!r}"
            raise protocol_error(text)
        data = packet.properties.authentication_data or b""
        if packet.reason == Reason.CONTINUE_AUTHENTICATION and self._response is not None:
            response, self._response = self._response, None
            if not response.done():  # who waited may have been cancelled
                response.set_result(data)
        elif packet.reason == Reason.RE_AUTHENTICATE and not self._is_running:
            self._is_running = True
            connection = self._connection
            connection.listener.spawn(connection.contained, self._again, data)
        else:
            raise protocol_error(f"an AUTH with reason code 0x{packet.reason:02X} came out of turn")

    def lost(self) -> None:
        """End what waits for the client, because the connection is lost."""
        response, self._response = self._response, None
        if response is not None and not response.done():
            response.set_exception(ConnectionLost("the client disconnected during sign-in"))

    async def _again(self, data: bytes) -> None:
        """Find out anew who the client is; meanwhile the connection is that of whom it was."""
        connection = self._connection
        try:
            found = await self._exchange(data)
            if found.principal.user != connection.principal.user:
                raise AuthenticationFailed(
                    f"the connection is that of {connection.principal.user!r}; connect anew as "
                    f"another user"
                )
            self._access.require(found.principal, "session.open")
            self._access.signed_in(found.principal, "mqtt")
            if connection.is_open:
                connection.identified(found.principal)
                connection.send(AuthPacket(Reason.SUCCESS, self._properties(found.data)))
        except PenstockError as error:
            _log.warning("mqtt.sign_in_refused", host=connection.host, reason=str(error))
            connection.end(error)
        finally:
            self._is_running = False

    # --- who it is -----------------------------------------------------------------------

    async def _identity(self, packet: ConnectPacket) -> ProvenIdentity:
        own = packet.properties
        if own.authentication_method is None:
            return ProvenIdentity(await self._shown(packet))
        self._check_method(own.authentication_method)
        self._method = own.authentication_method
        found = await self._exchange(own.authentication_data or b"")
        check_own((packet.user or "").encode(), found.principal.called.encode())
        return found

    async def _shown(self, packet: ConnectPacket) -> Principal:
        """The user of a CONNECT without a method: user and password, a token, a certificate, or
        nobody."""
        access, host = self._access, self._connection.host
        if access.is_open:
            return access.anonymous(host, packet.user or "")
        if packet.user is None and packet.password is None:
            certificate: Mapping[str, Any] | None = self._connection.about("peercert")
            return access.certificate(certificate, host) or access.anonymous(host)
        try:
            password = (packet.password or b"").decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("the password is not UTF-8") from None
        is_token = access.tokens.are_taken and not access.accounts.knows(TOKEN_USER)
        if packet.user is None or (packet.user == TOKEN_USER and is_token):
            return await access.token(password, host, secure=self._is_secure)
        return await access.password(packet.user, password, host, secure=self._is_secure)

    @property
    def _is_secure(self) -> bool:
        return self._connection.about("sslcontext") is not None

    def _check_method(self, method: str) -> None:
        access = self._access
        offered = [] if access.is_open else [scram.MECHANISM]
        if access.tokens.are_taken and not access.is_open:
            offered.append(BEARER)
        if method not in offered:
            there_is = f"there is {' and '.join(offered)}" if offered else "nobody is asked here"
            text = f"the authentication method {method[:40]!r} is not offered; {there_is}"
            raise MqttViolation(Reason.BAD_AUTHENTICATION_METHOD, text)

    async def _exchange(self, data: bytes) -> ProvenIdentity:
        """The identity that the client shows by its method. ``data`` is what it began with; empty:
        it waits to be asked."""
        access, host = self._access, self._connection.host
        if not data:
            data = await self._asked(b"")
        if self._method == BEARER:
            wanted, token = bearer_of(data)
            known = await access.token(token, host, secure=self._is_secure)
            check_own(wanted, known.called.encode())
            return ProvenIdentity(known)
        exchange, verifier = access.scram(data, host)
        proof = await self._asked(exchange.challenge(verifier))
        return ProvenIdentity(*await access.scram_proven(exchange, proof, host))

    async def _asked(self, challenge: bytes) -> bytes:
        """What the client answers to a challenge."""
        connection = self._connection
        if connection.is_gone:
            raise ConnectionLost("the client disconnected during sign-in")
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._response = response
        asked = AuthPacket(Reason.CONTINUE_AUTHENTICATION, self._properties(challenge or None))
        if not connection.send(asked):
            self._response = None
            raise MqttViolation(Reason.PACKET_TOO_LARGE, _NOT_TAKEN)
        connection.reads_on()
        return await response

    def _properties(self, data: bytes | None) -> PacketProperties:
        return PacketProperties(authentication_method=self._method, authentication_data=data)


async def _welcome(
    connection: MqttConnection,
    packet: ConnectPacket,
    principal: Principal,
    proof: PacketProperties,
) -> None:
    """Go on with the session of a client; ``proof`` is what its authentication ends with."""
    hub = connection.hub
    connection.principal, connection.publisher = principal, principal.name
    connection.client_id = packet.client_id or hub.new_client_id()
    connection.rights = ClientRights(hub, principal, connection.client_id)
    if packet.will is not None:  # what could never be published is not kept
        connection.rights.check_publish(packet.will.topic, PublishEvents)
    connection.listener.greeted(connection, f"mqtt-{connection.number}")
    connection.session = f"mqtt-{connection.number}"
    session, present = await hub.sessions.enter(connection, packet, principal)
    connection.client = session
    own = packet.properties
    session.outbox.packet_bytes_max = packet.packet_bytes_max
    session.outbox.in_flight_max = own.receive_maximum or 65_535
    if connection.is_gone:
        hub.leave(connection)
        hub.sessions.leave(session)
        return
    most = connection.realm.limits.event_bytes_max + ROOM_BYTES
    connection.opened(packet, min(most, PACKET_BYTES_MAX))
    offered = replace(
        proof,
        assigned_client_id=None if packet.client_id else connection.client_id,
        receive_maximum=RECEIVE_MAXIMUM,
        topic_alias_maximum=ALIASES_MAX,
        retain_available=1,
        maximum_packet_bytes=min(most, PACKET_BYTES_MAX),
        response_information=_answers_of(connection.client_id, own),
    )
    if not connection.send(ConnackPacket(0, present, offered)):
        _log.warning("mqtt.sign_in_refused", host=connection.host, reason=_NOT_TAKEN)
        connection.abort()  # a DISCONNECT may not come before the CONNACK
        return
    owed = []
    if present:
        await hub.follow()
        owed = await session.resume(connection)
    if owed:
        connection.listener.spawn(connection.contained, give_retained, connection, owed)


def _answers_of(client_id: str, own: PacketProperties) -> str | None:
    """What the topics begin with to which a client may have answers sent; None: it has not asked,
    or its client id cannot stand in a topic."""
    found = f"reply/{client_id}/"
    return None if not own.request_response_information or name_fault(found) else found
