"""Sign-in of a native connection: SCRAM-SHA-256, a token, a certificate, or none."""

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
from penstock_core.wire.scram import MECHANISM
from penstock_server.frontends.native.peer import NativePeer
from penstock_server.runtime.access.internal_errors import as_internal_error, new_incident_id

_log = logger("penstock.native")


class NativeSignIn:
    """The sign-in of one connection, from Hello to Welcome. It runs as a task, because the client
    may take its time for the proof; the connection takes nothing else meanwhile."""

    def __init__(self, connection: NativePeer) -> None:
        self._connection = connection
        self._access = connection.realm.access
        self._proof: asyncio.Future[bytes] | None = None
        """What the client answers to a challenge, once it is waited for."""

    async def run(self, hello: wire.Hello) -> None:
        """Welcome the connection, or end it with the reason."""
        connection = self._connection
        try:
            principal = await self._principal(hello)
            self._access.require(principal, "session.open")
            connection.welcome(hello, principal)
            self._access.signed_in(principal, "native")
        except PenstockError as error:
            connection.end(error)
        except Exception:  # noqa: BLE001  a task's root: a stranger may end nobody else's connection
            number = new_incident_id()
            _log.exception("request.failed", incident=number, peer=connection.host)
            connection.end(as_internal_error(number))

    def proven(self, data: bytes) -> None:
        """Take the client's proof. Raises ``RemoteProtocolViolation`` if none was asked for."""
        if self._proof is None or self._proof.done():
            raise RemoteProtocolViolation("client sent a proof that was not asked for")
        self._proof.set_result(data)

    def lost(self) -> None:
        """End the sign-in, because the connection is lost."""
        if self._proof is not None and not self._proof.done():
            self._proof.set_exception(ConnectionLost("the client disconnected during sign-in"))

    async def _principal(self, hello: wire.Hello) -> Principal:
        host = self._connection.host
        if hello.mechanism:
            return await self._scram(hello, host)
        if hello.token:
            return await self._access.token(hello.token, host, secure=self._connection.is_secure)
        known = self._access.certificate(self._connection.certificate, host)
        return known or self._access.anonymous(host)

    async def _scram(self, hello: wire.Hello, host: str) -> Principal:
        if hello.mechanism != MECHANISM:
            raise AuthenticationFailed(
                f"the sign-in mechanism {hello.mechanism[:40]!r} is not supported; use {MECHANISM}"
            )
        exchange, known = self._access.scram(hello.data, host)
        self._proof = asyncio.get_running_loop().create_future()
        self._connection.send(wire.Challenge(exchange.challenge(known)))
        try:
            proof = await self._proof
        finally:
            self._proof = None  # an error in it refers to this frame: a cycle
        principal, outcome = await self._access.scram_proven(exchange, proof, host)
        self._connection.send(wire.Challenge(outcome))
        return principal
