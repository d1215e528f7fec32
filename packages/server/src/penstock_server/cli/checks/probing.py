"""Probes the ports of a realm on this machine without signing in.

The server's certificate is not verified, because it names the realm and not the loopback address.
The probes send nothing secret.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from contextlib import closing
from typing import Final

from msgspec import Struct

from penstock_core.vocabulary.errors import PenstockError

_EVERYWHERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_AMQP: Final = b"AMQP\x03\x01\x00\x00"
"""Protocol header of an AMQP client that wants to sign in; every realm answers with these bytes."""
_MQTT: Final = bytes.fromhex("100c00044d5154547f0000000000")
"""CONNECT packet with protocol version 127, which every server refuses with a CONNACK."""


class Endpoint(Struct, frozen=True):
    """The address of a port, and whether to use TLS."""

    host: str
    port: int
    secure: bool
    wants_certificate: bool = False
    """Whether the port requires client certificates; it then closes probes after the handshake."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PortAnswer(Struct, frozen=True):
    """The answer of a port."""

    is_good: bool
    text: str
    """Text of the answer, or a description of the problem."""


def reachable_host(host: str) -> str:
    """Return the address at which this machine reaches its own listener on ``host``."""
    return _EVERYWHERE.get(host, host)


def native(endpoint: Endpoint, timeout_s: float) -> PortAnswer:
    """Ping over the native protocol."""
    from penstock.client.connection.ping import PingProbe

    ping = PingProbe()
    try:
        with closing(_connected(endpoint, timeout_s)) as connection:
            connection.sendall(ping.request)
            while not ping.is_too_long:
                received = connection.recv(4_096)
                if not received:
                    return _closed(endpoint)
                if (pong := ping.receive(received)) is not None:
                    return PortAnswer(pong.is_good, pong.text)
    except (OSError, PenstockError) as error:
        return _failed(endpoint, error)
    return PortAnswer(is_good=False, text="speaks another protocol")


def over_http(endpoint: Endpoint, path: str, timeout_s: float) -> PortAnswer:
    """Request ``/health`` or ``/ready``."""
    try:
        status, content = page(endpoint, path, timeout_s, size_max=200)
    except (OSError, http.client.HTTPException) as error:
        return _failed(endpoint, error)
    body = content.decode("utf-8", "replace")
    if '"status"' not in body:
        return PortAnswer(is_good=False, text=f"is not a realm's answer: status {status}")
    return PortAnswer(status == http.client.OK, body)


def page(endpoint: Endpoint, path: str, timeout_s: float, *, size_max: int) -> tuple[int, bytes]:
    """Return the status and up to ``size_max`` bytes of a page that needs no sign-in.

    Raises ``OSError``, ``http.client.HTTPException``.
    """
    client = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_s)
    with closing(client):
        client.sock = _connected(endpoint, timeout_s)
        client.request("GET", path)
        reply = client.getresponse()
        return reply.status, reply.read(size_max)


def amqp(endpoint: Endpoint, timeout_s: float) -> PortAnswer:
    """Begin to sign in over AMQP."""
    try:
        with closing(_connected(endpoint, timeout_s)) as connection:
            connection.sendall(_AMQP)
            received = connection.recv(len(_AMQP))
    except OSError as error:
        return _failed(endpoint, error)
    if not received:
        return _closed(endpoint)
    is_good = received == _AMQP
    return PortAnswer(is_good, "answers" if is_good else "speaks another protocol")


def mqtt(endpoint: Endpoint, timeout_s: float) -> PortAnswer:
    """Connect over MQTT with an unsupported protocol version, so that no session is created."""
    try:
        with closing(_connected(endpoint, timeout_s)) as connection:
            connection.sendall(_MQTT)
            received = connection.recv(2)
    except OSError as error:
        return _failed(endpoint, error)
    if not received:
        return _closed(endpoint)
    is_good = received[:1] == b"\x20"  # the first byte of a CONNACK packet
    return PortAnswer(is_good, "answers" if is_good else "speaks another protocol")


def _connected(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """Return a connected socket, with TLS if the endpoint uses it. The certificate is not
    verified."""
    plain = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    if not endpoint.secure:
        return plain
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def _closed(endpoint: Endpoint) -> PortAnswer:
    """Return the answer of a port that closed the connection. If it requires client certificates,
    the TLS handshake proves that it works."""
    if endpoint.secure and endpoint.wants_certificate:
        return PortAnswer(is_good=True, text="speaks TLS and requires a client certificate")
    return PortAnswer(is_good=False, text="closed the connection without an answer")


def _failed(endpoint: Endpoint, error: Exception) -> PortAnswer:
    """Return the result of a probe that has failed. The port may still be good: it closes
    connections if it requires client certificates."""
    if isinstance(error, http.client.RemoteDisconnected | ssl.SSLError | ConnectionResetError):
        answer = _closed(endpoint)
        if answer.is_good:
            return answer
    return PortAnswer(is_good=False, text=str(error) or type(error).__name__)
