"""Location of the columns of events: files, blobs and schemas."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import RealmFact


class SchemaSeen(RealmFact, frozen=True):
    """An Arrow schema, stored as the body of this fact. Later bodies refer to it by ``number``."""

    number: int


class BodiesApart(RealmFact, frozen=True):
    """The bodies of this block are in a blob, because the block is too large for the engine's
    log."""

    name: str
    size: int
    checksum: int
    """xxh3_64 of the blob's bytes: the bodies, each padded to a multiple of 8 bytes."""


class Sealed(RealmFact, frozen=True):
    """Stored events of a channel below ``through`` are in segment files; ``name`` is the newest
    file.

    An empty name means that no event of the range remained to be sealed.
    """

    through: int
    name: str = ""
    index: bytes = b""
    """The index of the file's batches, as at the end of the file."""
    publishers: tuple[tuple[str, Spans], ...] = ()
    """Publishers, each with its events in the file."""
    grows: bool = False
    """Whether batches will be added to the file, because the channel keeps its events in one
    file."""


class Extended(RealmFact, frozen=True):
    """Stored events of a channel below ``through`` have been added to the end of a file."""

    through: int
    name: str
    size: int
    """New size of the file, in bytes."""
    checksum: int
    """Checksum of the added part of the file."""
    batches: bytes
    """The index of the added batches, as in the file's index."""
    publishers: tuple[tuple[str, Spans], ...] = ()
    """Publishers, each with its events among those added."""


class Rewritten(RealmFact, frozen=True):
    """The remaining events of the files ``names`` are now in the file ``name``; an empty name means
    that none remained."""

    names: tuple[str, ...]
    name: str = ""
    index: bytes = b""
    publishers: tuple[tuple[str, Spans], ...] = ()
    grows: bool = True


class SegmentDropped(RealmFact, frozen=True):
    """A file without any remaining event is dropped."""

    name: str
