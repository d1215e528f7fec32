"""Extracts the fields of a struct array, null wherever the struct itself is null.

Arrow's ``flatten`` and ``struct_field`` return a field of type null with the struct's validity
bitmap, although arrays of that type have none. Arrow treats such an array as different from an
equal array without the bitmap, so two tables with the same values would not be equal.
"""

from __future__ import annotations

import pyarrow as pa

from penstock_core.columns.schema import compute as pc


def field_of(struct: pa.StructArray, index: int) -> pa.Array:
    """Return one field of ``struct``, null in the rows where the struct is null."""
    if pa.types.is_null(struct.type.field(index).type):
        return pa.nulls(len(struct))
    # A struct without nulls does not mask its fields, so they can be used directly.
    return pc.struct_field(struct, [index]) if struct.null_count else struct.field(index)


def fields_of(struct: pa.StructArray) -> list[pa.Array]:
    """Return all fields of ``struct``, null in the rows where the struct is null."""
    if not struct.null_count:
        return [struct.field(index) for index in range(struct.type.num_fields)]
    children = struct.flatten()
    return [pa.nulls(len(child)) if pa.types.is_null(child.type) else child for child in children]
