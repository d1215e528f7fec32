"""Events moved between stores keep their content and record their path."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event, Origin
from penstock_core.columns.events.origin import (
    due_body,
    for_join,
    origins_of,
    path_contains,
    path_lengths,
    restored,
    with_origin,
)
from penstock_core.columns.files.segments import SegmentReader, encode_segment
from penstock_core.columns.schema.layout import REASON_CHARACTERS_MAX, cause_and_reason, with_reason
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_at(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def stored(*events: Event, first: int = 10, published_us: int = 1_000_000) -> pa.RecordBatch:
    return stamp(body_of(events), Span(first, first + len(events)), published_us)


def moved(batch: pa.RecordBatch, store: str = "orders") -> pa.RecordBatch:
    return with_origin(batch, store=store, cause="ttl", at_us=2_000_000)


def kept(body: pa.RecordBatch, first: int = 0) -> EventBatch:
    return EventBatch(stamp(body, Span(first, first + body.num_rows), 3_000_000))


@pytest.mark.spec("E3", "T7")
def test_the_origin_of_a_dead_event_has_store_and_cause() -> None:
    body = with_origin(
        stored(Event(b"a", tag="t", ttl=500, properties={"x": None}), Event(b"b")),
        store="orders",
        cause="redelivery_limit",
        at_us=2_000_000,
        durables=[(("audit", "billing"), (Span(0, 11),)), (("mail",), (Span(10, 12),))],
        redeliveries=[(3, (Span(11, 20),))],
    )
    first, second = kept(body)

    assert first.origin == Origin(
        store="orders",
        event_id=10,
        published=moment_at(1_000_000),
        cause="redelivery_limit",
        at=moment_at(2_000_000),
        durables=("audit", "billing", "mail"),
        redeliveries=0,
        ttl=500,
        path=("orders",),
    )
    assert second.origin is not None
    assert (second.origin.durables, second.origin.redeliveries) == (("mail",), 3)
    assert (second.origin.event_id, second.origin.ttl) == (11, 0)
    assert (first.data, first.tag, first.properties, first.ttl) == (b"a", "t", {"x": None}, 0)
    assert "ttl" not in body.schema.names


def test_gaps_between_ids_do_not_shift_origins() -> None:
    batch = stamp(body_of([Event(b"a"), Event(b"b"), Event(b"c")]), np.array([3, 9, 40]), 0)
    body = with_origin(
        batch,
        store="s",
        cause="purged",
        at_us=0,
        durables=[(("d",), (Span(0, 4), Span(9, 10), Span(12, 30)))],
        redeliveries=[(1, (Span(9, 41),)), (4, (Span(40, 41),))],
    )
    origins = [event.origin for event in kept(body)]

    assert [origin.durables for origin in origins if origin] == [("d",), ("d",), ()]
    assert [origin.redeliveries for origin in origins if origin] == [0, 1, 4]


@pytest.mark.spec("L1", "L2")
def test_a_join_copy_keeps_its_ttl_and_its_path_grows_from_store_to_store() -> None:
    one = for_join(body_of([Event(b"a", ttl=9), Event(b"b")]), 5, 7, store="first")
    mixed = pa.Table.from_batches([one.slice(1)]).to_batches()[0]
    two = for_join(mixed, np.array([77]), 8, store="second")
    event = kept(two)[0]

    assert [e.ttl for e in kept(one)] == [9, 0]
    assert event.origin == Origin(
        store="second",
        event_id=77,
        published=moment_at(8),
        cause="join",
        at=moment_at(8),
        path=("first", "second"),
    )


@pytest.mark.spec("L2")
def test_paths_of_one_batch_may_differ() -> None:
    schema = ChannelSchema.empty()
    joined = stamp(
        for_join(for_join(body_of([Event(b"a")]), 0, 0, store="x"), 0, 0, store="y"), Span(0, 1), 0
    )
    plain = stored(Event(b"b"), first=1)
    schema = schema.grown(joined.schema).grown(plain.schema)
    combined = pa.Table.from_batches(
        [schema.conform(joined), schema.conform(plain)]
    ).combine_chunks()
    batch = combined.to_batches()[0]
    body = for_join(batch, 0, 0, store="z")

    assert path_lengths(batch).tolist() == [2, 0]
    assert path_contains(batch, "x").to_pylist() == [True, False]
    assert path_contains(batch, "z").to_pylist() == [False, False]
    assert origins_of(batch).to_pylist() == ["y", None]
    assert [e.origin.path for e in kept(body) if e.origin] == [("x", "y", "z"), ("z",)]
    assert path_lengths(body.slice(1)).tolist() == [1]
    assert path_contains(body.slice(1), "x").to_pylist() == [False]


def test_a_batch_without_origins_has_empty_paths() -> None:
    batch = stored(Event(b"a"), Event(b"b"))

    assert path_lengths(batch).tolist() == [0, 0]
    assert path_contains(batch, "x").to_pylist() == [False, False]
    assert origins_of(batch).to_pylist() == [None, None]
    assert kept(batch.drop_columns(["event_id", "published"]))[0].origin is None


def test_what_is_brought_back_is_as_it_was_before_it_died() -> None:
    events = [Event(b"a", ttl=500, properties={"x": 1}), Event(b"b", tag="t")]
    dead = moved(stored(*events))
    back = restored(stamp(dead, Span(0, 2), 3))

    assert back.equals(body_of(events))
    assert restored(stored(Event(b"a", ttl=4))).equals(body_of([Event(b"a", ttl=4)]))


def test_an_event_published_to_the_dead_event_store_itself_keeps_its_ttl() -> None:
    schema = ChannelSchema.empty()
    dead = stamp(moved(stored(Event(b"a", ttl=500))), Span(0, 1), 3)
    published = stored(Event(b"b", ttl=7), first=1)
    schema = schema.grown(dead.schema).grown(published.schema)
    table = pa.Table.from_batches(
        [schema.conform(dead), schema.conform(published)]
    ).combine_chunks()

    assert restored(table.to_batches()[0]).column("ttl").to_pylist() == [500, 7]


def test_an_event_without_any_column_is_moved_all_the_same() -> None:
    scheduled = stored(Event(deliver_at=moment_at(5)), Event(deliver_at=moment_at(6)))

    bare = scheduled.drop_columns(["data"]) if "data" in scheduled.schema.names else scheduled

    assert due_body(bare).num_rows == 2
    assert restored(stamp(moved(bare), Span(0, 2), 0)).num_rows == 2


def test_origins_survive_the_channel_and_the_sealed_segment() -> None:
    old = stored(Event(b"old"), first=0)
    dead = stamp(
        with_origin(
            stored(Event(b"a", ttl=500)),
            store="orders",
            cause="ttl",
            at_us=4,
            durables=[(("d",), (Span(10, 11),))],
        ),
        Span(1, 2),
        3,
    )
    schema = ChannelSchema.empty().grown(old.schema)
    first = schema.conform(old)
    schema = ChannelSchema.from_bytes(schema.grown(dead.schema).to_bytes())
    table = pa.Table.from_batches([schema.conform(first), schema.conform(dead)])
    batch = table.combine_chunks().to_batches()[0]
    image = encode_segment([batch])
    read = EventBatch(SegmentReader(image.buffer, image.index).batch(0))

    assert [event.origin for event in read] == [None, EventBatch(dead)[0].origin]
    assert read[1].origin is not None
    assert read[1].origin.durables == ("d",)


def test_a_due_event_no_longer_shows_when_it_was_due() -> None:
    batch = stored(Event(b"a", deliver_at=moment_at(5_000_000), ttl=3), Event(b"b"))
    (event, _) = kept(due_body(batch))

    assert EventBatch(batch)[0].deliver_at == moment_at(5_000_000)
    assert (event.deliver_at, event.ttl, event.data) == (None, 3, b"a")


def test_an_origin_is_shown_in_a_line() -> None:
    origin = Origin(
        "orders",
        7,
        moment_at(0),
        cause="ttl",
        at=moment_at(1_000_000),
        durables=("d", "e"),
        redeliveries=2,
        ttl=0,
        path=("a", "orders"),
    )

    assert repr(origin) == (
        "Origin(ttl from 'orders', id 7, at 1970-01-01 00:00:01 UTC, missed by d, e, "
        "2 redeliveries, path a > orders)"
    )
    assert penstock.Origin is Origin


@pytest.mark.parametrize("reason", ["", "no", "ValueError: no airport: XXX", "a\nb"])
def test_a_cause_keeps_its_reason(reason: str) -> None:
    assert cause_and_reason(with_reason("buried", reason)) == ("buried", reason)
    assert cause_and_reason("redelivery_limit") == ("redelivery_limit", "")


def test_a_reason_is_cut() -> None:
    _, reason = cause_and_reason(with_reason("buried", "x" * 10_000))
    assert reason == "x" * REASON_CHARACTERS_MAX
