"""A copy of a realm's sealed files elsewhere, brought up to date from the running realm.

It is for readers of events (:mod:`penstock_spark.reading.copies`) and is not a backup: it has no
unsealed events, durables or users. A blob of its own names the realm, and the stamp of each file.
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
"""The blob that makes a place a copy. Written before the first file."""
END_BYTES: Final = 64 << 10
"""Files of the same length whose ends are the same are the same: there the ids, times and places of
their batches are told, and a name is not given to other events of the same ids and times."""
SAVED_EVERY: Final = 64
"""Files after which the label is written again: a copy that is broken off goes on from there."""


class CopyResult(Struct, frozen=True, kw_only=True):
    """What a copy holds, and what was done this time."""

    realm: str
    """Identity of the realm."""
    files: int
    bytes: int
    files_copied: int
    """New, or longer than they were."""
    bytes_copied: int
    files_removed: int
    files_left: int
    """Files without events of the realm; ``prune`` removes them."""


class _Label(Struct):
    realm: str
    name: str
    stamps: dict[str, int]


async def copy_files(
    connection: RealmConnection, target: Blobs, *, prune: bool = False
) -> CopyResult:
    """Bring a copy of the realm's sealed files up to date, while the realm is in use.

    Each file appears complete, or as it was before. An interrupted copy is continued by the next
    one. With ``prune``, files that the realm no longer has are removed. Only one writer may run at
    a time. Needs ``full`` on the realm.

    Raises ``InvalidArgument`` if the place holds another realm's copy or something else,
    ``StorageFailed`` if it refuses, ``IllegalState`` for a realm in memory, ``Unavailable`` during
    a backup, ``ConnectionLost``.
    """
    there = {info.name: info for info in await target.list(FILES)}
    known = await _label(target, there)
    async with realm_capture(connection, InvalidArgument) as capture:
        begun = capture.begun
        label = _checked(begun, known)
        if known is None:
            await target.put(LABEL, [msgspec.json.encode(label)])
        there.pop(LABEL, None)
        files = [(n, f) for n, f in enumerate(begun.files) if f.name.startswith(FILES)]
        copied: list[CapturedFile] = []
        for number, file in files:
            held = there.get(file.name)
            if held is not None and await _is_same(
                target, held, capture, number=number, label=label
            ):
                label.stamps[file.name] = file.stamp
                continue
            await _copy(target, capture, number, is_new=held is None)
            label.stamps[file.name] = file.stamp
            copied.append(file)
            if len(copied) % SAVED_EVERY == 0:
                await _save(target, label)
        left = sorted(there.keys() - {file.name for _, file in files})
        for name in left if prune else ():
            await target.delete(name)
            label.stamps.pop(name, None)
        if known is None or label.stamps != known.stamps:
            await _save(target, label)
    return CopyResult(
        realm=begun.realm,
        files=len(files),
        bytes=sum(file.size for _, file in files),
        files_copied=len(copied),
        bytes_copied=sum(file.size for file in copied),
        files_removed=len(left) if prune else 0,
        files_left=0 if prune else len(left),
    )


async def _label(target: Blobs, there: Mapping[str, BlobInfo]) -> _Label | None:
    """None: nothing is there. Nothing that is no copy is touched: it may be a realm's own."""
    if LABEL not in there:
        if there:
            raise InvalidArgument(
                f"there are files that are not part of a copy of a realm (such as {min(there)}), "
                f"and no {LABEL}; give an empty folder or bucket prefix"
                ", never a realm's own data directory"
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


def _checked(begun: BackupBegun, known: _Label | None) -> _Label:
    if known is None:
        return _Label(begun.realm, begun.name, {})
    if known.realm != begun.realm:
        raise InvalidArgument(
            f"this place already holds a copy of another realm, {known.name} ({known.realm}); "
            f"give each realm its own folder"
        )
    return _Label(begun.realm, begun.name, dict(known.stamps))


async def _is_same(
    target: Blobs, held: BlobInfo, capture: RealmCapture, number: int, *, label: _Label
) -> bool:
    """Whether the copy of a file is up to date, decided without reading all of the file."""
    file = capture.begun.files[number]
    if held.size != file.size:
        return False
    if file.stamp and label.stamps.get(file.name) == file.stamp:
        return True
    first = max(0, file.size - END_BYTES)
    end = b"".join([part async for part in capture.read(number, first)])
    return bytes(await target.get(file.name, first)) == end


async def _copy(target: Blobs, capture: RealmCapture, number: int, *, is_new: bool) -> None:
    file = capture.begun.files[number]
    with tempfile.TemporaryFile() as spool:
        async for part in capture.read(number):
            await asyncio.to_thread(spool.write, part)
        spool.flush()
        chunks: Sequence[Buffer] = ()
        if file.size:
            # A growing file may be larger than memory.
            chunks = (memoryview(mmap.mmap(spool.fileno(), file.size, prot=mmap.PROT_READ)),)
        if is_new:
            await target.put(file.name, chunks)
        else:
            await target.extend(file.name, 0, chunks)


async def _save(target: Blobs, label: _Label) -> None:
    await target.extend(LABEL, 0, [msgspec.json.encode(label)])
