"""The rules for names of blobs, and for ranges in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock_core.vocabulary.errors import Conflict, InvalidArgument, InvalidName
from penstock_core.vocabulary.ports import Buffer

BLOB_ROOTS = ("segments", "snapshots", "blocks", "realm")
"""The first part of every blob's name."""

_KNOWN = f"{', '.join(BLOB_ROOTS[:-1])} or {BLOB_ROOTS[-1]}"
_SHARD = re.compile(r"shard-[0-9]+")
_PART = re.compile(r"[A-Za-z0-9_#~\-][A-Za-z0-9_#~.\-]*")


def check_blob_name(name: str, *, of_shard: bool = False) -> None:
    """Raise ``InvalidName`` unless ``name`` is a relative path that stays inside the store.

    With ``of_shard`` it may begin with the folder of a shard, because several shards may share a
    store.
    """
    parts = name.split("/")
    if of_shard and _SHARD.fullmatch(parts[0]):
        del parts[0]
    if len(parts) < 2 or parts[0] not in BLOB_ROOTS:
        raise InvalidName(f"blob {name!r}: a name starts with {_KNOWN} and a '/'")
    for part in parts:
        if not _PART.fullmatch(part):
            raise InvalidName(
                f"blob {name!r}: {part!r} cannot be a part of a name; use letters, digits and _ # "
                f"~ - . and no dot at the start"
            )


def end_of_range(name: str, size: int, offset: int, length: int | None) -> int:
    """Return the end offset of a requested range in a blob of ``size`` bytes. Without a ``length``
    the range ends with the blob. Raises ``InvalidArgument`` if the range is not inside the blob."""
    end = size if length is None else offset + length
    if not 0 <= offset <= end <= size:
        raise InvalidArgument(f"{name} has {size} bytes; bytes {offset} to {end} are not all in it")
    return end


def check_same(name: str, stored: memoryview, chunks: Sequence[Buffer]) -> None:
    """Raise ``Conflict`` unless a blob that exists has the bytes of ``chunks``."""
    offset = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        if stored[offset : offset + len(view)] != view:
            raise Conflict(f"{name} exists with other bytes")
        offset += len(view)
    if offset != len(stored):
        raise Conflict(f"{name} exists with {len(stored)} bytes, not {offset}")
