"""Rows read one at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from packages.core.tests.columns.properties import row_properties
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.schema.rows import Rows
from penstock_core.ids.ids import Span


@pytest.mark.spec("E1")
def test_absent_columns_read_as_defaults() -> None:
    rows = Rows(body_of_columns([b""], ["t"]))

    assert (rows.data(0), rows.ttl(0), rows.priority(0)) == (b"", 0, 4)
    assert (rows.persistent(0), rows.transient(0)) == (True, False)
    assert (rows.headers(0), rows.properties(0), rows.published(0)) == ({}, {}, None)
    assert (rows.value("tag", 0), rows.value("event_id", 0)) == ("t", None)


@pytest.mark.spec("E1")
def test_the_last_instants_are_read_to_the_microsecond() -> None:
    last = 253_402_300_799_999_999
    rows = Rows(stamp(body_of_columns([b"x"]), Span(0, 1), last))
    published = rows.published(0)

    assert published is not None
    assert published.isoformat() == "9999-12-31T23:59:59.999999+00:00"


@pytest.mark.spec("E2")
def test_a_name_in_more_wins_over_its_column() -> None:
    batch = body_of_columns([b"", b""], properties=[{"a": [1, "x"]}, {"a": 2}])

    assert row_properties(batch, 0) == {"a": [1, "x"]}
    assert row_properties(batch, 1) == {"a": 2}


def test_a_null_struct_is_no_properties() -> None:
    struct = pa.array([None, {"a": None}], pa.struct([("a", pa.int8())]))
    batch = pa.RecordBatch.from_pydict({"properties": struct})

    assert [row_properties(batch, row) for row in (0, 1)] == [{}, {"a": None}]
