"""Converts the stored columns of a channel to the columns that Spark requests.

Spark accepts only record batches whose schema is exactly the one that it requested. Each column is
therefore cast, without loss; if that is impossible, the error names the column.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock_core.columns.events.lifted_columns import lifted, rows_with_more
from penstock_core.columns.events.publishers import with_publishers
from penstock_core.columns.schema.flat_columns import FLAT
from penstock_core.columns.schema.free_names import free_names
from penstock_core.columns.schema.layout import FIELDS, HEADERS, ORIGIN, STAMPED
from penstock_core.columns.schema.number_columns import (
    NotExact,
    ShownColumn,
    joined_shape,
    shown_columns,
    typed_columns,
)
from penstock_core.columns.schema.rows import Publishers
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.schema.schema_cache import SchemaMemo
from penstock_core.columns.schema.schema_fit import fitted, place_of
from penstock_core.columns.schema.shapes import (
    ListShape,
    Shape,
    Slot,
    StructShape,
    Unsupported,
    arrow_type,
    fits,
    shape_of,
    struct_shape,
)
from penstock_core.columns.schema.struct_fields import field_of
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.columns.nesting import choose_columns, match_fields, narrow
from penstock_spark.columns.nulls import NULLS, NULLS_TYPE, nulls_of
from penstock_spark.options import SourceOptions

REQUESTED: Final[dict[str, pa.DataType]] = {
    "ttl": FIELDS["ttl"].type,
    "priority": FIELDS["priority"].type,
    "persistent": FIELDS["persistent"].type,
    "headers": pa.struct(list(HEADERS.items())),
}
"""Types of the columns that the option ``includeHeaders`` adds, by name. A column is null if the
event does not set it."""

CHANNEL: Final = "channel"
"""Name of the column that the option ``includeChannel`` adds."""

ORIGIN_COLUMN: Final = "origin"
"""Name of the column that the option ``includeOrigin`` adds. It is null for events that were
published to this channel and not copied from another one."""

_PROPERTIES: Final = "properties"


class Extras(Struct, frozen=True):
    """The optional columns that a read has in addition to the usual ones."""

    headers: bool = False
    channel: bool = False
    origin: bool = False
    nulls: bool = False

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        """The types of the optional columns by name."""
        kinds: dict[str, pa.DataType] = {CHANNEL: pa.string()} if self.channel else {}
        if self.headers:
            kinds |= REQUESTED
        if self.origin:
            kinds[ORIGIN_COLUMN] = _ORIGIN_TYPE
        if self.nulls:
            kinds[NULLS] = NULLS_TYPE
        return kinds


def extras_of(options: SourceOptions) -> Extras:
    """Return the optional columns that the options of a read request."""
    return Extras(
        options.include_headers,
        options.include_channel,
        options.include_origin,
        nulls=options.include_nulls,
    )


NO_EXTRAS: Final = Extras()
ALL_EXTRAS: Final = Extras(headers=True, channel=True, origin=True, nulls=True)


def spark_schema(
    stored: Sequence[pa.Schema],
    *,
    columns: tuple[str, ...] = (),
    extras: Extras = NO_EXTRAS,
    typed: Container[str] = (),
) -> StructType:
    """Return Spark's schema for a read of channels with the schemas ``stored``.

    ``columns`` names the columns to read; empty means all. Columns of several channels with equal
    name and type become one column; another type of the name gets a separate column, such as
    ``price::string``, as within one channel. Integers and floats of a property become one column of
    doubles (SEM E10), except for properties in ``typed``. Raises ``InvalidArgument`` if a name in
    ``columns`` is unknown.
    """
    kinds: dict[str, pa.DataType] = {
        name: STAMPED[name] if name in STAMPED else FIELDS[name].type for name in FLAT
    }
    kinds |= extras.kinds
    shape = _shape_in(_united_schema(stored))
    exact = typed_columns(shape)
    names = {index: name for name, index in exact.items()}
    places = _column_names(shape, kinds)
    # The typed columns of a joined property are hidden: a query reads them only if it names them.
    hidden = {name: _kind(shape.slots[index].shape) for name, index in exact.items()}
    for column in shown_columns(shape):
        if len(column.sources) > 1 and column.logical in typed:
            kinds |= {
                places[names[index]]: _kind(shape.slots[index].shape) for index in column.sources
            }
        else:
            kinds[places[column.name]] = hidden[column.name] = _kind(column.shape)
    selected_kinds = choose_columns(kinds, columns, hidden) if columns else kinds
    return from_arrow_schema(pa.schema(list(selected_kinds.items())))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with this schema."""
    return to_arrow_schema(schema, timezone="UTC")


def _united_schema(stored: Sequence[pa.Schema]) -> pa.Schema:
    """Return a schema with the columns of all channels."""
    if len(stored) == 1:
        return stored[0]
    schema = ChannelSchema.empty()
    for channel_schema in stored:
        schema = schema.grown(channel_schema)
    return schema.arrow


def _shape_in(stored: pa.Schema) -> StructShape:
    """Return the shape of the properties in a channel's schema."""
    index = stored.get_field_index(_PROPERTIES)
    return StructShape() if index < 0 else struct_shape(stored.field(index).type)


def _column_names(shape: StructShape, fixed: Iterable[str]) -> dict[str, str]:
    """Return the name of the column for each property.

    The column gets a prefix if one of the ``fixed`` columns or another property has the name; Spark
    ignores case. If a channel has ``price`` and ``Price``, the property that was published first
    keeps its name.
    """
    names = [slot.name for slot in shape.slots]
    names += [column.name for column in shown_columns(shape)]
    names += typed_columns(shape)
    return free_names(names, fixed)


def _kind(shape: Shape) -> pa.DataType:
    return _readable(arrow_type(shape))


def has_all_columns(wanted: pa.Schema, options: SourceOptions) -> bool:
    """Return whether the schema ``wanted`` begins with all columns that are not properties.

    Schemas of :func:`spark_schema` do, unless a read names its columns.
    """
    names = [*FLAT, *extras_of(options).kinds]
    return list(wanted.names[: len(names)]) == names


def unread_properties(
    stored: pa.Schema, wanted: pa.Schema, *, columns: tuple[str, ...] = (), by_type: bool = False
) -> list[str]:
    """Return the properties, and fields such as ``address.zip``, that a restart of a query would
    read in addition to its current columns.

    ``stored`` is the channel's schema, and ``wanted`` has the columns of the running query.
    ``columns`` are the names in the query's option ``columns``; empty means all. ``by_type`` is
    that of :class:`Projection`.
    """
    shape = _shape_in(stored)
    known_columns = tuple(name for name in columns if _is_known(stored, name))
    if columns and not known_columns:
        return []
    planned = arrow_schema(spark_schema([stored], columns=known_columns, extras=ALL_EXTRAS))
    # Properties that a restarted query would not read either are not reported.
    always_unread = _unread(shape, planned, by_type=by_type)
    return [name for name in _unread(shape, wanted, by_type=by_type) if name not in always_unread]


def _is_known(stored: pa.Schema, column: str) -> bool:
    """Return whether a channel with this schema has the column. Another channel of the query may
    have it instead."""
    try:
        spark_schema([stored], columns=(column,), extras=ALL_EXTRAS)
    except InvalidArgument:
        return False
    return True


def _unread(shape: StructShape, wanted: pa.Schema, *, by_type: bool) -> list[str]:
    """Return the stored properties and fields that no column of ``wanted`` contains."""
    find_sources = _by_type if by_type else _by_name
    sources = {
        name: source
        for name, source in find_sources(shape, wanted, FLAT).items()
        if name in wanted.names
    }
    read = {slot.name for source in sources.values() for slot in source.slots}
    unread = [slot.name for slot in shape.slots if slot.name not in read]
    for name, source in sources.items():
        values = source.slots[0].shape if source.joined is None else source.joined.shape
        unread += _unread_fields(values, wanted.field(name).type, name)
    return list(dict.fromkeys(unread))


def _unread_fields(values: Shape, kind: pa.DataType, path: str) -> Iterator[str]:
    """Yield the paths of stored fields that a column of type ``kind`` leaves out."""
    if isinstance(values, ListShape) and pa.types.is_list(kind):
        yield from _unread_fields(values.element, kind.value_type, path)
    if not isinstance(values, StructShape) or not pa.types.is_struct(kind):
        return
    shapes = {slot.name: slot.shape for slot in values.slots}
    names = match_fields(kind.names, list(shapes))
    read = set(names.values())
    yield from (f"{path}.{name}" for name in shapes if name not in read)
    for field in kind:
        if field.name in names:
            yield from _unread_fields(shapes[names[field.name]], field.type, f"{path}.{field.name}")


def _readable(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Spark reads a stored type.

    A property that was null in all events has no type yet; it is read as a string, because tables
    and files cannot store a column without a type. Fields of structs get names that Spark, which
    ignores case, can distinguish.
    """
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_readable(kind.value_type))
    if pa.types.is_struct(kind):
        places = free_names(kind.names)
        return pa.struct([(places[field.name], _readable(field.type)) for field in kind])
    return kind


_ORIGIN_TYPE: Final = pa.struct(list(ORIGIN.items()))
_SHAPES: Final = {
    "headers": struct_shape(REQUESTED["headers"]),
    ORIGIN_COLUMN: struct_shape(_ORIGIN_TYPE),
}


class _PropertySource(NamedTuple):
    """The property that a requested column shows, and the stored fields with its values."""

    logical: str
    """Name of the property."""
    slots: tuple[Slot, ...]
    """Stored fields of the property: one, or one for integers and one for floats."""
    joined: ShownColumn | None = None
    """Computes the column from several fields; None for a single field."""


class _Child(Struct, frozen=True):
    """A field of the struct of properties in a stored batch."""

    index: int
    """Index of the field in the struct."""
    source: Shape
    """Shape of the field in the batch."""
    target: Shape
    """Shape of the field in the channel's schema, which may be wider."""


class _ColumnSource(Struct, frozen=True):
    """How to compute one requested column from batches of one stored schema."""

    index: int
    """Index of the stored column; for a property, that of the struct of properties."""
    children: tuple[_Child, ...] = ()
    """Fields of the struct of properties; empty for a column that is not a property."""
    joined: ShownColumn | None = None
    """Computes the column from several fields; None for a single field."""
    source: Shape | None = None
    """Shape of a struct column in the batch; None for a column of another type."""
    target: Shape | None = None
    """Shape of the struct column in the channel, which may be wider; None for a column of another
    type."""


class Projection:
    """Converts stored batches, whose schemas may differ, to batches of one Spark schema.

    ``stored`` is the channel's schema, at least as new as the batches; ``wanted`` is the schema
    that Spark requests. A column that the channel does not have is null.
    """

    def __init__(
        self,
        stored: pa.Schema,
        wanted: pa.Schema,
        *,
        extras: Extras = NO_EXTRAS,
        channel: str = "",
        by_type: bool = False,
    ) -> None:
        """``channel`` is the value of the column ``channel``. ``by_type`` is for a read of several
        channels: the column ``price::string`` of the read may be the property ``price`` in this
        channel."""
        self._wanted = wanted
        self._extras = extras.kinds
        self._channel = channel
        shape = _shape_in(stored)
        fixed = {*FLAT, *self._extras}
        find_sources = _by_type if by_type else _by_name
        self._slots: dict[str, _PropertySource] = find_sources(shape, wanted, fixed)
        self._shape = shape
        logical = {slot.logical for slot in shape.slots}
        self._without_column = frozenset(wanted.names) - fixed - self._slots.keys() - logical
        """Requested properties without a column in the channel: no event has them yet, or the
        channel has reached its limit of columns and stores them in the column ``more``."""
        self._steps = SchemaMemo(self._plan)
        """The plan for each stored schema, made once."""

    def project(self, batch: pa.RecordBatch, publishers: Publishers = ()) -> pa.RecordBatch:
        """Return the events of a stored batch with the requested columns.

        Raises ``InvalidArgument`` if values do not fit the Spark type of their column.
        """
        arrays = self._arrays(batch)
        rows = rows_with_more(batch)
        if len(rows) and (self._slots or self._without_column):
            arrays = self._with_overflow(batch, rows, arrays)
        if publishers and "headers" in self._extras and "headers" in self._wanted.names:
            index = self._wanted.get_field_index("headers")
            arrays[index] = with_publishers(arrays[index], batch.column("event_id"), publishers)
        # Computed last, because it needs the final arrays of the other columns.
        if NULLS in self._extras and NULLS in self._wanted.names:
            properties = self._properties(arrays)
            arrays[self._wanted.get_field_index(NULLS)] = nulls_of(batch, properties)
        return pa.RecordBatch.from_arrays(arrays, schema=self._wanted)

    def _arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the requested columns, without values from the column ``more``."""
        steps = self._steps.of(batch.schema)
        return [
            self._channel_column(batch.num_rows, field)
            if field.name == CHANNEL and CHANNEL in self._extras
            else _column(batch, step, field)
            for step, field in zip(steps, self._wanted, strict=True)
        ]

    def _with_overflow(
        self, batch: pa.RecordBatch, rows: Any, arrays: list[pa.Array]
    ) -> list[pa.Array]:
        """Return ``arrays`` with the values of properties that the channel stores in the column
        ``more``. ``rows`` are the rows with such values."""
        names = {slot.logical for name, slot in self._slots.items() if name in self._wanted.names}
        names |= self._without_column
        overflowing = batch.take(pa.array(rows))
        lifted_batch = lifted(overflowing, names)
        if lifted_batch is overflowing:
            return arrays
        lifted_arrays, source_rows = self._arrays(lifted_batch), np.arange(batch.num_rows)
        # Lifted rows follow the stored rows in the concatenation below; `source_rows` replaces
        # rows by them.
        source_rows[rows] = batch.num_rows + np.arange(len(rows))
        places = pa.array(source_rows)
        overflow_columns = self._slots.keys() | self._without_column
        return [
            pa.concat_arrays([array, lifted_array]).take(places)
            if field.name in overflow_columns
            else array
            for field, array, lifted_array in zip(self._wanted, arrays, lifted_arrays, strict=True)
        ]

    def _properties(self, arrays: list[pa.Array]) -> dict[str, tuple[str, pa.Array]]:
        """Return the property and the values of each requested column that is a property, by name
        of the column."""
        properties = {}
        for name, array in zip(self._wanted.names, arrays, strict=True):
            if name in self._slots:
                properties[name] = (self._slots[name].logical, array)
            elif name not in FLAT and name not in self._extras:
                logical, _, _ = name.removeprefix(f"{_PROPERTIES}.").partition("::")
                properties[name] = (logical, array)
        return properties

    def _channel_column(self, rows: int, field: pa.Field) -> pa.Array:
        return _cast(pa.repeat(pa.scalar(self._channel), rows), field)

    def _plan(self, schema: pa.Schema) -> list[_ColumnSource | None]:
        """Return the source of each requested column in batches of ``schema``; None for a column
        that such batches do not have."""
        properties = schema.get_field_index(_PROPERTIES)
        shape = StructShape() if properties < 0 else struct_shape(schema.field(properties).type)
        return [self._step(name, schema, properties, shape=shape) for name in self._wanted.names]

    def _step(
        self, name: str, schema: pa.Schema, properties: int, shape: StructShape
    ) -> _ColumnSource | None:
        wanted = self._slots.get(name)
        if wanted is not None:
            children = [
                _Child(child, shape.slots[child].shape, slot.shape)
                for slot in wanted.slots
                if (child := self._source(slot, shape)) is not None
            ]
            return _ColumnSource(properties, tuple(children), wanted.joined) if children else None
        if name in self._without_column:  # only batches with lifted values have this property
            for child_index, slot in enumerate(shape.slots):
                if slot.name == name:
                    return _ColumnSource(properties, (_Child(child_index, slot.shape, slot.shape),))
            return None
        index = schema.get_field_index(name) if name in FLAT or name in self._extras else -1
        if index < 0:
            return None
        if name in _SHAPES:
            kind = schema.field(index).type
            return _ColumnSource(index, source=struct_shape(kind), target=_SHAPES[name])
        return _ColumnSource(index)

    def _source(self, slot: Slot, shape: StructShape) -> int | None:
        """Return the index of the batch's field for the field ``slot`` of the channel; None if the
        batch does not have it."""
        for index, source in enumerate(shape.slots):
            place = place_of(source, self._shape)
            if place is not None and place.name == slot.name:
                return index
        return None


def _by_name(
    shape: StructShape, wanted: pa.Schema, fixed: Collection[str]
) -> dict[str, _PropertySource]:
    """Return the channel's property for each column name, matched by name.

    A requested column of an integer type receives only integers: the query was planned before the
    channel had floats of this property. The floats are reported as a column that appeared later.
    """
    places = _column_names(shape, fixed)
    exact = typed_columns(shape) | {
        slot.name: slot_index for slot_index, slot in enumerate(shape.slots)
    }
    # The unescaped names also match: a query with a custom schema may use their exact case.
    sources = {
        name: _as_stored(shape, slot_index)
        for name, slot_index in exact.items()
        if name not in fixed
    }
    sources |= {places[name]: _as_stored(shape, slot_index) for name, slot_index in exact.items()}
    for column in shown_columns(shape):
        for name in (column.name, places[column.name]):
            index = wanted.get_field_index(name)
            is_accepted = index < 0 or _is_readable_as(wanted.field(index).type, column.shape)
            if column.is_joined and name not in fixed and is_accepted:
                sources[name] = _as_shown(shape, column)
    return sources


def _by_type(
    shape: StructShape, wanted: pa.Schema, fixed: Collection[str]
) -> dict[str, _PropertySource]:
    """Return the channel's property for each requested column, matched by type.

    A column receives the property whose type it can represent. Properties that fit no column belong
    to the column of their name, if that is free.
    """
    columns: dict[str, list[tuple[str, Shape | None]]] = {}
    for field in wanted:
        if field.name not in fixed:
            logical, _, _ = field.name.removeprefix(f"{_PROPERTIES}.").partition("::")
            columns.setdefault(logical, []).append((field.name, _property_shape(field.type)))
    stored_columns: list[tuple[str, Shape, _PropertySource]] = []
    for column in shown_columns(shape):
        kinds = [kind for _, kind in columns.get(column.logical, []) if kind is not None]
        if column.is_joined and _is_joined_wanted(column, kinds):
            stored_columns.append((column.name, column.shape, _as_shown(shape, column)))
        else:
            for index in column.sources:
                slot = shape.slots[index]
                stored_columns.append((slot.name, slot.shape, _as_stored(shape, index)))
    places = _column_names(shape, fixed)
    sources: dict[str, _PropertySource] = {}
    unmatched: list[tuple[str, _PropertySource]] = []
    for name, source_shape, source in stored_columns:
        candidates = [
            candidate
            for candidate in columns.get(source.logical, [])
            if candidate[0] not in sources
        ]
        fitting = [
            name for name, kind in candidates if kind is not None and _can_hold(kind, source_shape)
        ]
        if fitting:
            sources[fitting[0]] = source
        else:
            unmatched.append((places[name], source))
    # Second pass: properties whose type fits no free column get the column of their name.
    for place, source in unmatched:
        if place in wanted.names and place not in sources:
            sources[place] = source
    return sources


def _is_joined_wanted(column: ShownColumn, wanted: Sequence[Shape]) -> bool:
    """Return whether a query reads integers and floats of a property as one column of doubles, and
    not as one column for each type. ``wanted`` has the types of the property's columns."""
    if len(column.sources) == 1:
        return all(_is_readable_as(arrow_type(kind), column.shape) for kind in wanted)
    numbers = [kind for kind in wanted if joined_shape(kind, column.shape) is not None]
    return numbers == [column.shape]


def _as_stored(shape: StructShape, index: int) -> _PropertySource:
    """Return the source of a column that shows one stored field."""
    slot = shape.slots[index]
    return _PropertySource(slot.logical, (slot,))


def _as_shown(shape: StructShape, column: ShownColumn) -> _PropertySource:
    """Return the source of a column that joins the integers and floats of a property."""
    slots = tuple(shape.slots[index] for index in column.sources)
    return _PropertySource(column.logical, slots, column)


def _can_hold(wide: Shape, narrow: Shape) -> bool:
    """Return whether a column of shape ``wide`` can represent values of shape ``narrow``."""
    return fits(wide, narrow) or joined_shape(wide, narrow) == wide


def _is_readable_as(kind: pa.DataType, shown: Shape) -> bool:
    """Return False if the type ``kind`` has integers where the column ``shown`` has doubles, at any
    depth; otherwise True."""
    if isinstance(shown, StructShape):
        fields = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
        shapes = {slot.name: slot.shape for slot in shown.slots}
        names = match_fields(fields, list(shapes))
        return all(_is_readable_as(fields[place], shapes[name]) for place, name in names.items())
    if isinstance(shown, ListShape):
        return not pa.types.is_list(kind) or _is_readable_as(kind.value_type, shown.element)
    return shown != "double" or not pa.types.is_integer(kind)


def _property_shape(kind: pa.DataType) -> Shape | None:
    """Return the shape of a type; None if properties cannot have the type."""
    try:
        return shape_of(kind)
    except Unsupported:
        return None


def _column(batch: pa.RecordBatch, step: _ColumnSource | None, field: pa.Field) -> pa.Array:
    """Return one requested column of a stored batch."""
    if step is None:
        # The data of an event is never null, only empty.
        if field.name == "data":
            return _cast(_no_data(batch.num_rows), field)
        return pa.nulls(batch.num_rows, field.type)
    array: Any = batch.column(step.index)
    if step.children:
        return _cast(_property(array, step, field), field)
    if step.source is not None and step.target is not None:
        array = fitted(array, step.source, step.target)
    return _cast(array, field)


def _property(struct: pa.StructArray, step: _ColumnSource, field: pa.Field) -> pa.Array:
    """Return the values of a property. Raises ``InvalidArgument`` if a column of doubles cannot
    represent one of its integers."""
    arrays = [
        fitted(field_of(struct, child.index), child.source, child.target) for child in step.children
    ]
    if step.joined is None:
        return arrays[0]
    try:
        return step.joined.compute(arrays, [child.target for child in step.children])
    except NotExact as error:
        raise InvalidArgument(
            f"column {field.name} has doubles for the integers and floats of a property, and one "
            f"of the integers has no exact double ({error}); start the query again, which then "
            f"reads the two types in separate columns, such as `{step.joined.logical}::int` "
            f"and `{step.joined.logical}::float`"
        ) from None


def _no_data(rows: int) -> pa.Array:
    """Return a column ``data`` with empty values."""
    # Channels without data are common. Conversion from Python values would import pandas, if it is
    # installed, which takes half a second in the process of each task.
    buffers = [None, pa.py_buffer(bytes(4 * (rows + 1))), pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return the column with the type that Spark requests. Raises ``InvalidArgument`` if values do
    not fit the type."""
    if array.type.equals(field.type):
        return array
    try:
        return narrow(array, field.type).cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(
            f"column {field.name} is stored as {array.type}, which does not fit the type "
            f"{field.type} of this query ({error}); start the query again to read the present "
            "type, or give it another type in .schema(...)"
        ) from error
