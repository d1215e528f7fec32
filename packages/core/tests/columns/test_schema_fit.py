"""Converting columns of a narrow shape to a wider one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_core.columns.schema.schema_fit import explicit_nulls, fitted, lacks, unplaced
from penstock_core.columns.schema.shapes import (
    ListShape,
    Shape,
    Slot,
    StructShape,
    arrow_type,
    struct_shape,
)


def struct(**slots: Shape) -> StructShape:
    return StructShape(tuple(Slot(name, name, shape) for name, shape in slots.items()))


ROWS: list[Any] = [
    {"a": 1, "l": [{"x": None}, None]},
    None,
    {"a": None, "l": None},
    {"a": 2, "l": [{"x": 3}]},
]
NARROW = struct(a="int8", l=ListShape(struct(x="int8")))
WIDE = struct(b="string", a="int64", l=ListShape(struct(x="int16", y="bool")))


@pytest.mark.parametrize("first", range(4))
def test_values_stay_and_new_fields_are_null(first: int) -> None:
    array = pa.array(ROWS, arrow_type(NARROW)).slice(first)
    result = fitted(array, NARROW, WIDE)
    result.validate(full=True)

    assert result.type == arrow_type(WIDE)
    assert [row if row is None else row["a"] for row in result.to_pylist()] == [
        row if row is None else row["a"] for row in ROWS[first:]
    ]
    assert result[-1].as_py() == {"b": None, "a": 2, "l": [{"x": 3, "y": None}]}


def test_what_fits_already_is_not_touched() -> None:
    array = pa.array(ROWS, arrow_type(NARROW))

    assert fitted(array, NARROW, NARROW) is array


@pytest.mark.spec("E2")
@pytest.mark.parametrize("first", range(4))
def test_explicit_nulls_are_found_at_any_depth(first: int) -> None:
    array = pa.array(ROWS, arrow_type(NARROW)).slice(first)
    result = explicit_nulls(array, NARROW, np.ones(len(array), dtype=np.bool_))
    expected = [["l[0].x"], None, ["a", "l"], None][first:]

    if any(expected):
        assert result is not None
        assert result.column(None, len(array)).to_pylist() == expected
        stored = pa.array([["s"]] * len(array), pa.list_(pa.string()))
        joined = [paths or ["s"] for paths in expected]
        assert result.column(stored, len(array)).to_pylist() == joined
    else:
        assert result is None
    assert explicit_nulls(array, NARROW, np.zeros(len(array), dtype=np.bool_)) is None


def test_a_shape_lacks_what_another_knows_at_any_depth() -> None:
    assert lacks(NARROW, WIDE)
    assert not lacks(WIDE, NARROW)
    assert lacks(struct(l=ListShape(struct(x="int8"))), struct(l=WIDE.slots[2].shape))
    assert not lacks(struct(a="null"), struct(a=struct(x="int8")))


def test_slots_without_a_target_are_listed() -> None:
    assert unplaced(WIDE, struct(a="int64")) == [WIDE.slots[0], WIDE.slots[2]]
    assert struct_shape(arrow_type(WIDE)) == WIDE
