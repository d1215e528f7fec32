"""Delivery states of dead events, read from their origins (SEM D23)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.channel.delivery_state import RUNS_MAX, Selected
from penstock_core.columns.events.dead_runs import dead_columns, dead_runs
from penstock_core.columns.schema.layout import FIELDS, STAMPED_FIELDS
from penstock_core.vocabulary.delivery_runs import DeliveryPlace, DeliveryRun
from tests.thorough import examples

START = DeliveryPlace("", 0, is_dead=True)
FOR_ONE = ("redelivery_limit", "rejected", "buried")


def origin(event_id: int, *durables: str, **more: Any) -> dict[str, Any]:
    return {
        "store": "orders",
        "event_id": event_id,
        "published": 0,
        "cause": "expired",
        "at": 5,
        "durables": list(durables),
        "redeliveries": 0,
        "ttl": None,
        "path": ["orders"],
    } | more


def batch_of(origins: dict[int, dict[str, Any] | None]) -> pa.RecordBatch:
    """Return the batch of a dead event store with these origins by event id."""
    schema = pa.schema([*STAMPED_FIELDS, FIELDS["data"], FIELDS["origin"]])
    rows = [
        {"event_id": event_id, "published": 0, "data": b"", "origin": origin}
        for event_id, origin in origins.items()
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def pages(
    batch: pa.RecordBatch, rows_max: int = 1_000, durable: str | None = None
) -> list[list[DeliveryRun]]:
    selected = Selected(durable, frozenset(), rows_max)
    result: list[list[DeliveryRun]] = []
    place: DeliveryPlace | None = START
    while place is not None:
        first_id = place.first_id
        remaining = batch.filter(pa.array([i >= first_id for i in ids_of(batch)], pa.bool_()))
        runs, place = dead_runs(dead_columns(remaining), "orders", selected, place=place)
        result.append(runs)
    return result


def ids_of(batch: pa.RecordBatch) -> list[int]:
    ids: list[int] = batch.column("event_id").to_pylist()
    return ids


def rows_of(runs: list[DeliveryRun]) -> list[tuple[Any, ...]]:
    """Return the rows of the runs: id in the dead event store, id, durable, cause, time, count."""
    return [
        (run.dead_event_id + index, event_id, *row)
        for run in runs
        if run.dead_event_id is not None
        for row in [(run.durable, run.cause, run.since_us, run.deliveries)]
        for index, event_id in enumerate(range(*run.span))
    ]


def expected_rows(
    origins: dict[int, dict[str, Any] | None], durable: str | None
) -> list[tuple[Any, ...]]:
    """Return the rows of the origins, event by event."""
    rows = []
    for dead_event_id, origin in origins.items():
        if origin is None or origin["store"] != "orders" or origin["cause"] == "join":
            continue
        cause = origin["cause"].split(": ")[0]
        count = (origin["redeliveries"] or 0) + (cause in FOR_ONE)
        rows += [
            (dead_event_id, origin["event_id"], name, cause, origin["at"], count)
            for name in origin["durables"] or [""]
            if durable in (None, name)
        ]
    return rows


origins = st.none() | st.builds(
    lambda durables, **fields: origin(0) | fields | {"durables": durables},
    store=st.sampled_from(["orders", "orders", "orders", "Orders"]),
    event_id=st.integers(0, 6),
    cause=st.sampled_from(["expired", "expired", "rejected: why: so", "buried", "join"]),
    at=st.integers(5, 6),
    redeliveries=st.sampled_from([0, 0, 2, None]),
    durables=st.sampled_from([[], ["a"], ["a"], ["a", "b"], ["c", "b", "a"]]),
)


@pytest.mark.spec("D23")
@settings(max_examples=examples(300), deadline=None)
@given(
    events=st.dictionaries(st.integers(0, 20), origins, max_size=12),
    is_ordered=st.booleans(),
    rows_max=st.integers(1, 9),
    durable=st.sampled_from([None, None, "a", "b", ""]),
)
def test_the_rows_are_those_of_each_origin(
    events: dict[int, Any], is_ordered: bool, rows_max: int, durable: str | None
) -> None:
    by_id = dict(sorted(events.items()))
    if is_ordered:  # longer runs than with drawn ids
        by_id = {
            dead_event_id: event and event | {"event_id": dead_event_id + 100}
            for dead_event_id, event in by_id.items()
        }
    pages_read = pages(batch_of(by_id), rows_max, durable)

    assert max(sum(run.span.size for run in page) for page in pages_read) <= rows_max
    assert sorted(row for page in pages_read for row in rows_of(page)) == sorted(
        expected_rows(by_id, durable)
    )


@pytest.mark.spec("D23")
def test_events_that_died_together_are_one_run_for_each_durable() -> None:
    batch = batch_of({7 + n: origin(100 + n, "b", "a") for n in range(5)})
    ((first, second),) = pages(batch)

    assert (first.durable, second.durable) == ("a", "b")
    assert rows_of([first]) == [(7 + n, 100 + n, "a", "expired", 5, 0) for n in range(5)]


@pytest.mark.spec("D23")
def test_an_event_with_more_durables_than_a_page_continues_on_the_next() -> None:
    names = [f"{n:05}" for n in range(RUNS_MAX + 10)]
    pages_read = pages(batch_of({3: origin(9, *names), 4: origin(8, "a")}), rows_max=1_000_000)

    assert [len(page) for page in pages_read] == [RUNS_MAX, 11]
    assert [run.durable for page in pages_read for run in page] == [*names, "a"]


@pytest.mark.spec("D23")
def test_events_without_an_origin_are_not_dead() -> None:
    batch = batch_of({1: None}).drop_columns(["origin"])

    assert pages(batch) == [[]]
