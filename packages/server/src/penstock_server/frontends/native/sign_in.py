"""Signs in native connections with SCRAM-SHA-256, a password, a token, a certificate, or as
anonymous."""

from __future__ import annotations

import asyncio

from penstock_core.access.rights import Principal
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    AuthenticationFailed,
    ConnectionLost,
    PenstockError,
    RemoteProtocolViolation,
)
from penstock_core.wire.native import messages as wire
from penstock_core.wire.scram import MECHANISM, PLAIN
from penstock_server.frontends.native.peer import NativePeer
from penstock_server.frontends.shared.sasl_responses import plain_of
from penstock_server.runtime.access.internal_errors import as_internal_error, new_incident_id

_log = logger("penstock.native")


class NativeSignIn:
    """The sign-in of one connection, from Hello to Welcome. It runs as a task, because it may have
    to wait for the client's proof. Until then the connection accepts no other messages."""

    def __init__(self, connection: NativePeer) -> None:
        self._connection = connection
        self._access = connection.realm.access
        self._proof: asyncio.Future[bytes] | None = None
        """The client's answer to a challenge; None while no answer is expected."""

    async def run(self, hello: wire.Hello) -> None:
        """Welcome the connection, or end it with a reason."""
        connection = self._connection
        try:
            principal = await self._principal(hello)
            self._access.require(principal, "session.open")
            connection.welcome(hello, principal)
            self._access.signed_in(principal, "native")
        except PenstockError as error:
            connection.end(error)
        except Exception:  # noqa: BLE001  a defect must not end the connections of other clients
            incident_id = new_incident_id()
            _log.exception("request.failed", incident=incident_id, peer=connection.host)
            connection.end(as_internal_error(incident_id))

    def set_proof(self, data: bytes) -> None:
        """Continue with the client's proof. Raises ``RemoteProtocolViolation`` if no proof is
        expected."""
        if self._proof is None or self._proof.done():
            raise RemoteProtocolViolation("the client sent a proof that was not requested")
        self._proof.set_result(data)

    def lost(self) -> None:
        """End the sign-in, because the connection is lost."""
        if self._proof is not None and not self._proof.done():
            self._proof.set_exception(ConnectionLost("the client disconnected during sign-in"))

    async def _principal(self, hello: wire.Hello) -> Principal:
        """Return the principal that a Hello proves: by password, token or certificate, otherwise
        the anonymous user. Raises ``AuthenticationFailed``."""
        host = self._connection.host
        if hello.mechanism == PLAIN:
            user, password = plain_of(hello.data)
            return await self._access.password(
                user, password, host, secure=self._connection.is_secure
            )
        if hello.mechanism:
            return await self._scram(hello, host)
        if hello.token:
            return await self._access.token(hello.token, host, secure=self._connection.is_secure)
        principal = self._access.certificate(self._connection.certificate, host)
        return principal or self._access.anonymous(host)

    async def _scram(self, hello: wire.Hello, host: str) -> Principal:
        """Sign a user in by SCRAM: send the challenge, wait for the proof, and check it. Raises
        ``AuthenticationFailed``, ``SignInLocked``."""
        if hello.mechanism != MECHANISM:
            raise AuthenticationFailed(
                f"the sign-in mechanism {hello.mechanism[:40]!r} is not supported; use {MECHANISM} "
                f"or {PLAIN}"
            )
        exchange, keys = self._access.scram(hello.data, host)
        self._proof = asyncio.get_running_loop().create_future()
        self._connection.send(wire.Challenge(exchange.challenge(keys)))
        try:
            proof = await self._proof
        finally:
            self._proof = None  # its error refers to this frame, which would be a cycle
        principal, outcome = await self._access.scram_proven(exchange, proof, host)
        self._connection.send(wire.Challenge(outcome))
        return principal
