"""Evaluates selectors before the single writer publishes events that no client has sent: stored
events that move to another store, and the merged states that result from deltas. If the evaluation
is expensive, the turn of the writer changes nothing and raises :class:`NeedsEvaluation`. A thread
then evaluates the selectors, and the writer decides the work again with the results, which
:class:`MatchCache` keeps by event id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.decided import Decided
from penstock_core.columns.events.batch import ids_of, stamp
from penstock_core.columns.selectors import row_bytes_of
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.publishing import Publish
from penstock_core.messages.retention import Removed, Sweep
from penstock_core.messages.settlements import Buried
from penstock_core.messages.unions import StoredFact
from penstock_server.runtime.delivery.selection import scan_cost
from penstock_server.runtime.store.bodies import Body, SelectorKey
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.match_cache import MatchCache, NeedsEvaluation
from penstock_server.runtime.writer.publish_selectors import selectors_of, selectors_of_body


class OpenGroup(Protocol):
    """The part of a :class:`~penstock_server.runtime.writer.group.Group` used in this module."""

    state: RealmState
    now_us: int
    match_cache: MatchCache
    evaluations: list[NeedsEvaluation]
    """Evaluations to start after this group."""
    sweeping: Sweep
    turn_cost_max: int
    """Limit on the cost of all evaluations for moving events in one turn of the writer. The cost is
    the bytes to examine, times the work of the selectors."""

    @property
    def is_half_done(self) -> bool:
        """Whether the current work has changed something. Then the work cannot be decided again."""
        ...

    def charge_evaluation(self, cost: int) -> bool:
        """Whether selectors may be evaluated in this turn, at this cost; if so, the cost is
        counted."""
        ...


def evaluation_cost(selectors: Mapping[SelectorKey, int], rows: int, size: int) -> int:
    """Return the :func:`~penstock_server.runtime.delivery.selection.scan_cost` of selectors
    together. ``selectors`` maps each selector to its work."""
    row_bytes = sum([row_bytes_of(text) for _, text in selectors])
    return scan_cost(sum(selectors.values()), row_bytes, rows, size=size)


# --- in the turn ----------------------------------------------------------------------------


def evaluation_before_moving(
    group: OpenGroup,
    channel_id: int,
    channel: ChannelMachine,
    facts: Iterable[StoredFact],
    published: PublishedBodies = (),
) -> NeedsEvaluation | None:
    """Return the evaluation needed before ``facts`` are applied, because events move in them; None
    if it is cheap, or done. ``published`` has the bodies being published, which may move
    themselves."""
    dead_store = group.state.directory.dead_event_store_of(channel_id)
    selectors = {} if dead_store is None else selectors_of(group.state, dead_store)
    dead = _moving(facts) if selectors else IdSet()
    if not dead:
        return None
    largest = max(channel.state.rules.event_bytes_max, channel.state.event_bytes)
    if evaluation_cost(selectors, len(dead), int(len(dead) * largest)) <= group.turn_cost_max:
        return None
    # Only now, because reading costs more than the estimate above.
    rows = group.state.stores[channel_id].read(dead.overlap(channel.state.stored).spans, Damage())
    return needs_evaluation(
        group,
        channel_id,
        [*(part.batch for part in rows), *_among(published, dead)],
        selectors=selectors,
    )


PublishedBodies = Sequence[tuple[Span, Body]]
"""Bodies being published, with the ids that they will have."""


def _moving(facts: Iterable[StoredFact]) -> IdSet:
    """Return the events that move to the dead event store."""
    dead = IdSet()
    for fact in facts:
        if isinstance(fact, Removed):
            dead.add_all(IdSet(fact.dead))
        elif isinstance(fact, Buried):
            dead.add_all(IdSet(fact.spans))
    return dead


def _among(published: PublishedBodies, dead: IdSet) -> list[pa.RecordBatch]:
    """Return the batches being published that have dead events."""
    return [stamp(body.batch, span, 0) for span, body in published if dead.count(span)]


def needs_evaluation(
    group: OpenGroup,
    channel_id: int,
    batches: Sequence[pa.RecordBatch],
    selectors: Mapping[SelectorKey, int],
) -> NeedsEvaluation | None:
    """Return the evaluation needed before these events move; None if they may move now, because the
    results are cached or the other evaluations are cheap. The batches have event ids."""
    evaluations: list[tuple[Body, dict[SelectorKey, int]]] = []
    cost = 0
    for batch in batches:
        ids = ids_of(batch)
        missing = group.match_cache.lacks(channel_id, ids, selectors)
        if not len(missing):
            continue
        body = _body_of(batch.filter(pa.array(np.isin(ids, missing))))
        evaluations.append((body, dict(selectors)))
        cost += evaluation_cost(selectors, body.rows, body.weight)
    if group.charge_evaluation(cost):
        return None
    bodies = [body for body, _ in evaluations]
    cache = group.match_cache  # the group itself has all bodies of its requests
    return NeedsEvaluation(channel_id, evaluations, lambda: cache.keep(channel_id, bodies))


def _body_of(batch: pa.RecordBatch) -> Body:
    """Wrap stored events in a body for evaluation. It is never stored, so it has no bytes."""
    body = Body(b"", batch, b"", names=frozenset())
    body.weight = max(batch.nbytes, body.weight)
    return body


def evicting(
    group: OpenGroup, channel_id: int, command: Publish, decided: Decided, bodies: Sequence[Body]
) -> Decided:
    """Return the decision of a publish that may evict events to another store. If the current work
    is half done, the eviction is put off to a later sweep. Raises ``NeedsEvaluation``."""
    channel = group.state.channels[channel_id]
    # With the ids that the events will have, because a large publish may evict its own first
    # events.
    first, published = channel.state.next_id, []
    for body in bodies:
        published.append((Span(first, first + body.rows), body))
        first += body.rows
    if require_evaluation(group, channel_id, channel, facts=decided.facts, published=published):
        return channel.decide(replace(command, evicts_later=True), group.now_us)
    return decided


def may_sweep(group: OpenGroup, channel_id: int, channel: ChannelMachine) -> bool:
    """Whether due events of a channel may move now. If not, they stay hidden until a thread has
    evaluated the selectors on them."""
    if channel_id in group.match_cache.sweeping:
        return False
    # Decided only to see which events would move: the facts are not applied here.
    facts = channel.decide(group.sweeping, group.now_us).facts
    evaluation = evaluation_before_moving(group, channel_id, channel, facts=facts)
    if evaluation is not None:
        group.match_cache.sweeping.add(channel_id)
        group.evaluations.append(evaluation)
    return evaluation is None


def require_evaluation(
    group: OpenGroup,
    channel_id: int,
    channel: ChannelMachine,
    facts: Iterable[StoredFact],
    published: PublishedBodies = (),
) -> bool:
    """Raise ``NeedsEvaluation`` if selectors must be evaluated before events move and nothing has
    been changed yet. Return True if the evaluation was needed, but the current work has already
    changed something and so cannot be decided again."""
    evaluation = evaluation_before_moving(
        group, channel_id, channel, facts=facts, published=published
    )
    if evaluation is not None and not group.is_half_done:
        raise evaluation
    return evaluation is not None


def evaluated_states(group: OpenGroup, channel_id: int, states: Sequence[Body]) -> Sequence[Body]:
    """Return the merged states that a publish leads to, with cached results. Raises
    ``NeedsEvaluation`` if evaluating the selectors on them takes long."""
    cached = group.match_cache.states(channel_id, states)
    if cached is not None:
        return cached
    evaluations = [(body, selectors_of_body(group.state, channel_id, body)) for body in states]
    cost = sum(
        evaluation_cost(selectors, body.rows, body.weight) for body, selectors in evaluations
    )
    if group.is_half_done or group.charge_evaluation(cost):
        return states
    cache = group.match_cache  # the group itself has all bodies of its requests
    raise NeedsEvaluation(channel_id, evaluations, lambda: cache.keep_states(channel_id, states))
