"""The rows of a channel that are sealed: into a new file, or at the end of the newest one."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from penstock_core.columns.files.growing_segment import Growth, started
from penstock_core.columns.files.lean_columns import Needs, fitted_in, has_columns, lean_image
from penstock_core.columns.files.segments import SegmentImage
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.schema.shapes import NO_SLOTS, StructShape
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.compression import Compression
from penstock_server.runtime.store.sealed_file import Publishers, SealedFile
from penstock_server.runtime.store.tail_batch import TailBatch, stored_rows


class NewRows(NamedTuple):
    """Events to be added to the single file of a channel."""

    batches: list[pa.RecordBatch]
    publishers: Publishers
    columns: ChannelSchema
    """The columns of the channel."""
    needs: Needs
    shape: StructShape
    """The properties that get separate columns."""
    compression: Compression

    @classmethod
    def of(
        cls,
        tail_batches: list[TailBatch],
        ids: IdSet,
        columns: ChannelSchema,
        compression: Compression,
    ) -> NewRows:
        batches, needs = list(stored_rows(tail_batches, ids)), Needs(columns)
        needs.add_all(batches)
        publishers = publishers_of(tail_batches, ids)
        return cls(
            batches, publishers, columns, needs=needs, shape=needs.shape(), compression=compression
        )

    def fits(self, file: SealedFile) -> bool:
        """Whether the file's schema has all columns of the channel, and physical columns for the
        properties of these events."""
        logical = ChannelSchema.of_file(file.index.schema)
        physical = ChannelSchema.from_bytes(file.index.schema)
        return logical.arrow.equals(self.columns.arrow, check_metadata=True) and has_columns(
            physical, self.shape
        )

    def started(self, previous: bytes) -> Growth:
        """Return a new file with these events. ``previous`` is the schema of the file before, whose
        columns the new file gets, too, because later events may need them again."""
        previous_columns = ChannelSchema.from_bytes(previous).properties if previous else NO_SLOTS
        schema = self.needs.open_schema(optional=previous_columns)
        batches = fitted_in(self.batches, schema, self.columns)
        note = self.columns.note(schema.arrow)
        return started(batches, note=note, compression=self.compression)


def publishers_of(tail_batches: list[TailBatch], event_ids: IdSet) -> Publishers:
    """Return the publishers of the events ``event_ids`` (SEM E3)."""
    spans: dict[str, list[Span]] = {}
    for tail_batch in tail_batches:
        if tail_batch.publisher:
            spans.setdefault(tail_batch.publisher, []).append(
                Span(tail_batch.first, tail_batch.end)
            )
    published = [(name, event_ids.overlap(IdSet(spans_of))) for name, spans_of in spans.items()]
    return tuple((name, ids.spans) for name, ids in published if ids)


def image_of(
    tail_batches: list[TailBatch], ids: IdSet, columns: ChannelSchema, compression: Compression
) -> SegmentImage:
    """Return a segment with the events ``ids`` of ``tail_batches``."""
    return lean_image(list(stored_rows(tail_batches, ids)), columns, compression)
