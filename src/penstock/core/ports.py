"""What the realm needs from the outside world. Adapters in ``storage`` implement these.

Three ports, and a kit in ``penstock.testing`` that every adapter must pass:

* :class:`Journal`: fenced append of blocks, the only place where something becomes true.
* :class:`Blobs`: immutable named bytes: sealed segments, snapshots.
* :class:`Registry`: small records changed by compare-and-set: format, ownership, manifests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Where time comes from. The core gets it as an argument, always."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""
        ...


class Block(Struct, frozen=True):
    """A whole, checked block."""

    seq: int
    """1 for the first block ever; dense."""
    data: memoryview


class DamagedBlock(Struct, frozen=True):
    """Bytes in the middle of the journal that fail their checksum. Kept, reported, not served."""

    seq: int
    where: str
    """File and byte range, for people."""
    reason: str
    size: int
    count: int = 1
    """How many sequences are gone together, from ``seq`` on."""


class JournalInfo(Struct, frozen=True):
    floor: int
    """The newest trimmed sequence; 0 when nothing was trimmed."""
    tail: int
    """The newest block's sequence; equal to ``floor`` when empty."""
    size: int
    """Bytes held."""
    cut: int
    """Bytes of a torn tail cut (and kept aside) when this journal was opened."""


class Journal(Protocol):
    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        """Add one block (the concatenation of ``block``) after ``expected``; return its sequence.

        Succeeds only if the tail is exactly ``expected``. On return the block is on disk when
        ``sync`` (with every earlier block), and in the operating system's hands otherwise.
        The same bytes again after the same ``expected`` give the same answer.
        Raises ``Fenced`` when other bytes are there, ``StorageFailed`` when the disk refuses;
        after a failed *sync* the journal accepts nothing more (the state on disk is unknown).
        After a failed *write* that was undone completely (disk full), it may go on.
        """
        ...

    async def reserve(self, size: int) -> None:
        """Make sure that an append of ``size`` bytes will find room on disk.

        Raises ``StorageFailed`` and changes nothing when it would not. Where the file system
        cannot promise room, this may succeed and the append still fail.
        """
        ...

    async def read(self, first: int, limit: int) -> list[Block | DamagedBlock]:
        """At most ``limit`` blocks from ``first`` on, never skipping one.

        Damage in the middle comes as :class:`DamagedBlock` in its place. Raises ``Trimmed``
        when ``first`` is at or below the floor.
        """
        ...

    async def sync(self) -> None:
        """Put every appended block on disk."""
        ...

    async def trim(self, through: int) -> None:
        """Forget blocks up to and including ``through``; bytes may leave later."""
        ...

    def info(self) -> JournalInfo: ...

    async def close(self) -> None: ...


class BlobInfo(Struct, frozen=True):
    name: str
    size: int


class Blobs(Protocol):
    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store immutable bytes. Durable on return. The same bytes under the same name are fine;
        other bytes under a taken name raise ``Fenced``; a full disk raises ``StorageFailed``
        and leaves nothing."""
        ...

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """The bytes (or a range), without copying where the adapter can map them.
        Raises ``NameDoesNotExist``."""
        ...

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Blobs whose name starts with ``prefix``, ordered by name."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a blob; one that is gone already is no error."""
        ...

    def local_path(self, name: str) -> str | None:
        """A path other processes on this machine can map, if the adapter has one."""
        ...


class Record(Struct, frozen=True):
    version: int
    """1 at creation, one more with every change."""
    value: bytes


class Registry(Protocol):
    async def get(self, key: str) -> Record | None: ...

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        """Set ``key`` if its version is ``expected`` (0: it does not exist yet); durable on
        return. Gives the new version; raises ``Fenced`` when somebody was faster."""
        ...

    async def list(self, prefix: str = "") -> Sequence[str]: ...

    def watch(self, prefix: str = "") -> AsyncIterator[tuple[str, Record]]:
        """Changes under ``prefix`` from now on."""
        ...
