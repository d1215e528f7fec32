"""Backups of a running realm in a folder or tar of the client, and data directories restored from
them.

A folder with an earlier backup is updated: files that are in it already are not read
from the realm again.
"""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from msgspec import Struct

from penstock.client.connection.connection import RealmConnection
from penstock.client.copies.backup_sinks import (
    TAR,
    BackupFolder,
    BackupTar,
    manifest_from,
    read_manifest,
)
from penstock.client.copies.realm_capture import RealmCapture, realm_capture
from penstock.client.copies.sinks import FolderLike, NewFolder, usable
from penstock_core.api.backup_files import (
    FORMAT,
    MANIFEST,
    BackupManifest,
    KeptFile,
    path_in_backup,
)
from penstock_core.columns.schema.moments import moment_of
from penstock_core.vocabulary.errors import DamagedBackup, InvalidArgument

_COPY_BYTES = 4 << 20
_SECRET = frozenset(("registry", "quarantine"))
"""Folders of a data directory that only the operating system's user of the realm may read."""


class BackupResult(Struct, frozen=True, kw_only=True):
    """The content of a backup, and how much of it was read from the realm."""

    folder: str
    realm: str
    """Identity of the realm."""
    at: str
    """The time of the backup, in UTC. It includes everything that the realm confirmed before."""
    files: int
    bytes: int
    files_read: int
    """Files that were not in the backup before."""
    bytes_read: int


async def back_up(connection: RealmConnection, folder: FolderLike) -> BackupResult:
    """Write a consistent copy of the realm's data directory to a folder, while the realm is in use.

    If the folder contains an earlier backup of this realm, the backup is updated, and stays
    complete if the update fails. A path that ends in ``.tar`` produces one file, which is always
    written completely.

    Raises ``InvalidArgument`` if the folder cannot be used, ``IllegalState`` if the realm is in
    memory, ``Unavailable`` during another backup, ``ConnectionLost``.
    """
    target = Path(folder)
    kind = BackupTar if target.suffix == TAR else BackupFolder
    with closing(kind(target)) as sink:
        async with realm_capture(connection, DamagedBackup) as capture:
            begun = capture.begun
            earlier = await asyncio.to_thread(sink.kept, begun.realm)
            files: list[KeptFile] = []
            read: list[KeptFile] = []
            for number, file in enumerate(begun.files):
                path = path_in_backup(file.name, file.stamp, begun.at_us)
                kept = earlier.get(path)
                if kept is None:
                    kept = await _receive(capture, number, sink, path=path)
                    read.append(kept)
                files.append(kept)
            manifest = BackupManifest(
                format=FORMAT,
                realm=begun.realm,
                name=begun.name,
                version=begun.version,
                at=moment_of(begun.at_us).isoformat(),
                files=tuple(files),
            )
            await asyncio.to_thread(sink.finish, manifest)
            capture.is_complete = True
    return BackupResult(
        folder=str(target),
        realm=manifest.realm,
        at=manifest.at,
        files=len(files),
        bytes=sum(file.size for file in files),
        files_read=len(read),
        bytes_read=sum(file.size for file in read),
    )


async def _receive(
    capture: RealmCapture, number: int, sink: BackupFolder | BackupTar, path: str
) -> KeptFile:
    """Write one file of the realm to the sink, and return its entry in the manifest."""
    file = capture.begun.files[number]
    await asyncio.to_thread(sink.begin, path, file.size, capture.begun.at_us)
    async for part in capture.read(number):
        await asyncio.to_thread(sink.write, part)
    checksum = await asyncio.to_thread(sink.end)
    return KeptFile(name=file.name, path=path, size=file.size, checksum=checksum, stamp=file.stamp)


# --- restoring ----------------------------------------------------------------------------


def restore(backup: FolderLike, directory: FolderLike) -> BackupManifest:
    """Create a data directory from a backup, and compare all checksums. Return the manifest.

    The directory must be empty or missing. If the restore fails, it is emptied again. Raises
    ``InvalidArgument``, and ``DamagedBackup`` with the name of a damaged file.
    """
    source, target = Path(backup), Path(directory)
    if not source.is_file():
        manifest = read_manifest(source)
        if manifest is None:
            raise InvalidArgument(f"{source} is not a backup: it has no {MANIFEST}")
        _copy_all(manifest, lambda path: (source / path).open("rb"), target)
        return manifest
    with usable(source), _opened_tar(source) as tar:
        manifest = manifest_from(_member(tar, MANIFEST).read(), source)
        _copy_all(manifest, lambda path: _member(tar, path), target)
        return manifest


@contextmanager
def _opened_tar(source: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(source, "r:") as tar:
            yield tar
    except tarfile.TarError as error:
        raise DamagedBackup(f"{source} is not a tar file of a backup: {error}") from error


def _member(tar: tarfile.TarFile, path: str) -> IO[bytes]:
    """Open a file in a tar. Raises ``DamagedBackup``."""
    try:
        file = tar.extractfile(path)
    except KeyError:
        file = None
    if file is None:
        raise DamagedBackup(f"the tar has no {path}: it is incomplete or not a backup")
    return file


def _copy_all(manifest: BackupManifest, opened: Callable[[str], IO[bytes]], target: Path) -> None:
    """Copy all files of a backup to a new folder, which is emptied again after a failure."""
    sink = NewFolder(target, mode=0o750, purpose="a realm is restored into a new folder")
    try:
        for file in manifest.files:
            _copy(opened, sink, file)
        sink.sync_directories()
    except BaseException:
        sink.clear()
        raise


def _copy(opened: Callable[[str], IO[bytes]], sink: NewFolder, file: KeptFile) -> None:
    """Copy one file, and compare its checksum. Raises ``DamagedBackup``."""
    name = PurePosixPath(file.name)
    is_secret = name.parts[0] in _SECRET or name.match("audit*.ndjson")
    sink.begin(file.name, is_secret=is_secret)
    try:
        with opened(file.path) as source:
            while part := source.read(_COPY_BYTES):
                sink.write(part)
    except OSError as error:
        raise DamagedBackup(f"{file.path} cannot be read: {error.strerror or error}") from error
    if sink.end() != file.checksum:
        raise DamagedBackup(f"{file.path} fails its checksum: it was changed after the backup")
