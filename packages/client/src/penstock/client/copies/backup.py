"""A backup of a running realm in a folder on this side, and back from there.

The folder holds ``backup.json``, files that never change under ``kept/``, and the others in a
folder of the time of the backup. The manifest is exchanged last: whatever ends a backup early, the
one before is whole. What has not changed since then is not read from the realm again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec
from msgspec import Struct
from xxhash import xxh3_64

from penstock.client.connection.connection import RealmConnection
from penstock_core.api.backup_files import FORMAT, MANIFEST, BackupManifest, KeptFile, is_data_file
from penstock_core.api.transfers import (
    BackupBegun,
    BeginBackup,
    CapturedFile,
    EndBackup,
    ReadBackup,
)
from penstock_core.vocabulary.argument_errors import explain
from penstock_core.vocabulary.errors import DamagedBackup, InvalidArgument, PenstockError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COPY_BYTES = 4 << 20
_AT_US_MAX = 253_402_300_800_000_000
"""The year 10,000."""
TAR = ".tar"
"""Suffix of a backup in a single file."""

_SECRET = frozenset(("registry", "quarantine"))
"""Folders of a data directory that are for the realm's own user alone."""

FolderLike = str | os.PathLike[str]


class BackupResult(Struct, frozen=True, kw_only=True):
    """What a backup holds, and how much of it was read this time."""

    folder: str
    realm: str
    """Identity of the realm."""
    at: str
    """Everything acknowledged before this moment (UTC) is included."""
    files: int
    bytes: int
    files_read: int
    """Files that were not in the backup before."""
    bytes_read: int


async def back_up(connection: RealmConnection, folder: FolderLike) -> BackupResult:
    """Write the realm's data directory as it stands now into a folder, while the realm goes on.

    A folder that holds an earlier backup of the same realm is brought up to date; it stays whole
    if that fails. With a name that ends in ``.tar`` it is one file, whole each time. Raises
    ``InvalidArgument`` for a folder that cannot be used, ``IllegalState`` for a realm in memory,
    ``Unavailable`` while another backup is under way, ``ConnectionLost``.
    """
    target = Path(folder)
    if target.suffix == TAR:
        return await _to_file(connection, target)
    with owned_folder(target):
        before = await asyncio.to_thread(earlier_backup, target)
        begun = await _begun(connection)
        if before is not None and before.realm != begun.realm:
            raise InvalidArgument(
                f"{target} is a backup of another realm, {before.name} ({before.realm}); give "
                f"each realm its own folder"
            )
        known = {} if before is None else {file.path: file for file in before.files}
        kept: list[KeptFile] = []
        read: list[KeptFile] = []
        for number, file in enumerate(begun.files):
            path = _path(begun, file)
            held = known.get(path)
            if held is None or not is_there(target / path, held.size):
                held = await _receive(connection, begun, number, target=target / path, path=path)
                read.append(held)
            kept.append(held)
        manifest = _manifest(begun, kept)
        await asyncio.to_thread(finish_backup, target, manifest)
        with suppress(PenstockError):  # it would end by itself
            await connection.request(
                EndBackup(begun.backup, is_complete=True), resend=False, waits=False
            )
    return _result(target, manifest, read)


async def _to_file(connection: RealmConnection, target: Path) -> BackupResult:
    """A tar of the folder that a backup is, its manifest last; what was there stays until all of
    it is on disk."""
    partial = target.with_name(f"{target.name}.partial")
    written = await asyncio.to_thread(_opened_for, target, partial)
    try:
        begun = await _begun(connection)
        kept: list[KeptFile] = []
        for number, file in enumerate(begun.files):
            path = _path(begun, file)
            await asyncio.to_thread(_write, written, _tar_header(path, file.size, begun.at_us))
            kept.append(await _received(connection, begun, number, written=written, path=path))
            await asyncio.to_thread(_write, written, bytes(-file.size % tarfile.BLOCKSIZE))
        manifest = _manifest(begun, kept)
        await asyncio.to_thread(_end_tar, written, manifest, at_us=begun.at_us)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(written)
    with _explained(target):
        partial.replace(target)
        _sync_directory(target.parent)
    with suppress(PenstockError):  # it would end by itself
        await connection.request(
            EndBackup(begun.backup, is_complete=True), resend=False, waits=False
        )
    return _result(target, manifest, kept)


def _opened_for(target: Path, partial: Path) -> int:
    if target.is_dir():
        raise InvalidArgument(f"{target} is a folder; a name that ends in {TAR} must be a file")
    return _opened(partial)


def _end_tar(written: int, manifest: BackupManifest, at_us: int) -> None:
    encoded = _encoded(manifest)
    _write(written, _tar_header(MANIFEST, len(encoded), at_us) + encoded)
    _write(written, bytes(-len(encoded) % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE))
    _sync(written)


def _tar_header(name: str, size: int, at_us: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, at_us // 1_000_000
    return entry.tobuf(tarfile.PAX_FORMAT)


def _manifest(begun: BackupBegun, kept: Sequence[KeptFile]) -> BackupManifest:
    return BackupManifest(
        format=FORMAT,
        realm=begun.realm,
        name=begun.name,
        version=begun.version,
        at=shown_time(begun.at_us),
        files=tuple(kept),
    )


def shown_time(at_us: int) -> str:
    """A time in microseconds since 1970, as a manifest has it."""
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat()


def _encoded(manifest: BackupManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def _result(target: Path, manifest: BackupManifest, read: Sequence[KeptFile]) -> BackupResult:
    return BackupResult(
        folder=str(target),
        realm=manifest.realm,
        at=manifest.at,
        files=len(manifest.files),
        bytes=sum(file.size for file in manifest.files),
        files_read=len(read),
        bytes_read=sum(file.size for file in read),
    )


def restore(backup: FolderLike, directory: FolderLike) -> BackupManifest:
    """Make a data directory out of a backup, with every checksum compared.

    The directory has to be empty or missing; when anything fails nothing is left in it. Raises
    ``InvalidArgument``, and ``DamagedBackup`` naming the file that is not as it was written.
    """
    source, target = Path(backup), Path(directory)
    if not source.is_file():
        manifest = earlier_backup(source)
        if manifest is None:
            raise InvalidArgument(f"{source} is not a backup: it has no {MANIFEST}")
        return _restored(manifest, lambda path: (source / path).open("rb"), target)
    with _explained(source), _tar(source) as tar:
        manifest = _understood(_member(tar, MANIFEST).read(), source)
        return _restored(manifest, lambda path: _member(tar, path), target)


@contextmanager
def _tar(source: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(source, "r:") as tar:
            yield tar
    except tarfile.TarError as error:
        raise DamagedBackup(f"{source} is not a tar file of a backup: {error}") from error


def _member(tar: tarfile.TarFile, path: str) -> IO[bytes]:
    """Raises ``DamagedBackup``."""
    try:
        found = tar.extractfile(path)
    except KeyError:
        found = None
    if found is None:
        raise DamagedBackup(f"the tar has no {path}: it is incomplete or not a backup")
    return found


def _restored(
    manifest: BackupManifest, opened: Callable[[str], IO[bytes]], target: Path
) -> BackupManifest:
    with _explained(target):
        was_there = target.is_dir()
        if was_there and any(entry.name != "lost+found" for entry in target.iterdir()):
            raise InvalidArgument(f"{target} is not empty; a realm is restored into a new folder")
        target.mkdir(parents=True, exist_ok=True, mode=0o750)
    try:
        for file in manifest.files:
            _copy(opened, target / file.name, file)
        with _explained(target):
            for path, _, _ in os.walk(target):
                _sync_directory(Path(path))
    except BaseException:
        _clear(target, keep=was_there)
        raise
    return manifest


# --- the files of a backup ----------------------------------------------------------------


async def _begun(connection: RealmConnection) -> BackupBegun:
    """What the realm has captured. Raises ``DamagedBackup`` for what no realm would answer."""
    begun = await connection.ask(BeginBackup(), BackupBegun, resend=False)
    if not 0 <= begun.at_us < _AT_US_MAX:
        raise DamagedBackup(
            f"the realm reports a backup made at {begun.at_us}, which is not a valid time"
        )
    for file in begun.files:
        if not is_data_file(file.name) or file.size < 0 or file.stamp < 0:
            raise DamagedBackup(
                f"the realm sent a file {file.name[:200]!r} of {file.size} bytes, which cannot be "
                f"part of a data directory; the file was not written"
            )
    return begun


def _path(begun: BackupBegun, file: CapturedFile) -> str:
    return f"kept/{file.name}.{file.stamp:x}" if file.stamp else f"{begun.at_us}/{file.name}"


def _check_known(file: KeptFile) -> None:
    """Raises ``DamagedBackup`` for what leads out of the backup, or out of a data directory."""
    if not is_data_file(file.name):
        raise DamagedBackup(
            f"the manifest names {file.name[:200]!r}, outside a data directory or unknown in one"
        )
    root = file.path.removesuffix(file.name).removesuffix("/")
    kept = f"kept/{file.name}.{file.stamp:x}"
    if file.path != kept and not (root.isdecimal() and file.path == f"{root}/{file.name}"):
        raise DamagedBackup(
            f"the manifest has {file.name} at {file.path[:200]!r}, which is outside a backup"
        )


def is_there(path: Path, size: int) -> bool:
    """Whether there is a file of this size."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False


async def _receive(
    connection: RealmConnection, begun: BackupBegun, number: int, target: Path, path: str
) -> KeptFile:
    """Write one file; it is on disk on return."""
    written = await asyncio.to_thread(_opened, target)
    try:
        kept = await _received(connection, begun, number, written=written, path=path)
        await asyncio.to_thread(_sync, written)
    finally:
        os.close(written)
    return kept


async def _received(
    connection: RealmConnection, begun: BackupBegun, number: int, written: int, path: str
) -> KeptFile:
    """Write the bytes of one file where ``written`` is."""
    file = begun.files[number]
    digest = xxh3_64()
    offset = 0
    while offset < file.size:
        message = ReadBackup(begun.backup, number, offset)
        part = await connection.ask(message, bytes, resend=False, waits=False)
        if not 0 < len(part) <= file.size - offset:
            raise DamagedBackup(
                f"{file.name} does not have the size that the realm announced; start again"
            )
        await asyncio.to_thread(_write, written, part)
        digest.update(part)
        offset += len(part)
    return KeptFile(
        name=file.name,
        path=path,
        size=file.size,
        checksum=digest.hexdigest(),
        stamp=file.stamp,
    )


def _opened(path: Path) -> int:
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def _write(file: int, part: bytes) -> None:
    view = memoryview(part)
    with _explained(Path("the backup")):
        while view:
            view = view[os.write(file, view) :]


def _sync(file: int) -> None:
    with _explained(Path("the backup")):
        os.fsync(file)


def finish_backup(folder: Path, manifest: BackupManifest) -> None:
    """Exchange the manifest once all else is on disk, then remove what it does not name."""
    wanted = {folder / file.path for file in manifest.files}
    with _explained(folder):
        for path in {parent for each in wanted for parent in each.relative_to(folder).parents}:
            _sync_directory(folder / path)
        partial = folder / f"{MANIFEST}.partial"
        file = _opened(partial)
        try:
            _write(file, _encoded(manifest))
            _sync(file)
        finally:
            os.close(file)
        partial.replace(folder / MANIFEST)
        _sync_directory(folder)
        for root, directories, names in os.walk(folder, topdown=False):
            for name in names:
                if Path(root) != folder and Path(root) / name not in wanted:
                    (Path(root) / name).unlink()
            for name in directories:
                with suppress(OSError):  # the folder is not empty
                    (Path(root) / name).rmdir()


def earlier_backup(folder: Path) -> BackupManifest | None:
    """The manifest of the backup in a folder; None: it is empty or not there."""
    try:
        content = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        strange = _strange(folder)
        if strange:
            raise InvalidArgument(
                f"{folder} is neither empty nor a backup (it contains {strange[0]}); give an "
                f"empty folder"
            ) from None
        return None
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be used: {error.strerror or error}") from error
    return _understood(content, folder)


def _understood(content: bytes, folder: Path) -> BackupManifest:
    """The manifest of the backup in a folder or file."""
    try:
        manifest = msgspec.json.decode(content, type=BackupManifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = explain(error, whole="the manifest")
        raise DamagedBackup(f"{folder / MANIFEST} cannot be read: {why}") from error
    if manifest.format > FORMAT:
        raise InvalidArgument(
            f"{folder} is a backup of format {manifest.format}, and this version reads up to "
            f"{FORMAT}; use Penstock {manifest.version}"
        )
    for file in manifest.files:
        _check_known(file)
    return manifest


def _strange(folder: Path) -> list[str]:
    """Names in a folder that no interrupted backup could have left."""
    if not folder.is_dir():
        return []
    ours = {"kept", f"{MANIFEST}.partial", "lost+found"}
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name not in ours and not entry.name.isdecimal()
    )


def _copy(opened: Callable[[str], IO[bytes]], target: Path, file: KeptFile) -> None:
    name = PurePosixPath(file.name)
    digest = xxh3_64()
    is_secret = name.parts[0] in _SECRET or name.match("audit*.ndjson")
    written = _opened_new(target, is_secret=is_secret)
    try:
        with _damaged(file), opened(file.path) as read:
            while part := read.read(_COPY_BYTES):
                digest.update(part)
                _write(written, part)
        _sync(written)
    finally:
        os.close(written)
    if digest.hexdigest() != file.checksum:
        raise DamagedBackup(f"{file.path} fails its checksum: it has changed since it was written")


def _opened_new(path: Path, *, is_secret: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if is_secret else 0o750)
        return os.open(path, flags, 0o600 if is_secret else 0o640)


@contextmanager
def _damaged(file: KeptFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DamagedBackup(f"{file.path} cannot be read: {error.strerror or error}") from error


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be used: {error.strerror or error}") from error


@contextmanager
def owned_folder(folder: Path) -> Iterator[None]:
    """The folder for one backup at a time; made when it is missing, for its owner only."""
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(f"another backup is being written to {folder}") from None
        yield
    finally:
        os.close(held)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _clear(folder: Path, *, keep: bool) -> None:
    with suppress(OSError):
        for entry in folder.iterdir():
            if entry.name != "lost+found":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if not keep:
            folder.rmdir()
