"""Putting growing files in order at start-up: a crash may have left one without its footer.

What a crash left behind the batches that were recorded was never true: those events are in the
journal. It is replaced by the footer that belongs there, so that plain Arrow readers can open
the file.
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
    """Give every growing file the end its index says it has; gives the names of those mended.

    Where the realm ``is_damaged``, bytes the index does not know may be events whose record is
    lost: such a file is left as it is, and nothing is added to it (SEM S1).
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
        return False  # its events are reported when they are read
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
