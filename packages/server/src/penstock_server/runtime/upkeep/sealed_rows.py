"""The rows of a channel that become a file: of its own, or added to the newest one."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from penstock_core.columns.files.growing_segment import Growth, started
from penstock_core.columns.files.lean_columns import Needs, fitted_in, has_room, lean_image
from penstock_core.columns.files.segments import SegmentImage
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.schema.shapes import NO_SLOTS, StructShape
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.compression import Compression
from penstock_server.runtime.store.sealed_file import Publishers, SealedFile
from penstock_server.runtime.store.tail_batch import TailBatch, stored_rows


class NewRows(NamedTuple):
    """The events to be added to the single file of a channel."""

    batches: list[pa.RecordBatch]
    publishers: Publishers
    columns: ChannelSchema
    """The columns of the channel."""
    needs: Needs
    shape: StructShape
    """The properties that get columns of their own."""
    compression: Compression

    @classmethod
    def of(
        cls,
        pieces: list[TailBatch],
        wanted: IdSet,
        columns: ChannelSchema,
        compression: Compression,
    ) -> NewRows:
        batches, needs = list(stored_rows(pieces, wanted)), Needs(columns)
        needs.add_all(batches)
        publishers = publishers_of(pieces, wanted)
        return cls(
            batches, publishers, columns, needs=needs, shape=needs.shape(), compression=compression
        )

    def fits(self, file: SealedFile) -> bool:
        """Whether the file knows all of the channel's columns and has those that are worth it."""
        known = ChannelSchema.of_file(file.index.schema)
        physical = ChannelSchema.from_bytes(file.index.schema)
        return known.arrow.equals(self.columns.arrow, check_metadata=True) and has_room(
            physical, self.shape
        )

    def started(self, before: bytes) -> Growth:
        """A file of their own; the one ``before`` it, whose schema this is, may have columns that
        come again."""
        others = ChannelSchema.from_bytes(before).properties if before else NO_SLOTS
        schema = self.needs.open_schema(optional=others)
        batches = fitted_in(self.batches, schema, self.columns)
        note = self.columns.note(schema.arrow)
        return started(batches, note=note, compression=self.compression)


def publishers_of(pieces: list[TailBatch], wanted: IdSet) -> Publishers:
    """The publishers of the events that are sealed (SEM E3)."""
    spans: dict[str, list[Span]] = {}
    for piece in pieces:
        if piece.publisher:
            spans.setdefault(piece.publisher, []).append(Span(piece.first, piece.end))
    found = [(publisher, wanted.overlap(IdSet(theirs))) for publisher, theirs in spans.items()]
    return tuple((publisher, ids.spans) for publisher, ids in found if ids)


def image_of(
    pieces: list[TailBatch], wanted: IdSet, columns: ChannelSchema, compression: Compression
) -> SegmentImage:
    """A segment with the rows of ``wanted``."""
    return lean_image(list(stored_rows(pieces, wanted)), columns, compression)
