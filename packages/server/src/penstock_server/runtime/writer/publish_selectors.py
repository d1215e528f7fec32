"""Publish selectors: the selectors evaluated on events as they are published, and their limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from penstock_core.bounds import (
    MERGED_SELECTORS_WORK_MAX,
    SELECTORS_WORK_MAX,
    STAMPED_PREDICATES_MAX,
)
from penstock_core.channel.channel import ChannelMachine
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.digest import spans_of
from penstock_core.columns.selectors import (
    EventFrame,
    Selector,
    SelectorIndex,
    selector_of,
    stamped_of,
    work_of,
)
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import InvalidSelector, LimitReached
from penstock_core.vocabulary.ports import Offload
from penstock_server.runtime.delivery.selection import PARSED_IN_THREAD_ABOVE
from penstock_server.runtime.store.bodies import Body, SelectorKey
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.message_fields import messages_of
from penstock_server.runtime.store.state import RealmState


def selectors_of(state: RealmState, channel_id: int) -> dict[SelectorKey, int]:
    """Return the selectors evaluated on events published on a store, each with its work: those of
    the store itself, and of all stores that joins copy the events to."""
    selectors: dict[SelectorKey, int] = {}
    for reached_id, channel in _reached(state, channel_id):
        texts = _texts(state, reached_id)
        if texts:
            messages = messages_of(channel)
            selectors.update(((messages, text), work_of(text)) for text in texts)
    return selectors


def selectors_of_body(state: RealmState, channel_id: int, body: Body) -> dict[SelectorKey, int]:
    """Return the selectors of :func:`selectors_of` that may match events of ``body``. The others
    are left out, because no event has a value that they require."""
    selectors: dict[SelectorKey, int] = {}
    for reached_id, channel in _reached(state, channel_id):
        texts = _of_joins(state, reached_id)
        if not (texts or channel.state.selectors):
            continue
        messages = messages_of(channel)
        if channel.state.selectors:
            index = index_of(channel, state.stores[reached_id])
            texts.update(body.candidates_in(index, messages).inexact)
        selectors.update(((messages, text), work_of(text)) for text in texts)
    return selectors


def _reached(state: RealmState, channel_id: int) -> Iterator[tuple[int, ChannelMachine]]:
    """Yield a store, and all stores that its events reach through joins."""
    seen = {channel_id}
    remaining = [channel_id]
    while remaining:
        reached_id = remaining.pop()
        channel = state.channels.get(reached_id)
        if channel is None:
            continue
        yield reached_id, channel
        for join in state.directory.joins.copying_from(reached_id):
            if join.destination not in seen:
                seen.add(join.destination)
                remaining.append(join.destination)


def completed(
    channel: ChannelMachine,
    store: ChannelStore,
    digest: Digest,
    bodies: Sequence[Body],
    now_us: int,
) -> Digest:
    """Return ``digest`` with the events that the selectors in use on the channel match (SEM F5)."""
    if not channel.state.selectors:
        return digest
    matched: dict[str, IdSet] = {}
    index, messages = index_of(channel, store), messages_of(channel)
    first = next_id = channel.state.next_id
    for body in bodies:
        candidates, span = body.candidates_in(index, messages), Span(first, first + body.rows)
        first = span.end
        if not (candidates.exact or candidates.inexact):  # the usual case for most events
            continue
        if body.rows == 1 and not candidates.inexact:  # the lookup is the result
            for text in candidates.exact:
                matched.setdefault(text, IdSet()).add(span.shifted(-next_id))
            continue
        stamped = stamp(body.batch, span, now_us)
        frame = EventFrame(stamped, now_us, messages, outcomes=body.outcomes)
        for text, mask in candidates.masks(frame, selector_of):
            ids = matched.setdefault(text, IdSet())
            for part in spans_of(mask):
                ids.add(part.shifted(span.first - next_id))
    return replace(digest, matched={text: ids.spans for text, ids in matched.items()})


def index_of(channel: ChannelMachine, store: ChannelStore) -> SelectorIndex:
    """Return the index of the selectors in use on a channel, updated to the present."""
    index = store.selectors
    if index is None:
        index = store.selectors = SelectorIndex()
    # The channel notes the changes, so that a publish does not have to compare two sets.
    if channel.state.selectors_in_use.has_changed:
        for text, is_there in channel.state.selectors_in_use.changes():
            if is_there:
                index.add(text, _parsed(text))
            else:
                index.remove(text, _parsed(text))
    return index


def _parsed(text: str) -> Selector | None:
    """Return the selector of a stored text; None if the text is invalid. Evaluating it raises the
    error."""
    try:
        return selector_of(text)
    except InvalidSelector:
        return None


async def parse_stored(state: RealmState, offload: Offload) -> None:
    """Parse the long stored selectors in a thread, before anything is published. Short ones are
    parsed when they are first evaluated."""

    def parse() -> None:
        for channel_id in state.channels:
            for text in _texts(state, channel_id):
                if len(text) > PARSED_IN_THREAD_ABOVE:
                    _parsed(text)

    await offload(parse)


def work_where_dead(state: RealmState, channel_id: int) -> tuple[int, int]:
    """Return the total work of the selectors that are evaluated on each dead event of a store, and
    the number of stores that the event is written to: the dead event store, and the stores that
    joins copy it to."""
    target, joins = state.directory.dead_event_store_of(channel_id), state.directory.joins
    if target is None:
        return 0, 1
    copies = len(joins.reached_from(target)) if target in joins.by_source else 1
    return sum(selectors_of(state, target).values()), copies


def refuse_costly(state: RealmState, channel_id: int, text: str, selector: Selector | None) -> None:
    """Raise ``LimitReached`` if one more stored selector would make publishes on a store too
    expensive. ``selector`` is the parsed ``text``; None means that none is added."""
    channel = state.channels.get(channel_id)
    if channel is None or selector is None:
        return
    index, joined = index_of(channel, state.stores[channel_id]), _of_joins(state, channel_id)
    if text in index or text in joined:
        return
    joined -= channel.state.selectors  # the index has those already
    stamped = frozenset(index.stamped).union(selector.stamped, *map(stamped_of, joined))
    if len(stamped) > STAMPED_PREDICATES_MAX:
        raise LimitReached(
            f"with this selector, the selectors on {channel.state.name} have {len(stamped)} "
            "different comparisons of ids, times, priorities and delivery modes, which the realm "
            f"sets; allowed are {STAMPED_PREDICATES_MAX}: compare properties instead"
        )
    total = index.work + sum(map(work_of, joined)) + selector.work
    merges = channel.state.engine.merges
    most = MERGED_SELECTORS_WORK_MAX if merges else SELECTORS_WORK_MAX
    if total > most:
        raise LimitReached(
            f"with this selector, the selectors on {channel.state.name} need {total} comparisons, "
            f"calculations and wildcards for each published event; allowed are {most}: simplify "
            "it, or end other durables, readers and joins with selectors there"
        )
    selector_of.keep(text, selector)  # the writer does not parse it again


def _texts(state: RealmState, channel_id: int) -> set[str]:
    """Return the selectors on one store alone."""
    return {*state.channels[channel_id].state.selectors, *_of_joins(state, channel_id)}


def _of_joins(state: RealmState, channel_id: int) -> set[str]:
    """Return the selectors of the joins from one store."""
    return {
        join.selector for join in state.directory.joins.copying_from(channel_id) if join.selector
    }
