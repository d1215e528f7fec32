"""What a node has copied from its local channels is stored, each event once (SEM N9).

A node sends the events of an outbox in their order, one request after the other, and sends them
again until it has an answer. The store remembers, for the outbox as a producer, the id up to which
it has them: what comes again is told by its id, however it is cut into requests.
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
from penstock_server.runtime.writer.requests import Reply


class Copies(Struct, frozen=True):
    """Events of an outbox whose ids follow one another, of one publisher."""

    first: int
    publisher: str
    body: Body

    @property
    def through(self) -> int:
        return self.first + self.body.rows - 1

    def above(self, known: int) -> Copies | None:
        """The copies whose ids are above ``known``; None: there are none."""
        if self.first > known:
            return self
        if self.through <= known:
            return None
        new = self.body.batch.slice(known + 1 - self.first)
        return Copies(known + 1, self.publisher, body_from(new))


def copies_from(parts: Sequence[CopiedPart], content: memoryview) -> list[Copies]:
    """The copies in a request of a node. Raises ``InvalidEvent``."""
    found, at = [], 0
    for part in parts:
        batch = _batch(bytes(content[at : at + part.size]))
        at += part.size
        found.append(Copies(part.through + 1 - batch.num_rows, part.publisher, body_from(batch)))
    if at != len(content):
        raise InvalidEvent(f"copies of {at} bytes in a body of {len(content)}")
    return found


def _batch(data: bytes) -> pa.RecordBatch:
    table = table_from_stream(data, rows_max=BODY_ROWS_MAX).combine_chunks()
    batches = table.to_batches()
    if len(batches) != 1:
        raise InvalidEvent("a part of copied events has none")
    [batch] = batches
    names = list(batch.schema.names)
    if "origin" not in names or batch.schema.field("origin").type != FIELDS["origin"].type:
        raise InvalidEvent("a copied event names the store that it was copied from")
    names.remove("origin")
    check_body(batch.select(names))  # for_join leaves a column besides, however empty the events
    return batch


class TakeCopies(Struct):
    """Store what comes from an outbox. Gives what was taken."""

    number: int
    archive: bool
    producer: str
    copies: Sequence[Copies]
    reply: Reply | None = None

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return [(self.number, [each.body for each in self.copies])]

    def run(self, group: Group) -> CopiesTaken:
        group.settle()
        number = self.number
        state = group.channel(number).state
        if self.archive and state.definition.kind != "queue":
            raise InvalidArgument(
                f"{state.name} is a channel; the destination of an archive join must be a queue"
            )
        known, count = state.producers.newest(self.producer) if self.producer else -1, 0
        for each in self.copies:
            new = each.above(known)
            if new is None:
                continue
            group.publish(
                number,
                [new.body],
                digest_of([new.body], UNLIMITED),
                producer=self.producer,
                sequence=new.through,
                forced=True,
                in_journal=True,
                publisher=new.publisher,
            )
            count += new.body.rows
        return CopiesTaken(state.name, state.definition.kind, count, known=known)
