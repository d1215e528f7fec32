"""How much a group may come to write besides what it was asked to: copies of joins, dead events.

Room for it is made before anything is decided. Where the disk has none, publishes are refused
and expired events stay where they are, unseen, until there is.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.dead import moved_at_once
from penstock.core.state import ChannelState
from penstock.runtime.bodies import Body
from penstock.runtime.state import RealmState

COPIES_BYTES_MAX = 64 << 20
"""Room made for the copies of one publish, at most: by hundreds of joins most events go to few
stores. More than that, written to a full disk, ends the realm as any failed write does."""
_ROW_BYTES = 512
"""Of an event that is copied or moves: its origin."""


def bytes_that_follow(state: RealmState, number: int, bodies: Iterable[Body]) -> int:
    """About how many bytes a publish leads to besides its own (SEM L, T7)."""
    channel = state.channels.get(number)
    if channel is None:
        return 0
    sizes = [(len(body.buffer), body.batch.num_rows) for body in bodies]
    rows: int = sum(count for _, count in sizes)
    size: int = sum(own for own, _ in sizes) + _ROW_BYTES * rows
    stores = _reached(state, number)
    evicting = [state.channels[each].state for each in stores]
    copies = size * (len(stores) - 1)
    if copies > COPIES_BYTES_MAX:  # many joins choose: most events go to few of them
        copies = max(COPIES_BYTES_MAX, size)
    return copies + sum(_evicted(each, size, rows) for each in evicting)


def bytes_that_move(state: RealmState, numbers: Iterable[int], now_us: int) -> int:
    """About how many bytes of expired events leave these channels in one step (SEM T7)."""
    total = 0
    for number in numbers:
        channel = state.channels.get(number)
        if channel is None or not channel.state.moves_dead or not channel.needs_sweep(now_us):
            continue
        own = channel.state
        rows = min(len(own.stored), moved_at_once(own))
        total += int(rows * (own.event_bytes + _ROW_BYTES))
    return total


def _reached(state: RealmState, number: int) -> list[int]:
    """The store itself, and all that its events are copied to."""
    found = {number: None}
    left = [number]
    while left:
        for join in state.directory.joins.of(left.pop()):
            if join.destination not in found:
                found[join.destination] = None
                left.append(join.destination)
    return list(found)


def _evicted(state: ChannelState, size: int, rows: int) -> int:
    """What has to go for new events, where it goes somewhere."""
    if not (state.definition.capacity and state.moves_dead):
        return 0
    return max(size, int(rows * (state.event_bytes + _ROW_BYTES)))
