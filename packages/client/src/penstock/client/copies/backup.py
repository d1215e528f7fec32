"""Backs up a running realm to a folder or tar file of the client, and restores data directories
from backups.

A folder with an earlier backup is updated: the files that it already contains are not read from the
realm again.
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
"""Number of bytes of a file that are read at a time."""
_SECRET_FOLDERS = frozenset(("registry", "quarantine"))
"""Folders of a data directory that only the operating system's user of the realm may read."""


class BackupResult(Struct, frozen=True, kw_only=True):
    """The content of a backup, and the part of it that was read from the realm."""

    folder: str
    realm: str
    """Identity of the realm."""
    at: str
    """Time of the backup, in UTC. The backup includes everything that the realm had confirmed by
    then."""
    files: int
    """Number of files in the backup."""
    bytes: int
    """Total size of the files in the backup, in bytes."""
    files_read: int
    """Number of files that were read from the realm, because the folder did not contain them."""
    bytes_read: int
    """Total size of the files that were read."""


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
            existing_files = await asyncio.to_thread(sink.kept, begun.realm)
            files: list[KeptFile] = []
            read_files: list[KeptFile] = []
            for number, captured in enumerate(begun.files):
                # Files that never change have a path that depends on their stamp only. All others
                # have a path with the time, so that a failure does not damage the earlier backup.
                path = path_in_backup(captured.name, captured.stamp, begun.at_us)
                file = existing_files.get(path)
                if file is None:
                    file = await _receive(capture, number, sink, path=path)
                    read_files.append(file)
                files.append(file)
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
        files_read=len(read_files),
        bytes_read=sum(file.size for file in read_files),
    )


async def _receive(
    capture: RealmCapture, number: int, sink: BackupFolder | BackupTar, path: str
) -> KeptFile:
    """Write the file ``number`` of the capture to the sink, and return its manifest entry."""
    file = capture.begun.files[number]
    await asyncio.to_thread(sink.begin, path, file.size, capture.begun.at_us)
    async for part in capture.read(number):
        await asyncio.to_thread(sink.write, part)
    checksum = await asyncio.to_thread(sink.end)
    return KeptFile(name=file.name, path=path, size=file.size, checksum=checksum, stamp=file.stamp)


# --- restoring ----------------------------------------------------------------------------


def restore(backup: FolderLike, directory: FolderLike) -> BackupManifest:
    """Create a data directory from a backup, and compare all checksums. Return the manifest.

    The directory must be empty or missing. If the restore fails, everything in it is removed.
    Raises ``InvalidArgument`` if ``backup`` is not a backup or ``directory`` cannot be used, and
    ``DamagedBackup`` with the name of a damaged file.
    """
    source, target = Path(backup), Path(directory)
    if not source.is_file():
        manifest = read_manifest(source)
        if manifest is None:
            raise InvalidArgument(f"{source} is not a backup: it has no {MANIFEST}")
        _copy_all(manifest, lambda path: (source / path).open("rb"), target)
        return manifest
    with usable(source), _open_tar(source) as tar:
        manifest = manifest_from(_member(tar, MANIFEST).read(), source)
        _copy_all(manifest, lambda path: _member(tar, path), target)
        return manifest


@contextmanager
def _open_tar(source: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar file for the block. Raises ``DamagedBackup`` if it is not a valid tar file."""
    try:
        with tarfile.open(source, "r:") as tar:
            yield tar
    except tarfile.TarError as error:
        raise DamagedBackup(f"{source} is not a tar file of a backup: {error}") from error


def _member(tar: tarfile.TarFile, path: str) -> IO[bytes]:
    """Open the file ``path`` in a tar. Raises ``DamagedBackup`` if the tar does not contain it."""
    try:
        file = tar.extractfile(path)
    except KeyError:
        file = None
    if file is None:
        raise DamagedBackup(f"the tar has no {path}: it is incomplete or not a backup")
    return file


def _copy_all(
    manifest: BackupManifest, open_file: Callable[[str], IO[bytes]], target: Path
) -> None:
    """Copy all files of a backup to a new folder. After a failure, everything in it is removed.

    ``open_file`` opens a file of the backup by its path.
    """
    sink = NewFolder(target, mode=0o750, purpose="a realm is restored into a new folder")
    try:
        for file in manifest.files:
            _copy(open_file, sink, file)
        sink.sync_directories()
    except BaseException:
        sink.clear()
        raise


def _copy(open_file: Callable[[str], IO[bytes]], sink: NewFolder, file: KeptFile) -> None:
    """Copy one file to the data directory. Raises ``DamagedBackup`` if it cannot be read or has
    another checksum than in the manifest."""
    name = PurePosixPath(file.name)
    is_secret = name.parts[0] in _SECRET_FOLDERS or name.match("audit*.ndjson")
    sink.begin(file.name, is_secret=is_secret)
    try:
        with open_file(file.path) as source:
            while part := source.read(_COPY_BYTES):
                sink.write(part)
    except OSError as error:
        raise DamagedBackup(f"{file.path} cannot be read: {error.strerror or error}") from error
    if sink.end() != file.checksum:
        raise DamagedBackup(f"{file.path} fails its checksum: it was changed after the backup")
