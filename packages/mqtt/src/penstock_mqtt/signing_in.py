"""Signs in an MQTT client, with its CONNECT or with the AUTH packets of enhanced authentication
(4.12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, Protocol

from penstock_core.access.rights import Principal
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import AuthenticationFailed, ConnectionLost, PenstockError
from penstock_core.vocabulary.topics import name_fault
from penstock_core.wire import scram
from penstock_mqtt.reasons import connack_reason
from penstock_mqtt.wire.packets import AuthPacket, ConnectPacket, Packet
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import MqttViolation, Reason, protocol_error
from penstock_server.frontends.shared.parts import ConnectionPart
from penstock_server.frontends.shared.sasl_responses import BEARER, bearer_of, check_own

if TYPE_CHECKING:
    from penstock_server.runtime.realm import RunningRealm

P = ParamSpec("P")

TOKEN_USER: Final = "token"
"""User name of a client whose password is a bearer token, unless an account has this name."""

_log = logger("penstock.mqtt")


TOO_LARGE_FOR_CLIENT: Final = "the answer is larger than the packets that the client accepts"
"""Error text for an AUTH or CONNACK above the maximum packet size of the client."""


class ProvenIdentity(NamedTuple):
    """A principal that the client has proven to be."""

    principal: Principal
    data: bytes | None = None
    """Authentication data for the last packet of the exchange."""


class SignInConnection(Protocol):
    """The connection of a client that signs in."""

    principal: Principal
    """The current user of the connection."""
    host: str
    is_open: bool
    """Whether the client is signed in."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has disconnected, or its connection is ending."""
        ...

    def transport_info(self, name: str) -> Any:
        """Return an item of the transport's extra information, or None."""
        ...

    def run(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run a coroutine that waits. An unexpected failure ends the connection."""
        ...

    def resume_reading(self) -> None:
        """Process packets that the client sent while it had to wait."""
        ...

    def send(self, packet: Packet) -> bool:
        """Send a packet. Return False if it is larger than the client accepts."""
        ...

    async def open_session(
        self, packet: ConnectPacket, principal: Principal, proof: PacketProperties
    ) -> None:
        """Open or resume the client's session. ``proof`` holds the properties that end its
        authentication. Raises the errors that deny a session."""
        ...

    def use_new_principal(self, principal: Principal) -> None:
        """Use the principal of a client that has authenticated again."""
        ...

    def refuse(self, reason: Reason, text: str) -> None:
        """Answer a CONNECT with a refusal, and close."""
        ...

    def end(self, reason: PenstockError | None) -> None:
        """Close the connection with a reason."""
        ...


class MqttSignIn(ConnectionPart[SignInConnection]):
    """Authenticates the client of one connection when it connects, and when it authenticates
    again."""

    def __init__(self, realm: RunningRealm, connection: SignInConnection) -> None:
        super().__init__(connection)
        self._realm = realm
        self._access = realm.access
        self._method: str | None = None
        """Authentication method of the CONNECT, valid for the whole connection."""
        self._response: asyncio.Future[bytes] | None = None
        """The client's next AUTH, while the exchange waits for it."""
        self._is_running = False
        """Whether a task authenticates the client."""

    @property
    def holds_packets(self) -> bool:
        """Whether received packets must wait until the client is signed in."""
        return self._is_running and not self._connection.is_open and self._response is None

    # --- packets of the client -----------------------------------------------------------

    def begin(self, packet: ConnectPacket) -> None:
        """Start to sign in the client of a CONNECT."""
        self._is_running = True
        self._connection.run(self._sign_in, packet)

    async def _sign_in(self, packet: ConnectPacket) -> None:
        connection, access = self._connection, self._access
        try:
            identity = await self._authenticate(packet)
            access.require(identity.principal, "session.open")
            access.signed_in(identity.principal, "mqtt")
            # The client may have disconnected during the authentication.
            if not connection.is_gone:
                proof = self._properties(identity.data)
                await connection.open_session(packet, identity.principal, proof)
        except PenstockError as error:
            _log.warning("mqtt.sign_in_refused", host=connection.host, reason=str(error))
            self._realm.connections.count_error(error)
            if not connection.is_gone:
                connection.refuse(connack_reason(error), str(error))
        finally:
            self._is_running = False
        connection.resume_reading()

    def received(self, packet: AuthPacket) -> None:
        """Receive an AUTH. Raises :class:`MqttViolation` if it is not expected now."""
        method = packet.properties.authentication_method
        if self._method is None:
            raise protocol_error("an AUTH packet needs an authentication method in the CONNECT")
        if method != self._method:
            text = f"an AUTH names the method {method!r}, and the CONNECT {self._method!r}"
            raise protocol_error(text)
        data = packet.properties.authentication_data or b""
        if packet.reason == Reason.CONTINUE_AUTHENTICATION and self._response is not None:
            response, self._response = self._response, None
            if not response.done():  # the waiting task may be cancelled
                response.set_result(data)
        elif packet.reason == Reason.RE_AUTHENTICATE and not self._is_running:
            self._is_running = True
            self._connection.run(self._reauthenticate, data)
        else:
            raise protocol_error(
                f"an AUTH with reason code 0x{packet.reason:02X} is not expected now"
            )

    def lost(self) -> None:
        """End an exchange that waits for the client because the connection is lost."""
        response, self._response = self._response, None
        if response is not None and not response.done():
            response.set_exception(ConnectionLost("the client disconnected during sign-in"))

    async def _reauthenticate(self, data: bytes) -> None:
        """Authenticate the client again. Until then the connection keeps its earlier principal."""
        connection = self._connection
        try:
            identity = await self._exchange(data)
            if identity.principal.user != connection.principal.user:
                raise AuthenticationFailed(
                    f"the connection is that of {connection.principal.user!r}; connect again as "
                    f"another user"
                )
            self._access.require(identity.principal, "session.open")
            self._access.signed_in(identity.principal, "mqtt")
            if connection.is_open:
                connection.use_new_principal(identity.principal)
                connection.send(AuthPacket(Reason.SUCCESS, self._properties(identity.data)))
        except PenstockError as error:
            _log.warning("mqtt.sign_in_refused", host=connection.host, reason=str(error))
            connection.end(error)
        finally:
            self._is_running = False

    # --- authentication ------------------------------------------------------------------

    async def _authenticate(self, packet: ConnectPacket) -> ProvenIdentity:
        """Authenticate the client of a CONNECT. Raises ``AuthenticationFailed`` and other errors
        that refuse it."""
        properties = packet.properties
        if properties.authentication_method is None:
            return ProvenIdentity(await self._user_of(packet))
        self._check_method(properties.authentication_method)
        self._method = properties.authentication_method
        identity = await self._exchange(properties.authentication_data or b"")
        # A user name in the CONNECT must not differ from the authenticated user.
        check_own((packet.user or "").encode(), identity.principal.called.encode())
        return identity

    async def _user_of(self, packet: ConnectPacket) -> Principal:
        """Return the user of a CONNECT without a method, by password, token or certificate, or the
        anonymous user."""
        access, host = self._access, self._connection.host
        if access.is_open:
            return access.anonymous(host, packet.user or "")
        if packet.user is None and packet.password is None:
            certificate: Mapping[str, Any] | None = self._connection.transport_info("peercert")
            return access.certificate(certificate, host) or access.anonymous(host)
        try:
            password = (packet.password or b"").decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("the password is not UTF-8") from None
        is_token = access.tokens.are_accepted and not access.accounts.knows(TOKEN_USER)
        if packet.user is None or (packet.user == TOKEN_USER and is_token):
            return await access.token(password, host, secure=self._is_secure)
        return await access.password(packet.user, password, host, secure=self._is_secure)

    @property
    def _is_secure(self) -> bool:
        return self._connection.transport_info("sslcontext") is not None

    def _check_method(self, method: str) -> None:
        """Raise :class:`MqttViolation` if the realm does not offer an authentication method."""
        access = self._access
        offered = [] if access.is_open else [scram.MECHANISM]
        if access.tokens.are_accepted and not access.is_open:
            offered.append(BEARER)
        if method not in offered:
            allowed_methods = (
                f"allowed are {' and '.join(offered)}" if offered else "this realm needs no sign-in"
            )
            text = f"the authentication method {method[:40]!r} is not offered; {allowed_methods}"
            raise MqttViolation(Reason.BAD_AUTHENTICATION_METHOD, text)

    async def _exchange(self, data: bytes) -> ProvenIdentity:
        """Return the identity that the client proves with its method. ``data`` is its initial data;
        if empty, the client is asked for it."""
        access, host = self._access, self._connection.host
        if not data:
            data = await self._response_to(b"")
        if self._method == BEARER:
            claimed_user, token = bearer_of(data)
            principal = await access.token(token, host, secure=self._is_secure)
            check_own(claimed_user, principal.called.encode())
            return ProvenIdentity(principal)
        exchange, verifier = access.scram(data, host)
        proof = await self._response_to(exchange.challenge(verifier))
        return ProvenIdentity(*await access.scram_proven(exchange, proof, host))

    async def _response_to(self, challenge: bytes) -> bytes:
        """Send a challenge and return the client's response."""
        connection = self._connection
        if connection.is_gone:
            raise ConnectionLost("the client disconnected during sign-in")
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._response = response
        request = AuthPacket(Reason.CONTINUE_AUTHENTICATION, self._properties(challenge or None))
        if not connection.send(request):
            self._response = None
            raise MqttViolation(Reason.PACKET_TOO_LARGE, TOO_LARGE_FOR_CLIENT)
        connection.resume_reading()
        try:
            return await response
        finally:
            del response  # an error in it refers to this frame: a cycle

    def _properties(self, data: bytes | None) -> PacketProperties:
        return PacketProperties(authentication_method=self._method, authentication_data=data)


def response_prefix(client_id: str, requested: PacketProperties) -> str | None:
    """Return the prefix of the topics where a client may receive responses. Return None if the
    client has not requested it or its client id cannot be part of a topic."""
    prefix = f"reply/{client_id}/"
    return None if not requested.request_response_information or name_fault(prefix) else prefix
