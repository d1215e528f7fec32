"""The state of a channel without the contents of its events. One realm exports it; another checks
it and imports it with all ids, durables and counts (SEM C7)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from penstock_core.bounds import (
    DURABLE_SELECTORS_CHARACTERS_MAX,
    EVENT_ID_MAX,
    NAME_CHARACTERS_MAX,
    NEXT_ID_MAX,
    NUMBER_MAX,
    TIME_US_MAX,
)
from penstock_core.channel.apply import apply
from penstock_core.channel.state import ChannelState, RealmRules
from penstock_core.durable.durable_state import state_of
from penstock_core.durable.queue import KIND, READERS
from penstock_core.ids.ids import IdSet, Spans
from penstock_core.messages.snapshots import Restored
from penstock_core.vocabulary.backoff import check_backoff
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import (
    DURABLE_MAXIMA,
    DurableAttributes,
    DurableState,
)
from penstock_core.vocabulary.errors import (
    DamagedExport,
    InvalidArgument,
    InvalidName,
    LimitReached,
)
from penstock_core.vocabulary.names import durable_name
from penstock_core.vocabulary.reach import is_everywhere
from penstock_core.vocabulary.stored_ids import Ids, id_set, ranges

_COUNT_MAX = 1 << 20
"""Maximum number of credible redeliveries of one event."""


class ExportedState(Struct, frozen=True, array_like=True):
    """A channel or queue at one point in the order of its realm."""

    restored: Restored
    """The snapshot, including events and durables that exist in memory only."""
    volatile: Spans
    """Stored events that are in memory only."""


def export_state(state: ChannelState) -> ExportedState:
    """Return the current state of a channel; events that clients hold are outstanding."""
    ages, own_expiry = state.ages.state()
    counters = replace(state.counters)
    counters.relayed += len(state.relayed)  # they leave in this step
    departed = state.departures.kept(state.next_id, state.stored)
    restored = Restored(
        definition=state.definition,
        next_id=state.next_id,
        reserved=state.reserved,
        stored=state.stored.spans,
        ages=ages,
        own_expiry=tuple((ends_us, ids.spans) for ends_us, ids in own_expiry),
        durables=tuple(
            _in_ranges(state_of(durable, state.next_id)) for durable in state.durables.values()
        ),
        producers=state.kept_producers,
        consumed=state.acked.spans,
        counters=counters,
        departed=tuple((cause, ids.spans) for cause, ids in departed.items()),
        departed_from=state.departures.known_from,
        topics_since=state.topics_since,
    )
    return ExportedState(restored, state.volatile.spans)


def _in_ranges(durable: DurableState) -> DurableState:
    """Return the state of a durable with all ids as ranges."""
    redelivered = tuple((count, ranges(ids)) for count, ids in durable.redelivered)
    return replace(
        durable,
        outstanding=ranges(durable.outstanding),
        redelivered=redelivered,
        rolled_back=ranges(durable.rolled_back),
        waiting=tuple((until_us, ranges(ids)) for until_us, ids in durable.waiting),
    )


def take_over(state: ChannelState, exported: ExportedState) -> None:
    """Set the state of a newly created channel to the exported state."""
    # The copies of its dead events are in the other realm, so they do not count in this realm.
    apply(state, replace(exported.restored, died=()))
    state.volatile = IdSet(exported.volatile)


def check(exported: ExportedState, rules: RealmRules) -> None:
    """Raise ``DamagedExport`` for a state that is impossible, and ``LimitReached`` if it exceeds a
    limit of this realm.

    Type and engine of the definition are valid, because the directory refuses others.
    """
    restored = exported.restored
    _check_bounds(restored)
    for description, spans in _spans_of(exported):
        _check_spans(description, spans)
    stored = id_set(restored.stored)
    for description, ids_of_part in _parts_of_stored(exported):
        ids = id_set(ids_of_part)
        if len(ids.overlap(stored)) != len(ids):
            raise DamagedExport(f"{description}: some of the events are not stored")
    highest = stored.highest
    # With a lower next id, a publish would give the id of a stored event to a new one.
    if restored.next_id < 0 or (highest is not None and restored.next_id <= highest):
        raise DamagedExport(f"the next id is {restored.next_id}, the highest stored one {highest}")
    live, counters = len(stored), restored.counters
    if counters.published != live + counters.departed_count:
        raise DamagedExport(
            f"the counters do not add up: {counters.published} published, {live} live, "
            f"{counters.departed_count} gone"
        )
    if unknown_causes := {cause for cause, _ in restored.departed}.difference(Cause):
        raise DamagedExport(f"unknown causes of removal: {', '.join(sorted(unknown_causes))}")
    _check_memory(exported, rules)
    _check_durables(restored.definition, restored.durables, rules)
    if rules.durables_max and len(restored.durables) > rules.durables_max:
        raise LimitReached(
            f"the export has {len(restored.durables)} durables, and more than "
            f"{rules.durables_max} are not allowed on a channel (limits.durables_per_channel_max); "
            "raise the limit"
        )
    characters = sum(len(durable.selector) for durable in restored.durables)
    if characters > DURABLE_SELECTORS_CHARACTERS_MAX:
        raise LimitReached(
            f"the export has durables whose selectors have {characters:,} characters together; "
            f"allowed are {DURABLE_SELECTORS_CHARACTERS_MAX:,}"
        )
    _check_producers(restored)


def _check_bounds(restored: Restored) -> None:
    """Refuse numbers that no realm would have written, even in a signed export
    (``penstock_core.bounds``)."""
    for description, value, minimum, maximum in _numbers_of(restored):
        if not minimum <= value <= maximum:
            raise DamagedExport(
                f"{description} is out of bounds: {value}; allowed are {minimum} to {maximum}"
            )
    for description, text in _names_of(restored):
        if len(text) > NAME_CHARACTERS_MAX:
            raise DamagedExport(
                f"{description} {text[:40]!r}… has {len(text)} characters; at most "
                f"{NAME_CHARACTERS_MAX} are allowed"
            )


def _numbers_of(restored: Restored) -> Iterator[tuple[str, int, int, int]]:
    """Yield the description, value, minimum and maximum of every number outside ranges of ids."""
    yield "the next id", restored.next_id, 0, NEXT_ID_MAX
    yield "the end of the reserved ids", restored.reserved, 0, NEXT_ID_MAX
    yield "the first id with a known cause of removal", restored.departed_from, -1, restored.next_id
    yield "the first id with topics", restored.topics_since, 0, restored.next_id
    for name in Counters.__struct_fields__:
        yield f"the counter {name}", getattr(restored.counters, name), 0, NUMBER_MAX
    for first, at_us in restored.ages:
        yield "the first id of an age", first, 0, restored.next_id
        yield "the time of a publish", at_us, 0, TIME_US_MAX
    for ends_us, _ in restored.own_expiry:
        yield "the end of an event's own TTL", ends_us, 0, TIME_US_MAX
    for durable in restored.durables:
        owner = f"durable {durable.name[:40]!r}"
        yield f"{owner}: its position", durable.head, 0, EVENT_ID_MAX + 1
        for name, maximum in DURABLE_MAXIMA.items():
            yield f"{owner}: {name}", getattr(durable, name), 0, maximum
        for count, _ in durable.redelivered:
            yield f"{owner}: a count of redeliveries", count, 1, _COUNT_MAX
        for until_us, _ in durable.waiting:
            yield f"{owner}: the time an event waits for", until_us, 0, TIME_US_MAX
    for producer in restored.producers:
        owner = f"producer {producer.name[:40]!r}"
        yield f"{owner}: the highest forgotten sequence", producer.forgotten, -1, NUMBER_MAX
        yield f"{owner}: the time of its last publish", producer.at_us, 0, TIME_US_MAX
        for sequence, _ in producer.recent:
            yield f"{owner}: a sequence", sequence, 0, NUMBER_MAX


def _names_of(restored: Restored) -> Iterator[tuple[str, str]]:
    """Yield the description and the text of every name in an export."""
    yield from (("durable", durable.name) for durable in restored.durables)
    for durable in restored.durables:
        for name in DurableAttributes.__struct_fields__:
            if isinstance(value := getattr(durable, name), str):
                yield f"durable {durable.name[:40]!r}: {name}", value
    yield from (("producer", producer.name) for producer in restored.producers)


def _spans_of(exported: ExportedState) -> Iterator[tuple[str, Ids]]:
    """Yield the description and the ids of every set of ids in an export."""
    yield "the stored events", exported.restored.stored
    for _, spans in exported.restored.own_expiry:
        yield "the events with an event TTL", spans
    for producer in exported.restored.producers:
        for _, span in producer.recent:
            yield f"producer {producer.name}", (span,)
    for cause, ids in exported.restored.departed:
        yield f"the events removed as {cause}", ids
    yield from _parts_of_stored(exported)


def _parts_of_stored(exported: ExportedState) -> Iterator[tuple[str, Ids]]:
    """Yield the sets of ids that must be parts of the stored events."""
    yield "the events in memory", exported.volatile
    yield "the acknowledged events", exported.restored.consumed
    for durable in exported.restored.durables:
        owner = f"durable {durable.name}" if durable.name else "the readers' group"
        yield owner, durable.outstanding
        for _, spans in durable.redelivered:
            yield f"{owner}, redelivered", spans
        yield f"{owner}, rolled back", durable.rolled_back
        for _, spans in durable.waiting:
            yield f"{owner}, waiting for a time", spans


def _check_spans(description: str, ids: Ids) -> None:
    """Raise ``DamagedExport`` unless the ranges of ids are valid and ascend."""
    try:
        spans = ranges(ids)
    except ValueError as error:
        raise DamagedExport(f"{description}: {error}") from error
    is_in_bounds = all(0 <= first < end <= EVENT_ID_MAX + 1 for first, end in spans)
    if not is_in_bounds or any(span.end > following.first for span, following in pairwise(spans)):
        raise DamagedExport(f"{description}: the ranges of ids are not in ascending order")


def _check_memory(exported: ExportedState, rules: RealmRules) -> None:
    """Refuse events in memory only, if the channel's type does not have such events (SEM C1)."""
    name = exported.restored.definition.type
    kind = rules.type_of(exported.restored.definition)
    memory, stored = len(IdSet(exported.volatile)), len(id_set(exported.restored.stored))
    if kind.relays and stored:
        raise DamagedExport(f"{stored} events are stored; a {name} channel keeps none")
    keeps_all = kind.survives_restart or is_everywhere(exported.restored.definition)
    if not keeps_all and memory != stored:
        raise DamagedExport(f"{stored - memory} events are not in memory, on a {name} channel")


def _check_durables(
    definition: Definition, durables: tuple[DurableState, ...], rules: RealmRules
) -> None:
    """Raise ``DamagedExport`` for durables that a store of this definition cannot have."""
    names = [durable.name for durable in durables]
    if len(set(names)) < len(names):
        raise DamagedExport(f"two durables have one name: {', '.join(sorted(names))}")
    if (READERS in names) != (definition.kind == "queue"):
        raise DamagedExport(f"the readers' group is part of a queue; this is a {definition.kind}")
    for durable in durables:
        # The readers' group has an empty name, which no durable of a user can have.
        if durable.name == READERS:
            is_known = durable.kind == KIND.name
        else:
            is_known = durable.kind in rules.kinds
            try:
                durable_name(durable.name)
            except InvalidName as error:
                raise DamagedExport(str(error)) from error
        _check_backoff(durable)
        if not is_known:
            raise DamagedExport(
                f"durable {durable.name} is of kind {durable.kind!r}; "
                f"allowed are {', '.join(sorted(rules.kinds))}"
            )


def _check_backoff(durable: DurableState) -> None:
    try:
        check_backoff(durable.backoff)
    except InvalidArgument as error:
        raise DamagedExport(f"durable {durable.name}: {error}") from error


def _check_producers(restored: Restored) -> None:
    """Raise ``DamagedExport`` for remembered publishes that are impossible."""
    for producer in restored.producers:
        sequences = [sequence for sequence, _ in producer.recent]
        if sequences != sorted(set(sequences)):
            raise DamagedExport(f"producer {producer.name}: its publishes are not in order")
        if any(span.end > restored.next_id for _, span in producer.recent):
            raise DamagedExport(f"producer {producer.name} has ids that were never assigned")
