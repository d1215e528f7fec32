"""Fields of structs are chosen by path, and values lose nothing else."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock
from packages.spark.tests.reading import rows_of
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.columns.nesting import choose_columns, narrow
from penstock_spark.source import PenstockSource

LINE = pa.struct([("sku", pa.string()), ("tags", pa.list_(pa.string()))])
KINDS = {
    "event_id": pa.int64(),
    "properties.tag": pa.string(),
    "address": pa.struct([("city", pa.string()), ("zip", pa.struct([("code", pa.int64())]))]),
    "lines": pa.list_(LINE),
}


def test_paths_choose_fields_in_the_order_they_are_named() -> None:
    result = choose_columns(KINDS, ("lines.sku", "properties.tag", "address.zip.code", "event_id"))

    assert result == {
        "lines": pa.list_(pa.struct([("sku", pa.string())])),
        "properties.tag": pa.string(),
        "address": pa.struct([("zip", pa.struct([("code", pa.int64())]))]),
        "event_id": pa.int64(),
    }
    assert choose_columns(KINDS, ("address.city", "address")) == {"address": KINDS["address"]}
    assert list(choose_columns(KINDS, ("address.zip", "address.city"))["address"]) == [
        pa.field("zip", pa.struct([("code", pa.int64())])),
        pa.field("city", pa.string()),
    ]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("adress.city", "there is no column 'adress.city': did you mean address?"),
        ("address.town", "address has no field 'town': there are city, zip"),
        ("address.zip.cod", "address.zip has no field 'cod': did you mean code?"),
        ("event_id.x", "event_id has no field 'x', because its type is int64"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(column: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        choose_columns(KINDS, (column,))

    assert str(refusal.value) == says


def test_narrowing_keeps_nulls_and_slices() -> None:
    rows = [None, [None, {"sku": "a", "tags": ["x"]}], [], [{"sku": None, "tags": None}]]
    array = pa.array([[], *rows], pa.list_(LINE)).slice(1)

    result = narrow(array, pa.list_(pa.struct([("new", pa.int64()), ("sku", pa.string())])))

    result.validate(full=True)
    assert result.to_pylist() == [
        None,
        [None, {"new": None, "sku": "a"}],
        [],
        [{"new": None, "sku": None}],
    ]


@pytest.mark.slow
def test_a_read_has_the_fields_that_were_chosen(url: str, client: Session) -> None:
    orders = client.channels.create("orders")
    lines = [{"sku": "a", "parts": [{"n": 1, "deep": [[{"x": 1, "y": 2}]]}]}, {"sku": "b"}]
    orders.publish_many(
        [
            penstock.Event(properties={"lines": lines, "address": {"city": "Ulm", "no": 7}}),
            penstock.Event(properties={"address": {"no": 8}}),
        ]
    )

    def read(columns: str) -> list[dict[str, object]]:
        data_source = PenstockSource({"url": url, "channel": "orders", "columns": columns})
        reader = data_source.reader(data_source.schema())
        return rows_of(reader, reader.partitions())

    assert read("address.city") == [{"address": {"city": "Ulm"}}, {"address": {"city": None}}]
    assert read("lines.parts.deep.y") == [
        {"lines": [{"parts": [{"deep": [[{"y": 2}]]}]}, {"parts": None}]},
        {"lines": None},
    ]
    assert read("lines")[0] == {
        "lines": [
            {"sku": "a", "parts": [{"n": 1, "deep": [[{"x": 1, "y": 2}]]}]},
            {"sku": "b", "parts": None},
        ]
    }
