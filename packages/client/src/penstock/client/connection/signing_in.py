"""The client's side of signing in, for each connection of a session."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from typing import Any

from penstock.client.connection.credentials import (
    Credentials,
    Token,
    check_token_is_safe,
    is_here,
    tls_context,
)
from penstock.client.connection.transport import Link
from penstock.client.connection.urls import Address, RealmUrl
from penstock_core.vocabulary.errors import AuthenticationFailed
from penstock_core.wire.native import messages as wire
from penstock_core.wire.scram import MECHANISM, NONCE_BYTES, ScramClient


class SigningIn:
    """Signs a session in on each of its connections."""

    def __init__(self, url: RealmUrl, token: Token | None = None) -> None:
        """Raises ``InvalidArgument`` for TLS files that cannot be used, and for a token that would
        be sent unencrypted."""
        self._url = url
        self._credentials = Credentials(url, token)
        if self._credentials.has_token:
            check_token_is_safe(url, *url.addresses)
        self.tls: ssl.SSLContext | None = tls_context(url)
        """The TLS context for the realm; None without TLS."""
        self._challenges: list[asyncio.Future[bytes]] = []

    async def say_hello(
        self, link: Link, at: Address, session: str, greeting: asyncio.Future[wire.Welcome]
    ) -> None:
        """Sign in at an address of the URL, or at one that a node of the cluster has named. The
        caller then waits for ``greeting``.

        Raises ``AuthenticationFailed`` if the realm cannot prove that it knows the password, and
        ``InvalidArgument``.
        """
        shown = self._credentials
        if shown.has_token:
            check_token_is_safe(self._url, at)
        if not shown.password:
            link.send(wire.Hello(_client_name(), session, shown.user, token=shown.token()))
            return
        loop = asyncio.get_running_loop()
        self._challenges = [loop.create_future(), loop.create_future()]
        question, outcome = self._challenges
        exchange = ScramClient(shown.user, shown.password, secrets.token_urlsafe(NONCE_BYTES))
        link.send(
            wire.Hello(
                _client_name(),
                session,
                shown.user,
                token="",
                mechanism=MECHANISM,
                data=exchange.first(),
            )
        )
        await _first(question, greeting)
        if not question.done():  # the realm needs no password, or has refused the session
            # A realm without authentication is on this machine; TLS has shown the identity of any
            # other.
            may_skip_proof = self._url.tls or is_here(at.host)
            if greeting.exception() is None and not may_skip_proof:
                raise AuthenticationFailed(
                    "the realm could not prove that it knows the password, so it may be an "
                    "impostor; connect with "
                    "penstocks://, or without a password"
                )
            return
        # This runs in a thread, because the rounds of hashing take long.
        link.send(wire.Proof(await asyncio.to_thread(exchange.final, question.result())))
        await _first(outcome, greeting)
        if outcome.done():
            exchange.check(outcome.result())
        elif greeting.exception() is None:
            # The realm has sent no proof: an empty one fails the check.
            exchange.check(b"v=")

    def challenged(self, data: bytes) -> None:
        """Pass on the realm's challenge, or its own proof."""
        for waiting in self._challenges:
            if not waiting.done():
                waiting.set_result(data)
                return


async def _first(*awaited: asyncio.Future[Any]) -> None:
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)


def _client_name() -> str:
    return f"penstock-python@{socket.gethostname()}"
