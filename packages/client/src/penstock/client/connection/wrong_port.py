"""Finds out why a session cannot be opened although a server listens, and returns hints: a wrong
port, TLS at a port without TLS or the reverse, or a certificate that the client does not trust."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Final, cast

from penstock.client.connection.urls import SCHEME, TLS_SCHEME, Address
from penstock_core.vocabulary.errors import CannotConnect, ConnectionLost

_ANSWER_TIMEOUT_S: Final = 1.0
_GET: Final = b"GET / HTTP/1.0\r\n\r\n"
_HTTP: Final = b"HTTP/"
_TLS: Final = b"\x16\x03"
"""The first bytes that a server sends in a TLS handshake."""
_WRONG_NAME: Final = (62, 64)
"""OpenSSL's codes for a certificate that is for another host or address."""


def certificate_hint(error: ssl.SSLCertVerificationError, address: Address) -> str:
    """Return a text that describes what is wrong with the certificate of a realm, and how to fix
    it."""
    if error.verify_code in _WRONG_NAME:
        return (
            f"its certificate is not for {address.host} ({error.verify_message}); connect with a "
            "name in the certificate, or install a certificate for this name on the server"
        )
    # OpenSSL's code for an expired certificate.
    if error.verify_code == 10:
        return "its certificate has expired; renew it on the server"
    return (
        f"its certificate is not signed by a trusted authority ({error.verify_message}); name the "
        f"file of its authority: {TLS_SCHEME}{address}?ca=FILE"
    )


async def explained(failures: Mapping[Address, Exception], *, is_tls: bool) -> CannotConnect | None:
    """Return an error with a hint for each address that tells how to correct the URL; None if no
    address has a hint.

    ``failures`` has the error of each address that was tried.
    """
    hints = [
        f"{address}: {text}"
        for address, failure in failures.items()
        if (text := await hint(address, failure, is_tls=is_tls))
    ]
    return CannotConnect(f"no realm answered ({'; '.join(hints)})") if hints else None


async def hint(address: Address, error: BaseException, *, is_tls: bool) -> str:
    """Return a text about the server that answers at an address instead of a realm, and how to
    correct the URL; empty if this is unknown.

    The function makes one or two more connections, so it is only called after ``error``.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_hint(error, address)
    may_be_wrong = (ssl.SSLError,) if is_tls else (ConnectionLost, TimeoutError)
    if not isinstance(error, may_be_wrong):
        return ""
    answer = await _answer(address, _GET)
    if answer.startswith(_HTTP):
        return (
            "an HTTP server answers there, such as the web console; use the realm's native port, "
            "which is 9000 unless the setting listen.port is another one"
        )
    if is_tls:
        return f"the port does not use TLS; connect with {SCHEME}{address}"
    if (await _answer(address, _client_hello(address.host))).startswith(_TLS):
        return (
            f"the port uses TLS; connect with {TLS_SCHEME}{address}, and add ?ca=FILE unless the "
            "system trusts the authority of its certificate"
        )
    return ""


def _client_hello(host: str) -> bytes:
    """Return the first message that a TLS client sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    handshake = context.wrap_bio(incoming, outgoing, server_hostname=host)
    # The handshake then waits for the server's answer; its first message is in `outgoing`.
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()


async def _answer(address: Address, request: bytes) -> bytes:
    """Send a request to an address, and return the first bytes of the answer; empty if no answer
    arrives within a second."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            _, probe = await loop.create_connection(
                lambda: _Probe(request), address.host, address.port
            )
            return await probe.first
    except (OSError, TimeoutError):
        return b""


class _Probe(asyncio.Protocol):
    """A connection that sends a request and receives only the first bytes of the answer."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.first.done():
            self.first.set_result(data)
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.first.done():
            self.first.set_result(b"")
