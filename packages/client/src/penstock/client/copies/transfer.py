"""Exports channels and queues to a folder of the client, and imports them (SEM C7).

The manifest is written last, when all other files are on disk, so that an incomplete export is
never mistaken for a complete one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from penstock.client.connection.connection import RealmConnection
from penstock.client.copies.sinks import FolderLike, NewFolder, usable
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
    MANIFEST,
    Manifest,
    check_file,
    check_whole,
    events_from,
    manifest_from,
    manifest_of,
    state_from,
)
from penstock_core.columns.schema.moments import YEAR_10000_US
from penstock_core.realm.exported_file import ExportedFile
from penstock_core.vocabulary.errors import DamagedExport, InvalidArgument, PenstockError

MANIFEST_IN_HEADER_BYTES_MAX = 512 << 10
"""Largest manifest, in bytes, that is sent in the header of a request; a larger one is sent as the
body."""
PART_BYTES = 4 << 20
"""Largest number of bytes that one request of an import sends."""


async def export(
    connection: RealmConnection, name: str, kind: Kind, folder: FolderLike
) -> Manifest:
    """Export the present state of a channel or queue to a new or empty folder. Return the manifest.

    The channel or queue may be in use; events published after the call are not included. If the
    export fails, the files written so far are removed. Raises ``InvalidArgument`` if the folder
    cannot be used, ``NameDoesNotExist``, ``Damaged``, ``ConnectionLost``.
    """
    sink = await asyncio.to_thread(_new_export, Path(folder))
    try:
        begun = await _begin_export(connection, name, kind)
        files = [await _receive(connection, begun, n, sink=sink) for n in range(begun.files + 1)]
        manifest = manifest_of(begun, kind, files)
        await asyncio.to_thread(sink.publish, MANIFEST, manifest.encoded())
    except BaseException:
        # Without the shield, a further cancellation could leave files behind.
        await asyncio.shield(asyncio.to_thread(sink.clear))
        raise
    with suppress(PenstockError):  # if this fails, the realm ends the export with the connection
        await connection.request(EndExport(begun.export), resend=False, waits=False)
    return manifest


async def import_from(
    connection: RealmConnection, folder: FolderLike, kind: Kind, name: str = ""
) -> ChannelOpened:
    """Create a channel or queue from an export. ``name`` is the name of the new channel or queue;
    empty means the exported name.

    Event ids, durables with their outstanding events, producers and counters continue as they were.
    The import is complete, or it changes nothing and raises ``DamagedExport``,
    ``NameAlreadyBound``, ``InvalidArgument``, ``MemoryLimit``, ``StorageFailed``, or
    ``NameDoesNotExist`` if the dead event store is missing. After ``ConnectionLost`` the channel
    exists completely or not at all.
    """
    source = Path(folder)
    manifest = await asyncio.to_thread(_read_checked_manifest, source)
    if manifest.kind != kind:
        raise InvalidArgument(
            f"{source} is an export of the {manifest.kind} {manifest.name}; "
            f"import it as a {manifest.kind}"
        )
    encoded = manifest.encoded()
    begin = BeginImport(name or manifest.name, encoded)
    if len(encoded) <= MANIFEST_IN_HEADER_BYTES_MAX:
        import_id: str = await connection.request(begin, resend=False)
    else:
        begin = BeginImport(begin.name, b"")
        import_id = await connection.request(begin, [encoded], resend=False)
    try:
        for number, file in manifest.in_order():
            content = memoryview(await asyncio.to_thread(_read, source, file.name))
            for offset in range(0, len(content), PART_BYTES):
                part = content[offset : offset + PART_BYTES]
                message = PutImport(import_id, number, offset)
                await connection.request(message, [part], resend=False, waits=False)
    except BaseException:
        with suppress(PenstockError):  # after a refusal the import has already ended
            await connection.request(AbortImport(import_id), resend=False, waits=False)
        raise
    return await connection.ask(CommitImport(import_id), ChannelOpened, resend=False, waits=False)


# --- the export's files -------------------------------------------------------------------


def _new_export(folder: Path) -> NewFolder:
    """Create the folder of an export. Raises ``InvalidArgument`` if it is not empty."""
    sink = NewFolder(folder, mode=0o700, purpose="an export needs an empty folder")
    with usable(folder):
        (folder / EVENTS).mkdir(mode=0o700)
    return sink


async def _begin_export(connection: RealmConnection, name: str, kind: Kind) -> ExportBegun:
    """Begin an export in the realm. Raises ``DamagedExport`` if the answer is not valid."""
    begun = await connection.ask(BeginExport(name, kind), ExportBegun, resend=False)
    if not 0 <= begun.at_us < YEAR_10000_US:
        raise DamagedExport(
            f"the realm reports an export made at {begun.at_us}, which is not a valid time"
        )
    return begun


async def _receive(
    connection: RealmConnection, begun: ExportBegun, number: int, sink: NewFolder
) -> ExportedFile:
    """Write the file ``number`` of the export to the sink, and return its description once it is on
    disk. Raises ``DamagedExport`` if the received bytes do not match the description."""
    file: ExportedFile | None = None
    offset = 0
    while file is None or offset < file.size:
        message = ReadExport(begun.export, number, offset)
        part = await connection.ask(message, ExportedBytes, resend=False, waits=False)
        if file is None:
            file = part.file
            check_file(file, is_state=number == begun.files)
            await asyncio.to_thread(sink.begin, file.name)
        if part.file != file or not 0 < len(part.content) <= file.size - offset:
            raise DamagedExport(f"{file.name} is not as the realm announced it; export again")
        await asyncio.to_thread(sink.write, part.content)
        offset += len(part.content)
    if await asyncio.to_thread(sink.end) != file.checksum:
        raise DamagedExport(f"{file.name} fails its checksum: it was changed")
    return file


# --- the import's files -------------------------------------------------------------------


def _read_checked_manifest(folder: Path) -> Manifest:
    """Return the manifest of an export after checking all its files.

    Raises ``DamagedExport`` if a file is missing, unknown or damaged, and ``InvalidArgument`` if
    the folder does not exist.
    """
    if not folder.is_dir():
        raise InvalidArgument(f"folder {folder} does not exist; give the folder of an export")
    manifest = manifest_from(_read(folder, MANIFEST))
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    expected = {MANIFEST, manifest.state.name, *(file.name for file in manifest.files)}
    if missing_names := sorted(expected - names):
        raise DamagedExport(f"{folder}: {missing_names[0]} is missing")
    if extra_names := sorted(names - expected):
        raise DamagedExport(f"{folder}: {extra_names[0]} is not part of the export")
    state = state_from(manifest, _read(folder, manifest.state.name))
    ids = [
        events_from(file, facts, _read(folder, file.name)).ids
        for file, facts in zip(manifest.files, state.files, strict=True)
    ]
    check_whole(state, manifest, ids)
    return manifest


def _read(folder: Path, name: str) -> bytes:
    """Return the content of the file ``name`` of an export. Raises ``DamagedExport`` if it is
    missing or cannot be read."""
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise DamagedExport(
            f"{folder} has no {name}: this is not an export, or it is incomplete"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise DamagedExport(f"{folder / name} cannot be read: {reason}") from error
