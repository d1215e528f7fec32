"""Marks, which an owner writes outside of its stream for the next owner to compare."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import Struct

from penstock_cluster.storage.jetstream.registry import BucketRegistry
from penstock_core.vocabulary.errors import Conflict, Deposed


class Mark(Struct, frozen=True):
    """A position in a stream that its owner has stored. A later owner compares the stream with it:
    a stream that was re-created, or is an older copy, does not contain the position."""

    incarnation: str
    """Identity of the stream."""
    sequence: int = 0
    """Newest sequence that was stored when the mark was written."""
    checksum: int = 0
    """Checksum of the frame at this sequence."""
    kept: int = 1
    """First sequence that was not removed."""
    epoch: int = 0
    """Epoch of the owner that wrote the mark."""


class Marks(Protocol):
    """Storage for the mark of a journal, outside of its stream."""

    async def read(self) -> Mark | None: ...

    async def write(self, mark: Mark) -> None:
        """Replace a mark of this or an older epoch. Raises ``Deposed`` if a newer epoch has written
        one."""
        ...


class RegistryMarks:
    """The mark of one journal in the engine's registry, under a prefix that no other key has."""

    def __init__(self, registry: BucketRegistry, key: str) -> None:
        self.registry = registry
        self.key = key

    async def read(self) -> Mark | None:
        record = await self.registry.get(self.key)
        return None if record is None else msgspec.json.decode(record.value, type=Mark)

    async def write(self, mark: Mark) -> None:
        """Replace a mark of this or an older epoch. Raises ``Deposed`` if a newer epoch has written
        one."""
        while True:
            record = await self.registry.get(self.key)
            version = 0
            if record is not None:
                stored = msgspec.json.decode(record.value, type=Mark)
                version = record.version
                if stored.epoch > mark.epoch:
                    raise Deposed(
                        f"epoch {stored.epoch} has begun; this owner has epoch {mark.epoch}"
                    )
                mark = msgspec.structs.replace(mark, kept=max(mark.kept, stored.kept))
            try:
                await self.registry.cas(self.key, version, msgspec.json.encode(mark))
            except Conflict:  # another owner has written since the read: compare its epoch
                continue
            return
