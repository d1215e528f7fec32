"""The client's part of signing in, which takes place on each connection of a session."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from typing import Any

from penstock.client.connection.credentials import (
    Credentials,
    Token,
    check_secret_is_safe,
    is_here,
    tls_context,
)
from penstock.client.connection.transport import Link
from penstock.client.connection.urls import Address, RealmUrl
from penstock_core.vocabulary.errors import AuthenticationFailed
from penstock_core.wire.native import messages as wire
from penstock_core.wire.scram import MECHANISM, NONCE_BYTES, PLAIN, ScramClient


class SigningIn:
    """Signs a session in on each of its connections."""

    def __init__(self, url: RealmUrl, token: Token | None = None) -> None:
        """Raises ``InvalidArgument`` if a TLS file cannot be used, or if a token or password would
        be sent unencrypted over a network."""
        self._url = url
        self._credentials = Credentials(url, token)
        if secret := self._credentials.sent_secret:
            check_secret_is_safe(secret, url, *url.addresses)
        self.tls: ssl.SSLContext | None = tls_context(url)
        """The TLS context for the realm; None without TLS."""
        self._challenges: list[asyncio.Future[bytes]] = []

    async def say_hello(
        self, link: Link, address: Address, session: str, greeting: asyncio.Future[wire.Welcome]
    ) -> None:
        """Sign in on a new connection to ``address``. The caller then waits for ``greeting``.

        The address is one of the URL, or one that a node of the cluster has named. Raises
        ``AuthenticationFailed`` if the realm cannot prove that it knows the password, and
        ``InvalidArgument`` if a token or password would be sent unencrypted over a network.
        """
        credentials = self._credentials
        # Checked again, because a node of the cluster may have named this address.
        if secret := credentials.sent_secret:
            check_secret_is_safe(secret, self._url, address)

        def send_hello(*, token: str = "", mechanism: str = "", data: bytes = b"") -> None:
            link.send(
                wire.Hello(
                    _client_name(),
                    session,
                    credentials.user,
                    token=token,
                    mechanism=mechanism,
                    data=data,
                )
            )

        if not credentials.password:
            send_hello(token=credentials.token())
            return
        if credentials.sends_password:
            plain = f"\0{credentials.user}\0{credentials.password}".encode()
            send_hello(mechanism=PLAIN, data=plain)
            return
        loop = asyncio.get_running_loop()
        self._challenges = [loop.create_future(), loop.create_future()]
        challenge, realm_proof = self._challenges
        exchange = ScramClient(
            credentials.user, credentials.password, secrets.token_urlsafe(NONCE_BYTES)
        )
        send_hello(mechanism=MECHANISM, data=exchange.first())
        await _wait_for_first(challenge, greeting)
        if not challenge.done():  # the realm needs no password, or has refused the session
            # Without TLS, only a realm on this machine may skip the proof: any other could be an
            # impostor. TLS has proved the identity of the realm by its certificate.
            may_skip_proof = self._url.tls or is_here(address.host)
            if greeting.exception() is None and not may_skip_proof:
                raise AuthenticationFailed(
                    "the realm could not prove that it knows the password, so it may be an "
                    "impostor; connect with "
                    "penstocks://, or without a password"
                )
            return
        # This runs in a thread, because the rounds of hashing take long.
        link.send(wire.Proof(await asyncio.to_thread(exchange.final, challenge.result())))
        await _wait_for_first(realm_proof, greeting)
        if realm_proof.done():
            exchange.check(realm_proof.result())
        elif greeting.exception() is None:
            # The realm has accepted the session without a proof of its own. An empty proof fails
            # the check, which raises the error.
            exchange.check(b"v=")

    def receive_challenge(self, data: bytes) -> None:
        """Receive data of the realm: first its challenge, then the proof that it knows the
        password."""
        for future in self._challenges:
            if not future.done():
                future.set_result(data)
                return


async def _wait_for_first(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of the futures is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _client_name() -> str:
    return f"penstock-python@{socket.gethostname()}"
