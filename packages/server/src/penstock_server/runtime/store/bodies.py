"""Bodies: batches of events on their way in, validated and not yet stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from penstock_core.columns.events.digest import digest
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.single_event import (
    CodecCache,
    SingleEventCodec,
    codec_in_message,
    encode_event,
)
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
from penstock_core.columns.selectors.index import CandidateSelectors
from penstock_core.columns.selectors.outcomes import PredicateOutcomes
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.definitions import PRIORITY_DEFAULT, Storage
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.ports import Buffer

SelectorKey = tuple[object, str]
"""Key of a selector's results: the reader of message fields that the selector was evaluated with,
and its text."""

UNLIMITED = 1 << 62
"""Size limit in bytes that no event exceeds, for events that the realm has already accepted."""

PLAIN_KINDS_MAX: Final = 64
"""Maximum number of cached codecs, each of at most about 250 KB. A codec is for single events from
HTTP with one combination of property names and types."""
PLAIN_PROPERTIES_MAX: Final = 16
"""Maximum number of properties of an event that is encoded without Arrow."""
PLAIN_NAME_CHARACTERS_MAX: Final = 1_024
"""Maximum number of characters of all property names of an event that is encoded without Arrow."""
_codecs: Final = CodecCache(PLAIN_KINDS_MAX)
_kinds: Final[set[tuple[object, ...]]] = set()
"""Combinations of property names and types that were published."""


class Body:
    """A validated batch of events."""

    __slots__ = (
        "_candidates",
        "buffer",
        "codec",
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
        codec: SingleEventCodec | None = None,
    ) -> None:
        """If ``batch`` is None, ``known_digest`` is required: small publishes are usually stored
        without being parsed. ``names`` are the names of the columns, if the caller knows them.
        ``codec`` is the one that has encoded the event, if it is not that of the schema."""
        self.codec = codec
        self.buffer = buffer
        self.parsed = batch
        """The parsed batch; None until it is needed."""
        self.schema_bytes = schema_bytes
        self.names = names_in(schema_bytes) if names is None else names
        """Names of the columns of the batch."""
        if batch is not None:
            rows: int = batch.num_rows
        else:
            assert known_digest is not None, "a body without a batch has a digest"
            rows = known_digest.count
        self.rows = rows
        """Number of events in the body."""
        self.weight = max(len(buffer), EVENT_BYTES_MIN * rows)
        """Bytes that count against limits."""
        self.known_digest = known_digest
        """The digest; None until it is computed. It is cached because staged batches need it
        twice."""
        self.outcomes: PredicateOutcomes | None = None
        """Cached outcomes of selector predicates on the events."""
        self.evaluated: frozenset[SelectorKey] = frozenset()
        """The selectors that a thread has evaluated on the events."""
        self._candidates: dict[tuple[SelectorIndex, object], tuple[int, CandidateSelectors]] = {}

    @property
    def batch(self) -> pa.RecordBatch:
        if self.parsed is None:
            self.parsed = batch_from(self.buffer, schema_from(self.schema_bytes))
        return self.parsed

    @property
    def schema(self) -> pa.Schema:
        return schema_from(self.schema_bytes)

    def candidates_in(
        self, index: SelectorIndex, messages: MessageAccess | None
    ) -> CandidateSelectors:
        """Return the selectors of an index that may match some events of this body. The result is
        cached until the index changes."""
        cached = self._candidates.get((index, messages))
        if cached is None or cached[0] != index.version:
            matches = None
            if self.rows == 1 and self.parsed is None and messages is None:
                matches = index.candidates_of(self.value_of)
            if matches is None:
                matches = index.candidates_in(EventFrame(self.batch, 0, messages))
            cached = self._candidates[index, messages] = index.version, matches
        return cached[1]

    def value_of(self, name: str) -> Any:
        """Return a property of a single event from the bytes, without parsing the batch.

        Returns None if the event does not have the property, and ``NotImplemented`` if the bytes
        are in a form that only parsing can read.
        """
        if self.parsed is not None:
            return NotImplemented
        codec = self.codec or codec_in_message(self.schema_bytes)
        index = None if codec is None else codec.column_index(name)
        if codec is None or index is None:
            return NotImplemented
        return None if index < 0 else codec.value_in(bytes(self.buffer), index)

    def digest(self, event_bytes_max: int) -> Digest:
        """Return what the core's rules need to know about the events. Raises ``EventTooLarge``."""
        # A digest known to exceed the limit is computed again: that raises the error.
        if self.known_digest is None or self.known_digest.largest > event_bytes_max:
            self.known_digest = digest(self.batch, event_bytes_max)
        return self.known_digest


def body_from(batch: pa.RecordBatch, outcomes: PredicateOutcomes | None = None) -> Body:
    """Return the body of a batch that the realm has made itself. ``outcomes`` are those of the
    original events: the realm must not have changed values that the publisher set."""
    body = Body(memoryview(batch_bytes(batch)), batch, schema_bytes(batch.schema))
    body.outcomes = outcomes
    return body


def body_of_plain(event: Event) -> Body | None:
    """Return the body of one event, encoded without Arrow; None if the event needs Arrow, which
    also reports errors. Raises ``InvalidEvent``."""
    properties = event.properties
    # Clients choose the names, and must not be able to fill the memory with codecs.
    if len(properties) > PLAIN_PROPERTIES_MAX:
        return None
    if sum(map(len, properties)) > PLAIN_NAME_CHARACTERS_MAX:
        return None
    if not _is_repeated((*properties, *map(type, properties.values()))):
        return None
    encoded = encode_event(event, _codecs)
    if encoded is None:
        return None
    codec, message, digest = encoded
    return Body(message, None, codec.schema_message, known_digest=digest, names=codec.names)


def _is_repeated(kind: tuple[object, ...]) -> bool:
    """Return whether an event of this kind has already been published. Building a codec takes
    longer than encoding ten events with Arrow, so the first event of a kind does not get one."""
    if kind in _kinds:
        return True
    if len(_kinds) >= PLAIN_KINDS_MAX:
        _kinds.clear()
    _kinds.add(kind)
    return False


def prepared(
    bodies: Sequence[Body], storage: Storage, first_id: int, at_us: int, publisher: str
) -> Sequence[Body]:
    """Return the bodies with the columns that the channel adds to every event (SEM S: priority,
    stamp_dictionary)."""
    if storage.priority == PRIORITY_DEFAULT and not storage.stamp_dictionary:
        return bodies
    user, _, host = publisher.rpartition("@")
    stamped_bodies = []
    for body in bodies:
        batch = body.batch
        if storage.priority != PRIORITY_DEFAULT:
            batch = with_priority(batch, storage.priority)
        if storage.stamp_dictionary:
            batch = with_dictionary(batch, first_id, at_us, publisher=user, host=host)
        stamped_bodies.append(body_from(batch, body.outcomes))
        first_id += batch.num_rows
    return stamped_bodies


def digest_of(bodies: Sequence[Body], event_bytes_max: int) -> Digest:
    """Return the digest of several batches, as if they were one. Raises ``EventTooLarge``, and
    ``InvalidArgument`` without batches."""
    if not bodies:
        raise InvalidArgument("the publish has no event; a publish must have at least one")
    if len(bodies) == 1:
        return bodies[0].digest(event_bytes_max)
    return joined([body.digest(event_bytes_max) for body in bodies])


def joined(digests: Sequence[Digest]) -> Digest:
    """Return the digest of several batches, as if they were one."""
    volatile: list[Span] = []
    transient: list[Span] = []
    ttls: dict[int, list[Span]] = {}
    first = 0
    # Positions in a digest count from the first event of its batch.
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


def _shifted(spans: Spans, first_id: int) -> list[Span]:
    """Return spans of offsets as spans of ids, which begin at ``first_id``."""
    return [Span(*span).shifted(first_id) for span in spans]


def as_keyed(bodies: Sequence[Body], digest: Digest) -> list[pa.RecordBatch]:
    """Return the batches for the key index. Transient events are never stored, so they must not
    replace others: their properties are left out (SEM E8)."""
    batches = [body.batch for body in bodies]
    if not digest.transient:
        return batches
    return [_without_transient(batch) for batch in batches]


def _without_transient(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = batch.schema.names
    if "transient" not in names or "properties" not in names:
        return batch
    flags = batch.column("transient").fill_null(fill_value=False)
    index = names.index("properties")
    properties = batch.column(index)
    # Values are blanked and rows kept, because the position of a row determines its id.
    blank = pa.nulls(len(properties), properties.type)
    return batch.set_column(index, names[index], pc.if_else(flags, blank, properties))
