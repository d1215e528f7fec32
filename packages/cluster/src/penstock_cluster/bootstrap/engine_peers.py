"""The servers of an engine that the nodes of a cluster bring along: where they are, and whether
they are what they should be."""

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
"""Where clients of the engine come, unless a peer names another; the servers among themselves have
the next one, and monitoring the one after that."""
USER: Final = "penstock"
ANSWER_S: Final = 2.0
_PORT_MAX: Final = 65_533
_NUMBERS: Final = (3, 5)
_LINE_BYTES_MAX: Final = 64 << 10
_LOOKS_LIKE: Final = "--peers looks like n1=10.0.0.1,n2=10.0.0.2,n3=10.0.0.3"

PeerState = Literal["there", "absent", "wrong"]


class Peer(NamedTuple):
    """One server of the engine, beside a node of the same name."""

    name: str
    host: str
    port: int

    @property
    def route_port(self) -> int:
        """Where servers find each other."""
        return self.port + 1

    @property
    def monitor_port(self) -> int:
        return self.port + 2

    @property
    def address(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)


class PeerAnswer(NamedTuple):
    """What was found at a peer's address."""

    state: PeerState
    found: str


def bracketed(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def peers_of(text: str) -> list[Peer]:
    """The servers that ``--peers`` names. Raises ``InvalidArgument``."""
    peers = [_peer(each.strip()) for each in text.split(",") if each.strip()]
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
            f"majority is left when one or two of them are gone. {_LOOKS_LIKE}"
        )
    if len({peer.is_local for peer in peers}) > 1:
        local = next(peer for peer in peers if peer.is_local)
        raise InvalidArgument(
            f"--peers has {local.name}={local.host}, which other machines do not reach: name each "
            f"machine by the address that all of them reach"
        )
    return peers


def own_peer(peers: Sequence[Peer], name: str) -> Peer:
    """The one that stands beside the node with this name. Raises ``InvalidArgument``."""
    for peer in peers:
        if peer.name == name:
            return peer
    names = ", ".join(peer.name for peer in peers)
    raise InvalidArgument(
        f"--name is {name!r}, and --peers has {names}: the peers are all "
        f"machines, this one included"
    )


def ask_peer(peer: Peer, cluster: str, password: str, tls: ssl.SSLContext | None) -> PeerAnswer:
    """Look whether the engine's server at a peer's address belongs to this cluster, as one of its
    clients would. It takes some seconds where nobody answers."""
    try:
        return _asked(peer, cluster, password, tls=tls)
    except ssl.SSLError:
        return _another_secret(peer)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or f"{error}"
        return PeerAnswer("absent", f"{peer.name} at {peer.address}: {reason}")


def _peer(text: str) -> Peer:
    name, equals, where = text.partition("=")
    host, colon, port = where.rpartition(":")
    if not colon or host.count(":") not in (0, *range(2, 8)) or (":" in host and "[" not in host):
        host, port = where, f"{PORT}"  # an address of IPv6 has colons of its own
    host = host.strip("[]")
    if not (name and equals and host):
        raise InvalidArgument(f"--peers has {text!r}, which is not NAME=HOST. {_LOOKS_LIKE}")
    if not port.isdecimal() or not 1 <= int(port) <= _PORT_MAX:
        raise InvalidArgument(
            f"--peers has {text!r}, and {port!r} is no port: the engine takes the three ports that "
            f"begin there, so it is a number up to {_PORT_MAX}"
        )
    return Peer(name, host, int(port))


def _check_ports(peers: Sequence[Peer]) -> None:
    taken: dict[tuple[str, int], str] = {}
    for peer in peers:
        for port in (peer.port, peer.route_port, peer.monitor_port):
            other = taken.setdefault((peer.host, port), peer.name)
            if other != peer.name:
                raise InvalidArgument(
                    f"--peers has {other} and {peer.name} at the same port: each takes three ports "
                    f"of {peer.host}, from the one that is named on, and both want {port}"
                )


class _Info(msgspec.Struct):
    """What a NATS server says first."""

    server_name: str = ""
    cluster: str = ""
    tls_required: bool = False


def _asked(peer: Peer, cluster: str, password: str, tls: ssl.SSLContext | None) -> PeerAnswer:
    with socket.create_connection((peer.host, peer.port), ANSWER_S) as plain:
        plain.settimeout(ANSWER_S)
        said = _line(plain)
        try:
            assert said.startswith(b"INFO ")
            info = msgspec.json.decode(said[5:], type=_Info)
        except (AssertionError, msgspec.DecodeError, RecursionError):
            return _wrong(peer, "something answers that is no server of an engine")
        if info.server_name != peer.name:
            found = f"the engine's server {info.server_name!r} answers there"
            return _wrong(peer, f"{found}: --peers is to be the same on all machines")
        if info.cluster != cluster:
            found = f"it belongs to the cluster {info.cluster!r}, and this one is {cluster!r}"
            return _wrong(peer, f"{found} (cluster.name)")
        if info.tls_required != (tls is not None):
            has = "has" if info.tls_required else "has no"
            return _wrong(peer, f"it {has} TLS: --peers is to be the same on all machines")
        if tls is None:
            return _signed_in(peer, plain, password)
        with tls.wrap_socket(plain, server_hostname=peer.host) as secure:
            return _signed_in(peer, secure, password)


def _signed_in(peer: Peer, link: socket.socket, password: str) -> PeerAnswer:
    sign_in = {"user": USER, "pass": password, "verbose": False, "pedantic": False, "protocol": 1}
    link.sendall(b"CONNECT " + msgspec.json.encode(sign_in) + b"\r\nPING\r\n")
    while (said := _line(link)).startswith(b"INFO "):
        pass  # it says more to those that have signed in
    if said.startswith(b"PONG"):
        return PeerAnswer("there", f"{peer.name} at {peer.address}")
    return _another_secret(peer)


def _another_secret(peer: Peer) -> PeerAnswer:
    return _wrong(peer, "it has another secret: --secret-file is to be the same on all machines")


def _wrong(peer: Peer, found: str) -> PeerAnswer:
    return PeerAnswer("wrong", f"{peer.name} at {peer.address}: {found}")


def _line(link: socket.socket) -> bytes:
    """What comes up to the end of a line, or of the connection."""
    said = b""
    with suppress(TimeoutError):
        while not said.endswith(b"\n") and len(said) < _LINE_BYTES_MAX:
            more = link.recv(1)
            if not more:
                break
            said += more
    return said
