"""Copies of a realm's sealed files, updated from the running realm.

A copy is for readers of events (:mod:`penstock_spark.reading.copies`). It is not a backup: it has
no unsealed events, durables or users. A separate blob, the label, has the realm's identity and the
stamp of each file.
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
LABEL: Final = f"{FILES}copied-from.json"
"""The blob that marks a place as a copy. It is written before the first file."""
END_BYTES: Final = 64 << 10
"""Files of the same name and length are equal if their ends are: the end contains the ids, times
and positions of all batches, and no file has the name of another with the same ids and times."""
SAVED_EVERY: Final = 64
"""Files after which the label is saved, so that an interrupted copy continues there."""


class CopyResult(Struct, frozen=True, kw_only=True):
    """The content of a copy after an update, and the work of the update."""

    realm: str
    """Identity of the realm."""
    files: int
    bytes: int
    files_copied: int
    """Files that were new, or longer than in the copy."""
    bytes_copied: int
    files_removed: int
    files_left: int
    """Files in the copy that the realm no longer has; ``prune`` removes them."""


class _Label(Struct):
    realm: str
    name: str
    stamps: dict[str, int]


async def copy_files(
    connection: RealmConnection, target: Blobs, *, prune: bool = False
) -> CopyResult:
    """Update a copy of the realm's sealed files while the realm is in use.

    Readers see each file complete, or as it was before. The next update continues an interrupted
    one. With ``prune``, files that the realm no longer has are removed. Only one writer may run at
    a time. Needs the right ``full`` on the realm.

    Raises ``InvalidArgument`` if the place contains anything but a copy of this realm,
    ``StorageFailed`` if writing fails, ``IllegalState`` if the realm is in memory, ``Unavailable``
    during a backup, ``ConnectionLost``.
    """
    existing = {info.name: info for info in await target.list(FILES)}
    stored_label = await _label(target, existing)
    async with realm_capture(connection, InvalidArgument) as capture:
        begun = capture.begun
        label = _checked(begun, stored_label)
        if stored_label is None:
            # Before the first file: after an interruption, the next update refuses files without a
            # label.
            await target.put(LABEL, [msgspec.json.encode(label)])
        existing.pop(LABEL, None)
        files = [(n, f) for n, f in enumerate(begun.files) if f.name.startswith(FILES)]
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
        extra = sorted(existing.keys() - {file.name for _, file in files})
        for name in extra if prune else ():
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
        files_removed=len(extra) if prune else 0,
        files_left=0 if prune else len(extra),
    )


async def _label(target: Blobs, existing: Mapping[str, BlobInfo]) -> _Label | None:
    """Return the label of a copy; None if the place is empty. Raises ``InvalidArgument`` for other
    content, which may be the data directory of a realm and must not be changed."""
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


def _checked(begun: BackupBegun, stored: _Label | None) -> _Label:
    """Return the label to continue with. Raises ``InvalidArgument`` for a copy of another realm."""
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
    """Return whether the copy of a file is up to date, without reading the whole file."""
    file = capture.begun.files[number]
    if copy.size != file.size:
        return False
    if file.stamp and label.stamps.get(file.name) == file.stamp:
        return True
    first = max(0, file.size - END_BYTES)
    end = b"".join([part async for part in capture.read(number, first)])
    return bytes(await target.get(file.name, first)) == end


async def _copy(target: Blobs, capture: RealmCapture, number: int, *, is_new: bool) -> None:
    """Copy one file of the capture to the target, through a temporary file."""
    file = capture.begun.files[number]
    with tempfile.TemporaryFile() as spool:
        async for part in capture.read(number):
            await asyncio.to_thread(spool.write, part)
        spool.flush()
        chunks: Sequence[Buffer] = ()
        if file.size:
            # Mapped, as the file may be larger than memory.
            chunks = (memoryview(mmap.mmap(spool.fileno(), file.size, prot=mmap.PROT_READ)),)
        if is_new:
            await target.put(file.name, chunks)
        else:
            await target.extend(file.name, 0, chunks)


async def _save(target: Blobs, label: _Label) -> None:
    await target.extend(LABEL, 0, [msgspec.json.encode(label)])
