"""Shapes: how types grow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock_core.columns.schema.shapes import (
    ListShape,
    Shape,
    ShapeBuilder,
    Slot,
    StructShape,
    Unsupported,
    arrow_type,
    fits,
    grown,
    leaf_count,
    nesting,
    shape_of,
    united,
)


def struct(**slots: Shape) -> StructShape:
    return StructShape(tuple(Slot(name, name, shape) for name, shape in slots.items()))


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    ("one", "other", "union"),
    [
        ("int8", "int8", "int8"),
        ("int8", "int64", "int64"),
        ("int32", "int16", "int32"),
        ("float", "double", "double"),
        ("null", "string", "string"),
        ("int8", "float", None),
        ("int64", "double", None),
        ("bool", "int8", None),
        ("string", "binary", None),
        ("timestamp[us]", "timestamp[us, tz=UTC]", None),
        (ListShape("null"), ListShape("int8"), ListShape("int8")),
        (ListShape("int8"), ListShape("string"), None),
        (ListShape("int8"), "int8", None),
        (struct(a="int8"), struct(b="bool"), struct(a="int8", b="bool")),
        (struct(a="int8"), struct(a="int16"), struct(a="int16")),
        (struct(a="int8"), "int8", None),
    ],
)
def test_two_shapes_unite_only_without_loss(one: Shape, other: Shape, union: Shape | None) -> None:
    assert united(one, other) == union
    assert (united(other, one) is None) == (union is None)
    if union is not None:
        assert fits(union, one)
        assert fits(union, other)


def test_a_second_type_gets_a_slot_with_a_free_name() -> None:
    growth = ShapeBuilder(struct(**{"a": "int8", "a::string": "bool"}))
    growth.place("a", "string")

    assert growth.shape.slots[-1] == Slot("a::string.2", "a", "string")
    assert growth.place("a", "int16") == 0


def test_growth_stops_at_the_limit() -> None:
    growth = ShapeBuilder(struct(a="int8"), limit=2)

    assert growth.place("b", struct(x="int8", y="int8")) is None
    assert growth.place("b", struct(x="int8")) == 1
    assert growth.place("b", struct(z="int8")) is None
    assert growth.place("a", "int64") == 0
    assert leaf_count(growth.shape) == 2


def test_growing_by_nothing_new_returns_the_same_object_and_empty_structs_are_ignored() -> None:
    shape = struct(a="int64")

    assert grown(shape, struct(a="int8").slots) is shape
    assert grown(shape, struct(b=ListShape(StructShape())).slots) is shape


def test_a_shape_and_its_arrow_type_say_the_same() -> None:
    inner = StructShape((Slot("k", "k", "int8"), Slot("k::string", "k", "string")))
    shape = struct(a=ListShape(inner), b="timestamp[us, tz=UTC]")

    assert shape_of(arrow_type(shape)) == shape
    assert nesting(shape) == 3


@pytest.mark.parametrize("kind", [pa.uint8(), pa.large_string(), pa.timestamp("us", "Asia/Tokyo")])
def test_an_arrow_type_no_property_has_is_named_with_its_path(kind: pa.DataType) -> None:
    with pytest.raises(Unsupported) as refused:
        shape_of(pa.struct([("a", pa.list_(pa.struct([("b", kind)])))]))

    assert (refused.value.kind, refused.value.path) == (kind, "a[].b")
