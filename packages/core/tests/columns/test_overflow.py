"""The overflow cells."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given

from penstock_core.columns.schema.overflow import decoded, encoded, extended, without
from penstock_core.vocabulary.errors import InvalidEvent

from .strategies import PROPERTIES, typed


@pytest.mark.slow
@pytest.mark.spec("E2")
@given(PROPERTIES)
def test_any_properties_survive(properties: dict[str, Any]) -> None:
    assert typed(decoded(encoded(properties))) == typed(properties)


def test_types_are_tagged_exactly() -> None:
    cell = msgspec.msgpack.decode(encoded({"a": np.int8(1), "b": np.float32(0.5), "c": [1, None]}))

    assert cell == {"a": ["b", 1], "b": ["f", 0.5], "c": ["a", [["l", 1], None]]}


def test_extending_a_cell_keeps_its_properties() -> None:
    cell = encoded({"a": 1})
    longer = extended(cell, {"a": 2, "b": 3})

    assert longer is not None
    assert decoded(longer) == {"a": 1, "b": 3}
    assert extended(cell, {}) is cell
    assert extended(None, {}) is None


@pytest.mark.parametrize(
    "cell",
    [
        b"",
        b"\xc1",
        *map(
            msgspec.msgpack.encode,
            [
                1,
                {"a": 1},
                {"a": []},
                {"a": ["?", 1]},
                {"a": ["l", True]},
                {"a": ["b", 128]},
                {"a": ["d", 1]},
                {"a": ["s", b"x"]},
                {"a": ["z", 1]},
                {"a": [["l"], 1]},
                {"a": ["t", 2**62]},
                {"a": ["a", 5]},
                {"a": ["m", {1: None}]},
                {"a": ["m", []]},
                {"": None},
            ],
        ),
    ],
)
def test_what_is_no_cell_is_refused(cell: bytes) -> None:
    with pytest.raises(InvalidEvent, match=r"more|name"):
        decoded(cell)


def test_a_property_can_be_removed_from_a_cell() -> None:
    cell = encoded({"a": 1, "b": [1, "x"]})

    assert decoded(without(cell, "a") or b"") == {"b": [1, "x"]}
    assert without(encoded({"a": 1}), "a") is None
