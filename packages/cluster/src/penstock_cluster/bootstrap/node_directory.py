"""The data directory of a cluster's node: its name and audit logs, but no events of the cluster.

::

    LOCK        held while a node has the directory open
    node.json   the node's name, its cluster, and the realm that it has served
    cache       segments that were read last
    local       data directory of the node's local channels, if it has any
"""

from __future__ import annotations

import secrets
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec
from msgspec import Struct

from penstock_core.vocabulary.errors import (
    Damaged,
    DataDirectoryInUse,
    InvalidArgument,
    StorageFailed,
)
from penstock_server.bootstrap.directories import holder, write_file
from penstock_server.storage.disk import PRIVATE_DIRECTORY, PRIVATE_FILE, LockHeld, RealDisk
from penstock_server.storage.embedded import NODE_FILE
from penstock_server.storage.secrecy import mend

_OF_A_REALM: Final = ("registry", "journal")
"""Entries that only the data directory of a realm on one machine has."""


class NodeRecord(Struct, frozen=True):
    """Facts that a node keeps between two starts."""

    node: str
    cluster: str
    realm: str = ""
    """Identity of the realm that the node has served, or stood by for; empty before the first
    one."""


class NodeDirectory:
    """A node's data directory, locked until the block ends."""

    def __init__(self, root: str, cluster: str, node: str = "") -> None:
        """Lock the directory, and make it if it is missing. ``node`` is the name that the settings
        give the node; if it is empty, the node keeps its stored name.

        Raises ``DataDirectoryInUse``, ``InvalidArgument`` for the directory of something else,
        ``Damaged``, ``StorageFailed``.
        """
        self.root = root
        self._disk = RealDisk()
        self._path = Path(root, NODE_FILE)
        try:
            Path(root).mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            _check_no_realm(root)
            self._lock = self._disk.lock(f"{root}/LOCK", holder())
        except LockHeld as error:
            raise DataDirectoryInUse(
                f"the data directory {root} is in use by {error}; give each node its own"
            ) from None
        except OSError as error:
            raise StorageFailed(f"the data directory {root} cannot be opened: {error}") from error
        try:
            mend(root)
            self.record = self._read() or NodeRecord(node or f"n-{secrets.token_hex(4)}", cluster)
            self._check(cluster, node)
            self._write(self.record)
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        return Path(self.root)

    def _check(self, cluster: str, node: str) -> None:
        """Raise ``InvalidArgument`` if the directory belongs to another cluster. A name in the
        settings replaces the stored one."""
        if self.record.cluster != cluster:
            raise InvalidArgument(
                f"the data directory {self.root} belongs to the cluster {self.record.cluster!r}, "
                f"and cluster.name is {cluster!r}; give each cluster separate directories"
            )
        if node:
            self.record = msgspec.structs.replace(self.record, node=node)

    def check_realm(self, identity: str) -> None:
        """Compare the realm on the engine (empty if it has none) with the one that this node has
        served. Raises ``Damaged`` if the engine has lost it. A node that has served none yet
        records the realm on the engine."""
        served = self.record.realm
        if served and identity != served:
            stored = f"the realm {identity}" if identity else "no realm"
            raise Damaged(
                f"the engine has {stored} under the name {self.record.cluster!r}, and this node "
                f"has served {served}: the engine's data was deleted or re-created. To fix: "
                f"restore it from a backup of the engine; to start without that data, delete "
                f"{self._path} of every node"
            )
        if identity and not served:
            self.record = msgspec.structs.replace(self.record, realm=identity)
            self._write(self.record)

    def _read(self) -> NodeRecord | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=NodeRecord)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"{self._path} cannot be read: {error}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise Damaged(f"{self._path} is damaged: {error}; restore it, or delete it") from error

    def _write(self, record: NodeRecord) -> None:
        content = msgspec.json.format(msgspec.json.encode(record)) + b"\n"
        try:
            write_file(self._path, content, PRIVATE_FILE)
        except OSError as error:
            raise StorageFailed(f"{self._path} cannot be written: {error}") from error

    def close(self) -> None:
        """Unlock the directory."""
        self._disk.close(self._lock)

    def __enter__(self) -> NodeDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _check_no_realm(root: str) -> None:
    """Raise ``InvalidArgument`` for the data directory of a realm on one machine."""
    if any(Path(root, name).exists() for name in _OF_A_REALM):
        raise InvalidArgument(
            f"the data directory {root} has a realm; give the node another directory, "
            f"or start the realm without --cluster"
        )
