"""Integers and floats of one property are shown as one column, or as two typed columns; events keep
their types."""

from __future__ import annotations

import warnings
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.lifted_columns import flat_table, table_of
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span

EXACT = 1 << 53


def stored(*properties: dict[str, Any]) -> pa.RecordBatch:
    body = body_of([Event(b"", properties=row) for row in properties])
    return stamp(body, Span(0, len(properties)), 0)


def shown(*properties: dict[str, Any]) -> pa.Table:
    """Put each event in a separate batch, so that no batch has both types."""
    return table_of([stored(row) for row in properties]).drop_columns(
        ["event_id", "published", "tag", "data"]
    )


@pytest.mark.spec("E10")
@pytest.mark.parametrize("values", [(3, 9.5), (9.5, 3), (EXACT, 0.5), (-EXACT, 0.5)])
def test_integers_and_floats_of_a_property_are_one_column(values: tuple[float, float]) -> None:
    table = shown({"price": values[0]}, {"price": values[1]}, {"sku": "a"})

    assert table.schema.field("price") == pa.field("price", pa.float64())
    assert table.to_pydict() == {"price": [*values, None], "sku": [None, None, "a"]}


@pytest.mark.spec("E10")
@pytest.mark.parametrize("beyond", [EXACT + 1, -EXACT - 1, (1 << 63) - 1])
def test_an_integer_without_an_exact_double_separates_the_types(
    beyond: int,
) -> None:
    with pytest.warns(UserWarning, match=r"n: some integers are beyond 2\*\*53 .*n::int and n::fl"):
        table = shown({"n": beyond}, {"n": 0.5})

    assert table.to_pydict() == {"n::int": [beyond, None], "n::float": [None, 0.5]}
    assert "n" not in table.column_names, "it would be a part of the values"


@pytest.mark.spec("E10")
def test_numbers_inside_lists_and_dictionaries_are_one_column_too() -> None:
    table = shown(
        {"xs": [1, 2], "d": {"n": 1, "lines": [{"p": 1}, {"p": 2.5}]}},
        {"xs": [0.5], "d": {"n": 0.5, "lines": [{"p": None}]}},
    )

    assert table.column("xs").to_pylist() == [[1.0, 2.0], [0.5]]
    assert table.column("d").to_pylist() == [
        {"n": 1.0, "lines": [{"p": 1.0}, {"p": 2.5}]},
        {"n": 0.5, "lines": [{"p": None}]},
    ]


@pytest.mark.spec("E10")
def test_values_of_other_types_are_not_joined() -> None:
    table = shown({"v": "x"}, {"v": 1}, {"v": 1.5}, {"v": True})

    assert table.to_pydict() == {
        "v": ["x", None, None, None],
        "v::number": [None, 1.0, 1.5, None],
        "v::bool": [None, None, None, True],
    }


@pytest.mark.spec("E10")
def test_exact_columns_are_selected_by_name() -> None:
    batches = [stored({"tag": 3, "p": 1.5}), stored({"tag": 9.5, "p": 2})]
    schema = ChannelSchema.empty()
    for batch in batches:
        schema = schema.grown(batch.schema)

    table = flat_table(batches, schema, ["tag::int", "tag::float", "p::int", "properties.tag"])

    assert table.to_pydict() == {
        "tag::int": [3, None],
        "tag::float": [None, 9.5],
        "p::int": [None, 2],
        "properties.tag": [3.0, 9.5],
    }
    assert table.schema.field("tag::int").type == pa.int64()


@pytest.mark.spec("E10", "E2")
def test_a_batch_shows_one_column_and_its_events_keep_their_types() -> None:
    batch = EventBatch(stored({"price": 3}, {"price": 9.5}))

    assert batch.to_table().column("price").to_pylist() == [3.0, 9.5]
    assert [type(event.properties["price"]) for event in batch] == [int, float]


@pytest.mark.spec("E10")
def test_a_channel_and_a_round_trip_have_one_column() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        prices = session.channels.create("prices", type="persistent")
        prices.publish(properties={"price": 3})
        prices.publish(properties={"price": 9.5})
        table = prices.read(columns=["price"])
        exact = prices.read(columns=["price::float", "price::int"])
        copy = session.channels.create("copy")
        copy.publish_table(table)
        typed = session.channels.create("typed")
        typed.publish_table(exact)
        events = [event.properties for event in typed.browse()]

        assert table.to_pydict() == {"price": [3.0, 9.5]}
        assert exact.to_pydict() == {"price::float": [None, 9.5], "price::int": [3, None]}
        assert copy.read(columns=["price"]) == table
        assert prices.read(selector="price > 2").num_rows == 2
        with pytest.raises(
            penstock.InvalidArgument, match=r"unknown column cost; the table has .*price$"
        ):
            prices.read(columns=["cost"])
    assert [event["price"] for event in events] == [3, 9.5]
    assert typed_as_published(events)


def typed_as_published(events: list[dict[str, Any]]) -> bool:
    return [type(event["price"]) for event in events] == [int, float]


@pytest.mark.spec("E10")
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("ab"),
            st.integers(-EXACT, EXACT)
            | st.floats(allow_nan=False)
            | st.text(max_size=2)
            | st.lists(st.integers(-9, 9), max_size=2)
            | st.lists(st.floats(0, 1), max_size=2),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_number_is_lost_or_changed(rows: list[dict[str, Any]]) -> None:
    table = shown(*rows)

    for name in "ab":
        columns = [
            name_of_column
            for name_of_column in table.column_names
            if name_of_column.partition("::")[0] == name
        ]
        kinds = {table.schema.field(name_of_column).type for name_of_column in columns}
        assert len(kinds) == len(columns)
        assert not {pa.int64(), pa.float64()} <= kinds
        for row, event in enumerate(rows):
            values = [
                v
                for name_of_column in columns
                if (v := table.column(name_of_column)[row].as_py()) is not None
            ]
            assert values == ([event[name]] if name in event else [])


@pytest.mark.spec("E10")
def test_a_channel_without_such_a_property_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shown({"n": EXACT + 1}, {"n": 1}).column("n").type == pa.int64()
