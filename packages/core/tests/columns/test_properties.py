"""Conversion of publishers' dictionaries to columns, and the values that are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from packages.core.tests.columns.properties import row_properties
from penstock_core.columns.events import body as body_module
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema import properties as properties_module
from penstock_core.columns.schema.properties import NO_PROPERTIES, property_columns
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_core.vocabulary.nesting import NESTING_MAX

from .strategies import typed


def batch_of(rows: list[Any]) -> pa.RecordBatch:
    result = property_columns(rows)
    columns = {
        name: array for name, array in result._asdict().items() if isinstance(array, pa.Array)
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.spec("E2")
def test_uniform_rows_need_no_encoding_columns() -> None:
    rows = [{"a": n, "b": n / 2, "c": str(n), "d": None, "e": n > 1} for n in range(3)]
    batch = batch_of(rows)

    assert batch.schema.names == ["properties"]
    assert [row_properties(batch, row) for row in range(3)] == rows


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, pa.bool_()),
        (np.bool_(True), pa.bool_()),
        (np.int8(-128), pa.int8()),
        (np.int16(3), pa.int16()),
        (np.int32(3), pa.int32()),
        (np.int64(3), pa.int64()),
        (-(2**63), pa.int64()),
        (np.float32(0.5), pa.float32()),
        (np.float64(0.1), pa.float64()),
        (pa.scalar(3, pa.int16()), pa.int16()),
        ("ü", pa.string()),
        (b"\xff", pa.binary()),
        (bytearray(b"x"), pa.binary()),
        (datetime(2026, 1, 2, tzinfo=UTC), pa.timestamp("us", tz="UTC")),
        (datetime(2026, 1, 2, hour=3, minute=4, second=5, microsecond=6), pa.timestamp("us")),  # noqa: DTZ001 - naive stays so
        ([1, None], pa.list_(pa.int64())),
        ({"x": [{"y": 1.5}]}, pa.struct([("x", pa.list_(pa.struct([("y", pa.float64())])))])),
        (None, pa.null()),
    ],
)
def test_each_supported_type_has_its_arrow_type(value: Any, kind: pa.DataType) -> None:
    batch = batch_of([{"v": value}])
    plain = value.as_py() if isinstance(value, pa.Scalar) else value

    assert batch.schema.field("properties").type.field("v").type == kind
    assert row_properties(batch, 0) == {"v": plain}


@pytest.mark.spec("E2")
def test_a_timestamp_with_a_zone_is_the_same_instant_in_utc() -> None:
    moment = datetime(2026, 1, 2, hour=3, tzinfo=timezone(timedelta(hours=5)))
    result = row_properties(batch_of([{"t": moment}]), 0)["t"]

    assert result == moment
    assert result.utcoffset() == timedelta(0)


@pytest.mark.spec("E2")
def test_enum_members_travel_as_the_type_they_extend() -> None:
    class Level(IntEnum):
        LOW = 1

    assert typed(row_properties(batch_of([{"v": Level.LOW}]), 0)) == typed({"v": 1})


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1}, {}],
        [{"a": 1}, None, {"a": None}],
        [{"a": {"b": None}}, {"a": None}, {"a": {}}, {"a": {"c": 1}}],
        [{"a": [{"b": 1}, {}, None, {"b": None}]}],
        [{"a": [1, "x", [2.5, None], {"k": b"y"}]}, {"a": 1}],
        [{"a": {}}, {"a": None}, {"b": [{}]}],
        [{"a": 1}, {"a": True}, {"a": 1.0}, {"a": "1"}, {"a": b"1"}],
        [{"a": {"x": 1}}, {"a": {"x": "1"}}, {"a": {"x": None}}, {"a": {}}],
        [{"a": [{"x": 1}, {"x": "1"}]}, {"a": [[{"x": 1}]]}],
        [{"a.b": None, "a": {"b": 1}}, {"a": {"b": None}}, {"a[0]": 1, "a": [None]}],
        [{"a": datetime(2026, 1, 1, tzinfo=UTC)}, {"a": datetime(2026, 1, 1)}],  # noqa: DTZ001
    ],
)
def test_null_absent_and_type_are_distinct(rows: list[Any]) -> None:
    batch = batch_of(rows)
    batch.validate(full=True)

    result = [row_properties(batch, row) for row in range(len(rows))]
    assert typed(result) == typed([row or {} for row in rows])


@pytest.mark.spec("E2")
def test_very_deep_values_survive() -> None:
    value: Any = 1
    for depth in range(60):
        value = {"k": value} if depth % 2 else [value]
    batch = batch_of([{"deep": value}])

    assert row_properties(batch, 0) == {"deep": value}
    assert batch.serialize().size > 0


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Decimal(1), "Decimal is not supported; use a string"),
        (date(2026, 1, 1), "date is not supported; use a datetime"),
        ((1, 2), "tuple is not supported; use a list"),
        ({1, 2}, "set is not supported; use a list"),
        (1j, "complex is not supported"),
        (np.uint8(1), "uint8 is not supported"),
        (np.array([1]), "ndarray is not supported; use list"),
        (object, "type is not supported"),
        (2**63, "9223372036854775808 does not fit int64"),
        (-(2**63) - 1, "does not fit int64"),
        ("\ud800", "surrogates not allowed; send it as bytes"),
        (pa.scalar(1, pa.uint8()), "Arrow uint8 scalar is not supported"),
        ({1: 2}, "names are strings"),
        ({"": 2}, "a property name is empty"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), "outside the years"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(value: Any, said: str) -> None:
    for rows, path in (
        ([{"p": value}], "'p'"),
        ([{"p": {"q": [0, value]}}], r"'p\.q\[1\]"),
    ):
        with pytest.raises(InvalidEvent, match=said) as refused:
            property_columns([{"fine": 1}, *rows])

        assert "event 1, property " in str(refused.value)
        assert path.replace("\\", "") in str(refused.value)
        assert "int8" in str(refused.value)


@pytest.mark.parametrize("name", ["", "$penstock.x", 3, None, "\ud800"])
def test_a_name_no_property_can_have_is_refused(name: Any) -> None:
    for row in ({name: 1}, {name: [1]}):
        with pytest.raises(InvalidEvent, match="name"):
            property_columns([row])


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(InvalidEvent, match="nested too deep"):
        property_columns([{"a": loop}])


@pytest.mark.spec("E2")
@pytest.mark.parametrize("mixed", [True, False])
def test_values_of_more_levels_than_the_bound_are_refused(mixed: bool) -> None:
    value: Any = [1, "a"] if mixed else [1]
    for _ in range(NESTING_MAX - 1):
        value = [value] if not mixed else {"k": value}
    batch = batch_of([{"a": value}])
    check_body(body_of([Event(b"", properties={"a": value})]))
    assert row_properties(batch, 0) == {"a": value}

    for beyond in ([value], {"k": value}):
        with pytest.raises(InvalidEvent, match="event 1, property 'a' is nested too deep; at mos"):
            property_columns([{"a": 1}, {"a": beyond}])


def test_no_properties_are_no_columns() -> None:
    assert property_columns([None, {}, None]) == NO_PROPERTIES


@pytest.mark.spec("E2")
@pytest.mark.parametrize("number", [np.int8(3), np.int32(3), np.float32(0.5)])
def test_a_narrow_number_keeps_its_field_next_to_another_type(number: Any) -> None:
    rows = [{"x": True}, {"x": number}, {"y": {"x": number}}, {"y": {"x": "text"}}]

    batch = batch_of(rows)

    assert [row_properties(batch, row) for row in range(4)] == rows
    fields = {field.name: field.type for field in batch.schema.field("properties").type}
    assert pa.scalar(number).type in fields.values()


def test_combinations_of_names_are_kept_within_a_number_of_fields() -> None:
    for number in range(300):
        row = {f"{number}-{column}": column for column in range(250)}
        assert body_of([Event(properties=row)]).num_rows == 1

    most = 16_384 + 251
    assert sum(map(len, properties_module._plans)) <= most
    plans = [plan for _, plan in body_module._schemas.values() if plan is not None]
    assert sum(plan.num_fields for plan in plans) <= most
