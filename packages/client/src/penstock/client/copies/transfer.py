"""A whole channel or queue as a folder of files, and back (SEM C7).

The folder lies on this side. It is written so that nothing takes half an export for a whole
one: the manifest comes last, once everything else is on disk.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.client.connection.connection import RealmConnection
from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import Kind
from penstock_core.api.transfers import (
    AbortImport,
    BeginExport,
    BeginImport,
    CommitImport,
    EndExport,
    ExportBegun,
    ExportedBytes,
    PutImport,
    ReadExport,
)
from penstock_core.columns.files.exports import (
    EVENTS,
    FORMAT,
    MANIFEST,
    Manifest,
    check_bytes,
    check_file,
    check_whole,
    events_from,
    manifest_from,
    state_from,
)
from penstock_core.realm.exported_file import ExportedFile
from penstock_core.vocabulary.errors import DamagedExport, InvalidArgument, PenstockError

MANIFEST_IN_HEADER_BYTES_MAX = 512 << 10
"""A larger one is sent as the body of its request."""
PART_BYTES = 4 << 20
"""Sent in one request of an import."""

_AT_US_MAX = 253_402_300_800_000_000
"""The year 10,000."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

FolderLike = str | os.PathLike[str]


async def export(
    connection: RealmConnection, name: str, kind: Kind, folder: FolderLike
) -> Manifest:
    """Write a channel or queue, as it is now, to a new or empty folder.

    It may be in use meanwhile; later events are not included. If the export fails, what was written
    is removed. Raises ``InvalidArgument`` for a folder that cannot be used, ``NameDoesNotExist``,
    ``Damaged``, ``ConnectionLost``.
    """
    target = Path(folder)
    was_there = await asyncio.to_thread(_make_ready, target)
    try:
        begun = await _begun(connection, name, kind)
        files = [await _receive(connection, begun, n, folder=target) for n in range(begun.files)]
        state = await _receive(connection, begun, begun.files, folder=target)
        manifest = Manifest(
            format=FORMAT,
            name=begun.name,
            kind=kind,
            definition=begun.definition,
            realm=begun.realm,
            exported=(_EPOCH + timedelta(microseconds=begun.at_us)).isoformat(),
            events=begun.events,
            state=state,
            files=tuple(files),
        )
        await asyncio.to_thread(_finish, target, manifest)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(_clear, target, keep=was_there))
        raise
    with suppress(PenstockError):  # it would end by itself
        await connection.request(EndExport(begun.export), resend=False, waits=False)
    return manifest


async def import_from(
    connection: RealmConnection, folder: FolderLike, kind: Kind, name: str = ""
) -> ChannelOpened:
    """Create a channel or queue from an exported folder, under its own name or another.

    Ids, durables with what is outstanding, producers and counters continue as they were. It is all
    or nothing: ``DamagedExport``, which says what is wrong, ``NameAlreadyBound``,
    ``NameDoesNotExist`` for a missing dead event store, ``InvalidArgument``, ``MemoryLimit`` and
    ``StorageFailed`` change nothing. After ``ConnectionLost`` the channel exists completely, or not
    at all.
    """
    source = Path(folder)
    manifest = await asyncio.to_thread(_checked, source)
    if manifest.kind != kind:
        raise InvalidArgument(
            f"{source} is an export of the {manifest.kind} {manifest.name}; "
            f"import it as a {manifest.kind}"
        )
    encoded = manifest.encoded()
    begin = BeginImport(name or manifest.name, encoded)
    if len(encoded) <= MANIFEST_IN_HEADER_BYTES_MAX:
        known: str = await connection.request(begin, resend=False)
    else:
        begin = BeginImport(begin.name, b"")
        known = await connection.request(begin, [encoded], resend=False)
    try:
        for number in (len(manifest.files), *range(len(manifest.files))):
            await _send(connection, known, number, manifest=manifest, folder=source)
    except BaseException:
        with suppress(PenstockError):  # it was refused, and has ended already
            await connection.request(AbortImport(known), resend=False, waits=False)
        raise
    return await connection.ask(CommitImport(known), ChannelOpened, resend=False, waits=False)


# --- the export's files -------------------------------------------------------------------


async def _begun(connection: RealmConnection, name: str, kind: Kind) -> ExportBegun:
    begun = await connection.ask(BeginExport(name, kind), ExportBegun, resend=False)
    if not 0 <= begun.at_us < _AT_US_MAX:
        raise DamagedExport(
            f"the realm reports an export made at {begun.at_us}, which is not a valid time"
        )
    return begun


async def _receive(
    connection: RealmConnection, begun: ExportBegun, number: int, folder: Path
) -> ExportedFile:
    """Write one file of the export; it is on disk on return."""
    parts: list[bytes] = []
    file: ExportedFile | None = None
    offset = 0
    while file is None or offset < file.size:
        message = ReadExport(begun.export, number, offset)
        part = await connection.ask(message, ExportedBytes, resend=False, waits=False)
        if file is None:
            file = part.file
            check_file(file, is_state=number == begun.files)
        if part.file != file or not 0 < len(part.content) <= file.size - offset:
            raise DamagedExport(f"{file.name} is not the file the realm announced; start again")
        parts.append(part.content)
        offset += len(part.content)
    await asyncio.to_thread(_write, folder, file, content=b"".join(parts))
    return file


def _write(folder: Path, file: ExportedFile, content: bytes) -> None:
    check_bytes(file, content)
    path = folder / file.name
    with _explained(folder):
        _write_synced(path, content)


def _write_synced(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _finish(folder: Path, manifest: Manifest) -> None:
    with _explained(folder):
        _sync_directory(folder / EVENTS)
        partial = folder / f"{MANIFEST}.partial"
        _write_synced(partial, manifest.encoded())
        partial.rename(folder / MANIFEST)
        _sync_directory(folder)


def _make_ready(folder: Path) -> bool:
    """An empty folder to write into; whether it was there before."""
    with _explained(folder):
        was_there = folder.is_dir()
        if was_there and any(folder.iterdir()):
            raise InvalidArgument(f"{folder} is not empty; an export needs an empty folder")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / EVENTS).mkdir(mode=0o700)
    return was_there


def _clear(folder: Path, *, keep: bool) -> None:
    """Remove what a failed export has written."""
    with suppress(OSError):
        shutil.rmtree(folder / EVENTS)
        for path in folder.iterdir():
            path.unlink()
        if not keep:
            folder.rmdir()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidArgument(f"{path} cannot be used: {reason}") from error


# --- the import's files -------------------------------------------------------------------


def _checked(folder: Path) -> Manifest:
    """The manifest of an export that is whole. Raises ``DamagedExport``."""
    if not folder.is_dir():
        raise InvalidArgument(f"there is no folder {folder}")
    manifest = manifest_from(_read(folder, MANIFEST))
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    known = {MANIFEST, manifest.state.name, *(file.name for file in manifest.files)}
    if missing := sorted(known - there):
        raise DamagedExport(f"{folder}: {missing[0]} is missing")
    if strange := sorted(there - known):
        raise DamagedExport(f"{folder}: {strange[0]} is not part of the export")
    state = state_from(manifest, _read(folder, manifest.state.name))
    ids = [
        events_from(file, facts, _read(folder, file.name)).ids
        for file, facts in zip(manifest.files, state.files, strict=True)
    ]
    check_whole(state, manifest, ids)
    return manifest


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise DamagedExport(
            f"{folder} has no {name}: this is not an export, or it is incomplete"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise DamagedExport(f"{folder / name} cannot be read: {reason}") from error


async def _send(
    connection: RealmConnection, known: str, number: int, manifest: Manifest, folder: Path
) -> None:
    is_state = number == len(manifest.files)
    file = manifest.state if is_state else manifest.files[number]
    content = memoryview(await asyncio.to_thread(_read, folder, file.name))
    for offset in range(0, len(content), PART_BYTES):
        message = PutImport(known, number, offset)
        part = content[offset : offset + PART_BYTES]
        await connection.request(message, [part], resend=False, waits=False)
