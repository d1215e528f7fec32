"""Delays after a rollback (SEM D18): by the request of the client, or by the backoff of the
durable.

Events that are rolled back together are postponed together: with one fact for each redelivery
count, or a few if jitter spreads them, instead of one for each event.
"""

from __future__ import annotations

from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.settlements import Postponed
from penstock_core.vocabulary.backoff import PIECES_MAX, Backoff


def postponed(
    state: ChannelState, durable: Durable, ids: IdSet, delay_ms: int | None, now_us: int
) -> tuple[Postponed, ...]:
    """Return the facts that delay the outstanding events of ``ids`` by ``delay_ms``; none without a
    delay."""
    delayed = durable.wanting(ids.overlap(state.stored)) if delay_ms else None
    if not (delay_ms and delayed):
        return ()
    return (Postponed(durable.name, delayed.spans, now_us + delay_ms * 1_000),)


def backed_off(
    state: ChannelState, durable: Durable, ids: IdSet, now_us: int
) -> tuple[Postponed, ...]:
    """Return the facts that delay ``ids``, about to be rolled back once more, by the backoff of the
    durable."""
    backoff = durable.attributes.backoff
    if backoff is None:
        return ()
    # Events are taken out level by level; those that remain were never redelivered.
    uncounted = durable.wanting(ids.overlap(state.stored))
    facts: list[Postponed] = []
    for count, level in sorted(durable.levels.items()):
        if level_ids := uncounted.remove_all(level):
            facts += _spread(durable.name, backoff, level_ids, count=count + 1, now_us=now_us)
    if uncounted:
        facts += _spread(durable.name, backoff, uncounted, count=1, now_us=now_us)
    return tuple(facts)


def still_waiting(state: ChannelState, newly_stored: IdSet) -> list[Postponed]:
    """Return facts that repeat the delays of the events ``newly_stored`` (SEM J7).

    The earlier facts about these events are not recovered after a restart, because the events were
    not stored then.
    """
    return [
        Postponed(durable.name, ids.spans, until_us)
        for durable in state.durables.values()
        if durable.waiting
        for until_us, ids in durable.waiting.by_time(newly_stored)
    ]


def _spread(name: str, backoff: Backoff, ids: IdSet, count: int, now_us: int) -> list[Postponed]:
    """Return the delays of events with one redelivery count: one fact, or with jitter one fact for
    each of at most ``PIECES_MAX`` ranges."""
    if not backoff.jitter:
        until_us = now_us + backoff.wait_us(count, 0)
        return [Postponed(name, ids.spans, until_us)]
    facts = []
    range_size = -(-len(ids) // PIECES_MAX)
    remaining = ids.copy()
    while remaining:
        first, part = remaining.lowest, IdSet()
        assert first is not None, "a set that is true has a lowest id"
        while (
            len(part) < range_size and (span := remaining.take(range_size - len(part))) is not None
        ):
            part.add(Span(*span))
        # One draw for the whole range, by its first id, so that the number of facts is bounded.
        facts.append(Postponed(name, part.spans, now_us + backoff.wait_us(count, first)))
    return facts
