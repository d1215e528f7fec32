"""The column ``nulls`` distinguishes null from absent properties."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.columns.projection import Extras, Projection, arrow_schema, spark_schema
from penstock_spark.options import source_options
from tests.thorough import examples

URL = {"url": "penstock://localhost:9000", "channel": "rates"}

EXTRAS = Extras(nulls=True)
PROPERTIES = st.dictionaries(
    st.sampled_from(("bid", "ask", "a.b")),
    st.none()
    | st.integers(0, 9)
    | st.text("xyz", max_size=2)
    | st.just([1, "mixed"])
    | st.fixed_dictionaries({"low": st.none() | st.integers(0, 9)}),
)


def stamped(body: pa.RecordBatch) -> pa.RecordBatch:
    return stamp(body, Span(0, body.num_rows), 1_000_000)


def rows_of(batches: list[pa.RecordBatch], *columns: str) -> list[dict[str, Any]]:
    """All events as Spark reads them, batches as they came and as they are sealed."""
    schema = ChannelSchema.empty()
    for batch in batches:
        schema = schema.grown(batch.schema)
    wanted = arrow_schema(spark_schema([schema.arrow], columns=columns, extras=EXTRAS))
    projection = Projection(schema.arrow, wanted, extras=EXTRAS)
    result = [projection.project(batch) for batch in batches]
    sealed = [projection.project(schema.conform(batch)) for batch in batches]
    for batch, same in zip(result, sealed, strict=True):
        batch.validate(full=True)
        assert batch.schema.equals(wanted)
        assert [set(row or ()) for row in batch["nulls"].to_pylist()] == [
            set(row or ()) for row in same["nulls"].to_pylist()
        ]
    return [row for batch in result for row in batch.to_pylist()]


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.lists(PROPERTIES, min_size=1, max_size=4), min_size=1, max_size=3))
def test_exactly_the_columns_that_an_event_mentions_and_that_are_null_are_named(
    published: list[list[dict[str, Any]]],
) -> None:
    batches = [
        stamped(body_of([Event(b"x", properties=event_properties) for event_properties in group]))
        for group in published
    ]

    rows = rows_of(batches)

    flat = [properties for group in published for properties in group]
    for properties, row in zip(flat, rows, strict=True):
        columns = {name for name in row if name.partition("::")[0] in properties}
        assert set(row["nulls"] or ()) == {name for name in columns if row[name] is None}


def test_an_event_without_nulls_has_no_list() -> None:
    (row,) = rows_of([stamped(body_of([Event(b"", properties={"bid": 1})]))])

    assert row["nulls"] is None


def test_nulls_of_a_table_are_all_meant() -> None:
    table = pa.table(
        {"bid": [1, None], "ask": [None, None]}, pa.schema({"bid": "int64", "ask": "double"})
    )
    batches = [stamped(body) for body in bodies_of_table(table)]
    batches.append(stamped(body_of([Event(b"", properties={"bid": 3})])))

    assert [row["nulls"] for row in rows_of(batches)] == [["ask"], ["bid", "ask"], None]


def test_only_columns_that_are_read_are_named() -> None:
    batches = [stamped(body_of([Event(b"", properties={"bid": None, "ask": None})]))]

    assert rows_of(batches, "ask", "nulls") == [{"ask": None, "nulls": ["ask"]}]


def test_a_property_called_nulls_stays_readable() -> None:
    batches = [stamped(body_of([Event(b"", properties={"nulls": 1, "bid": None})]))]

    assert rows_of(batches, "properties.nulls", "nulls") == [{"properties.nulls": 1, "nulls": None}]


def test_the_column_is_there_on_request_only() -> None:
    assert not source_options(URL).include_nulls
    assert source_options({**URL, "includenulls": "true"}).include_nulls
    with pytest.raises(InvalidArgument, match="no column 'nulls'"):
        spark_schema([ChannelSchema.empty().arrow], columns=("nulls",))
