"""Conversion of tables to bodies."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packages.core.tests.columns.properties import row_properties
from penstock_core.columns.events.batch import flatten, stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidArgument, InvalidEvent


def properties(bodies: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row_properties(body, row) for body in bodies for row in range(body.num_rows)]


def test_known_columns_keep_their_meaning_and_the_rest_are_properties() -> None:
    table = pa.table(
        {
            "price": [1.5, None],
            "tag": pa.array(["a", "b"]).dictionary_encode(),
            "data": pa.array([b"x", None], pa.large_binary()),
            "ttl": pa.array([5, None], pa.int32()),
            "priority": [9, 0],
            "persistent": [True, False],
            "headers": [{"user": "ann"}, None],
        }
    )
    (body,) = bodies_of_table(table)

    assert body.schema.names == [
        "tag",
        "data",
        "properties",
        "headers",
        "ttl",
        "persistent",
        "priority",
    ]
    assert body.column("tag").to_pylist() == ["a", "b"]
    assert body.column("data").to_pylist() == [b"x", b""]
    assert body.column("ttl").to_pylist() == [5, None]
    assert body.column("headers").to_pylist() == [{"user": "ann"}, {"user": None}]
    assert properties([body]) == [{"price": 1.5}, {"price": None}]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"data": [b"a", b"b"], "price": [1.5, None], "sku": ["x", "y"]}),
        pa.table({"data": pa.array([b"a", None], pa.binary()), "price": [1, 2]}),
        pa.table({"tag": ["a", None], "ttl": pa.array([5, None], pa.int64())}),
        pa.table({"price": pa.array([1, 2], pa.int64()), "none": pa.nulls(2)}),
        pa.table({"nested": [{"a": 1}, None], "price": [1, 2]}),
    ],
    ids=["plain", "null data", "no properties", "all null", "nested"],
)
def test_the_direct_and_the_general_path_make_the_same_bodies(table: pa.Table) -> None:
    cast = table.cast(
        pa.schema(
            [
                field.with_type(pa.large_string()) if pa.types.is_string(field.type) else field
                for field in table.schema
            ]
        )
    )  # which has to be made
    sliced = pa.concat_tables([table, table]).combine_chunks().slice(1, 2)

    assert bodies_of_table(table) == bodies_of_table(cast)
    rows = properties(bodies_of_table(table))
    assert properties(bodies_of_table(sliced)) == [rows[1], rows[0]]


def test_a_struct_named_properties_is_the_properties() -> None:
    table = pa.table({"properties": [{"a": 1}, {"a": None}], "b": ["x", "y"]})

    assert properties(bodies_of_table(table)) == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]
    assert properties(bodies_of_table(pa.table({"properties": [1]}))) == [{"properties": 1}]


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array(["x", None], pa.large_string()), pa.string()),
        (pa.array(["x", None], pa.string_view()), pa.string()),
        (pa.array([b"x", None], pa.large_binary()), pa.binary()),
        (pa.array([b"x", None], pa.binary_view()), pa.binary()),
        (pa.array([b"xy", None], pa.binary(2)), pa.binary()),
        (pa.array(["x", None]).dictionary_encode(), pa.string()),
        (pa.array([[1], None], pa.large_list(pa.int8())), pa.list_(pa.int8())),
        (pa.array([[1], None], pa.list_(pa.int8(), 1)), pa.list_(pa.int8())),
        (
            pa.array([[{"a": "x"}], None], pa.large_list(pa.struct([("a", pa.large_string())]))),
            pa.list_(pa.struct([("a", pa.string())])),
        ),
        (pa.array([1, None], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([1, None], pa.timestamp("ms", "Asia/Tokyo")), pa.timestamp("us", "UTC")),
        (pa.array([1000, None], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([1, None], pa.int16()), pa.int16()),
        (pa.array([None, None]), pa.null()),
        (pa.array([1, None], pa.date32()), pa.timestamp("us")),
        (pa.array([86_400_000, None], pa.date64()), pa.timestamp("us")),
        (pa.array([Decimal("1.50"), None], pa.decimal128(15, 2)), pa.float64()),
        (pa.array([Decimal(10**18 - 1), None], pa.decimal128(18, 0)), pa.int64()),
        (
            pa.array(
                [[{"d": Decimal("0.1")}], None], pa.list_(pa.struct([("d", pa.decimal32(9, 1))]))
            ),
            pa.list_(pa.struct([("d", pa.float64())])),
        ),
        (pa.array([[None, None], None], pa.list_(pa.null())), pa.list_(pa.null())),
    ],
)
def test_types_with_the_same_values_are_brought_to_ours(array: pa.Array, kind: pa.DataType) -> None:
    (body,) = bodies_of_table(pa.table({"p": array}))

    assert body.schema.field("properties").type.field("p").type == kind
    assert properties([body])[1] == {"p": None}


@pytest.mark.spec("E11")
@given(st.decimals(-(10**9), 10**9, places=6, allow_nan=False).map(lambda d: d.normalize()))
def test_a_decimal_of_fifteen_digits_is_the_nearest_double(value: Decimal) -> None:
    """The nearest double restores the digits of the decimal."""
    array = pa.array([value], pa.decimal128(15, 6)) if abs(value) < 10**9 else pa.array([value])
    (body,) = bodies_of_table(pa.table({"p": array.cast(pa.decimal128(15, 5), safe=False)}))
    [row] = properties([body])

    assert round(Decimal(row["p"]), 5) == array.cast(pa.decimal128(15, 5), safe=False)[0].as_py()


@pytest.mark.spec("E11")
def test_dates_are_midnights_without_a_zone() -> None:
    table = pa.table({"d": [date(2026, 5, 4), None], "ds": [[date(1, 1, 1)], []]})

    assert properties(bodies_of_table(table)) == [
        {"d": datetime(2026, 5, 4), "ds": [datetime(1, 1, 1)]},  # noqa: DTZ001
        {"d": None, "ds": []},
    ]


@pytest.mark.spec("E11")
def test_an_index_with_a_name_is_a_column() -> None:
    frame = pandas.DataFrame({"sku": ["a", "b", "a"], "n": [1, 2, 3], "k": ["x", "x", "y"]})
    one, two = frame.groupby("sku").sum(numeric_only=True), frame.groupby(["sku", "k"]).sum()
    days = pandas.DataFrame(
        {"n": [1]}, index=pandas.DatetimeIndex([datetime(2026, 5, 4, tzinfo=UTC)], name="at")
    )

    for table in (one, pa.Table.from_pandas(one), polars_like(one)):
        assert properties(bodies_of_table(table)) == [{"n": 4, "sku": "a"}, {"n": 2, "sku": "b"}]
    assert properties(bodies_of_table(two))[0] == {"n": 1, "sku": "a", "k": "x"}
    assert properties(bodies_of_table(days)) == [{"n": 1, "at": datetime(2026, 5, 4, tzinfo=UTC)}]
    counted = frame[["n"]].rename_axis("row")
    assert properties(bodies_of_table(counted))[2] == {"n": 3, "row": 2}


def polars_like(frame: pandas.DataFrame) -> pa.RecordBatchReader:
    """Return the table with the metadata of pandas, as another producer would provide it."""
    return pa.Table.from_pandas(frame).to_reader()


@pytest.mark.spec("E11")
@pytest.mark.parametrize("metadata", [b"{}", b"not json", b"[" * 100_000])
def test_an_unnamed_index_is_left_out_whatever_its_metadata(metadata: bytes) -> None:
    frame = pandas.DataFrame({"n": [1, 2]}, index=["x", "y"])
    table = pa.Table.from_pandas(frame)
    assert table.column_names == ["n", "__index_level_0__"]

    for source in (frame, table, table.replace_schema_metadata({"pandas": metadata})):
        assert properties(bodies_of_table(source)) == [{"n": 1}, {"n": 2}]


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    batch = pa.record_batch({"abcdef": pa.array(["x"]).dictionary_encode()})
    schema = pa.ipc.read_schema(
        pa.py_buffer(batch.schema.serialize().to_pybytes().replace(b"abcdef", b"abc\xffef"))
    )

    with pytest.raises(InvalidEvent, match="the name of a column is not UTF-8"):
        bodies_of_table(pa.RecordBatch.from_arrays(batch.columns, schema=schema))


def test_lists_of_nulls_as_the_jvm_writes_them_are_read() -> None:
    """The JVM's vector of nulls has one entry per list, not per element."""
    lists = pa.array([[None] * 1_003, [None]], pa.list_(pa.null()))
    batch = pa.record_batch({"xs": lists, "in": pa.StructArray.from_arrays([lists], names=["xs"])})
    lengths, short = (struct.pack("<qq", count, count) for count in (1_004, 2))
    message = batch.serialize().to_pybytes().replace(lengths, short)
    written = pa.ipc.read_record_batch(pa.py_buffer(message), batch.schema)
    assert len(written.column("xs").values) == 2

    rows = properties(bodies_of_table(written))

    # A cast to other names of elements, as Spark's, makes too few in turn.
    spark = pa.list_(pa.field("element", pa.null()))
    named = pa.table({"xs": pa.array([[None, None]], spark), "n": [1]})
    assert properties(bodies_of_table(named)) == [{"xs": [None, None], "n": 1}]
    assert rows[1] == {"xs": [None], "in": {"xs": [None]}}
    assert rows[0] == {"xs": [None] * 1_003, "in": {"xs": [None] * 1_003}}


@pytest.mark.parametrize(
    ("kind", "cast"),
    [
        (pa.uint8(), "int16"),
        (pa.uint64(), r"int64 \(or string"),
        (pa.decimal128(16, 2), "float64, or string"),
        (pa.decimal256(19, 0), "float64, or string"),
        (pa.time64("us"), "string, or int64"),
        (pa.duration("s"), "int64"),
        (pa.month_day_nano_interval(), "string"),
        (pa.float16(), "float32"),
        (pa.map_(pa.string(), pa.int8()), "a struct"),
        (pa.list_view(pa.int8()), "a list"),
        (pa.uuid(), "fixed_size_binary"),
    ],
)
def test_an_unsupported_type_is_refused_with_the_cast_to_use(kind: pa.DataType, cast: str) -> None:
    with pytest.raises(InvalidEvent, match=rf"column 'p' has type .*; cast it to {cast}"):
        bodies_of_table(pa.table({"p": pa.nulls(1, kind)}))
    with pytest.raises(InvalidEvent, match=r"column 'p\.q\[\]' has type"):
        bodies_of_table(pa.table({"p": pa.nulls(1, pa.struct([("q", pa.list_(kind))]))}))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"event_id": [1]}, "has a column 'event_id'; the realm sets it: rename"),
        ({"published": [1]}, "has a column 'published'"),
        ({"data": ["text"]}, "column 'data' has type string; cast it to binary"),
        ({"tag": [1]}, "column 'tag' has type int64; cast it to string"),
        ({"ttl": [1.5]}, "column 'ttl' has type double; cast it to int64"),
        ({"ttl": [-1]}, "event 0: ttl -1"),
        ({"priority": [300]}, "'priority' of type int64 does not fit int8"),
        ({"priority": [10]}, "event 0: priority 10"),
        ({"persistent": ["yes"]}, "column 'persistent' has type string; cast it to bool"),
        ({"headers": [{"nope": 1}]}, "unknown field 'nope'; allowed are message_id"),
        ({"properties": [{"a": 1}], "a": [1]}, "also a field of the column 'properties'"),
        ({"$penstock": [1]}, "reserved"),
        ({"": [1]}, "empty"),
        ({"t": pa.array([1], pa.timestamp("ns"))}, "column 't' .* without loss"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidEvent, match=said):
        bodies_of_table(pa.table(columns))


def test_columns_that_fit_are_not_copied() -> None:
    array = pa.array(["x", "y"])
    (body,) = bodies_of_table(pa.table({"p": array}))
    result = body.column("properties").field(0)

    assert result.buffers()[2].address == array.buffers()[2].address


def test_long_tables_are_cut_and_many_small_chunks_joined() -> None:
    chunks = pa.chunked_array([[n] for n in range(100)])

    assert [body.num_rows for body in bodies_of_table(pa.table({"p": chunks}))] == [100]
    cut = bodies_of_table(pa.table({"p": chunks}), max_rows=30)
    assert [body.num_rows for body in cut] == [30, 30, 30, 10]
    assert properties(cut) == [{"p": n} for n in range(100)]
    with pytest.raises(InvalidArgument, match="max_rows 0"):
        bodies_of_table(pa.table({"p": chunks}), max_rows=0)


def test_whatever_speaks_arrow_is_a_table() -> None:
    table = pa.table({"p": [1, 2]})

    class Foreign:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return table.__arrow_c_stream__(requested_schema)

    for obj in (table, table.to_batches()[0], table.to_reader(), Foreign()):
        assert properties(bodies_of_table(obj)) == [{"p": 1}, {"p": 2}]
    assert bodies_of_table(table.slice(2)) == []
    for wrong in ([1, 2], [{"p": 1}, 2], ({"p": 1},), "text", None):
        with pytest.raises(InvalidArgument, match="is not a table; pass"):
            bodies_of_table(wrong)


@pytest.mark.spec("E11")
def test_a_dictionary_of_columns_and_a_list_of_rows_are_tables() -> None:
    columns = {"p": [1, 2], "tag": ["a", None], "properties": [{"q": 1.5}, {"q": None}]}
    (body,) = bodies_of_table(columns)
    assert properties([body]) == [{"p": 1, "q": 1.5}, {"p": 2, "q": None}]
    assert body.column("tag").to_pylist() == ["a", None]

    rows = [{"p": 1}, {"q": "late", "p": 2}, {}]
    assert properties(bodies_of_table(rows)) == [
        {"p": 1, "q": None},
        {"p": 2, "q": "late"},
        {"p": None, "q": None},
    ]
    assert bodies_of_table([]) == bodies_of_table({}) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"p": 1},
        {"p": [1], "q": [1, 2]},
        {"p": [1, "a"]},
        {"p": [1 << 70]},
        {1: [1]},
        [{"p": object()}],
    ],
)
def test_columns_that_arrow_cannot_hold_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidEvent, match=r"(dict|list) cannot become Arrow columns"):
        bodies_of_table(wrong)


def test_a_pandas_frame_leaves_an_index_without_a_name_behind() -> None:
    frame = pa.table({"p": [1, 2], "k": ["a", "b"]}).to_pandas()

    assert properties(bodies_of_table(frame)) == [{"p": 1, "k": "a"}, {"p": 2, "k": "b"}]
    nameless = frame.set_index("k").rename_axis(None)
    assert properties(bodies_of_table(nameless)) == [{"p": 1}, {"p": 2}]
    frame["o"] = [1, "mixed"]
    with pytest.raises(InvalidEvent, match="cannot become Arrow columns"):
        bodies_of_table(frame)


@pytest.mark.spec("E2")
def test_more_columns_than_fit_overflow_without_loss() -> None:
    row = {f"p{n}": n for n in range(300)}
    (body,) = bodies_of_table(pa.table({name: [value] for name, value in row.items()}))

    assert body.schema.field("properties").type.num_fields == 256
    assert properties([body]) == [row]


def test_a_flattened_batch_can_be_published_again() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"price": 1, "at": moment}, {"price": "one", "at": moment}]
    flat = flatten(stamp(body_of_columns([b"", b""], properties=rows), Span(0, 2), 0))
    bodies = bodies_of_table(flat.select(["tag", "data", "price", "at", "price::string"]))

    assert properties(bodies) == rows


def test_a_column_of_times_of_delivery_is_one() -> None:
    times = pa.array([1_000, None], pa.timestamp("ms", tz="Europe/Berlin"))
    (body,) = bodies_of_table(pa.table({"deliver_at": times, "origin": ["BER", "LHR"]}))

    assert body.schema.field("deliver_at").type == pa.timestamp("us", tz="UTC")
    assert body.column("deliver_at").view(pa.int64()).to_pylist() == [1_000_000, None]
    assert row_properties(body, 1) == {"origin": "LHR"}
    with pytest.raises(InvalidEvent, match=r"'deliver_at' has type timestamp\[us\]; cast it to"):
        bodies_of_table(pa.table({"deliver_at": pa.array([0], pa.timestamp("us"))}))
