"""Why no session could be opened at an address where a server does listen: the wrong port, TLS at a
port without it or the reverse, or a certificate that the client does not believe."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Final, cast

from penstock.client.connection.urls import SCHEME, TLS_SCHEME, Address
from penstock_core.vocabulary.errors import CannotConnect, ConnectionLost

_PATIENCE_S: Final = 1.0
_GET: Final = b"GET / HTTP/1.0\r\n\r\n"
_HTTP: Final = b"HTTP/"
_TLS: Final = b"\x16\x03"
"""The beginning of a server's part of the TLS handshake."""
_WRONG_NAME: Final = (62, 64)
"""OpenSSL's codes for a certificate of another host or address."""


def certificate_hint(error: ssl.SSLCertVerificationError, address: Address) -> str:
    """What is wrong with the certificate of a realm, and what to do."""
    if error.verify_code in _WRONG_NAME:
        return (
            f"its certificate is not for {address.host} ({error.verify_message}); connect with a "
            "name that the certificate has, or give the server one for this name"
        )
    if error.verify_code == 10:
        return "its certificate has expired; renew it on the server"
    return (
        f"its certificate is not signed by an authority that is known here "
        f"({error.verify_message}); name the file of that authority: {TLS_SCHEME}{address}?ca=FILE"
    )


async def explained(failures: Mapping[Address, Exception], *, is_tls: bool) -> CannotConnect | None:
    """An error that says what a wrong URL has to be changed to; None: that cannot be found out."""
    hints = [
        f"{address}: {found}"
        for address, failure in failures.items()
        if (found := await hint(address, failure, is_tls=is_tls))
    ]
    return CannotConnect(f"no realm answered ({'; '.join(hints)})") if hints else None


async def hint(address: Address, error: BaseException, *, is_tls: bool) -> str:
    """What answers at an address in place of a realm, and what to do; empty: that is not known.

    It connects once or twice more, so it is asked only before a session is given up.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_hint(error, address)
    may_be_wrong = (ssl.SSLError,) if is_tls else (ConnectionLost, TimeoutError)
    if not isinstance(error, may_be_wrong):
        return ""
    answer = await _answer(address, _GET)
    if answer.startswith(_HTTP):
        return (
            "an HTTP server answers there, such as the web console; name the realm's native port, "
            "which is 9000 unless listen.port says otherwise"
        )
    if is_tls:
        return f"the port does not speak TLS; connect with {SCHEME}{address}"
    if (await _answer(address, _client_hello(address.host))).startswith(_TLS):
        return (
            f"the port speaks TLS; connect with {TLS_SCHEME}{address}, and name the authority of "
            "its certificate, unless the system knows it: ?ca=FILE"
        )
    return ""


def _client_hello(host: str) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    handshake = context.wrap_bio(incoming, outgoing, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()


async def _answer(address: Address, said: bytes) -> bytes:
    """The first bytes that come back."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            _, asking = await loop.create_connection(
                lambda: _Asking(said), address.host, address.port
            )
            return await asking.first
    except (OSError, TimeoutError):
        return b""


class _Asking(asyncio.Protocol):
    """Says something, and waits for the first bytes of the answer."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self.first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._said)

    def data_received(self, data: bytes) -> None:
        if not self.first.done():
            self.first.set_result(data)
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.first.done():
            self.first.set_result(b"")
