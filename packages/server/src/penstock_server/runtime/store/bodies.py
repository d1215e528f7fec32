"""Batches of events on their way in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock_core.columns.events.digest import digest
from penstock_core.columns.events.single_event import codec_in_message
from penstock_core.columns.events.storage_defaults import with_dictionary, with_priority
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.ipc import (
    batch_bytes,
    batch_from,
    names_in,
    schema_bytes,
    schema_from,
)
from penstock_core.columns.schema.layout import EVENT_BYTES_MIN
from penstock_core.columns.selectors import EventFrame, SelectorIndex
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.columns.selectors.index import FoundSelectors
from penstock_core.columns.selectors.outcomes import PredicateOutcomes
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.definitions import PRIORITY_DEFAULT, Storage
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.ports import Buffer

SelectorKey = tuple[object, str]
"""A selector, by what knows the fields of messages for it, and its text."""

UNLIMITED = 1 << 62
"""Size limit for events already accepted elsewhere: none."""


class Body:
    """A validated batch."""

    __slots__ = (
        "_found",
        "buffer",
        "evaluated",
        "known_digest",
        "names",
        "outcomes",
        "parsed",
        "rows",
        "schema_bytes",
        "weight",
    )

    def __init__(
        self,
        buffer: Buffer,
        batch: pa.RecordBatch | None,
        schema_bytes: bytes,
        known_digest: Digest | None = None,
        names: frozenset[str] | None = None,
    ) -> None:
        """Without the ``batch`` its digest is known: most of a small publish is never parsed.
        ``names`` of its columns, where they are known."""
        self.buffer = buffer
        self.parsed = batch
        """The parsed batch, once it was needed."""
        self.schema_bytes = schema_bytes
        self.names = names_in(schema_bytes) if names is None else names
        """Names of its columns."""
        if batch is not None:
            rows: int = batch.num_rows
        else:
            assert known_digest is not None, "somebody has looked at the bytes"
            rows = known_digest.count
        self.rows = rows
        """Number of its events."""
        self.weight = max(len(buffer), EVENT_BYTES_MIN * rows)
        """Bytes it counts against limits."""
        self.known_digest = known_digest
        """The digest if it is known; staged batches need it twice."""
        self.outcomes: PredicateOutcomes | None = None
        """Cached outcomes of the selectors' predicates for its events."""
        self.evaluated: frozenset[SelectorKey] = frozenset()
        """The selectors that a thread has put to it already."""
        self._found: dict[tuple[SelectorIndex, object], tuple[int, FoundSelectors]] = {}

    @property
    def batch(self) -> pa.RecordBatch:
        if self.parsed is None:
            self.parsed = batch_from(self.buffer, schema_from(self.schema_bytes))
        return self.parsed

    @property
    def schema(self) -> pa.Schema:
        return schema_from(self.schema_bytes)

    def found_in(self, index: SelectorIndex, messages: MessageAccess | None) -> FoundSelectors:
        """The selectors of an index that may match its events, looked up once."""
        known = self._found.get((index, messages))
        if known is None or known[0] != index.version:
            found = index.found_in(EventFrame(self.batch, 0, messages))
            known = self._found[index, messages] = index.version, found
        return known[1]

    def value_of(self, name: str) -> Any:
        """The value of a property of a single event whose batch was not needed yet: None if it has
        none; ``NotImplemented`` if its batch has to be parsed to tell."""
        form = None if self.parsed is not None else codec_in_message(self.schema_bytes)
        place = None if form is None else form.column_index(name)
        if form is None or place is None:
            return NotImplemented
        return None if place < 0 else form.value_in(bytes(self.buffer), place)

    def digest(self, event_bytes_max: int) -> Digest:
        """What the core's rules need to know of it. Raises ``EventTooLarge``."""
        if self.known_digest is None or self.known_digest.largest > event_bytes_max:
            self.known_digest = digest(self.batch, event_bytes_max)
        return self.known_digest


def body_from(batch: pa.RecordBatch, outcomes: PredicateOutcomes | None = None) -> Body:
    """The body of a batch the realm has made itself. ``outcomes`` are those of the events it has
    made it of, of which it has changed nothing that the publisher gave."""
    body = Body(memoryview(batch_bytes(batch)), batch, schema_bytes(batch.schema))
    body.outcomes = outcomes
    return body


def prepared(
    bodies: Sequence[Body], storage: Storage, first_id: int, at_us: int, publisher: str
) -> Sequence[Body]:
    """The bodies with what the channel adds to every event (SEM S: priority, stamp_dictionary)."""
    if storage.priority == PRIORITY_DEFAULT and not storage.stamp_dictionary:
        return bodies
    user, _, host = publisher.rpartition("@")
    found = []
    for body in bodies:
        batch = body.batch
        if storage.priority != PRIORITY_DEFAULT:
            batch = with_priority(batch, storage.priority)
        if storage.stamp_dictionary:
            batch = with_dictionary(batch, first_id, at_us, publisher=user, host=host)
        found.append(body_from(batch, body.outcomes))
        first_id += batch.num_rows
    return found


def digest_of(bodies: Sequence[Body], event_bytes_max: int) -> Digest:
    """One digest of several batches, laid end to end. Raises ``EventTooLarge``."""
    if not bodies:
        raise InvalidArgument("a publish has at least one event")
    if len(bodies) == 1:
        return bodies[0].digest(event_bytes_max)
    return joined([body.digest(event_bytes_max) for body in bodies])


def joined(digests: Sequence[Digest]) -> Digest:
    """The digest of several batches laid end to end."""
    volatile: list[Span] = []
    transient: list[Span] = []
    ttls: dict[int, list[Span]] = {}
    first = 0
    for part in digests:
        volatile += _shifted(part.volatile, first)
        transient += _shifted(part.transient, first)
        for ttl_ms, spans in part.ttls:
            ttls.setdefault(ttl_ms, []).extend(_shifted(spans, first))
        first += part.count
    return Digest(
        first,
        sum(part.size for part in digests),
        max(part.largest for part in digests),
        volatile=tuple(volatile),
        transient=tuple(transient),
        ttls=tuple((ttl_ms, tuple(spans)) for ttl_ms, spans in ttls.items()),
    )


def _shifted(spans: Spans, by: int) -> list[Span]:
    return [Span(*span).shifted(by) for span in spans]


def as_keyed(bodies: Sequence[Body], digest: Digest) -> list[pa.RecordBatch]:
    """The batches as publish keys see them: what is never stored replaces nothing (SEM E8)."""
    batches = [body.batch for body in bodies]
    if not digest.transient:
        return batches
    return [_without_transient(batch) for batch in batches]


def _without_transient(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = batch.schema.names
    if "transient" not in names or "properties" not in names:
        return batch
    flags = batch.column("transient").fill_null(fill_value=False)
    at = names.index("properties")
    properties = batch.column(at)
    blank = pa.nulls(len(properties), properties.type)
    return batch.set_column(at, names[at], pc.if_else(flags, blank, properties))
