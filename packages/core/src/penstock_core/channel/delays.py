"""Which rolled-back events come again when (SEM D18): by the delay a client asks for, or by the
backoff of the durable.

Events that are given back together are postponed together: a fact for each count, or a few where
jitter spreads them, and not one for each event.
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
    """Have those of ``ids`` that are outstanding wait for ``delay_ms``, if they are to wait."""
    late = durable.wanting(ids.overlap(state.stored)) if delay_ms else None
    if not (delay_ms and late):
        return ()
    return (Postponed(durable.name, late.spans, now_us + delay_ms * 1_000),)


def backed_off(
    state: ChannelState, durable: Durable, ids: IdSet, now_us: int
) -> tuple[Postponed, ...]:
    """How long the backoff of a durable has each of ``ids`` wait, which are about to be rolled
    back once more."""
    backoff = durable.attributes.backoff
    if backoff is None:
        return ()
    left = durable.wanting(ids.overlap(state.stored))
    found: list[Postponed] = []
    for count, level in sorted(durable.levels.items()):
        if own := left.remove_all(level):
            found += _spread(durable.name, backoff, own, count=count + 1, now_us=now_us)
    if left:
        found += _spread(durable.name, backoff, left, count=1, now_us=now_us)
    return tuple(found)


def still_waiting(state: ChannelState, kept: IdSet) -> list[Postponed]:
    """What says of events that are ``kept`` from now on (SEM J7) until when they wait: a restart
    would find nothing of what was said of them before."""
    return [
        Postponed(durable.name, ids.spans, until_us)
        for durable in state.durables.values()
        if durable.waiting
        for until_us, ids in durable.waiting.by_time(kept)
    ]


def _spread(name: str, backoff: Backoff, ids: IdSet, count: int, now_us: int) -> list[Postponed]:
    """The waits of events with one count: one, or with jitter one for each of some ranges."""
    if not backoff.jitter:
        until_us = now_us + backoff.wait_us(count, 0)
        return [Postponed(name, ids.spans, until_us)]
    found = []
    size = -(-len(ids) // PIECES_MAX)
    left = ids.copy()
    while left:
        first, taken = left.lowest, IdSet()
        assert first is not None, "some are left"
        while len(taken) < size and (span := left.take(size - len(taken))) is not None:
            taken.add(Span(*span))
        found.append(Postponed(name, taken.spans, now_us + backoff.wait_us(count, first)))
    return found
