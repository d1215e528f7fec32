"""Stored batches, and the forms that consumers read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_core.columns.events.batch import EventBatch, body_part, flatten, ids_of, stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.ids.ids import Span


def stored() -> pa.RecordBatch:
    properties: list[dict[str, Any]] = [{"price": 1, "tag": "x"}, {"price": "one"}, {}]
    body = body_of_columns([b"a", b"b", b""], ["t", None, None], properties)
    return stamp(body, Span(5, 8), 1_000_000)


@pytest.mark.spec("E4")
def test_stamping_prepends_ids_and_times_and_copies_nothing() -> None:
    body = body_of_columns([b"a", b"b"], ["t", "u"])
    batch = stamp(body, Span(5, 7), 1_000_000)
    spread = stamp(body, np.array([3, 9]), np.array([1, 2]))

    assert batch.schema.names == ["event_id", "published", "tag", "data"]
    assert not batch.schema.field("event_id").nullable
    assert ids_of(batch).tolist() == [5, 6]
    assert ids_of(spread).tolist() == [3, 9]
    assert batch.column("published").cast(pa.int64()).to_pylist() == [1_000_000, 1_000_000]
    assert spread.column("published").cast(pa.int64()).to_pylist() == [1, 2]
    data = body.column("data").buffers()[2]
    assert batch.column("data").buffers()[2].address == data.address
    assert body_part(batch).equals(body)
    batch.validate(full=True)


def test_ids_must_be_as_many_as_events() -> None:
    with pytest.raises(AssertionError, match="3 ids for 1 events"):
        stamp(body_of_columns([b"a"]), Span(0, 3), 0)


def test_a_flat_batch_has_a_column_per_property() -> None:
    flat = flatten(stored())

    assert flat.schema.names == [
        "event_id",
        "published",
        "tag",
        "data",
        "price",
        "properties.tag",
        "price::string",
    ]
    assert flat.column("price").to_pylist() == [1, None, None]
    assert flat.column("price::string").to_pylist() == [None, "one", None]
    assert flat.column("tag").to_pylist() == ["t", None, None]


def test_a_table_is_the_flat_batch_also_where_events_have_no_properties_at_all() -> None:
    batch = stored()
    index = batch.schema.get_field_index("properties")
    column = batch.column(index)
    holed = pa.StructArray.from_arrays(
        column.flatten(), fields=list(column.type), mask=pa.array([True, False, False])
    )
    for variant in (batch, batch.slice(1), batch.set_column(index, "properties", holed)):
        table = EventBatch(variant).to_table()

        assert table.equals(pa.Table.from_batches([flatten(variant)]), check_metadata=True)
        assert table.column("price").to_pylist() == [
            row["price"] if row else None for row in variant.column(index).to_pylist()
        ]
        table.validate(full=True)


def test_flattening_can_pick_properties_by_name() -> None:
    assert flatten(stored(), ["price"]).schema.names[4:] == ["price", "price::string"]
    assert flatten(stored(), ["price::string"]).schema.names[4:] == ["price::string"]
    assert flatten(stored(), []).schema.names[4:] == []


def test_a_flat_batch_always_has_its_first_columns() -> None:
    bare = flatten(stamp(body_of_columns([b""], ["t"]), Span(0, 1), 0))

    untagged = flatten(stamp(body_of_columns([b"x"]), Span(0, 1), 0))

    assert bare.schema.names == untagged.schema.names == ["event_id", "published", "tag", "data"]
    assert untagged.column("tag").to_pylist() == [None]
    assert bare.column("data").to_pylist() == [b""]


def test_a_batch_is_a_sequence_of_events() -> None:
    batch = EventBatch(stored(), {6: 2})

    assert len(batch) == 3
    assert [event.event_id for event in batch] == [5, 6, 7]
    assert [event.redelivery_count for event in batch] == [0, 2, 0]
    assert (batch[-1].event_id, batch[1].redelivery_count) == (7, 2)
    assert [event.properties for event in EventBatch(stored())][1:] == [{"price": "one"}, {}]
    assert batch.event_ids.tolist() == [5, 6, 7]
    assert repr(batch) == "EventBatch(3 events, ids 5..7)"
    assert repr(EventBatch(stored().slice(3))) == "EventBatch(empty)"
    with pytest.raises(IndexError, match="row 3 of a batch of 3"):
        batch[3]


PROPERTIES: dict[str, Callable[[int], dict[str, Any]]] = {
    "plain": lambda n: {"n": n, "word": f"w{n}"},
    "none": lambda _: {},
    "sparse": lambda n: {"n": None} if n % 3 else {},
    "of two types": lambda n: {"n": n if n % 2 else f"{n}"},
}


@pytest.mark.spec("E2")
@pytest.mark.parametrize("kind", PROPERTIES)
@pytest.mark.parametrize("every", [1, 7, 300])
def test_events_read_in_order_equal_events_read_by_index(kind: str, every: int) -> None:
    """The result does not depend on how many of the other events are read."""
    datas = [b"%d" % n if n % 5 else b"" for n in range(700)]
    properties = [PROPERTIES[kind](n) for n in range(700)]
    batch = EventBatch(stamp(body_of_columns(datas, None, properties), Span(0, 700), 1))

    events = list(batch)

    for n, event in enumerate(batch):
        if n % every == 0:
            assert (event.data, event.properties) == (datas[n], properties[n])
            event.properties["mine"] = n
    assert [event.data for event in events] == datas
    assert [event.properties for event in events] == properties
    assert [batch[n].properties for n in range(0, 700, 99)] == properties[::99]


def test_a_batch_is_handed_out_as_arrow_and_as_pandas() -> None:
    batch = EventBatch(stored())

    assert batch.to_arrow().schema.names[:2] == ["event_id", "published"]
    assert batch.to_table().num_rows == 3
    assert batch.to_pandas()["event_id"].tolist() == [5, 6, 7]
