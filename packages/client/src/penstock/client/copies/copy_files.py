"""Updates copies of a realm's sealed files while the realm is in use.

A copy is for readers of events (:mod:`penstock_spark.reading.copies`). It is not a backup: it has
no unsealed events, durables or users. A separate blob, the label, records the realm's identity and
the stamp of each file.
"""

from __future__ import annotations

import asyncio
import mmap
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from penstock.client.connection.connection import RealmConnection
from penstock.client.copies.realm_capture import RealmCapture, realm_capture
from penstock_core.api.transfers import BackupBegun, CapturedFile
from penstock_core.vocabulary.argument_errors import decode_json
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.ports import BlobInfo, Blobs, Buffer

FILES: Final = "segments/"
"""Start of the names of all files of a copy."""
LABEL: Final = f"{FILES}copied-from.json"
"""The blob that marks a place as a copy. It is written before the first file."""
END_BYTES: Final = 64 << 10
"""Number of bytes at the end of a file that are compared. Two files of the same name and length are
equal if their ends are equal: the end contains the ids, times and positions of all batches, and a
name is not used again for a file with the same ids and times."""
SAVED_EVERY: Final = 64
"""The label is saved after this many copied files, so that an interrupted copy can continue."""


class CopyResult(Struct, frozen=True, kw_only=True):
    """The content of a copy after an update, and the work of the update."""

    realm: str
    """Identity of the realm."""
    files: int
    """Number of sealed files of the realm."""
    bytes: int
    """Total size of the realm's sealed files, in bytes."""
    files_copied: int
    """Number of files that were copied because they were new or had changed."""
    bytes_copied: int
    """Total size of the copied files."""
    files_removed: int
    """Number of files that ``prune`` removed from the copy."""
    files_left: int
    """Number of files in the copy that the realm no longer has; ``prune`` would remove them."""


class _Label(Struct):
    """The content of the label of a copy."""

    realm: str
    """Identity of the realm."""
    name: str
    """Name of the realm."""
    stamps: dict[str, int]
    """The stamp of each copied file, by name. A file with the same stamp has not changed."""


async def copy_files(
    connection: RealmConnection, target: Blobs, *, prune: bool = False
) -> CopyResult:
    """Update a copy of the realm's sealed files while the realm is in use.

    Readers see each file either complete or in its earlier state. The next update continues an
    interrupted one. With ``prune``, files that the realm no longer has are removed. Only one
    program may write to a copy at a time. Needs the right ``full`` on the realm.

    Raises ``InvalidArgument`` if ``target`` contains something other than a copy of this realm,
    ``StorageFailed`` if writing fails, ``IllegalState`` if the realm is in memory, ``Unavailable``
    during a backup, ``ConnectionLost``.
    """
    existing = {info.name: info for info in await target.list(FILES)}
    stored_label = await _label(target, existing)
    async with realm_capture(connection, InvalidArgument) as capture:
        begun = capture.begun
        label = _checked_label(begun, stored_label)
        if stored_label is None:
            # Written before the first file, because the next update refuses files without a label,
            # also after an interruption.
            await target.put(LABEL, [msgspec.json.encode(label)])
        existing.pop(LABEL, None)
        files = [
            (number, file) for number, file in enumerate(begun.files) if file.name.startswith(FILES)
        ]
        copied: list[CapturedFile] = []
        for number, file in files:
            copy = existing.get(file.name)
            if copy is not None and await _is_same(
                target, copy, capture, number=number, label=label
            ):
                label.stamps[file.name] = file.stamp
                continue
            await _copy(target, capture, number, is_new=copy is None)
            label.stamps[file.name] = file.stamp
            copied.append(file)
            if len(copied) % SAVED_EVERY == 0:
                await _save(target, label)
        extra_names = sorted(existing.keys() - {file.name for _, file in files})
        for name in extra_names if prune else ():
            await target.delete(name)
            label.stamps.pop(name, None)
        if stored_label is None or label.stamps != stored_label.stamps:
            await _save(target, label)
    return CopyResult(
        realm=begun.realm,
        files=len(files),
        bytes=sum(file.size for _, file in files),
        files_copied=len(copied),
        bytes_copied=sum(file.size for file in copied),
        files_removed=len(extra_names) if prune else 0,
        files_left=0 if prune else len(extra_names),
    )


async def _label(target: Blobs, existing: Mapping[str, BlobInfo]) -> _Label | None:
    """Return the label of a copy; None if ``target`` is empty.

    Raises ``InvalidArgument`` if ``target`` has files but no label: they may be the data directory
    of a realm, which must not be changed.
    """
    if LABEL not in existing:
        if existing:
            raise InvalidArgument(
                f"the place contains {min(existing)} but no {LABEL}, so it is not a copy of a "
                f"realm; give an empty folder or bucket prefix, never the data directory of a realm"
            )
        return None
    return decode_json(
        bytes(await target.get(LABEL)),
        _Label,
        whole="the label",
        refuse=lambda why: InvalidArgument(
            f"{LABEL} cannot be read: {why}; give an empty folder or bucket prefix"
        ),
    )


def _checked_label(begun: BackupBegun, stored: _Label | None) -> _Label:
    """Return the label for this update: a new one, or a copy of ``stored``.

    Raises ``InvalidArgument`` if ``stored`` is the label of another realm's copy.
    """
    if stored is None:
        return _Label(begun.realm, begun.name, {})
    if stored.realm != begun.realm:
        raise InvalidArgument(
            f"this place already holds a copy of another realm, {stored.name} ({stored.realm}); "
            f"give each realm its own folder"
        )
    return _Label(begun.realm, begun.name, dict(stored.stamps))


async def _is_same(
    target: Blobs, copy: BlobInfo, capture: RealmCapture, number: int, *, label: _Label
) -> bool:
    """Return whether ``copy`` equals the file ``number`` of the capture. At most the end of the
    file is read."""
    file = capture.begun.files[number]
    if copy.size != file.size:
        return False
    if file.stamp and label.stamps.get(file.name) == file.stamp:
        return True
    first = max(0, file.size - END_BYTES)
    end = b"".join([part async for part in capture.read(number, first)])
    return bytes(await target.get(file.name, first)) == end


async def _copy(target: Blobs, capture: RealmCapture, number: int, *, is_new: bool) -> None:
    """Copy the file ``number`` of the capture to the target, through a temporary file."""
    file = capture.begun.files[number]
    with tempfile.TemporaryFile() as spool:
        async for part in capture.read(number):
            await asyncio.to_thread(spool.write, part)
        spool.flush()
        chunks: Sequence[Buffer] = ()
        if file.size:
            # Mapped, because the file may be larger than memory.
            chunks = (memoryview(mmap.mmap(spool.fileno(), file.size, prot=mmap.PROT_READ)),)
        if is_new:
            await target.put(file.name, chunks)
        else:
            await target.extend(file.name, 0, chunks)


async def _save(target: Blobs, label: _Label) -> None:
    await target.extend(LABEL, 0, [msgspec.json.encode(label)])
