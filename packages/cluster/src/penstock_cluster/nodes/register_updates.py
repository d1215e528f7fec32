"""Compare-and-set updates of register records that several nodes write."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from penstock_core.vocabulary.errors import Conflict
from penstock_core.vocabulary.ports import Registry, VersionedRecord

RecordT = TypeVar("RecordT", bound=Struct)


async def change_record(
    registry: Registry,
    key: str,
    read: Callable[[VersionedRecord | None], RecordT],
    change: Callable[[RecordT], RecordT],
) -> RecordT:
    """Write the result of ``change`` on the record, and return it. An unchanged record is not
    written. A record has a field ``written_by``, which identifies each change.

    Raises the errors of ``read`` and ``change``.
    """
    while True:
        record = await registry.get(key)
        current = read(record)
        changed = change(current)
        if changed == current:
            return current
        # The token makes two equal changes of different nodes differ.
        changed = msgspec.structs.replace(changed, written_by=secrets.token_hex(8))
        try:
            version = 0 if record is None else record.version
            await registry.cas(key, version, msgspec.json.encode(changed))
        except Conflict:
            continue  # another node has written, or an answer was lost
        return changed
