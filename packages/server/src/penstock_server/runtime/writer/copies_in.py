"""Stores the copies that a node sends from its outboxes, each event once (SEM N9).

A node sends the events of an outbox in order, one request after the other, and repeats a request
until it has an answer. The store treats the outbox as a producer and remembers the highest id that
it has stored of this outbox. Repeated events are recognized by their id, even if a node divides
them into other requests than before.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from msgspec import Struct

from penstock_core.api.joins import CopiedPart, CopiesTaken
from penstock_core.columns.events.check import check_body
from penstock_core.columns.schema.ipc import table_from_stream
from penstock_core.columns.schema.layout import BODY_ROWS_MAX, FIELDS
from penstock_core.vocabulary.errors import InvalidArgument, InvalidEvent
from penstock_server.runtime.store.bodies import UNLIMITED, Body, body_from, digest_of
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.requests import ShardRequest


class Copies(Struct, frozen=True):
    """Events of an outbox with consecutive ids, of one publisher."""

    first: int
    """Id of the first event in its outbox."""
    publisher: str
    body: Body

    @property
    def through(self) -> int:
        """Id of the last event in its outbox."""
        return self.first + self.body.rows - 1

    def above(self, stored_id: int) -> Copies | None:
        """Return the copies with ids above ``stored_id``; None if all of them are stored."""
        if self.first > stored_id:
            return self
        if self.through <= stored_id:
            return None
        new = self.body.batch.slice(stored_id + 1 - self.first)
        return Copies(stored_id + 1, self.publisher, body_from(new))


def copies_from(parts: Sequence[CopiedPart], content: memoryview) -> list[Copies]:
    """Return the copies in a request of a node. Raises ``InvalidEvent``."""
    copies, offset = [], 0
    for part in parts:
        batch = _batch(bytes(content[offset : offset + part.size]))
        offset += part.size
        copies.append(Copies(part.through + 1 - batch.num_rows, part.publisher, body_from(batch)))
    if offset != len(content):
        raise InvalidEvent(
            f"the parts of copied events have {offset} bytes, but the body has {len(content)}"
        )
    return copies


def _batch(data: bytes) -> pa.RecordBatch:
    """Return the events in one part of a request to store copies, after checking them. Raises
    ``InvalidEvent``."""
    table = table_from_stream(data, rows_max=BODY_ROWS_MAX).combine_chunks()
    batches = table.to_batches()
    if len(batches) != 1:
        raise InvalidEvent("a part of copied events is empty; each must have at least one event")
    [batch] = batches
    names = list(batch.schema.names)
    if "origin" not in names or batch.schema.field("origin").type != FIELDS["origin"].type:
        raise InvalidEvent("a copied event has no origin; name the store that it was copied from")
    names.remove("origin")
    # At least one column is left without the origin, because ``for_join`` always keeps one.
    check_body(batch.select(names))
    return batch


class TakeCopies(ShardRequest):
    """The request to store events from an outbox; its answer is the number of events that were
    new."""

    channel_id: int
    archive: bool
    """Whether the join is an archive join, whose destination must be a queue."""
    producer: str
    """Name that identifies the outbox; empty if repeated events need not be recognized."""
    copies: Sequence[Copies]

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return [(self.channel_id, [copies.body for copies in self.copies])]

    def run(self, group: Group) -> CopiesTaken:
        group.settle()
        channel_id = self.channel_id
        state = group.channel(channel_id).state
        if self.archive and state.definition.kind != "queue":
            raise InvalidArgument(
                f"{state.name} is a channel; the destination of an archive join must be a queue"
            )
        newest_id, count = state.producers.newest(self.producer) if self.producer else -1, 0
        for copies in self.copies:
            new = copies.above(newest_id)
            if new is None:
                continue
            # Forced, because the events are stored at the node: refusing one would block all
            # behind it in the outbox.
            group.publish(
                channel_id,
                [new.body],
                digest_of([new.body], UNLIMITED),
                producer=self.producer,
                sequence=new.through,
                forced=True,
                in_journal=True,
                publisher=new.publisher,
            )
            count += new.body.rows
        return CopiesTaken(state.name, state.definition.kind, count, known=newest_id)
