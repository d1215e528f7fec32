"""Repairs growing files at start-up: a crash may have left a file without its footer.

Bytes after the recorded batches are the rest of an interrupted append, whose events are still in
the journal. They are replaced by the footer, so that plain Arrow readers can open the file.
"""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

from penstock_core.columns.files.growing_segment import (
    end_of_batches,
    has_its_tail,
    tail_or_rebuilt,
)
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import NameDoesNotExist, StorageFailed
from penstock_core.vocabulary.ports import Blobs
from penstock_server.runtime.store.sealed_file import SealedFile
from penstock_server.runtime.store.state import RealmState

_log = logger("penstock.mending")


async def mend_files(state: RealmState, blobs: Blobs, *, is_damaged: bool) -> list[str]:
    """Write the missing footers of growing files, built from their indexes. Return the names of the
    repaired files.

    If the realm ``is_damaged``, bytes outside the index may be events whose facts are lost. Such a
    file is not changed, and later events go to another file (SEM S1).
    """
    mended = []
    for store in state.stores.values():
        for file in store.files:
            if file.grows and await _is_mended(file, blobs, is_damaged=is_damaged):
                _log.info("segment.mended", name=file.name)
                mended.append(file.name)
    return mended


async def _is_mended(file: SealedFile, blobs: Blobs, *, is_damaged: bool) -> bool:
    try:
        data = await blobs.get(file.name)
    except NameDoesNotExist:
        return False  # the loss of the file's events is reported when they are read
    if has_its_tail(data, file.index):
        return False
    tail = tail_or_rebuilt(data, file.index)
    if is_damaged or not blobs.grows or xxh3_64_intdigest(tail) != file.index.checksum:
        file.is_frozen = True
        return False
    try:
        await blobs.extend(file.name, end_of_batches(file.index.batches), [tail])
    except StorageFailed as failure:
        _log.warning("segment.not_mended", name=file.name, reason=str(failure))
        return False
    return True
