"""Takes the fields out of a struct array, null wherever the struct itself is null.

Arrow's ``flatten`` and ``struct_field`` give a field of type null the struct's validity bitmap,
although arrays of that type have none. Arrow then calls it different from an equal array without
the bitmap, so two tables with the same values would not be equal.
"""

from __future__ import annotations

import pyarrow as pa

from penstock_core.columns.schema import compute as pc


def field_of(struct: pa.StructArray, index: int) -> pa.Array:
    """One field of ``struct``, null in the rows where the struct is."""
    if pa.types.is_null(struct.type.field(index).type):
        return pa.nulls(len(struct))
    # A struct that has no nulls itself does not mask its fields, so they can be taken directly.
    return pc.struct_field(struct, [index]) if struct.null_count else struct.field(index)


def fields_of(struct: pa.StructArray) -> list[pa.Array]:
    """All fields of ``struct``, each null in the rows where the struct is."""
    if not struct.null_count:
        return [struct.field(index) for index in range(struct.type.num_fields)]
    children = struct.flatten()
    return [pa.nulls(len(own)) if pa.types.is_null(own.type) else own for own in children]
