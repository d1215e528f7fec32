"""The exact types of single values and of nested ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock_core.columns.schema.shapes import ListShape, Slot, StructShape
from penstock_core.columns.schema.values import NotAProperty, inspect, is_struct, leaf_of

INNER = StructShape((Slot("k", "k", "int64"), Slot("k::string", "k", "string")))


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    ("value", "leaf", "plain"),
    [(True, "bool", True), (np.int8(1), "int8", 1), (1, "int64", 1), (None, "null", None)],
)
def test_a_single_value_has_one_leaf_and_a_plain_form(value: Any, leaf: str, plain: Any) -> None:
    assert leaf_of(value) == (leaf, plain)
    assert type(leaf_of(value)[1]) is type(plain)


@pytest.mark.spec("E2")
def test_nested_values_are_surveyed_as_a_whole() -> None:
    assert inspect([{"k": 1}, {"k": "x"}, None]) == (
        ListShape(INNER),
        [{"k": 1}, {"k": "x"}, None],
    )
    assert inspect([]) == (ListShape("null"), [])
    assert inspect({"a": [1, "x"]})[0] is None
    assert inspect([np.int8(1), 300]) == (ListShape("int64"), [1, 300])


def test_a_refusal_knows_the_way_to_the_value() -> None:
    with pytest.raises(NotAProperty) as refused:
        inspect({"a.b": [{}, {"c": 1j}]})

    assert refused.value.path == r"a\.b[1].c"


def test_only_dictionaries_make_structs() -> None:
    assert is_struct(ListShape(ListShape(INNER)))
    assert not is_struct(ListShape("int8"))
