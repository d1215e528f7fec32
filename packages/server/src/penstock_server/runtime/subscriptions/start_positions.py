"""Start positions of subscriptions and durables among the stored events (SEM E6)."""

from __future__ import annotations

import numpy as np

from penstock_core.channel.channel import ChannelMachine
from penstock_core.columns.events.batch import ids_of, times_of
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.start_positions import (
    AnyStart,
    FromEarliest,
    FromId,
    FromLatest,
    FromTime,
)
from penstock_server.runtime.delivery.selection import SCAN_EVENTS
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.sealed_file import Damage


def first_id(channel: ChannelMachine, store: ChannelStore, start: AnyStart) -> int:
    """Return the id of a start position now (SEM E6)."""
    match start:
        case FromId(event_id):
            return max(0, event_id)
        case FromEarliest():
            return 0
        case FromLatest():
            return channel.state.next_id
        case FromTime(at_us):
            coarse = channel.state.ages.first_at(at_us, channel.state.next_id)
            return _first_since(channel, store, coarse, at_us=at_us)


def keyed_spans(
    channel: ChannelMachine, store: ChannelStore, selector: Selector | None
) -> Spans | None:
    """Return the ids of all stored events that a selector can match, found by the value that it
    requires for a publish key (SEM F5). None if the selector requires no such value, or may read
    the field of a message instead of the property."""
    if selector is None or store.keys is None or channel.state.definition.descriptors:
        return None
    ids = store.keys.ids_selected(selector.expression, channel.state.stored)
    return None if ids is None else ids.spans


def _first_since(channel: ChannelMachine, store: ChannelStore, coarse: int, at_us: int) -> int:
    """Return the id of the first stored event published at ``at_us`` or later, from id ``coarse``
    on; the next id if no event is that new."""
    next_id = coarse
    while (span := channel.state.stored.next_span(next_id, SCAN_EVENTS)) is not None:
        for rows in store.read((span,), Damage()):
            times = times_of(rows.batch)
            # Times decrease where the clock was set back: the later times before that were wrong.
            # Each event gets the lowest time of all events from it on, so that times ascend and a
            # binary search works.
            if (times[1:] < times[:-1]).any():
                times = np.minimum.accumulate(times[::-1])[::-1]
            next_us = channel.state.ages.next_us(int(ids_of(rows.batch)[-1]))
            if next_us is not None and next_us < at_us:
                continue  # a later event was published before `at_us`, so all of these were, too
            row = int(np.searchsorted(times, at_us))
            if row < rows.batch.num_rows:
                return int(ids_of(rows.batch)[row])
        next_id = span.end
    return channel.state.next_id
