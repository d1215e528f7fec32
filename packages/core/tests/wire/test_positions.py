"""Positions of a query of Spark, read from its checkpoint."""

from __future__ import annotations

import pytest

from penstock_core.wire.positions import positions_in
from penstock_spark.reading.offsets import Position, encode


def test_what_the_source_writes_is_read() -> None:
    written = encode({"a": Position("e", 7), "b/c": Position("f", 0)})

    assert positions_in(written) == {"a": 7, "b/c": 0}


@pytest.mark.parametrize("text", ["-", "12", "[]", '{"c": 1}', '{"c": {"a": {"n": "x"}}}', "{"])
def test_what_is_no_position_of_ours_is_passed_over(text: str) -> None:
    assert positions_in(text) == {}
