"""Forecasts the follow-up writes of a group: copies of joins, and dead events that move.

Disk space for them is reserved before anything is decided. If the disk is full, publishes are
refused, and expired events stay hidden where they are until it has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.dead import MOVED_BYTES_MAX, moved_at_once
from penstock_core.channel.state import ChannelState
from penstock_core.columns.events.digest import event_sizes
from penstock_core.columns.selectors import Selector, selector_of
from penstock_core.columns.selectors.frames import EventFrame
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.digest import Digest
from penstock_server.runtime.store.bodies import Body, prepared
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.schedules import waits

COPIES_BYTES_MAX = 64 << 20
"""Up to this size the forecast assumes that every join copies all events. Above it the copies of
each join are counted: with hundreds of joins most events go to few stores."""
_ROW_BYTES = 512
"""Estimate of the bytes that the columns of the origin add to each copied or moved event."""
_BODY_BYTES = 4_096
"""Estimate of the bytes that each batch of copies adds: its record in the block, and its schema
with the columns of the origin."""

Bools = npt.NDArray[np.bool_]


def side_effect_bytes(
    state: RealmState,
    channel_id: int,
    bodies: Sequence[Body],
    counted_above: int = COPIES_BYTES_MAX,
) -> int:
    """Estimate the bytes that a publish writes in addition to its own events: copies of joins and
    events that it evicts to other stores (SEM L, T7). If the copies could have more than
    ``counted_above`` bytes, they are counted join by join."""
    channel = state.channels.get(channel_id)
    if channel is None or not (
        channel_id in state.directory.joins.by_source or _evicts_to(channel.state)
    ):
        return 0
    sizes = [(len(body.buffer), body.rows) for body in bodies]
    rows: int = sum(count for _, count in sizes)
    size = sum(body_bytes for body_bytes, _ in sizes) + _ROW_BYTES * rows
    return _following_bytes(
        state, channel_id, size, rows=rows, bodies=bodies, counted_above=counted_above
    )


def has_no_side_effects(state: RealmState, channel_id: int) -> bool:
    """Whether a publish writes its own events to the journal and nothing else."""
    channel = state.channels.get(channel_id)
    if channel is None:
        return True
    return channel.state.writes_only_events and channel_id not in state.directory.joins.by_source


def bytes_of_redrive(state: RealmState, channel_id: int, destination: int | None) -> int:
    """Estimate the bytes that a redrive step writes (SEM T10). Without a ``destination`` its events
    may go to any store, so the most expensive one counts."""
    if channel_id not in state.channels:  # deleted since; the step reports this to its caller
        return 0
    size, rows = _moved_bytes(state.channels[channel_id].state)
    targets = state.channels if destination is None else (destination,)
    return size + max(_following_bytes(state, target, size, rows=rows) for target in targets)


def writes_nothing(
    state: RealmState, channel_id: int, digest: Digest, bodies: Sequence[Body], before: int = 0
) -> bool:
    """Whether a publish, after ``before`` other events, certainly writes nothing to disk. A full
    disk is then not a reason to refuse it (SEM J2, J4, C1c-f)."""
    channel = state.channels.get(channel_id)
    if channel is None or waits(bodies) or channel_id in state.directory.joins.by_source:
        return False
    channel_state = channel.state
    storage, kind = channel_state.definition.storage, channel_state.type
    if channel_state.definition.capacity and channel_state.moves_dead:
        return False
    if prepared(bodies, storage, 0, at_us=0, publisher="") is not bodies:
        return False
    if any(state.schemas.recorded(body.schema_bytes) is None for body in bodies):
        return False
    # Ids are reserved in the journal in blocks; a publish beyond the reserved ids writes a fact.
    if kind.ids_survive and channel_state.next_id + before + digest.count > channel_state.reserved:
        return False
    in_memory = len(IdSet(kind.volatile(digest))) == digest.count
    pulls = any(subscriber.pulls for subscriber in channel_state.subscribers.values())
    # On an interest channel, events with a connected client for each durable are only passed on.
    are_fed = all(durable.is_fed for durable in channel_state.durables.values())
    passes = channel_state.engine.needs_interest and are_fed and not pulls
    return in_memory or kind.relays or passes


def _following_bytes(
    state: RealmState,
    channel_id: int,
    size: int,
    rows: int,
    bodies: Sequence[Body] = (),
    counted_above: int = COPIES_BYTES_MAX,
) -> int:
    """Estimate the bytes that follow from publishing ``rows`` events of ``size`` bytes to a store:
    all copies that joins make of them, and the events that these copies evict."""
    stores = _reached(state, channel_id)
    evicting = [state.channels[store_id].state for store_id in stores]
    copies = size * (len(stores) - 1)
    if copies > counted_above and bodies:
        copies = sum(_bytes_copied(state, channel_id, body) for body in bodies)
    elif copies > COPIES_BYTES_MAX:  # the events are unknown yet, so copies cannot be counted
        copies = max(COPIES_BYTES_MAX, size)
    return copies + sum(_evicted(store_state, size, rows) for store_state in evicting)


def _bytes_copied(state: RealmState, channel_id: int, body: Body) -> int:
    """Estimate the bytes of all copies that joins make of the events of a body."""
    rows = body.batch.num_rows
    sizes = event_sizes(body.batch) + _ROW_BYTES
    extra = _BODY_BYTES + max(0, len(body.buffer) - body.batch.nbytes)
    matching = _Matching(body)
    reached = {channel_id: np.ones(rows, dtype=np.bool_)}
    archived = 0
    remaining = [channel_id]
    while remaining:
        source = remaining.pop()
        # Selectors on fields inside messages cannot be judged here, so they count as matching.
        looks_inside = bool(state.channels[source].state.definition.descriptors)
        for join in state.directory.joins.copying_from(source):
            copied = reached[source] & matching.rows("" if looks_inside else join.selector)
            before = reached.get(join.destination, np.zeros(rows, dtype=np.bool_))
            if join.archive:  # an archive join copies an event again that has been there (SEM L3)
                archived += int(sizes[copied].sum()) + extra
            if (copied & ~before).any():
                reached[join.destination] = before | copied
                remaining.append(join.destination)
    del reached[channel_id]
    stored: int = sum(int(sizes[mask].sum()) + extra for mask in reached.values())
    return archived + stored


class _Matching:
    """Evaluates selectors on a batch before it is published. A selector that needs values set at
    publish counts as matching every row."""

    def __init__(self, body: Body) -> None:
        self._frame = EventFrame(body.batch, 0, outcomes=body.outcomes)
        self._masks: dict[str, Bools] = {}

    def rows(self, text: str) -> Bools:
        """Return the mask of the rows that a selector may match."""
        mask = self._masks.get(text)
        if mask is None:
            mask = self._masks[text] = self._match(text)
        return mask

    def _match(self, text: str) -> Bools:
        """Return the mask of the rows that a selector matches; all rows if that is not known
        yet."""
        selector = selector_of(text) if text else None
        if selector is None or not _is_known_before(selector):
            return np.ones(self._frame.rows, dtype=np.bool_)
        mask = selector.mask_in(self._frame)
        return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _is_known_before(selector: Selector) -> bool:
    """Return whether a selector only tests values that the publisher set, and can be evaluated
    before the publish. Ids, times, defaults and origins are set later."""
    from_publisher = all(
        path in ("data", "tag", "more") or (path.startswith("properties.") and "$" not in path)
        for path in selector.columns
    )
    return from_publisher and "NOW()" not in selector.text


def bytes_that_move(state: RealmState, channel_ids: Iterable[int], now_us: int) -> int:
    """Estimate the bytes of expired or excess events that leave these channels in one step (SEM
    T7)."""
    total = 0
    for channel_id in channel_ids:
        channel = state.channels.get(channel_id)
        if channel is None or not channel.state.moves_dead or not _needs_sweep(channel, now_us):
            continue
        total += _moved_bytes(channel.state)[0]
    return total


def _moved_bytes(state: ChannelState) -> tuple[int, int]:
    """Estimate the bytes and events that the next step moves out of a store."""
    rows = len(moved_at_once(state, state.stored))
    largest = state.sizes.largest
    return int(min(rows * largest, max(MOVED_BYTES_MAX, largest))) + rows * _ROW_BYTES, rows


def _needs_sweep(channel: ChannelMachine, now_us: int) -> bool:
    """Return whether a channel needs a sweep. If this check fails, return False: the sweep then
    fails as well, moves no event, and reports the failure."""
    try:
        return channel.needs_sweep(now_us)
    except Exception:  # noqa: BLE001
        return False


def _reached(state: RealmState, channel_id: int) -> list[int]:
    """Return a store and all stores that its events reach through joins."""
    reached = {channel_id: None}
    remaining = [channel_id]
    while remaining:
        for join in state.directory.joins.copying_from(remaining.pop()):
            if join.destination not in reached:
                reached[join.destination] = None
                remaining.append(join.destination)
    return list(reached)


def _evicts_to(state: ChannelState) -> bool:
    """Whether events evicted from this store move to another store."""
    return bool(state.definition.capacity) and state.moves_dead


def _evicted(state: ChannelState, size: int, rows: int) -> int:
    """Estimate the bytes of the events that a publish would evict to another store."""
    if not _evicts_to(state):
        return 0
    return max(size, int(rows * (state.event_bytes + _ROW_BYTES)))
