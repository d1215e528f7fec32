"""SASL sign-in over AMQP with the realm's accounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from penstock_amqp.peer import Spawner
from penstock_amqp.wire import sasl
from penstock_core.access.rights import Principal
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    AuthenticationFailed,
    PenstockError,
    RemoteProtocolViolation,
)
from penstock_core.wire import scram
from penstock_core.wire.scram import PLAIN
from penstock_server.frontends.shared.sasl_responses import BEARER, bearer_of, check_own, plain_of
from penstock_server.runtime.access.access import AccessControl

ANONYMOUS: Final = "ANONYMOUS"
EXTERNAL: Final = "EXTERNAL"

_log = logger("penstock.amqp")


class SaslPeer(Spawner, Protocol):
    """A connection whose client signs in."""

    host: str
    is_secure: bool
    """Whether the connection uses TLS."""
    certificate: Mapping[str, Any] | None
    """Content of the client's verified certificate; None without one."""

    def send_sasl(self, frame: bytes) -> None:
        """Send a SASL frame."""
        ...

    def signed_in(self, principal: Principal, additional_data: bytes | None) -> None:
        """Continue after a successful sign-in; ``additional_data`` is sent with the outcome."""
        ...

    def not_signed_in(self) -> None:
        """Tell the client that its sign-in has failed, and close the connection."""
        ...


class SaslSignIn:
    """One sign-in, from the list of mechanisms to the outcome."""

    def __init__(self, connection: SaslPeer, access: AccessControl) -> None:
        self._connection = connection
        self._access = access
        self._exchange: scram.ScramServer | None = None
        """The SCRAM exchange that waits for the client's proof."""
        self.is_busy = False
        """Whether credentials are being checked. Bytes received during the check are AMQP frames,
        which the client may send without waiting for the outcome (2.4.2)."""

    @property
    def mechanisms(self) -> list[str]:
        """The offered mechanisms, the most secure first.

        Passwords and tokens are accepted only over TLS or from this machine, where they cannot be
        intercepted, unless the settings allow them elsewhere.
        """
        connection, access = self._connection, self._access
        is_private = access.is_private(connection.host, secure=connection.is_secure)
        offered: list[str] = []
        if connection.certificate:
            offered.append(EXTERNAL)
        if not access.is_open:
            offered.append(scram.MECHANISM)
        if is_private:
            offered += [BEARER, PLAIN] if access.tokens.are_accepted else [PLAIN]
        if access.mode != "mandatory":
            offered.append(ANONYMOUS)
        return offered

    def take(self, frame: sasl.Init | sasl.Response) -> None:
        """Process a SASL frame. Raises ``RemoteProtocolViolation`` if it is not allowed in this
        state."""
        if isinstance(frame, sasl.Init):
            if self._exchange is not None:
                raise RemoteProtocolViolation(
                    "the client started a second sign-in before the end of the first"
                )
            self._begin(frame)
        elif self._exchange is not None:
            self.is_busy = True
            self._connection.spawn(self._check_proof, self._exchange, frame.response)
        else:
            raise RemoteProtocolViolation("the client answered a challenge that was not sent")

    def _begin(self, init: sasl.Init) -> None:
        """Begin the sign-in with the mechanism that the client has chosen."""
        if init.mechanism not in self.mechanisms:
            self._fail(
                AuthenticationFailed(
                    f"the sign-in mechanism {init.mechanism[:40]!r} is not offered; allowed are "
                    f"{', '.join(self.mechanisms)}"
                )
            )
            return
        if init.mechanism == scram.MECHANISM:
            try:
                self._exchange, verifier = self._access.scram(init.response, self._connection.host)
            except PenstockError as error:
                self._fail(error)
                return
            self._connection.send_sasl(sasl.challenge(self._exchange.challenge(verifier)))
            return
        self.is_busy = True
        self._connection.spawn(self._check_credentials, init)

    async def _check_credentials(self, init: sasl.Init) -> None:
        try:
            self._accept(await self._authenticate(init))
        except PenstockError as error:
            self._fail(error)

    async def _authenticate(self, init: sasl.Init) -> Principal:
        """Return the user that the client's first data proves. Raises ``AuthenticationFailed``."""
        access, connection = self._access, self._connection
        if init.mechanism == PLAIN:
            user, password = plain_of(init.response)
            if access.is_open:
                return access.anonymous(connection.host, user)
            return await access.password(
                user, password, connection.host, secure=connection.is_secure
            )
        if init.mechanism == BEARER:
            identity, token = bearer_of(init.response)
            token_principal = await access.token(
                token, connection.host, secure=connection.is_secure
            )
            check_own(identity, token_principal.called.encode())
            return token_principal
        if init.mechanism == EXTERNAL:
            certificate_principal = access.certificate(connection.certificate, connection.host)
            if certificate_principal is None:
                raise AuthenticationFailed("the client's certificate does not name a user")
            check_own(init.response, certificate_principal.called.encode())
            return certificate_principal
        return access.anonymous(connection.host)

    async def _check_proof(self, exchange: scram.ScramServer, proof: bytes) -> None:
        connection = self._connection
        try:
            self._accept(*await self._access.scram_proven(exchange, proof, connection.host))
        except PenstockError as error:
            self._fail(error)

    def _accept(self, principal: Principal, additional_data: bytes | None = None) -> None:
        if not self._access.is_open:
            self._access.require(principal, "session.open")
        self._connection.signed_in(principal, additional_data)
        self._access.signed_in(principal, "amqp")

    def _fail(self, error: PenstockError) -> None:
        _log.warning("amqp.sign_in_refused", host=self._connection.host, reason=str(error))
        self._connection.not_signed_in()


def without_sasl(
    access: AccessControl, certificate: Mapping[str, Any] | None, host: str
) -> Principal | None:
    """Return the principal of a client that connects without SASL; None if SASL is required."""
    try:
        principal = access.certificate(certificate, host) or access.anonymous(host)
        access.require(principal, "session.open")
    except PenstockError:
        return None
    access.signed_in(principal, "amqp")
    return principal
