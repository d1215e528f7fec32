"""What selectors match of events that only a turn of the single writer brings up: stored ones that
are about to move to another store, and states that deltas lead to.

Where that is much work, the turn does nothing yet: it raises :class:`NeedsEvaluation`, a thread
applies the selectors, and the work is decided again. The results are kept meanwhile, by event id,
in :class:`MatchCache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

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
from penstock_server.runtime.delivery.selection import BESIDE_ABOVE, scan_cost
from penstock_server.runtime.store.bodies import Body, SelectorKey
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.match_cache import MatchCache, NeedsEvaluation
from penstock_server.runtime.writer.publish_selectors import selectors_of, selectors_of_body

TURN_COST_MAX: Final = BESIDE_ABOVE
"""Bytes to examine, times the selectors' work, in one turn of the writer, of all such events
together."""


class OpenGroup(Protocol):
    """A group that is still being decided:
    :class:`~penstock_server.runtime.writer.group.Group`."""

    state: RealmState
    now_us: int
    match_cache: MatchCache
    evaluations: list[NeedsEvaluation]
    """What selectors are to be evaluated on after this group."""
    sweeping: Sweep

    @property
    def is_half_done(self) -> bool:
        """Whether the work at hand has changed something already: then all of it has to be done."""
        ...

    def may_evaluate(self, cost: int) -> bool:
        """Whether selectors may be evaluated in this turn, at this cost; if so, the cost counts."""
        ...


def evaluation_cost(asked: Mapping[SelectorKey, int], rows: int, size: int) -> int:
    """The :func:`~penstock_server.runtime.delivery.selection.scan_cost` of selectors, each with its
    work."""
    row_bytes = sum([row_bytes_of(text) for _, text in asked])
    return scan_cost(sum(asked.values()), row_bytes, rows, size=size)


# --- in the turn ----------------------------------------------------------------------------


def evaluation_before_moving(
    group: OpenGroup,
    number: int,
    channel: ChannelMachine,
    facts: Iterable[StoredFact],
    own: Own = (),
) -> NeedsEvaluation | None:
    """What is to be looked at before ``facts`` are made true, because events move in them; None
    where that is little, or done. ``own`` is what is being published."""
    target = group.state.directory.dead_event_store_of(number)
    asked = {} if target is None else selectors_of(group.state, target)
    dead = _moving(facts) if asked else IdSet()
    if not dead:
        return None
    largest = max(channel.state.rules.event_bytes_max, channel.state.event_bytes)
    if evaluation_cost(asked, len(dead), int(len(dead) * largest)) <= TURN_COST_MAX:
        return None
    rows = group.state.stores[number].read(dead.overlap(channel.state.stored).spans, Damage())
    return needs_evaluation(
        group, number, [*(part.batch for part in rows), *_among(own, dead)], asked=asked
    )


Own = Sequence[tuple[Span, Body]]
"""Bodies that are being published, with the ids they are to have."""


def _moving(facts: Iterable[StoredFact]) -> IdSet:
    """The events that move to the dead event store."""
    dead = IdSet()
    for fact in facts:
        if isinstance(fact, Removed):
            dead.add_all(IdSet(fact.dead))
        elif isinstance(fact, Buried):
            dead.add_all(IdSet(fact.spans))
    return dead


def _among(own: Own, dead: IdSet) -> list[pa.RecordBatch]:
    found = []
    for span, body in own:
        if dead.count(span):
            found.append(stamp(body.batch, span, 0))
    return found


def needs_evaluation(
    group: OpenGroup,
    number: int,
    batches: Sequence[pa.RecordBatch],
    asked: Mapping[SelectorKey, int],
) -> NeedsEvaluation | None:
    """What of these events, which have ids, is to be looked at before they move; None: they may
    move now."""
    looks: list[tuple[Body, dict[SelectorKey, int]]] = []
    cost = 0
    for batch in batches:
        ids = ids_of(batch)
        left = group.match_cache.lacks(number, ids, asked)
        if not len(left):
            continue
        body = _body_of(batch.filter(pa.array(np.isin(ids, left))))
        looks.append((body, dict(asked)))
        cost += evaluation_cost(asked, body.rows, body.weight)
    if group.may_evaluate(cost):
        return None
    bodies = [body for body, _ in looks]
    return NeedsEvaluation(number, looks, lambda: group.match_cache.keep(number, bodies))


def _body_of(batch: pa.RecordBatch) -> Body:
    """Stored events as a body that selectors are put to, and that is not stored itself."""
    body = Body(b"", batch, b"", names=frozenset())
    body.weight = max(batch.nbytes, body.weight)
    return body


def evicting(
    group: OpenGroup, number: int, command: Publish, decided: Decided, bodies: Sequence[Body]
) -> Decided:
    """What is decided of a publish, where events that it evicts move. Raises
    ``NeedsEvaluation``."""
    channel = group.state.channels[number]
    first, own = channel.state.next_id, []
    for body in bodies:
        own.append((Span(first, first + body.rows), body))
        first += body.rows
    if require_evaluation(group, number, channel, facts=decided.facts, own=own):
        return channel.decide(replace(command, evicts_later=True), group.now_us)
    return decided


def may_sweep(group: OpenGroup, number: int, channel: ChannelMachine) -> bool:
    """Whether due events of a channel may move now. If not, they stay a little, unseen, and are
    looked at."""
    if number in group.match_cache.sweeping:
        return False
    facts = channel.decide(group.sweeping, group.now_us).facts
    look = evaluation_before_moving(group, number, channel, facts=facts)
    if look is not None:
        group.match_cache.sweeping.add(number)
        group.evaluations.append(look)
    return look is None


def require_evaluation(
    group: OpenGroup,
    number: int,
    channel: ChannelMachine,
    facts: Iterable[StoredFact],
    own: Own = (),
) -> bool:
    """Raises ``NeedsEvaluation`` if events that move are to be looked at before, and nothing has
    been done yet; gives whether they should have been."""
    look = evaluation_before_moving(group, number, channel, facts=facts, own=own)
    if look is not None and not group.is_half_done:
        raise look
    return look is not None


def evaluated_states(group: OpenGroup, number: int, found: Sequence[Body]) -> Sequence[Body]:
    """The states that a publish leads to, with what is known of them. Raises
    ``NeedsEvaluation``."""
    known = group.match_cache.states(number, found)
    if known is not None:
        return known
    looks = [(body, selectors_of_body(group.state, number, body)) for body in found]
    cost = sum(evaluation_cost(asked, body.rows, body.weight) for body, asked in looks)
    if group.is_half_done or group.may_evaluate(cost):
        return found
    raise NeedsEvaluation(number, looks, lambda: group.match_cache.keep_states(number, found))
