"""Asks the ports of a realm on this machine whether it serves, without signing in.

The identity of the server is not verified, since its certificate is for the realm's name and not
for the loopback address; nothing secret is sent.
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
_MQTT: Final = bytes.fromhex("100c00044d5154547f0000000000")
"""The header of an AMQP client that wants to sign in; every realm answers with the same bytes."""


class Endpoint(Struct, frozen=True):
    """A port, and the protocol to use."""

    host: str
    port: int
    secure: bool
    wants_certificate: bool = False
    """Whether clients need a certificate; without one the port closes after the handshake."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PortAnswer(Struct, frozen=True):
    """The answer of a port."""

    is_good: bool
    said: str


def near(host: str) -> str:
    """The address at which this machine reaches its own listener on ``host``."""
    return _EVERYWHERE.get(host, host)


def native(place: Endpoint, timeout_s: float) -> PortAnswer:
    """Ping over the native protocol."""
    from penstock.client.connection.ping import PingProbe

    ping = PingProbe()
    try:
        with closing(_connected(place, timeout_s)) as line:
            line.sendall(ping.request)
            while not ping.is_too_long:
                received = line.recv(4_096)
                if not received:
                    return _hung_up(place)
                if (pong := ping.receive(received)) is not None:
                    return PortAnswer(pong.is_good, pong.said)
    except (OSError, PenstockError) as error:
        return _failed(place, error)
    return PortAnswer(is_good=False, said="speaks another protocol")


def over_http(place: Endpoint, path: str, timeout_s: float) -> PortAnswer:
    """Ask ``/health`` or ``/ready``."""
    talk = http.client.HTTPConnection(place.host, place.port, timeout=timeout_s)
    try:
        with closing(talk):
            talk.sock = _connected(place, timeout_s)
            talk.request("GET", path)
            reply = talk.getresponse()
            said = reply.read(200).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return _failed(place, error)
    if '"status"' not in said:
        return PortAnswer(is_good=False, said=f"is not a realm's answer: status {reply.status}")
    return PortAnswer(reply.status == http.client.OK, said)


def amqp(place: Endpoint, timeout_s: float) -> PortAnswer:
    """Begin to sign in over AMQP."""
    try:
        with closing(_connected(place, timeout_s)) as line:
            line.sendall(_AMQP)
            said = line.recv(len(_AMQP))
    except OSError as error:
        return _failed(place, error)
    if not said:
        return _hung_up(place)
    return PortAnswer(said == _AMQP, "answers" if said == _AMQP else "speaks another protocol")


def mqtt(place: Endpoint, timeout_s: float) -> PortAnswer:
    """Ask over MQTT for a protocol version that nobody speaks."""
    try:
        with closing(_connected(place, timeout_s)) as line:
            line.sendall(_MQTT)
            said = line.recv(2)
    except OSError as error:
        return _failed(place, error)
    if not said:
        return _hung_up(place)
    is_good = said[:1] == b"\x20"
    return PortAnswer(is_good, "answers" if is_good else "speaks another protocol")


def _connected(place: Endpoint, timeout_s: float) -> socket.socket:
    plain = socket.create_connection((place.host, place.port), timeout_s)
    if not place.secure:
        return plain
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def _hung_up(place: Endpoint) -> PortAnswer:
    """The answer of a port that closed: one that asks for a certificate has answered by its
    handshake."""
    if place.secure and place.wants_certificate:
        return PortAnswer(is_good=True, said="speaks TLS, and wants a client certificate")
    return PortAnswer(is_good=False, said="hung up without an answer")


def _failed(place: Endpoint, error: Exception) -> PortAnswer:
    if isinstance(error, http.client.RemoteDisconnected | ssl.SSLError | ConnectionResetError):
        met = _hung_up(place)
        if met.is_good:
            return met
    return PortAnswer(is_good=False, said=str(error) or type(error).__name__)
