"""A backup of a cluster's realm, in the form of the backups of a realm on one machine.

The backup is read from the engine, whichever node serves. Files have names that identify their
content, so files of an earlier backup are not read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct
from xxhash import xxh3_64

from penstock.client.copies.backup_sinks import TAR, BackupFolder
from penstock_cluster.bootstrap.relocating import (
    RealmMoved,
    TargetStores,
    check_has_realm,
    write_realm,
)
from penstock_cluster.relocation import SEGMENTS, OnProgress
from penstock_core.api.backup_files import (
    FORMAT,
    BackupManifest,
    KeptFile,
    is_data_file,
    path_in_backup,
)
from penstock_core.columns.schema.moments import moment_of
from penstock_core.version import __version__
from penstock_core.vocabulary.errors import InvalidArgument, StorageFailed
from penstock_core.vocabulary.ports import (
    BlobInfo,
    Blobs,
    Buffer,
    Clock,
    StorageEngine,
    VersionedRecord,
)
from penstock_server.bootstrap.directories import absolute, opened
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.fixed_blobs import FixedBlobs

STAMP: Final = 1
"""Stamp of a file whose name identifies its content, so that it never changes under that name."""
_READ_BYTES: Final = 4 << 20


class ClusterBackup(Struct, frozen=True, kw_only=True):
    """The contents of a backup, and how much was written this time."""

    moved: RealmMoved
    at: str
    """Everything acknowledged before this moment (UTC) is included."""
    files: int
    bytes: int
    files_written: int


async def back_up_cluster(
    engine: StorageEngine,
    records: Mapping[str, VersionedRecord],
    folder: Path,
    clock: Clock,
    cluster: str,
    *,
    on_progress: OnProgress = lambda _: None,
) -> ClusterBackup:
    """Write the current realm of a cluster into a folder, while the nodes continue. An earlier
    backup of the cluster in the folder is updated; it stays complete if the update fails.

    Raises ``InvalidArgument`` for a folder that cannot be used, and ``IllegalState`` for a cluster
    without a realm.
    """
    check_has_realm(records, cluster)
    if folder.suffix == TAR:
        raise InvalidArgument(f"{folder} would be one file; a cluster is backed up into a folder")
    identity, at_us = records["identity"].value.decode(), clock.now_us()
    with closing(BackupFolder(folder)) as sink:
        earlier = await asyncio.to_thread(sink.kept, identity)
        root = folder / f"{at_us}"
        stores = opened(absolute(root), RealDisk(), offload=asyncio.to_thread)
        blobs = BackupBlobs(stores.blobs, sink, earlier.values())
        try:
            target = TargetStores(stores.journal, blobs, stores.registry)
            moved = await write_realm(engine, records, target, clock=clock, on_progress=on_progress)
        finally:
            await stores.pages.close()
            await stores.journal.close()
        files = [*blobs.stored_files.values(), *await asyncio.to_thread(_files_in, folder, root)]
        manifest = BackupManifest(
            format=FORMAT,
            realm=identity,
            name=cluster,
            version=__version__,
            at=moment_of(at_us).isoformat(),
            files=tuple(files),
        )
        await asyncio.to_thread(sink.finish, manifest)
    return ClusterBackup(
        moved=moved,
        at=manifest.at,
        files=len(files),
        bytes=sum(file.size for file in files),
        files_written=len(files) - len(blobs.stored_files) + blobs.written,
    )


def _files_in(folder: Path, root: Path) -> list[KeptFile]:
    """Return the files of the new data directory ``root``, with their checksums. Their paths are
    relative to ``folder``."""
    files = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and is_data_file(name):
            digest = xxh3_64()
            with path.open("rb") as file:
                while part := file.read(_READ_BYTES):
                    digest.update(part)
            kept_file = KeptFile(
                name=name,
                path=path.relative_to(folder).as_posix(),
                size=path.stat().st_size,
                checksum=digest.hexdigest(),
            )
            files.append(kept_file)
    return files


class BackupBlobs(FixedBlobs):
    """The :class:`~penstock_core.vocabulary.ports.Blobs` of a data directory whose segments are
    those that a backup keeps."""

    _fixed_because = "it is in a backup"

    def __init__(self, beneath: Blobs, sink: BackupFolder, earlier: Iterable[KeptFile]) -> None:
        """``beneath`` are the blobs of the directory itself; ``earlier`` are the files of the
        earlier backup."""
        self._beneath = beneath
        self._sink = sink
        self.stored_files = {
            file.name: file
            for file in earlier
            if file.name.startswith(SEGMENTS) and file.stamp == STAMP
        }
        self.written = 0

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store a blob under a new name (:meth:`penstock_core.vocabulary.ports.Blobs.put`)."""
        if not name.startswith(SEGMENTS):
            await self._beneath.put(name, chunks)
            return
        content = b"".join(chunks)
        # With a stamp the path does not depend on the time.
        path = path_in_backup(name, STAMP, at_us=0)
        try:
            checksum = await asyncio.to_thread(self._sink.put, path, content)
        except InvalidArgument as error:  # the folder reports errors of the disk in this way
            raise StorageFailed(str(error)) from error
        self.stored_files[name] = KeptFile(
            name=name, path=path, size=len(content), checksum=checksum, stamp=STAMP
        )
        self.written += 1

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes of a blob, or ``length`` bytes from ``offset`` on
        (:meth:`penstock_core.vocabulary.ports.Blobs.get`)."""
        return await self._beneath.get(name, offset, length)

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the segments in the backup, and the blobs of the directory itself."""
        infos = [BlobInfo(file.name, file.size) for file in self.stored_files.values()]
        infos += await self._beneath.list(prefix)
        return sorted((info for info in infos if info.name.startswith(prefix)), key=_name)

    async def delete(self, name: str) -> None:
        """Leave a segment out of this backup; its bytes are removed once the backup is complete."""
        if self.stored_files.pop(name, None) is None:
            await self._beneath.delete(name)


def _name(info: BlobInfo) -> str:
    return info.name
