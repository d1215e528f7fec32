"""Converts tables to bodies by columns: Arrow, pandas, polars and other Arrow producers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock_core.columns.events.check import check_body
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.layout import (
    BODY,
    BODY_ROWS_MAX,
    FIELDS,
    HEADERS,
    LOGICAL_NAME,
    PROPERTY_TYPES,
    SETTABLE_FIELDS,
    STAMPED,
    UTC_MICROSECONDS,
)
from penstock_core.columns.schema.schema_cache import SchemaMemo
from penstock_core.columns.schema.schema_fit import fitted, spilled, unplaced
from penstock_core.columns.schema.shapes import (
    NO_SLOTS,
    Unsupported,
    arrow_type,
    grown,
    nesting,
    shape_of,
    struct_shape,
)
from penstock_core.columns.schema.struct_fields import fields_of
from penstock_core.vocabulary.errors import InvalidArgument, InvalidEvent
from penstock_core.vocabulary.nesting import NESTING_MAX

_STRUCTS: Final = ("properties", "headers")
"""Columns that are structs."""

_Is = Callable[[pa.DataType], bool]
"""A test of a type."""

_LISTS: Final[tuple[_Is, ...]] = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
)

# Types with the same values as a type of bodies, in another encoding.
_PLAIN: Final[tuple[tuple[_Is, pa.DataType], ...]] = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
)

_CASTS: Final[tuple[tuple[_Is, str], ...]] = (
    (pa.types.is_uint64, "int64 (or string, where it does not fit)"),
    (pa.types.is_uint32, "int64"),
    (pa.types.is_uint16, "int32"),
    (pa.types.is_uint8, "int16"),
    (pa.types.is_float16, "float32"),
    (pa.types.is_decimal, "float64, or string to keep all digits"),
    (pa.types.is_time, "string, or int64"),
    (pa.types.is_duration, "int64"),
    (pa.types.is_interval, "string"),
    (pa.types.is_list_view, "a list"),
    (pa.types.is_large_list_view, "a list"),
    (pa.types.is_map, "a struct, or a list of structs with key and value"),
    (pa.types.is_union, "one column for each type"),
)
"""Types that no body has, each with the cast that the error suggests."""


DECIMAL_DIGITS_MAX: Final = 15
"""Maximum number of digits of a decimal that is converted to a double. Rounding the double to the
scale of the decimal restores up to this number of digits."""
_INT64_DIGITS_MAX: Final = 18
"""Maximum number of digits of a decimal that always fits into 64 bits."""


def _has_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


_ACCEPTED: Final[dict[pa.DataType, tuple[_Is, ...]]] = {
    pa.string(): (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    pa.binary(): (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    pa.int64(): (pa.types.is_integer,),
    pa.int8(): (pa.types.is_integer,),
    pa.bool_(): (pa.types.is_boolean,),
    UTC_MICROSECONDS: (_has_zone,),
}
"""The types accepted for a column of each type; users have to cast others."""

_ALLOWED: Final = {
    name: (*_ACCEPTED[FIELDS[name].type], pa.types.is_null) for name in SETTABLE_FIELDS
}


def bodies_of_table(obj: Any, *, max_rows: int = 65_536) -> list[pa.RecordBatch]:
    """Return the rows of a table as bodies of at most ``max_rows`` events; an empty list for an
    empty table.

    Accepts a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or polars DataFrame, any
    object with ``__arrow_c_stream__`` or ``__arrow_c_array__``, a dictionary of columns, or a list
    of dictionaries with a row in each, where a missing key is a null. The columns
    :data:`~penstock_core.columns.schema.layout.SETTABLE_FIELDS`, and structs ``properties`` and
    ``headers``, have the meaning described in :mod:`penstock_core.columns.schema.layout`; null
    ``data`` is empty. Every other column is a property of that name, and a null in it is an
    explicit null (SEM E11).

    Raises :class:`InvalidEvent` with the column, its type and the cast to use.
    """
    if not 1 <= max_rows <= BODY_ROWS_MAX:
        raise InvalidArgument(f"max_rows {max_rows} is not in 1..{BODY_ROWS_MAX}")
    try:
        table = _table(obj)
        _check_names(table.schema)
        bodies = [_body(batch) for batch in _batches(table, max_rows)]
    except UnicodeDecodeError as error:
        raise InvalidEvent(f"the name of a column is not UTF-8: {error}") from None
    for body in bodies:
        check_body(body)
    return bodies


def _batches(table: pa.Table, max_rows: int) -> list[pa.RecordBatch]:
    """Return the rows of a table in batches of at most ``max_rows`` rows, none of them empty."""
    batches = table.to_batches(max_chunksize=max_rows)
    if len(batches) > 2 * (table.num_rows // max_rows + 1):  # many small chunks
        batches = table.combine_chunks().to_batches(max_chunksize=max_rows)
    return [batch for batch in batches if batch.num_rows]


def _table(obj: Any) -> pa.Table:
    """Return any supported table as an Arrow table. Raises :class:`InvalidEvent`,
    ``InvalidArgument``."""
    try:
        if isinstance(obj, pa.Table):
            table = obj
        elif isinstance(obj, pa.RecordBatchReader):
            table = obj.read_all()
        elif type(obj).__module__.partition(".")[0] == "pandas" and hasattr(obj, "index"):
            # A RangeIndex becomes a column only on request, even if it has a name.
            is_named = any(name is not None for name in obj.index.names)
            table = pa.Table.from_pandas(obj, preserve_index=is_named)
        elif isinstance(obj, dict) or any(hasattr(obj, name) for name in _ARROW_METHODS):
            table = pa.table(obj)
        elif isinstance(obj, list) and all(isinstance(row, dict) for row in obj):
            # `from_pylist` of Arrow takes the columns of the first row only.
            names = dict.fromkeys(name for row in obj for name in row)
            table = pa.table({name: [row.get(name) for row in obj] for name in names})
        else:
            raise InvalidArgument(
                f"{type(obj).__name__} is not a table; pass a pyarrow Table, RecordBatch or "
                "RecordBatchReader, a pandas or polars DataFrame, a dictionary of columns, or a "
                "list of dictionaries"
            )
    except UnicodeDecodeError:
        raise
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidEvent(f"{type(obj).__name__} cannot become Arrow columns: {error}") from error
    return _without_index(table)


def _without_index(table: pa.Table) -> pa.Table:
    """Return the table without the index columns that pandas has named itself, because they only
    number the rows.

    An index with a name is a column like any other.
    """
    if b"pandas" not in (table.schema.metadata or {}):
        return table
    names = [name for name in table.schema.names if _UNNAMED_INDEX.fullmatch(name)]
    return table.drop_columns(names) if names else table


_ARROW_METHODS: Final = ("__arrow_c_stream__", "__arrow_c_array__")
_UNNAMED_INDEX: Final = re.compile(r"__index_level_\d+__")


def _check_names(schema: pa.Schema) -> None:
    """Raise :class:`InvalidEvent` for reserved or repeated column names."""
    for name in STAMPED:
        if name in schema.names:
            raise InvalidEvent(
                f"the table has a column {name!r}; the realm sets it: rename or drop it"
            )
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise InvalidEvent(f"the table has two columns named {', '.join(sorted(twice))}")


class _Direct(NamedTuple):
    """A plan for tables whose columns need no conversion: the source of each body column."""

    schema: pa.Schema
    columns: Mapping[str, int]
    """Indexes in the table of the columns other than properties, by name."""
    properties: tuple[int, ...]
    """Indexes in the table of the columns that are properties."""
    fields: Sequence[pa.Field]
    """The fields of these columns in the struct of properties."""


def _planned(schema: pa.Schema) -> _Direct | None:
    """Return the plan for a schema; None if a column has to be checked, cast or renamed."""
    columns: dict[str, int] = {}
    properties = []
    for index, field in enumerate(schema):
        if field.name in SETTABLE_FIELDS:
            if field.type != FIELDS[field.name].type:
                return None
            columns[field.name] = index
        elif field.name in _STRUCTS or pa.types.is_nested(field.type):
            return None
        else:
            properties.append(index)
    fields = [_body_field(schema.field(index)) for index in properties]
    kind = pa.struct(fields)
    if fields and not _is_plain(kind):
        return None
    names = [name for name in BODY if name in columns or (name == "properties" and fields)]
    if not names:
        return None
    body = [FIELDS[name] if name in columns else pa.field(name, kind) for name in names]
    return _Direct(pa.schema(body), columns, tuple(properties), fields=fields)


def _is_plain(kind: pa.StructType) -> bool:
    """Return True if a struct of properties can be stored without conversion."""
    try:
        if any(_plain(field.type, field.name) != field.type for field in kind):
            return False
    except InvalidEvent:
        return False  # the general path raises the error
    shape = struct_shape(kind)
    stored_shape = grown(NO_SLOTS, shape.slots)
    return not unplaced(shape, stored_shape) and arrow_type(stored_shape).equals(
        kind, check_metadata=True
    )


_plans = SchemaMemo(_planned)


def _body(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of the user's table in the column layout of a publish (a *body*). Columns are
    used as they are if :func:`_planned` found that none needs conversion."""
    plan = _plans.of(batch.schema)
    # A null in `data` becomes empty bytes, so such a batch is not used as it is.
    if plan is None or ("data" in plan.columns and batch.column(plan.columns["data"]).null_count):
        return _converted_body(batch)
    columns = {name: batch.column(index) for name, index in plan.columns.items()}
    if plan.properties:
        arrays = [batch.column(index) for index in plan.properties]
        columns["properties"] = pa.StructArray.from_arrays(arrays, fields=plan.fields)
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in plan.schema.names], schema=plan.schema
    )


def _converted_body(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of the user's table as a body, with each column checked and cast."""
    columns: dict[str, pa.Array] = {}
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        name = field.name
        if name in SETTABLE_FIELDS:
            columns[name] = _standard_column(name, array)
        elif name == "headers" and pa.types.is_struct(field.type):
            columns[name] = _headers(array)
        elif name == "properties" and pa.types.is_struct(field.type):
            fields.extend(_body_field(inner) for inner in field.type)
            arrays.extend(fields_of(array))
        else:
            fields.append(_body_field(field))
            arrays.append(array)
    if fields:
        columns |= _properties(fields, arrays, batch.num_rows)
    # Without any column the body would not have the number of events.
    if not columns:  # only a struct without fields
        columns["data"] = pa.array([b""] * batch.num_rows, pa.binary())
    names = [name for name in BODY if name in columns]
    schema = pa.schema([FIELDS.get(name) or pa.field(name, columns[name].type) for name in names])
    return pa.RecordBatch.from_arrays([columns[name] for name in names], schema=schema)


def _body_field(field: pa.Field) -> pa.Field:
    """Return the field without metadata that has no meaning in a body."""
    logical = (field.metadata or {}).get(LOGICAL_NAME)
    return pa.field(
        field.name, field.type, metadata=None if logical is None else {LOGICAL_NAME: logical}
    )


def _properties(fields: list[pa.Field], arrays: list[pa.Array], count: int) -> dict[str, pa.Array]:
    """Return the columns that hold the properties: ``properties``, ``more``, or both."""
    plain = [
        with_whole_nulls(_cast(field.name, with_whole_nulls(array), _plain(field.type, field.name)))
        for field, array in zip(fields, arrays, strict=True)
    ]
    named = [field.with_type(array.type) for field, array in zip(fields, plain, strict=True)]
    names = [field.name for field in named]
    if len(set(names)) < len(names):
        raise InvalidEvent(f"a column is also a field of the column 'properties': {names}")
    struct = pa.StructArray.from_arrays(plain, fields=named)
    shape = struct_shape(struct.type)
    for slot in shape.slots:
        if nesting(slot.shape) > NESTING_MAX:
            raise InvalidEvent(overflow.too_deep(slot.logical))
    stored_shape = grown(NO_SLOTS, shape.slots)
    leaving = unplaced(shape, stored_shape)
    columns: dict[str, pa.Array] = {}
    if leaving:
        batch = pa.RecordBatch.from_arrays([struct], names=["properties"])
        columns["more"] = spilled(batch, shape, leaving)
    if stored_shape.slots:
        columns["properties"] = fitted(struct, shape, stored_shape)
    return columns


def _plain(kind: pa.DataType, path: str) -> pa.DataType:
    """Return the supported type that holds all values of ``kind``.

    Raises :class:`InvalidEvent` if no such type exists.
    """
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type, path)
    if pa.types.is_struct(kind):
        return pa.struct(
            [
                _body_field(field.with_type(_plain(field.type, f"{path}.{field.name}")))
                for field in kind
            ]
        )
    if any(is_list(kind) for is_list in _LISTS):
        return pa.list_(_plain(kind.value_type, f"{path}[]"))
    converted = _converted(kind)
    if converted is not None:
        return converted
    for is_kind, plain in _PLAIN:
        if is_kind(kind):
            return plain
    for is_kind, cast in _CASTS:
        if is_kind(kind):
            raise InvalidEvent(f"column {path!r} has type {kind}; cast it to {cast}")
    try:
        return arrow_type(shape_of(kind))
    except Unsupported:
        storage = f"; cast it to {kind.storage_type}" if hasattr(kind, "storage_type") else ""
        raise InvalidEvent(
            f"column {path!r} has type {kind}{storage} (a property is {PROPERTY_TYPES})"
        ) from None


def _converted(kind: pa.DataType) -> pa.DataType | None:
    """Return the target type of times, dates and decimals, which keeps their meaning (SEM E11);
    None for other types."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if pa.types.is_date(kind):
        return pa.timestamp("us")
    if pa.types.is_decimal(kind):
        if kind.scale == 0 and kind.precision <= _INT64_DIGITS_MAX:
            return pa.int64()
        if kind.precision <= DECIMAL_DIGITS_MAX:
            return pa.float64()
    return None


def _cast(name: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array in another type. Raises :class:`InvalidEvent` if a value does not fit."""
    if array.type.equals(kind, check_metadata=True):
        return array
    try:
        if _has(pa.types.is_decimal, array.type):
            array = _decimals_as_text(array)
        return array.cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidEvent(
            f"column {name!r} of type {array.type} does not fit {kind} without loss: {error}"
        ) from None


def _decimals_as_text(array: pa.Array) -> pa.Array:
    """Return the array with decimals as text, from which Arrow reads the nearest doubles. Arrow's
    cast of decimals to doubles may return other doubles."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _decimals_as_text(array.cast(kind.value_type))
    return array.cast(_with_text(kind))


def _with_text(kind: pa.DataType) -> pa.DataType:
    """Return a type with decimals, at any depth, replaced by strings."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_text(field.type)) for field in kind])
    if any(is_list(kind) for is_list in _LISTS):
        return pa.list_(_with_text(kind.value_type))
    return pa.string() if pa.types.is_decimal(kind) else kind


def _has(is_kind: _Is, kind: pa.DataType) -> bool:
    """Return True if a type, or a type nested in it, satisfies ``is_kind``."""
    if pa.types.is_struct(kind):
        return any(_has(is_kind, field.type) for field in kind)
    if any(is_list(kind) for is_list in _LISTS) or pa.types.is_dictionary(kind):
        return _has(is_kind, kind.value_type)
    return is_kind(kind)


def with_whole_nulls(array: pa.Array) -> pa.Array:
    """Return the array with as many nulls in its lists of nulls as their offsets need.

    Arrow's cast makes one null for each list instead of each element, and other writers may do the
    same.
    """
    kind = array.type
    if not _has(pa.types.is_null, kind) or not pa.types.is_nested(kind):
        return array
    if pa.types.is_struct(kind):
        children = [with_whole_nulls(array.field(index)) for index in range(kind.num_fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if not pa.types.is_list(kind):
        return array
    end = array.offsets[-1].as_py()
    is_short = pa.types.is_null(kind.value_type) and end > len(array.values)
    values = pa.nulls(end) if is_short else with_whole_nulls(array.values)
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        kind, len(array), buffers, array.null_count, array.offset, [values]
    )


def _standard_column(name: str, array: pa.Array) -> pa.Array:
    """Cast a column that is not a property, such as ``data``, to the type that it has in bodies.
    Raises :class:`InvalidEvent`."""
    kind = FIELDS[name].type
    value_type = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not any(is_kind(value_type) for is_kind in _ALLOWED[name]):
        raise InvalidEvent(
            f"column {name!r} has type {array.type}; cast it to {kind}, or rename it to send it "
            "as a property"
        )
    column = _cast(name, array, kind)
    if name == "data" and column.null_count:
        return column.fill_null(b"")
    return column


def _headers(array: pa.StructArray) -> pa.StructArray:
    """Return the struct of headers in the types of headers. Raises :class:`InvalidEvent`."""
    children = []
    for field, child in zip(array.type, array.flatten(), strict=True):
        header_type = HEADERS.get(field.name)
        if header_type is None:
            raise InvalidEvent(
                f"column 'headers' has an unknown field {field.name!r}; allowed are "
                f"{', '.join(HEADERS)}"
            )
        children.append(_cast(f"headers.{field.name}", child, header_type))
    names = [field.name for field in array.type]
    if not names:
        raise InvalidEvent("column 'headers' is a struct without fields; drop it")
    return pa.StructArray.from_arrays(
        children, fields=[pa.field(name, HEADERS[name]) for name in names]
    )
