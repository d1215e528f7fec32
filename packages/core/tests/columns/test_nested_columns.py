"""Reading dictionaries back from the fields of a struct."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_core.columns.schema.nested_columns import Level
from penstock_core.columns.schema.shapes import ListShape, Slot, StructShape

INNER = StructShape((Slot("k", "k", "int64"), Slot("j", "j", "string")))
SHAPE = StructShape(
    (
        Slot("a", "a", "int64"),
        Slot("a::string", "a", "string"),
        Slot("lines", "lines", ListShape(INNER)),
    )
)
FIELDS: dict[str, Any] = {
    "a": None,
    "a::string": "x",
    "lines": [{"k": None, "j": "y"}, None],
}
NOTHING: dict[str, Any] = {"a": None, "a::string": None, "lines": None}


@pytest.mark.spec("E2")
def test_the_non_null_type_is_read_under_the_logical_name() -> None:
    result = Level(SHAPE).read(FIELDS, None)

    assert result == {"a": "x", "lines": [{"k": None, "j": "y"}, None]}


@pytest.mark.spec("E2")
def test_in_a_sparse_row_only_listed_nulls_are_explicit() -> None:
    level = Level(SHAPE)

    assert level.read(NOTHING, frozenset()) == {}
    assert level.read(NOTHING, frozenset({"a"})) == {"a": None}
    assert level.read(NOTHING, None) == {"a": None, "lines": None}
    assert level.read(FIELDS, frozenset())["lines"] == [{"j": "y"}, None]
    assert level.read(FIELDS, frozenset({"lines[0].k"}))["lines"] == FIELDS["lines"]


def test_a_level_knows_whether_names_differ_from_fields() -> None:
    assert Level(SHAPE).is_renamed
    assert not Level(INNER).is_renamed
    assert Level(StructShape((Slot("d", "d", ListShape(SHAPE)),))).is_renamed
