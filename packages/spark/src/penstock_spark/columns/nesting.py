"""Columns inside columns: choosing some fields of structs, at any depth and in lists.

``address.city`` chooses the column ``address`` with that one field, so that SQL says
``address.city`` as before. Fields whose names differ in case only get names that Spark tells apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock_core.columns.schema.free_names import PREFIX, free_names
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.options import nearest

Kinds = dict[str, pa.DataType]


def fields_by_place(wanted: Iterable[str], stored: Sequence[str]) -> dict[str, str]:
    """The stored field of a struct for each wanted one that has one.

    Of two channels one may have the fields in another order, so a name with the prefix also stands
    for its own name.
    """
    own = set(stored)
    names = {place: name for name, place in free_names(stored).items()}
    fields: dict[str, str] = {}
    for place in wanted:
        name = place if place in own else names.get(place, place.removeprefix(PREFIX))
        if name in own:
            fields[place] = name
    return fields


def chosen(
    kinds: Mapping[str, pa.DataType],
    columns: Sequence[str],
    hidden: Mapping[str, pa.DataType] | None = None,
) -> Kinds:
    """The columns that were named, in that order, each with the fields that were named;
    ``hidden`` are those that only a name brings.

    Raises ``InvalidArgument`` for one that is not there, with the nearest that is.
    """
    paths: dict[str, list[tuple[str, ...]]] = {}
    known = {**(hidden or {}), **kinds}
    for column in columns:
        name, path = (column, ()) if column in known else _split(kinds, column)
        paths.setdefault(name, []).append(path)
    return {name: _pruned(known[name], below, name) for name, below in paths.items()}


def _split(kinds: Mapping[str, pa.DataType], column: str) -> tuple[str, tuple[str, ...]]:
    """A column's own name may have dots, so the longest that is there is meant."""
    parts = column.split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        if name in kinds:
            return name, tuple(parts[count:])
    raise InvalidArgument(f"no column {column!r}: {nearest(column, tuple(kinds))}")


def _pruned(kind: pa.DataType, paths: list[tuple[str, ...]], name: str) -> pa.DataType:
    if () in paths:
        return kind
    if pa.types.is_list(kind):
        return pa.list_(_pruned(kind.value_type, paths, name))
    if not pa.types.is_struct(kind):
        raise InvalidArgument(f"{name} has no field {paths[0][0]!r}: it is {kind}")
    fields = {field.name: field.type for field in kind}
    below: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        field, rest = _field_in(fields, path, name)
        below.setdefault(field, []).append(rest)
    return pa.struct(
        [(field, _pruned(fields[field], rest, f"{name}.{field}")) for field, rest in below.items()]
    )


def _field_in(
    fields: Mapping[str, pa.DataType], path: tuple[str, ...], name: str
) -> tuple[str, tuple[str, ...]]:
    """The field that a path begins with, by its name or its own name, and the rest of the path."""
    for count in range(len(path), 0, -1):
        given = ".".join(path[:count])
        for field in (given, f"{PREFIX}{given}"):
            if field in fields:
                return field, path[count:]
    raise InvalidArgument(f"{name} has no field {path[0]!r}: {nearest(path[0], tuple(fields))}")


def narrowed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """``array`` with the fields of ``kind`` only, in its order; a field it lacks is null. What
    is no struct, or list of structs, stays as it is."""
    if array.type.equals(kind):
        return array
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        return _fields_of(array, kind)
    if pa.types.is_list(array.type) and pa.types.is_list(kind):
        inner = narrowed(array.values, kind.value_type)
        buffers = array.buffers()[:2]
        return pa.Array.from_buffers(
            pa.list_(inner.type), len(array), buffers, array.null_count, array.offset, [inner]
        )
    return array


def _fields_of(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    names = fields_by_place(kind.names, array.type.names)
    children: list[pa.Array] = [
        narrowed(array.field(names[field.name]), field.type)
        if field.name in names
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    fields = [pa.field(f.name, child.type) for f, child in zip(kind, children, strict=True)]
    mask: Any = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
