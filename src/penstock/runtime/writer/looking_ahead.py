"""What selectors match of events that only a turn of the single writer brings up: stored ones that
are about to move to another store, and states that deltas lead to.

Where that is much work, the turn does nothing yet: it raises :class:`NeedsLook`, a thread applies
the selectors, and the work is decided again. The results are kept here meanwhile, by event id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from penstock.columns.events.batch import Int64s, ids_of, stamp
from penstock.columns.selectors import row_bytes_of
from penstock.columns.selectors.lanes import Column
from penstock.columns.selectors.outcomes import Key, PredicateOutcomes
from penstock.core.channel.channel import ChannelMachine
from penstock.core.ids.ids import IdSet, Span
from penstock.core.vocabulary.messages import (
    Buried,
    Decided,
    Publish,
    Removed,
    Spans,
    StoredFact,
)
from penstock.runtime.delivery.selection import BESIDE_ABOVE, scan_cost
from penstock.runtime.store.bodies import Asked, Body
from penstock.runtime.store.sealed_file import Damage
from penstock.runtime.writer.asked import asked_of, asked_of_body

if TYPE_CHECKING:
    from penstock.runtime.writer.group import Group

TURN_COST_MAX: Final = BESIDE_ABOVE
"""Bytes to examine, times the selectors' work, in one turn of the writer, of all such events
together."""
PARTS_MAX: Final = 64
"""Batches of one channel about which results are kept; those of older ones are found out again."""


class NeedsLook(Exception):
    """Selectors have much to examine in these events before the work may go on. Nothing has been
    done; the work is decided again once :attr:`keep` was called."""

    def __init__(
        self, number: int, looks: Sequence[tuple[Body, dict[Asked, int]]], keep: Callable[[], None]
    ) -> None:
        super().__init__(f"selectors are put to events of channel {number} first")
        self.number = number
        self.looks = looks
        self.keep = keep


class _LookedEvents(Struct):
    """Some stored events, and what is known of them."""

    ids: Int64s
    body: Body


class LookedAhead:
    """What was found out about events before the turn that needs it."""

    def __init__(self) -> None:
        self._parts: dict[int, list[_LookedEvents]] = {}
        self._states: dict[int, Sequence[Body]] = {}
        self.sweeping: set[int] = set()
        """Channels whose due events are being looked at."""

    def lacks(self, number: int, ids: Int64s, asked: Mapping[Asked, int]) -> Int64s:
        """The events about which some of what is asked is not known."""
        known = [p.ids for p in self._parts.get(number, ()) if p.body.looked >= asked.keys()]
        return ids[~np.isin(ids, np.concatenate(known))] if known else ids

    def known_of(self, number: int, batch: pa.RecordBatch) -> PredicateOutcomes | None:
        """The results for stored events, in their order."""
        parts = self._parts.get(number)
        if not parts:
            return None
        ids = ids_of(batch)

        def source(key: Key) -> Column | None:
            found = [(p.ids, p.body.outcomes.find(key)) for p in parts if p.body.outcomes]
            there = [(own, column) for own, column in found if column is not None]
            if not there:
                return None
            known = np.concatenate([own for own, _ in there])
            order = np.argsort(known, kind="stable")
            places = np.searchsorted(known, ids, sorter=order)
            if (places == len(known)).any() or (known[order[places]] != ids).any():
                return None
            return pa.concat_arrays([column for _, column in there]).take(pa.array(order[places]))

        return PredicateOutcomes(source)

    def keep(self, number: int, bodies: Sequence[Body]) -> None:
        """Keep what is known of stored events of a channel."""
        parts = self._parts.setdefault(number, [])
        parts += [_LookedEvents(ids_of(body.batch), body) for body in bodies]
        del parts[: -max(PARTS_MAX, len(bodies))]
        self.sweeping.discard(number)

    def moved(self, number: int, spans: Spans) -> None:
        """Forget events that have moved."""
        if number in self._parts:
            ids = IdSet(spans)
            left = [p for p in self._parts[number] if not ids.count(_around(p.ids))]
            self._parts[number] = left
            if not left:
                del self._parts[number]

    def keep_states(self, number: int, states: Sequence[Body]) -> None:
        """Keep what is known of the states that a publish to a channel leads to."""
        self._states[number] = states

    def states(self, number: int, found: Sequence[Body]) -> Sequence[Body] | None:
        """Take what is known of the states found, once. None if they were not looked at."""
        known = self._states.pop(number, ())
        same = len(known) == len(found) and all(
            one.batch.equals(other.batch, check_metadata=True)
            for one, other in zip(known, found, strict=True)
        )
        return known if same else None


def _around(ids: Int64s) -> Span:
    return Span(int(ids.min()), int(ids.max()) + 1) if len(ids) else Span(0, 0)


def look_cost(asked: Mapping[Asked, int], rows: int, size: int) -> int:
    """The :func:`~penstock.runtime.delivery.selection.scan_cost` of selectors, each with its
    work."""
    row_bytes = sum([row_bytes_of(text) for _, text in asked])
    return scan_cost(sum(asked.values()), row_bytes, rows, size)


# --- in the turn ----------------------------------------------------------------------------


def before_moving(
    group: Group, number: int, channel: ChannelMachine, facts: Iterable[StoredFact], own: Own = ()
) -> NeedsLook | None:
    """What is to be looked at before ``facts`` are made true, because events move in them; None
    where that is little, or done. ``own`` is what is being published."""
    target = group.state.directory.dead_event_store_of(number)
    asked = {} if target is None else asked_of(group.state, target)
    dead = _moving(facts) if asked else IdSet()
    if not dead:
        return None
    largest = max(channel.state.rules.event_bytes_max, channel.state.event_bytes)
    if look_cost(asked, len(dead), int(len(dead) * largest)) <= TURN_COST_MAX:
        return None
    rows = group.state.stores[number].read(dead.overlap(channel.state.stored).spans, Damage())
    return needs_look(group, number, [*(part.batch for part in rows), *_among(own, dead)], asked)


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


def needs_look(
    group: Group, number: int, batches: Sequence[pa.RecordBatch], asked: Mapping[Asked, int]
) -> NeedsLook | None:
    """What of these events, which have ids, is to be looked at before they move; None: they may
    move now."""
    looks: list[tuple[Body, dict[Asked, int]]] = []
    cost = 0
    for batch in batches:
        ids = ids_of(batch)
        left = group.looked_ahead.lacks(number, ids, asked)
        if not len(left):
            continue
        body = _body_of(batch.filter(pa.array(np.isin(ids, left))))
        looks.append((body, dict(asked)))
        cost += look_cost(asked, body.rows, body.weight)
    if group.may_look(cost):
        return None
    bodies = [body for body, _ in looks]
    return NeedsLook(number, looks, lambda: group.looked_ahead.keep(number, bodies))


def _body_of(batch: pa.RecordBatch) -> Body:
    """Stored events as a body that selectors are put to, and that is not stored itself."""
    body = Body(b"", batch, b"", names=frozenset())
    body.weight = max(batch.nbytes, body.weight)
    return body


def evicting(
    group: Group, number: int, command: Publish, decided: Decided, bodies: Sequence[Body]
) -> Decided:
    """What is decided of a publish, where events that it evicts move. Raises ``NeedsLook``."""
    channel = group.state.channels[number]
    first, own = channel.state.next_id, []
    for body in bodies:
        own.append((Span(first, first + body.rows), body))
        first += body.rows
    if refuse_to_move(group, number, channel, decided.facts, own):
        return channel.decide(replace(command, evicts_later=True), group.now_us)
    return decided


def may_sweep(group: Group, number: int, channel: ChannelMachine) -> bool:
    """Whether due events of a channel may move now. If not, they stay a little, unseen, and are
    looked at."""
    if number in group.looked_ahead.sweeping:
        return False
    facts = channel.decide(group.sweeping, group.now_us).facts
    look = before_moving(group, number, channel, facts)
    if look is not None:
        group.looked_ahead.sweeping.add(number)
        group.looks.append(look)
    return look is None


def refuse_to_move(
    group: Group, number: int, channel: ChannelMachine, facts: Iterable[StoredFact], own: Own = ()
) -> bool:
    """Raises ``NeedsLook`` if events that move are to be looked at before, and nothing has been
    done yet; gives whether they should have been."""
    look = before_moving(group, number, channel, facts, own)
    if look is not None and not group.is_half_done:
        raise look
    return look is not None


def seen_states(group: Group, number: int, found: Sequence[Body]) -> Sequence[Body]:
    """The states that a publish leads to, with what is known of them. Raises ``NeedsLook``."""
    known = group.looked_ahead.states(number, found)
    if known is not None:
        return known
    looks = [(body, asked_of_body(group.state, number, body)) for body in found]
    cost = sum(look_cost(asked, body.rows, body.weight) for body, asked in looks)
    if group.is_half_done or group.may_look(cost):
        return found
    raise NeedsLook(number, looks, lambda: group.looked_ahead.keep_states(number, found))
