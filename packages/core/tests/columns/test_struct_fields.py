"""Fields taken out of a struct array."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock_core.columns.events.batch import flatten, stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.columns.schema.struct_fields import field_of, fields_of
from penstock_core.ids.ids import Span

KIND = pa.struct({"n": pa.null(), "x": pa.int64(), "s": pa.struct({"n": pa.null()})})
DENSE: list[Any] = [{"n": None, "x": 1, "s": {"n": None}}, {"n": None, "x": 2, "s": None}]


@pytest.mark.parametrize("rows", [DENSE, [None, *DENSE], [*DENSE, None, None], [None], []])
@pytest.mark.parametrize("first", [0, 1])
def test_fields_are_null_where_the_struct_is_and_equal_to_arrays_made_of_their_values(
    rows: list[Any], first: int
) -> None:
    struct = pa.array(rows, KIND).slice(first)

    result = fields_of(struct)

    for index, field in enumerate(KIND):
        values = [row and row[field.name] for row in rows[first:]]
        assert result[index].equals(pa.array(values, field.type))
        assert field_of(struct, index).equals(result[index])


def test_a_field_of_nulls_has_no_validity_bitmap() -> None:
    struct = pa.array([None, *DENSE], KIND)

    assert field_of(struct, 0).buffers() == [None]


def test_a_flat_batch_has_a_column_of_nulls_that_equals_another() -> None:
    rows: list[dict[str, Any]] = [{}, {"gone": None}]
    stored = stamp(body_of_columns([b""] * 2, properties=rows), Span(0, 2), 0)

    flat = flatten(stored)

    assert flat.column("gone").equals(pa.nulls(2))


def test_a_published_table_keeps_a_null_column_equal_to_another() -> None:
    struct = pa.array([None, {"gone": None, "x": 1}], pa.struct({"gone": pa.null(), "x": "int64"}))

    (body,) = bodies_of_table(pa.table({"properties": struct}))

    assert body.column("properties").field("gone").equals(pa.nulls(2))
