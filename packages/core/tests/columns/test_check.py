"""Bodies from clients that cannot be trusted."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.origin import for_join
from penstock_core.columns.schema.layout import LOGICAL_NAME
from penstock_core.vocabulary.errors import InvalidEvent


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def struct(kind: pa.DataType, name: str = "p") -> pa.StructArray:
    return pa.nulls(1, pa.struct([(name, kind)]))


def twins(one: pa.DataType, two: pa.DataType) -> pa.StructArray:
    second = pa.field("p::x", two, metadata={LOGICAL_NAME: b"p"})
    return pa.nulls(1, pa.struct([pa.field("p", one), second]))


def test_a_proper_body_passes() -> None:
    body = body_of_columns(
        [b"x", b"y"],
        ["t", None],
        [{"a": 1}, {"a": "x", "b": {}}],
        headers=[{"user": "ann"}, None],
        ttls=[1, None],
        priorities=[9, None],
    )
    check_body(body)
    check_body(body.slice(1))
    check_body(batch(properties=twins(pa.int64(), pa.string())))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"price": pa.array([1])}, "unknown column 'price'; allowed are tag"),
        ({"event_id": pa.array([1])}, "'event_id' is set by the realm"),
        ({"published": pa.array([1])}, "'published' is set by the realm"),
        ({"data": pa.array(["x"])}, "'data' has type string; it must be binary"),
        ({"tag": pa.array(["x"], pa.large_string())}, "it must be string"),
        ({"ttl": pa.array([1], pa.int32())}, "it must be int64"),
        ({"properties": pa.array([1])}, "must be a struct"),
        ({"headers": pa.array([1])}, "must be a struct"),
        ({"headers": struct(pa.string(), "nope")}, "unknown header 'nope'"),
        ({"headers": struct(pa.int8(), "user")}, "header 'user' has type int8; it must be string"),
        ({"headers": pa.nulls(1, pa.struct([]))}, "headers must have fields"),
        ({"properties": struct(pa.uint8())}, "properties.p has type uint8"),
        ({"properties": struct(pa.list_(pa.date32()))}, r"properties.p\[\] has type date32"),
        ({"properties": struct(pa.timestamp("ns"))}, r"timestamp\[ns\]"),
        ({"properties": struct(pa.dictionary(pa.int8(), pa.string()))}, "dictionary"),
        ({"properties": struct(pa.struct([]))}, "struct without fields"),
        ({"properties": struct(pa.int8(), "$penstock")}, "reserved"),
        ({"properties": struct(pa.struct([("", pa.int8())]))}, "name is empty"),
        ({"properties": twins(pa.int8(), pa.int64())}, "two fields whose types could share one"),
        ({"properties": twins(pa.int8(), pa.null())}, "two fields whose types could share one"),
        (
            {"properties": pa.nulls(1, pa.struct([(f"p{n}", pa.int8()) for n in range(257)]))},
            "257 columns; at most 256",
        ),
        ({"data": pa.array([b"x", None])}, "data has 1 nulls"),
        ({"ttl": pa.array([None, 1, -1])}, "event 2: ttl -1 is not in 0"),
        (
            {"ttl": pa.array([1, (1 << 50) + 1])},
            "event 1: ttl 1125899906842625 is not in",
        ),
        ({"priority": pa.array([4, 10], pa.int8())}, r"event 1: priority 10 is not in 0\.\.9"),
        ({"more": pa.array([b"\xc1"])}, "does not hold tagged msgpack"),
        ({"data": pa.array([], pa.binary())}, "no events"),
        (
            {
                "properties": pa.array(
                    [{"p": [2**62]}], pa.struct([("p", pa.list_(pa.timestamp("us")))])
                )
            },
            r"properties.p\[\] holds a timestamp outside",
        ),
    ],
)
def test_what_is_no_body_is_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidEvent, match=said):
        check_body(batch(**columns))


def test_a_name_that_appears_twice_is_refused() -> None:
    field = pa.field("p", pa.int8())
    for doubled in (
        pa.RecordBatch.from_arrays([pa.array([b"x"])] * 2, names=["data", "data"]),
        batch(properties=pa.nulls(1, pa.struct([field, field]))),
    ):
        with pytest.raises(InvalidEvent, match="twice"):
            check_body(doubled)


def test_a_struct_nested_without_end_is_refused() -> None:
    kind = pa.int8()
    for _ in range(40):
        kind = pa.list_(kind)

    with pytest.raises(InvalidEvent, match="nested 41 deep"):
        check_body(batch(properties=struct(kind)))


def test_more_events_than_bytes_could_say_are_refused() -> None:
    nothing = pa.nulls(2**20 + 1, pa.null())
    endless = pa.StructArray.from_arrays([nothing], names=["p"])

    with pytest.raises(InvalidEvent, match="1048577 events; publish at most 1048576"):
        check_body(batch(properties=endless))


def test_a_list_of_more_nulls_than_its_bytes_could_hold_is_refused() -> None:
    count = 2**20 + 1
    offsets = pa.array([0, count], pa.int32())
    endless = pa.ListArray.from_arrays(offsets, pa.nulls(count, pa.null()))
    struct_of_it = pa.StructArray.from_arrays([endless], names=["p"])

    with pytest.raises(InvalidEvent, match=r"properties.p has 1048577 elements, more than"):
        check_body(batch(properties=struct_of_it))


def test_text_that_is_not_utf8_is_refused() -> None:
    text = pa.array([b"\xff"]).view(pa.string())

    with pytest.raises(InvalidEvent, match="damaged"):
        check_body(batch(tag=text))


@pytest.mark.spec("E3")
def test_only_the_realm_writes_where_an_event_came_from() -> None:
    forged = for_join(body_of_columns([b"x"]), 0, 0, store="elsewhere")

    with pytest.raises(InvalidEvent, match="column 'origin' is set by the realm; leave it out"):
        check_body(forged)


def test_a_time_of_delivery_is_a_time_people_can_read() -> None:
    time = pa.array([0, None], pa.timestamp("us", tz="UTC"))
    check_body(batch(data=[b"", b""], deliver_at=time))

    with pytest.raises(InvalidEvent, match="deliver_at holds a timestamp outside the years"):
        check_body(batch(deliver_at=pa.array([1 << 62], pa.timestamp("us", tz="UTC"))))
    with pytest.raises(InvalidEvent, match=r"'deliver_at' has type timestamp\[us\]; it must be"):
        check_body(batch(deliver_at=pa.array([0], pa.timestamp("us"))))
