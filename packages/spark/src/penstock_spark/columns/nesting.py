"""Selects fields of structs, at any depth and inside lists.

``address.city`` selects the column ``address`` with only the field ``city``, so that SQL still
reads ``address.city``. Spark ignores case, so fields whose names differ only in case are renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock_core.columns.schema.free_names import PREFIX, free_names
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.options import nearest

Kinds = dict[str, pa.DataType]
"""Types of columns by name."""


def match_fields(names: Iterable[str], stored: Sequence[str]) -> dict[str, str]:
    """Return the stored field for each of ``names``, without names that are not stored.

    ``names`` are names of fields as Spark knows them, where a prefix may distinguish two fields.
    Two channels may have such fields in different orders, so a name with the prefix also matches
    the stored name without it.
    """
    stored_names = set(stored)
    names_by_place = {place: name for name, place in free_names(stored).items()}
    fields: dict[str, str] = {}
    for place in names:
        name = (
            place
            if place in stored_names
            else names_by_place.get(place, place.removeprefix(PREFIX))
        )
        if name in stored_names:
            fields[place] = name
    return fields


def choose_columns(
    kinds: Mapping[str, pa.DataType],
    columns: Sequence[str],
    hidden: Mapping[str, pa.DataType] | None = None,
) -> Kinds:
    """Return the columns that ``columns`` names, in this order, each with the named fields.

    ``kinds`` has the types of all columns. ``hidden`` has those of columns that are only included
    by name. Raises ``InvalidArgument`` for an unknown column; the text has the most similar name.
    """
    paths: dict[str, list[tuple[str, ...]]] = {}
    all_kinds = {**(hidden or {}), **kinds}
    for column in columns:
        name, path = (column, ()) if column in all_kinds else _split(kinds, column)
        paths.setdefault(name, []).append(path)
    return {name: _prune(all_kinds[name], below, name) for name, below in paths.items()}


def _split(kinds: Mapping[str, pa.DataType], column: str) -> tuple[str, tuple[str, ...]]:
    """Split a path with dots into a column and the path of a field. The longest name that is a
    column counts, because names of columns may have dots. Raises ``InvalidArgument``."""
    parts = column.split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        if name in kinds:
            return name, tuple(parts[count:])
    raise InvalidArgument(f"there is no column {column!r}: {nearest(column, tuple(kinds))}")


def _prune(kind: pa.DataType, paths: list[tuple[str, ...]], name: str) -> pa.DataType:
    """Return the type ``kind`` with only the fields at ``paths``; an empty path selects all fields.

    ``name`` is the path of the column or field, for error texts. Raises ``InvalidArgument`` for an
    unknown field.
    """
    if () in paths:
        return kind
    if pa.types.is_list(kind):
        return pa.list_(_prune(kind.value_type, paths, name))
    if not pa.types.is_struct(kind):
        raise InvalidArgument(f"{name} has no field {paths[0][0]!r}, because its type is {kind}")
    fields = {field.name: field.type for field in kind}
    paths_by_field: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        field, inner_path = _field_in(fields, path, name)
        paths_by_field.setdefault(field, []).append(inner_path)
    return pa.struct(
        [
            (field, _prune(fields[field], inner_path, f"{name}.{field}"))
            for field, inner_path in paths_by_field.items()
        ]
    )


def _field_in(
    fields: Mapping[str, pa.DataType], path: tuple[str, ...], name: str
) -> tuple[str, tuple[str, ...]]:
    """Return the field at the beginning of a path, and the remaining path. The longest name that is
    a field, with or without the prefix, counts. Raises ``InvalidArgument``."""
    for count in range(len(path), 0, -1):
        prefix = ".".join(path[:count])
        for field in (prefix, f"{PREFIX}{prefix}"):
            if field in fields:
                return field, path[count:]
    raise InvalidArgument(f"{name} has no field {path[0]!r}: {nearest(path[0], tuple(fields))}")


def narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``array`` with only the fields that the type ``kind`` has, in its order. Fields that
    the array lacks are null. Arrays without structs are returned unchanged."""
    if array.type.equals(kind):
        return array
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        return _fields_of(array, kind)
    if pa.types.is_list(array.type) and pa.types.is_list(kind):
        # Offsets refer to the whole child array, so `values` is narrowed, not the flattened slice.
        inner = narrow(array.values, kind.value_type)
        buffers = array.buffers()[:2]
        return pa.Array.from_buffers(
            pa.list_(inner.type), len(array), buffers, array.null_count, array.offset, [inner]
        )
    return array


def _fields_of(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    """Return a struct column with the fields of the type ``kind``; see :func:`narrow`."""
    names = match_fields(kind.names, array.type.names)
    children: list[pa.Array] = [
        narrow(array.field(names[field.name]), field.type)
        if field.name in names
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    fields = [pa.field(f.name, child.type) for f, child in zip(kind, children, strict=True)]
    mask: Any = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
