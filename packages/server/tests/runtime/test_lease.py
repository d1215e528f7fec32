"""A lease, and what its requests leave in memory."""

from __future__ import annotations

import pytest

from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.subscriptions.lease import EventLease, LeasePart, LeaseTerms

pytestmark = pytest.mark.spec("H1")


class Clock:
    def now_us(self) -> int:
        return 0

    def steady_us(self) -> int:
        return 0


def part_of(events: int) -> LeasePart:
    terms = LeaseTerms("alice", ChannelId(1), "team", count=events, lease_ms=1)
    lease = EventLease("lease", terms, "session", None, Clock(), recalled=lambda lease: None)
    part = LeasePart(lease, ChannelId(1), lambda part: None)
    part.ids = IdSet((Span(0, events),))
    return part


def ids(*event_ids: int) -> IdSet:
    return IdSet(Span(event_id, event_id + 1) for event_id in event_ids)


def test_a_lease_that_is_extended_again_and_again_takes_no_more_memory() -> None:
    part = part_of(4)
    part.extend(ids(0, 2), 10_000)
    before = part.size
    for time_us in range(10_001, 12_001):
        part.extend(ids(0, 2), time_us)

    assert part.size == before
    assert part.until_us(ids(2)) == 12_000
    assert part.until_us(ids(1)) == 1_000


def test_no_event_gets_less_time_than_it_had() -> None:
    part = part_of(4)
    part.extend(ids(0, 1), 50_000)
    part.extend(ids(1, 2), 20_000)
    part.extend(ids(2, 3), 30_000)

    assert [part.until_us(ids(event_id)) for event_id in range(4)] == [
        50_000,
        50_000,
        30_000,
        30_000,
    ]
    assert list(part.late(ids(0, 1, 2, 3), 40_000)) == [2, 3]
