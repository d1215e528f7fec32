"""Delivery states as an Arrow table (SEM D23)."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from penstock_core.columns.events.delivery_table import DELIVERY_SCHEMA, table_of_runs
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.delivery_runs import DeliveryRun

SECOND_US = 1_000_000


@pytest.mark.spec("D23")
def test_a_run_has_a_row_for_each_of_its_events() -> None:
    table = table_of_runs(
        [
            DeliveryRun(
                Span(3, 5),
                "a",
                "in_flight",
                client="s1",
                since_us=SECOND_US,
                deliveries=2,
                lease_end_us=2 * SECOND_US,
            ),
            DeliveryRun(Span(9, 10), "b", "delayed", since_us=0, delayed_until_us=3 * SECOND_US),
            DeliveryRun(Span(4, 6), "b", "dead", cause="expired", dead_event_id=70),
        ]
    )

    assert table.schema == DELIVERY_SCHEMA
    table.validate(full=True)
    first, second, third, *dead = table.to_pylist()
    assert first == {
        "event_id": 3,
        "durable": "a",
        "state": "in_flight",
        "client": "s1",
        "since": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "deliveries": 2,
        "lease_end": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC),
        "delayed_until": None,
        "cause": None,
        "dead_event_id": None,
    }
    assert second == {**first, "event_id": 4}
    assert (third["event_id"], third["client"], third["deliveries"]) == (9, None, None)
    assert third["delayed_until"] == datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    assert [(row["event_id"], row["dead_event_id"], row["cause"]) for row in dead] == [
        (4, 70, "expired"),
        (5, 71, "expired"),
    ]


@pytest.mark.spec("D23")
def test_no_rows_are_an_empty_table_with_all_columns() -> None:
    table = table_of_runs([])

    assert table.schema == DELIVERY_SCHEMA
    assert table.num_rows == 0


@pytest.mark.spec("D23")
def test_a_million_events_of_a_run_are_made_at_once() -> None:
    table = table_of_runs([DeliveryRun(Span(7, 1_000_007), "d", "ready", deliveries=3)])

    assert table["event_id"][-1].as_py() == 1_000_006
    assert table["deliveries"][0].as_py() == 3
    assert table["state"].type == pa.dictionary(pa.int32(), pa.string())
