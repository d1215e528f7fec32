"""The parts of a cluster's node: its engine, and the realm of a shard on it.

Imported only for a cluster, together with the adapter of the engine and the client of its servers.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.client.connection.urls import safe
from penstock.client.copies.object_store_uri import place
from penstock_cluster.bootstrap.storage_engines import GROUP, EngineKind
from penstock_cluster.nodes.roles import LOCAL
from penstock_cluster.owning.register_records import MemberRecord
from penstock_cluster.sealed_history import HistoryAccess, SealedHistory
from penstock_cluster.storage.history_blobs import HistoryBlobs
from penstock_cluster.storage.shared_blobs import CachedBlobs, PrefixedBlobs
from penstock_core.version import __version__
from penstock_core.vocabulary.errors import (
    Conflict,
    InvalidArgument,
    NoQuorum,
    PenstockError,
    Unavailable,
)
from penstock_core.vocabulary.node_figures import SHARD
from penstock_core.vocabulary.ports import (
    Blobs,
    Clock,
    EngineHealth,
    EngineInspector,
    Journal,
    Registry,
    StorageEngine,
)
from penstock_core.vocabulary.uris import below
from penstock_core.wire.relay_preface import secret_name
from penstock_server.bootstrap import (
    IDENTITY_KEY,
    access,
    give_scratch_folder,
    realm_limits,
    rules,
    sealing_limits,
)
from penstock_server.bootstrap.front_end_urls import front_end_url
from penstock_server.frontends.front_end import NATIVE, front_end_named, front_ends
from penstock_server.parts import registered
from penstock_server.runtime.access.account_records import USERS_KEY
from penstock_server.runtime.delivery.owner_lease import OwnerLease
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.settings import ClusterSettings, Section, Settings, without_secret
from penstock_server.storage.blob_names import BLOB_ROOTS
from penstock_server.storage.disk import PRIVATE_DIRECTORY, RealDisk, make_directories
from penstock_server.storage.embedded.blobs import FileBlobs
from penstock_server.storage.file_systems import FileSystemBlobs
from penstock_server.storage.memory import MemoryJournal, MemoryPages, MemoryRegistry

ON_ENGINE: Final = "engine"
"""Value of ``cluster.blobs`` for files that are stored on the engine."""
CACHE_FOLDER: Final = "cache"
"""Folder of recently read segments, in the node's data directory. It may be removed while the node
is down."""
HISTORY_FOLDER: Final = "history"
"""Folder of the audit log of readers of sealed history, in the node's data directory."""
SECRET_KEY: Final = "cluster/secret"
"""Key of the register with the cluster's secret, unless the settings name a file."""
SECRET_BYTES_MIN: Final = 32
"""Least number of bytes of the cluster's secret."""
CHECK_TIMEOUT_S: Final = 30.0
"""Longest wait at the start for an engine without a majority of its servers."""
_NODE_SPECIFIC: Final = ("audit_files", "ldap")
"""Fields of ``access`` that are not compared as a whole: ``audit_files`` may differ between nodes,
and the fields of ``ldap`` are compared one by one."""
# Settings of three sections that must be equal on all nodes; other settings may differ.
_SHARED_OF_CLUSTER: Final = ("lease_s", "reattach_s", "blobs")
_SHARED_OF_LISTEN: Final = ("mqtt_channel", "tls_client_ca", "tls_client_required")
_SHARED_OF_HTTP: Final = (
    "leases_max",
    "leases_per_user_max",
    "leased_events_max",
    "leased_events_per_user_max",
)
_PATH_SETTINGS: Final = (
    "access.token_keys",
    "access.ldap.ca",
    "access.ldap.bind_password_file",
    "listen.tls_client_ca",
)
"""Settings whose values may be paths."""
WILDCARDS: Final = ("0.0.0.0", "::", "")
"""Listen addresses that stand for all addresses of a machine. Other nodes cannot connect to one."""
_LOOKS_LIKE: Final = (
    "nats://HOST:4222,HOST:4222,HOST:4222 or postgresql://USER:PASSWORD@HOST:5432,HOST:5432/NAME"
)

_CLUSTER_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}").fullmatch
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}").fullmatch


async def open_engine(settings: ClusterSettings, clock: Clock) -> StorageEngine:
    """Connect to the engine that the settings name. Raises ``InvalidArgument``, and ``Unavailable``
    if the engine would not keep data that it has acknowledged."""
    urls = server_urls(settings.engine)
    engine = await _kind_of(settings.engine).open(urls, settings, clock)
    return _with_files(engine, settings)


def open_inspector(settings: ClusterSettings, clock: Clock) -> EngineInspector:
    """Return an inspector of the engine that the settings name. It is not a node of the cluster.
    Raises ``InvalidArgument``."""
    if not settings.engine:
        raise InvalidArgument(
            f"no storage engine is set; name the URL of the cluster's engine with --cluster or "
            f"cluster.engine, such as {_LOOKS_LIKE}"
        )
    urls = server_urls(settings.engine)
    return _kind_of(settings.engine).inspector(urls, settings, clock)


def _kind_of(engine: str) -> EngineKind:
    """Return the kind of engine that the scheme of a URL names."""
    kind: EngineKind = registered(GROUP)[engine.partition("://")[0]].load()
    return kind


async def check_engine(
    engine: StorageEngine, shard: int, timeout_s: float = CHECK_TIMEOUT_S
) -> EngineHealth:
    """Check that the engine stores data safely before it acknowledges it, and that a shard has lost
    no data. Raises ``Unavailable``, whose text names the setting to change, and ``NoQuorum`` if the
    engine does not answer within ``timeout_s``."""
    try:
        async with asyncio.timeout(timeout_s):
            await engine.check(shard)
            return await engine.health()
    except TimeoutError:
        raise NoQuorum(
            f"the engine has not answered for {timeout_s:.0f} s: start a majority of its "
            f"servers first"
        ) from None


def check_names(settings: ClusterSettings) -> None:
    """Raise ``InvalidArgument`` unless cluster and node have names that every engine accepts."""
    if not _CLUSTER_NAME(settings.name):
        raise InvalidArgument(
            f"cluster.name is {settings.name!r}; allowed are 1 to 40 lower-case letters, digits "
            f"and '-', starting with a letter"
        )
    if settings.node and not _NODE_NAME(settings.node):
        raise InvalidArgument(
            f"cluster.node (--node) is {settings.node!r}; allowed are 1 to 40 letters, "
            f"digits, '.', '-' and '_', starting with a letter or digit"
        )


def server_urls(engine: str) -> list[str]:
    """Return the URL of each server of an engine. Raises ``InvalidArgument``."""
    scheme, colon, address = engine.partition("://")
    if not colon or scheme not in registered(GROUP):
        raise InvalidArgument(
            f"cluster.engine is {safe(engine)!r}; the URL of an engine looks like {_LOOKS_LIKE}"
        )
    # Each host may repeat the scheme.
    credentials, at_sign, location = address.replace(f"{scheme}://", "").rpartition("@")
    hosts, slash, path = location.partition("/")
    urls = []
    for host in hosts.split(","):
        url = f"{scheme}://{credentials}{at_sign}{host.strip()}{slash}{path}"
        _check_server(url, host.strip(), engine)
        urls.append(url)
    return urls


def _check_server(url: str, host: str, engine: str) -> None:
    """Raise ``InvalidArgument`` unless the URL of a server has a host and a valid port. ``engine``
    is the whole setting, for the error text."""
    hostname = ""
    with suppress(ValueError):
        parts = urlsplit(url)
        hostname = parts.hostname or ""
        # Reading it raises ValueError for an invalid port.
        _ = parts.port
        if hostname:
            return
    raise InvalidArgument(
        f"cluster.engine is {safe(engine)!r}, "
        f"and {safe(host)!r} in it is not the address of a server; "
        f"the URL of an engine looks like {_LOOKS_LIKE}"
    )


def owner_tls(settings: Settings) -> ssl.SSLContext:
    """Return the TLS context for connections to the owner of the realm, which receives the copies
    of joins. The context uses the authorities of the system and of the cluster, and the node's own
    certificate, which nodes may share. Raises ``InvalidArgument``."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # With this flag a certificate in the trusted list is enough, without its authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # An owner may request a client certificate; it accepts any name in it.
    if settings.listen.tls_certificate:
        context.load_cert_chain(settings.listen.tls_certificate, settings.listen.tls_key or None)
    for file in (settings.listen.tls_certificate, settings.cluster.tls_authority):
        try:
            if file:
                context.load_verify_locations(file)
        except (OSError, ValueError) as error:  # ssl.SSLError is a subclass of OSError
            raise InvalidArgument(f"the certificates in {file} cannot be used: {error}") from error
    return context


class EngineWithFiles:
    """A storage engine whose blobs lie on a file system that all nodes share."""

    def __init__(self, engine: StorageEngine, uri: str, name: str) -> None:
        """Raise ``InvalidArgument`` for a URI that does not name a file system."""
        place(uri, "cluster.blobs")
        self._uri, self._name = uri, name
        # All other requests go to the engine itself.
        self.check = engine.check
        self.registry = engine.registry
        self.journal = engine.journal
        self.open_read_only = engine.open_read_only
        self.health = engine.health
        self.close = engine.close

    async def blobs(self, shard: int) -> Blobs:
        """Return the blobs of a shard, which are in the file store instead of the engine
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.blobs`)."""
        return shared_files(self._uri, self._name, shard)


def files_at(settings: ClusterSettings, shard: int = SHARD) -> str:
    """Return the URI of a shard's files, without secrets; empty if they are on the engine."""
    if settings.blobs == ON_ENGINE:
        return ""
    return below(settings.blobs, f"{settings.name}/shard-{shard}")


def _with_files(engine: StorageEngine, settings: ClusterSettings) -> StorageEngine:
    """Return the engine with the blobs in the file store that ``cluster.blobs`` names. Raises
    ``InvalidArgument`` for another value."""
    if settings.blobs == ON_ENGINE:
        return engine
    if "://" not in settings.blobs:
        raise InvalidArgument(
            f"cluster.blobs is {settings.blobs!r}; it must be {ON_ENGINE!r}, or a URI such as "
            f"s3://bucket/prefix or file:///shared/folder"
        )
    return EngineWithFiles(engine, settings.blobs, settings.name)


async def identity_of(registry: Registry) -> str:
    """Return the identity of the realm on an engine; empty before the first start."""
    record = await registry.get(IDENTITY_KEY)
    return "" if record is None else record.value.decode()


async def ensure_identity(registry: Registry, wanted: str) -> str:
    """Return the identity of the realm on an engine. Creates it as ``wanted`` if it is missing."""
    while not (identity := await identity_of(registry)):
        with suppress(Conflict):  # another node has just created it
            await registry.cas(IDENTITY_KEY, 0, wanted.encode())
    return identity


async def cluster_secret(registry: Registry, settings: ClusterSettings) -> bytes:
    """Return the secret that all nodes share. Raises ``InvalidArgument`` for an unusable file."""
    if settings.secret_file:
        return await asyncio.to_thread(read_secret, settings.secret_file)
    while (record := await registry.get(SECRET_KEY)) is None:
        with suppress(Conflict):  # another node was the first
            await registry.cas(SECRET_KEY, 0, secrets.token_hex(SECRET_BYTES_MIN).encode())
    return record.value


def read_secret(file: str) -> bytes:
    """Read the secret that all nodes share from a file. Raises ``InvalidArgument``."""
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise InvalidArgument(
            f"cluster.secret_file is {file!r}, which cannot be read: {error.strerror}"
        ) from error
    if len(secret) < SECRET_BYTES_MIN:
        raise InvalidArgument(
            f"cluster.secret_file is {file!r}, which has {len(secret)} bytes; at least "
            f"{SECRET_BYTES_MIN} are required. To create one: openssl rand -hex {SECRET_BYTES_MIN}"
        )
    return secret


async def open_shard(
    journal: Journal,
    blobs: Blobs,
    lease: OwnerLease,
    registry: Registry,
    settings: Settings,
    clock: Clock,
    directory: Path,
    identity: str,
) -> RunningRealm:
    """Recover the realm of a shard whose journal was opened for this owner. Raises ``NewerFormat``,
    ``StorageFailed``, ``Deposed``."""
    cache_bytes = settings.cluster.cache_bytes
    realm = await RunningRealm.open(
        journal,
        CachedBlobs(blobs, _cache(directory), cache_bytes, offload=asyncio.to_thread),
        MemoryPages(),
        rules(settings),
        clock,
        asyncio.to_thread,
        identity=identity,
        name=settings.name,
        limits=realm_limits(settings),
        sealing=sealing_limits(settings),
        lease=lease,
    )
    realm.dispatch.files_at = files_at(settings.cluster)
    try:
        await give_scratch_folder(realm, directory)
        realm.access = access(registry, directory, settings, clock=clock)
        realm.access.definition_of = realm.definition_of
        await realm.access.begin()
    except BaseException:
        await realm.release()
        raise
    return realm


async def open_history(
    settings: Settings,
    directory: Path,
    identity: str,
    rights: Mapping[str, bytes],
    on_failure: Callable[[], None],
) -> SealedHistory:
    """Open the stored history of the cluster, as far as it can be read without the engine: from the
    place of ``cluster.blobs`` and the node's ``directory``. ``rights`` are the last known records
    of users and rights. When a file becomes unreadable, all readers are disconnected and
    ``on_failure`` is called.

    Raises ``NameDoesNotExist`` without a snapshot, ``Unavailable`` if the file store does not
    answer or no rights are known, ``NewerFormat``.
    """
    if settings.access.mode != "off" and USERS_KEY not in rights:
        raise Unavailable("no users are known yet, so signing in is impossible")
    clock, shared = SystemClock(), None
    if settings.cluster.blobs != ON_ENGINE:
        shared = shared_files(settings.cluster.blobs, settings.cluster.name, SHARD)
    blobs = HistoryBlobs(_cache(directory), shared, offload=asyncio.to_thread)
    history = await SealedHistory.open(
        MemoryJournal(),
        blobs,
        MemoryPages(),
        rules(settings),
        clock,
        asyncio.to_thread,
        identity=identity,
        name=settings.name,
        limits=realm_limits(settings),
    )
    realm = history.realm
    realm.dispatch.files_at = files_at(settings.cluster)
    try:
        # The registry of the engine does not answer now, so this one takes its place.
        copy = MemoryRegistry()
        for key, value in rights.items():
            await copy.cas(key, 0, value)
        folder = directory / HISTORY_FOLDER
        folder.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
        history_access = access(copy, folder, settings, clock=clock, control=HistoryAccess)
        assert isinstance(history_access, HistoryAccess), (
            "`access` creates the class in ``control``"
        )
        history_access.history_name = realm.name
        realm.access = history_access
        realm.access.definition_of = realm.definition_of
        if not history_access.is_open:
            await history_access.accounts.load()
            await history_access.audit.load()
    except BaseException:
        await history.close()
        raise

    def handle_failure(failure: PenstockError) -> None:
        realm.cut()  # first: readers must not get errors about damaged events
        on_failure()

    blobs.on_failure = handle_failure
    return history


def shared_files(uri: str, name: str, shard: int) -> Blobs:
    """Return the files of a shard in a file store outside of the engine. Raises
    ``InvalidArgument``."""
    target = place(uri, "cluster.blobs")
    blobs = FileSystemBlobs(
        target.files,
        target.path(name),
        f"{target.shown}/{name}",
        offload=asyncio.to_thread,
        grows=False,
    )
    return PrefixedBlobs(blobs, f"shard-{shard}/")


def _cache(directory: Path) -> Blobs:
    """Return the blobs in a node's cache folder, which is created if it is missing."""
    root, disk = f"{directory / CACHE_FOLDER}", RealDisk()
    # A segment that cannot be cached is logged, and is read from the engine.
    with suppress(OSError):
        for part in BLOB_ROOTS:
            make_directories(disk, f"{root}/{part}", f"{directory}", private=True)
    return FileBlobs(root, disk=disk, offload=asyncio.to_thread)


def advertised_host(settings: Settings) -> str:
    """Return the host name or address of this node for others. Raises ``InvalidArgument``."""
    host = settings.cluster.advertise or settings.listen.host
    if host in WILDCARDS:
        raise InvalidArgument(
            f"listen.host is {settings.listen.host!r}, all addresses of this machine: "
            "cluster.advertise (--advertise) has to name the address under which clients and the "
            "other nodes reach it"
        )
    # A single colon separates a port; an IPv6 address has more of them.
    if "://" in host or "/" in host or (":" in host and host.count(":") == 1):
        raise InvalidArgument(
            f"cluster.advertise is {host!r}; it must be a name or an address, without a port"
        )
    return host.strip("[]")


def shared_settings(settings: Settings) -> dict[str, str]:
    """Return the settings that must be equal on all nodes, as text: the sign-in, the limits of
    clients, the length of a lease, and the file store."""
    sections = {
        "access": (
            settings.access,
            [name for name in _names(settings.access) if name not in _NODE_SPECIFIC],
        ),
        "access.ldap": (settings.access.ldap, _names(settings.access.ldap)),
        "limits": (settings.limits, _names(settings.limits)),
        "cluster": (settings.cluster, _SHARED_OF_CLUSTER),
        "listen": (settings.listen, _SHARED_OF_LISTEN),
        "http": (settings.http, _SHARED_OF_HTTP),
    }
    texts = {
        f"{section}.{name}": f"{without_secret(getattr(values, name))}"
        for section, (values, names) in sections.items()
        for name in names
    }
    for name in _PATH_SETTINGS:  # the same file may have another path on each machine
        if texts[name] and "://" not in texts[name]:
            texts[name] = "a file"
    return {"name": settings.name, **texts}


def _names(section: Section) -> Sequence[str]:
    return section.__struct_fields__


def member(node: str, nonce: str, settings: Settings, secret: bytes) -> MemberRecord:
    """Return this node's record for the other nodes. The node's ports must be bound already."""
    host, listen = advertised_host(settings), settings.listen
    is_safe = bool(listen.tls_certificate)
    serves = {
        name: front_end_url(front_end_named(name), host, port, is_safe=is_safe)
        for name, (_, port) in places_in(settings).items()
    }
    if settings.cluster.local_port is not None:
        native, port = front_end_named(NATIVE), settings.cluster.local_port
        serves[LOCAL] = front_end_url(native, host, port, is_safe=is_safe)
    return MemberRecord(
        node,
        nonce,
        address=f"{host}:{listen.port}",
        serves=serves,
        version=__version__,
        secret_name=secret_name(secret),
        settings=shared_settings(settings),
    )


def places_in(settings: Settings) -> dict[str, tuple[str, int]]:
    """Return host and port of each required front end, by name. The ports must be bound already."""
    places = ((name, front_end.place(settings)) for name, front_end in front_ends().items())
    return {
        name: (place.host, place.port)
        for name, place in places
        if place is not None and place.is_required
    }
