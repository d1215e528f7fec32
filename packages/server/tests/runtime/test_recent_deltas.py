"""The newest publishes of merge channels, and the memory that all of them take."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock_core.ids.ids import Span
from penstock_server.runtime.store.recent_deltas import Raw, RealmsRecent, Recent
from penstock_server.runtime.store.tail_batch import TailBatch

SCHEMA = pa.schema([])


def publish(first: int, size: int) -> Raw:
    span = Span(first, first + 1)
    tail_batch = TailBatch(span, 0, 1, schema=SCHEMA, body=memoryview(bytes(size)))
    return Raw(tail_batch, np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.bool_))


def test_the_channels_with_most_drop_theirs_where_all_keep_too_much() -> None:
    realms = RealmsRecent(bytes_max=1_000)
    large, small, newest = Recent(realms), Recent(realms), Recent(realms)
    large.add(publish(0, 600))
    small.add(publish(5, 100))
    newest.add(publish(0, 500))

    assert large.since(0) is None, "a subscriber gets full events"
    assert large.since(1) is not None
    assert small.since(5) is not None
    assert newest.since(0) is not None
    assert sum(recent.bytes for recent in (large, small, newest)) == 600
    del newest
    large.add(publish(1, 300))
    assert large.since(1) is not None
