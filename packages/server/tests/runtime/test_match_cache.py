"""Results of selectors that were evaluated ahead, and the memory of their events."""

from __future__ import annotations

import numpy as np

from penstock_core.columns.events.batch import stamp
from penstock_core.ids.ids import Span
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.writer.match_cache import MatchCache

from .living import body


def evaluated(first: int, size: int = 400) -> Body:
    stored = Body(b"", stamp(body([b"x"]).batch, Span(first, first + 1), 0), b"", names=frozenset())
    stored.weight = size
    return stored


def kept_ids(cache: MatchCache, channel_id: int, ids: range) -> list[int]:
    lacking = cache.lacks(channel_id, np.array(ids), {}).tolist()
    return [event_id for event_id in ids if event_id not in lacking]


def test_the_results_of_all_channels_are_kept_within_a_number_of_bytes() -> None:
    cache = MatchCache(bytes_max=1_000)
    for channel_id in (1, 2, 3):
        cache.keep(channel_id, [evaluated(7)])
    assert [kept_ids(cache, channel_id, range(7, 8)) for channel_id in (1, 2, 3)] == [[], [7], [7]]

    for event_id in range(8, 12):
        cache.keep(3, [evaluated(event_id)])
    assert kept_ids(cache, 3, range(7, 12)) == [10, 11]
    cache.keep(4, [evaluated(0, size=5_000)])
    assert kept_ids(cache, 4, range(1)) == [0], "the newest stays"


def test_the_merged_states_of_all_channels_are_kept_within_a_number_of_bytes() -> None:
    cache = MatchCache(bytes_max=1_000)
    states = [evaluated(0)]
    for channel_id in (1, 2, 3):
        cache.keep_states(channel_id, states)

    assert cache.states(1, states) is None
    assert cache.states(2, states) == cache.states(3, states) == states
