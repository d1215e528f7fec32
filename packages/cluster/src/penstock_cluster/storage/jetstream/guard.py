"""Check that the engine's servers cannot lose acknowledged data, by each server's monitoring.

Each refusal names the server and the line of its configuration to change.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable, Sequence
from ssl import SSLContext
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from penstock_core.vocabulary.engine_room import room_of_majority
from penstock_core.vocabulary.errors import NoQuorum, Unavailable

OLDEST: Final = (2, 14)
"""Oldest version of NATS that is supported. Older servers lose messages that they have
acknowledged, as an analysis by Jepsen has found."""
MONITORING_PORT: Final = 8222
_JETSTREAM: Final = "jetstream { store_dir: DIRECTORY, sync_interval: always }"
_TIMEOUT_S: Final = 2.0
"""Seconds within which a server has to answer."""
_SERVERS: Final = 3
"""Number of servers that store each stream."""


class _Peer(Struct):
    name: str


class _MetaCluster(Struct):
    leader: str = ""
    replicas: list[_Peer] = field(default_factory=list)
    cluster_size: int = 0


class _Config(Struct):
    max_storage: int = 0
    sync_always: bool = False
    sync_interval: int = 0


class _Jsz(Struct):
    disabled: bool = False
    config: _Config = field(default_factory=_Config)
    storage: int = 0
    meta_cluster: _MetaCluster | None = None


class _Cluster(Struct):
    name: str = ""


class _Varz(Struct):
    server_name: str = ""
    version: str = ""
    cluster: _Cluster = field(default_factory=_Cluster)


class _Counts(Struct):
    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0


class _Leader(Struct):
    leader: str = ""


class StreamCopy(Struct):
    """One server's copy of a stream, as that server reports it."""

    name: str
    state: _Counts = field(default_factory=_Counts)
    cluster: _Leader = field(default_factory=_Leader)

    @property
    def holes(self) -> int:
        """Number of messages missing between its first and its last."""
        counts = self.state
        span = counts.last_seq + 1 - counts.first_seq if counts.last_seq else 0
        return span - counts.messages


class _Account(Struct):
    stream_detail: list[StreamCopy] = field(default_factory=list)


class _Listing(Struct):
    account_details: list[_Account] = field(default_factory=list)


# Created once, by one thread: servers are read by several threads, and if two of them are the
# first to decode a type, msgspec 0.22 ends the process (a segmentation fault).
_varz: Final = msgspec.json.Decoder(_Varz)
_jsz: Final = msgspec.json.Decoder(_Jsz)
_listing: Final = msgspec.json.Decoder(_Listing)


class ServerState(Struct, frozen=True):
    """The state of one server, as the server reports it."""

    monitor: str
    """URL of the server's monitoring."""
    name: str = ""
    version: str = ""
    is_clustered: bool = False
    """Whether the server is configured as one of several."""
    syncs_always: bool = False
    sync_interval_s: float = 0.0
    free_bytes: int = 0
    """Bytes that the server may still store."""
    leader: str = ""
    """Leader of the cluster according to this server; empty if the server knows none."""
    peers: frozenset[str] = frozenset()
    """All servers of the cluster that this server knows by name."""
    cluster_size: int = 0
    failure: str = ""
    """Reason why the server could not be read, or does not know its state."""


def monitors_of(servers: Iterable[str]) -> list[str]:
    """Return the default monitoring URLs of servers."""
    hosts = dict.fromkeys(urlsplit(url).hostname or "localhost" for url in servers)
    return [f"http://{f'[{host}]' if ':' in host else host}:{MONITORING_PORT}" for host in hosts]


def read_server(monitor: str, tls: SSLContext | None = None) -> ServerState:
    """Read the state of one server through its monitoring, with ``tls`` for https. Takes some
    seconds if the server is down."""
    try:
        varz = _varz.decode(_fetch(f"{monitor}/varz", tls))
        jsz = _jsz.decode(_fetch(f"{monitor}/jsz?config=true", tls))
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        return ServerState(monitor, failure=_reason(error))
    meta = jsz.meta_cluster or _MetaCluster()
    failure = ""
    if jsz.disabled:
        failure = f"server {varz.server_name} has no JetStream, or starts it now: {_JETSTREAM}"
    elif varz.cluster.name and jsz.meta_cluster is None:
        failure = f"server {varz.server_name} looks for the others of its cluster"
    return ServerState(
        monitor,
        name=varz.server_name,
        version=varz.version,
        is_clustered=bool(varz.cluster.name),
        failure=failure,
        syncs_always=jsz.config.sync_always,
        sync_interval_s=jsz.config.sync_interval / 1e9,
        free_bytes=max(0, jsz.config.max_storage - jsz.storage),
        leader=meta.leader,
        peers=frozenset({varz.server_name, *(peer.name for peer in meta.replicas)}),
        cluster_size=meta.cluster_size,
    )


def _reason(error: Exception) -> str:
    """Return why a server could not be read, without the name of the library's class."""
    cause = getattr(error, "reason", None) or error
    return f"{getattr(cause, 'strerror', None) or cause}"


def check_servers(servers: Sequence[ServerState]) -> None:
    """Raise ``Unavailable`` if one of the servers that could be read is misconfigured."""
    for server in servers:
        if not server.failure:
            _check_server(server)


def check_majority(servers: Sequence[ServerState]) -> None:
    """Raise ``NoQuorum`` unless a majority of the cluster could be read. The other servers may be
    down, and are checked when they are back."""
    readable = [server for server in servers if not server.failure]
    size = max((server.cluster_size for server in readable), default=_SERVERS)
    if 2 * len({server.name for server in readable}) > size:
        return
    failed = "; ".join(f"{s.monitor}: {s.failure}" for s in servers if s.failure)
    names = frozenset[str]().union(*(server.peers for server in readable))
    unread = sorted(names - {server.name for server in readable})
    raise NoQuorum(
        f"the settings of only {len(readable)} of the engine's {size} servers can be read, and a "
        f"majority has to be: start the others. If they run, set http_port: {MONITORING_PORT} in "
        f"nats-server.conf of {', '.join(unread) or 'each server'}"
        + (f" ({failed})" if failed else "")
    )


def room_of(servers: Sequence[ServerState]) -> int | None:
    """Return the bytes that fit on a majority of the servers; None if too few were read."""
    readable = [server for server in servers if not server.failure]
    size = max((server.cluster_size for server in readable), default=_SERVERS)
    return room_of_majority((server.free_bytes for server in readable), max(size, len(servers)))


def rooms_of(servers: Sequence[ServerState]) -> dict[str, int]:
    """Return the bytes that each server may still store, by its name, of those that were read."""
    return {server.name: server.free_bytes for server in servers if not server.failure}


def are_joining(servers: Sequence[ServerState]) -> bool:
    """Return whether a server's view of the cluster lacks servers that are already running: the
    first leader counts the others one after the other."""
    running = len({server.name for server in servers if server.is_clustered})
    return any(
        server.leader and server.cluster_size < running for server in servers if server.is_clustered
    )


def are_electing(servers: Sequence[ServerState]) -> bool:
    """Return whether the running servers of a cluster know no leader, because they have just been
    started or have lost it."""
    running = [server for server in servers if server.is_clustered and not server.failure]
    return bool(running) and not any(server.leader for server in running)


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparisons."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _check_server(server: ServerState) -> None:
    check_version(server)
    check_sync(server)
    check_number(server)


def check_version(server: ServerState) -> None:
    """Raise ``Unavailable`` for a server that is too old."""
    if version_of(server.version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Unavailable(
            f"{_where(server)} is NATS {server.version}, and {oldest} or newer is needed. "
            f"To fix: install nats-server {oldest} or newer there"
        )


def check_sync(server: ServerState) -> None:
    """Raise ``Unavailable`` for a server that acknowledges before it syncs."""
    if not server.syncs_always:
        raise Unavailable(
            f"{_where(server)} acknowledges data before it is on its disk: it syncs every "
            f"{server.sync_interval_s:,.10g} s. To fix: set sync_interval: always within "
            f"jetstream {{ ... }} of its nats-server.conf"
        )


def check_number(server: ServerState) -> None:
    """Raise ``Unavailable`` for a server of too small a cluster."""
    # Without a leader the servers may not have found each other yet.
    is_known = bool(server.leader) or not server.is_clustered
    if is_known and server.cluster_size < _SERVERS:
        raise Unavailable(
            f"{_where(server)} is one of {max(1, server.cluster_size)} servers, and "
            f"{_SERVERS} have to keep each stream. To fix: set cluster {{ name: NAME, "
            f"listen: HOST:PORT, routes: [nats://OTHER:PORT, ...] }} in nats-server.conf of "
            f"{_SERVERS} servers"
        )


def _where(server: ServerState) -> str:
    return f"server {server.name} ({server.monitor})"


def read_copy(monitor: str, stream: str, tls: SSLContext | None = None) -> StreamCopy | None:
    """Return a server's copy of a stream; None without one, or if the server does not answer. Takes
    some seconds if the server is down."""
    try:
        raw = _fetch(f"{monitor}/jsz?accounts=true&streams=true", tls)
        listing = _listing.decode(raw)
    except (OSError, ValueError, msgspec.DecodeError, RecursionError):
        return None
    copies = [copy for account in listing.account_details for copy in account.stream_detail]
    return next((copy for copy in copies if copy.name == stream), None)


def _fetch(url: str, tls: SSLContext | None) -> bytes:
    """Return the content at a URL. Raises ``ValueError``, ``OSError``."""
    # urllib would also open files.
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("monitoring is read over http:// or https://")
    # Monitoring is inside the cluster's own network, whatever proxy the environment names.
    secure = urllib.request.HTTPSHandler(context=tls)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), secure)
    with opener.open(url, timeout=_TIMEOUT_S) as answer:
        content: bytes = answer.read()
        return content
