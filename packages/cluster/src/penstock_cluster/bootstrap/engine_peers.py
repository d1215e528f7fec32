"""The servers of an engine that the nodes of a cluster run: their addresses, and whether they are
the expected ones."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple

import msgspec

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.wire.addresses import is_loopback

PORT: Final = 4222
"""Default port for clients of the engine. The servers use the next port among themselves, and
monitoring the one after that."""
USER: Final = "penstock"
ANSWER_S: Final = 2.0
"""Seconds within which a peer has to answer."""
_PORT_MAX: Final = 65_533
"""Highest first port of a server, which uses three consecutive ports."""
_NUMBERS: Final = (3, 5)
"""Allowed numbers of servers."""
_LINE_BYTES_MAX: Final = 64 << 10
"""Maximum number of bytes of a line that is read from a server."""
_LOOKS_LIKE: Final = "--peers looks like n1=10.0.0.1,n2=10.0.0.2,n3=10.0.0.3"

PeerState = Literal["there", "absent", "wrong"]
"""``there``: the expected server answers; ``absent``: no answer; ``wrong``: another process or a
server of another cluster answers."""


class Peer(NamedTuple):
    """One server of the engine, on the machine of the node with the same name."""

    name: str
    host: str
    port: int

    @property
    def route_port(self) -> int:
        """Port for connections between servers."""
        return self.port + 1

    @property
    def monitor_port(self) -> int:
        return self.port + 2

    @property
    def address(self) -> str:
        return f"{url_host(self.host)}:{self.port}"

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)


class PeerAnswer(NamedTuple):
    """The result of probing a peer's address."""

    state: PeerState
    finding: str
    """The result as text, with name and address of the peer."""


def url_host(host: str) -> str:
    """Return a host in the form that a port may follow."""
    return f"[{host}]" if ":" in host else host


def parse_peers(text: str) -> list[Peer]:
    """Return the servers that ``--peers`` names. Raises ``InvalidArgument``."""
    peers = [_parse_peer(part.strip()) for part in text.split(",") if part.strip()]
    names = [peer.name for peer in peers]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(
                f"--peers has the name {name} twice; each machine is named once. {_LOOKS_LIKE}"
            )
    _check_ports(peers)
    if len(peers) not in _NUMBERS:
        raise InvalidArgument(
            f"--peers names {len(peers)} machines; an engine has three or five servers, so that a "
            f"majority remains when one or two of them fail. {_LOOKS_LIKE}"
        )
    if len({peer.is_local for peer in peers}) > 1:
        local = next(peer for peer in peers if peer.is_local)
        raise InvalidArgument(
            f"--peers has {local.name}={local.host}, which other machines do not reach: name each "
            f"machine by the address that all of them reach"
        )
    return peers


def own_peer(peers: Sequence[Peer], name: str) -> Peer:
    """Return the peer of the node with this name. Raises ``InvalidArgument``."""
    for peer in peers:
        if peer.name == name:
            return peer
    names = ", ".join(peer.name for peer in peers)
    raise InvalidArgument(
        f"--name is {name!r}, and --peers has {names}: the peers are all "
        f"machines, this one included"
    )


def ask_peer(peer: Peer, cluster: str, password: str, tls: ssl.SSLContext | None) -> PeerAnswer:
    """Check as a client whether the engine server at a peer's address belongs to this cluster.
    Takes some seconds if it does not answer."""
    try:
        return _probe(peer, cluster, password, tls=tls)
    except ssl.SSLError:
        return _wrong_secret(peer)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or f"{error}"
        return PeerAnswer("absent", f"{peer.name} at {peer.address}: {reason}")


def _parse_peer(text: str) -> Peer:
    """Return the server in a text ``NAME=HOST`` or ``NAME=HOST:PORT``. Raises
    ``InvalidArgument``."""
    name, equals, address = text.partition("=")
    host, colon, port = address.rpartition(":")
    if not colon or host.count(":") not in (0, *range(2, 8)) or (":" in host and "[" not in host):
        host, port = address, f"{PORT}"  # the colons belong to an IPv6 address
    host = host.strip("[]")
    if not (name and equals and host):
        raise InvalidArgument(f"--peers has {text!r}, which is not NAME=HOST. {_LOOKS_LIKE}")
    if not port.isdecimal() or not 1 <= int(port) <= _PORT_MAX:
        raise InvalidArgument(
            f"--peers has {text!r}, and {port!r} is not a port: the engine takes the three ports "
            f"that begin there, so it is a number up to {_PORT_MAX}"
        )
    return Peer(name, host, int(port))


def _check_ports(peers: Sequence[Peer]) -> None:
    """Raise ``InvalidArgument`` if two peers on one host would use the same port."""
    peers_by_port: dict[tuple[str, int], str] = {}
    for peer in peers:
        for port in (peer.port, peer.route_port, peer.monitor_port):
            first_peer = peers_by_port.setdefault((peer.host, port), peer.name)
            if first_peer != peer.name:
                raise InvalidArgument(
                    f"--peers has {first_peer} and {peer.name} at the same port: each takes three "
                    f"ports of {peer.host}, starting with the one in --peers, and both use {port}"
                )


class _Info(msgspec.Struct):
    """The first message of a NATS server."""

    server_name: str = ""
    cluster: str = ""
    tls_required: bool = False


def _probe(peer: Peer, cluster: str, password: str, tls: ssl.SSLContext | None) -> PeerAnswer:
    """Connect to a peer and compare its greeting with the expected one, then sign in. Raises
    ``OSError``."""
    with socket.create_connection((peer.host, peer.port), ANSWER_S) as plain:
        plain.settimeout(ANSWER_S)
        greeting = _read_line(plain)
        keyword, _, greeting_json = greeting.partition(b" ")
        try:
            info = msgspec.json.decode(greeting_json, type=_Info)
        except (msgspec.DecodeError, RecursionError):
            info = None
        if keyword != b"INFO" or info is None:
            return _wrong(peer, "the process that answers is not a NATS server")
        if info.server_name != peer.name:
            problem = f"the engine's server {info.server_name!r} answers there"
            return _wrong(peer, f"{problem}: --peers must be the same on all machines")
        if info.cluster != cluster:
            problem = f"it belongs to the cluster {info.cluster!r}, and this one is {cluster!r}"
            return _wrong(peer, f"{problem} (cluster.name)")
        if info.tls_required != (tls is not None):
            has = "has" if info.tls_required else "has no"
            return _wrong(peer, f"it {has} TLS: --peers must be the same on all machines")
        if tls is None:
            return _sign_in(peer, plain, password)
        with tls.wrap_socket(plain, server_hostname=peer.host) as secure:
            return _sign_in(peer, secure, password)


def _sign_in(peer: Peer, link: socket.socket, password: str) -> PeerAnswer:
    """Sign in at a server, which shows whether it has the password of this cluster."""
    sign_in = {"user": USER, "pass": password, "verbose": False, "pedantic": False, "protocol": 1}
    # Without `verbose` the server does not answer CONNECT; the answer to PING shows whether it
    # accepts the sign-in.
    link.sendall(b"CONNECT " + msgspec.json.encode(sign_in) + b"\r\nPING\r\n")
    while (reply := _read_line(link)).startswith(b"INFO "):
        pass  # a server may repeat its greeting after the sign-in
    if reply.startswith(b"PONG"):
        return PeerAnswer("there", f"{peer.name} at {peer.address}")
    return _wrong_secret(peer)


def _wrong_secret(peer: Peer) -> PeerAnswer:
    return _wrong(peer, "it has another secret: --secret-file must be the same on all machines")


def _wrong(peer: Peer, problem: str) -> PeerAnswer:
    return PeerAnswer("wrong", f"{peer.name} at {peer.address}: {problem}")


def _read_line(link: socket.socket) -> bytes:
    """Return the bytes up to the end of a line; fewer if the connection ends or stays silent."""
    line = b""
    with suppress(TimeoutError):
        while not line.endswith(b"\n") and len(line) < _LINE_BYTES_MAX:
            # This reads one byte at a time, because the bytes after the line belong to the next
            # call.
            received = link.recv(1)
            if not received:
                break
            line += received
    return line
