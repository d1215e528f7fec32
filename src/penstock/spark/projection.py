"""Projects the columns that a channel stores onto the columns that Spark has asked for.

Spark accepts only record batches of exactly the schema it derives from its own, so each column is
cast, without loss, or with an error that says which column does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.columns.events.batch import FLAT
from penstock.columns.events.lifted_columns import lifted, rows_with_more
from penstock.columns.events.publishers import with_publishers
from penstock.columns.schema import compute as pc
from penstock.columns.schema.layout import FIELDS, HEADERS, ORIGIN, STAMPED
from penstock.columns.schema.rows import Publishers
from penstock.columns.schema.schema import ChannelSchema
from penstock.columns.schema.schema_cache import SchemaMemo
from penstock.columns.schema.schema_fit import fitted, place_of
from penstock.columns.schema.shapes import (
    Shape,
    Slot,
    StructShape,
    Unsupported,
    fits,
    shape_of,
    struct_shape,
)
from penstock.core.vocabulary.errors import InvalidArgument
from penstock.spark.nesting import chosen, narrowed
from penstock.spark.nulls import NULLS, NULLS_TYPE, nulls_of
from penstock.spark.options import SourceOptions

ON_REQUEST: Final[dict[str, pa.DataType]] = {
    "ttl": FIELDS["ttl"].type,
    "priority": FIELDS["priority"].type,
    "persistent": FIELDS["persistent"].type,
    "headers": pa.struct(list(HEADERS.items())),
}
"""Columns that ``includeHeaders`` adds; null where an event does not say."""

CHANNEL: Final = "channel"
"""The column ``includeChannel`` adds."""

ORIGIN_COLUMN: Final = "origin"
"""The column ``includeOrigin`` adds; null where an event was published here."""

_PROPERTIES: Final = "properties"


class Extras(Struct, frozen=True):
    """The optional columns of a read."""

    headers: bool = False
    channel: bool = False
    origin: bool = False
    nulls: bool = False

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        kinds: dict[str, pa.DataType] = {CHANNEL: pa.string()} if self.channel else {}
        if self.headers:
            kinds |= ON_REQUEST
        if self.origin:
            kinds[ORIGIN_COLUMN] = _ORIGIN_TYPE
        if self.nulls:
            kinds[NULLS] = NULLS_TYPE
        return kinds


def extras_of(options: SourceOptions) -> Extras:
    """The optional columns that were asked for."""
    return Extras(
        options.include_headers,
        options.include_channel,
        options.include_origin,
        options.include_nulls,
    )


NO_EXTRAS: Final = Extras()


def spark_schema(
    stored: Sequence[pa.Schema], *, columns: tuple[str, ...] = (), extras: Extras = NO_EXTRAS
) -> StructType:
    """Spark's schema for channels that store ``stored``: all columns, or the chosen ones.

    Columns of one name and type are one; of a further type they are one more, such as
    ``price::string``, as in one channel. Raises ``InvalidArgument`` for a chosen column that
    is not there.
    """
    kinds: dict[str, pa.DataType] = {
        name: STAMPED[name] if name in STAMPED else FIELDS[name].type for name in FLAT
    }
    kinds |= extras.kinds
    for slot_name, kind in _property_types(_united(stored)):
        name = f"{_PROPERTIES}.{slot_name}" if slot_name in kinds else slot_name
        kinds[name] = _readable(kind)
    wanted = chosen(kinds, columns) if columns else kinds
    return from_arrow_schema(pa.schema(list(wanted.items())))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark compares the batches of a source with."""
    return to_arrow_schema(schema, timezone="UTC")


def _united(stored: Sequence[pa.Schema]) -> pa.Schema:
    if len(stored) == 1:
        return stored[0]
    schema = ChannelSchema.empty()
    for each in stored:
        schema = schema.grown(each)
    return schema.arrow


def property_names(stored: pa.Schema) -> list[str]:
    """Names of the properties of a channel that stores ``stored``."""
    return [name for name, _ in _property_types(stored)]


def _property_types(stored: pa.Schema) -> list[tuple[str, pa.DataType]]:
    index = stored.get_field_index(_PROPERTIES)
    return [] if index < 0 else [(field.name, field.type) for field in stored.field(index).type]


def _readable(kind: pa.DataType) -> pa.DataType:
    """``kind`` without what means nothing to Spark. A property that has only ever been null
    has no type yet; it is read as a string, which tables and files can hold."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_readable(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _readable(field.type)) for field in kind])
    return kind


_ORIGIN_TYPE: Final = pa.struct(list(ORIGIN.items()))
_SHAPES: Final = {
    "headers": struct_shape(ON_REQUEST["headers"]),
    ORIGIN_COLUMN: struct_shape(_ORIGIN_TYPE),
}


class _ColumnSource(Struct, frozen=True):
    """The source of one wanted column in batches of one schema."""

    index: int
    child: int | None = None
    """Index in the struct of properties; None: another column."""
    source: Shape | None = None
    target: Shape | None = None
    """Set where the stored shape may be a narrower one."""


class Projection:
    """Turns stored batches of any age into batches of one Spark schema.

    ``stored`` is the channel's schema, at least as new as the batches. A wanted column that the
    channel does not have is null.
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
        """``channel`` is the value of the column of that name. ``by_type`` is for one of several
        channels: what is ``price::string`` among all of them may be ``price`` in this one."""
        self._wanted = wanted
        self._extras = extras.kinds
        self._channel = channel
        index = stored.get_field_index(_PROPERTIES)
        shape = StructShape() if index < 0 else struct_shape(stored.field(index).type)
        taken = {*FLAT, *self._extras}
        self._slots = {
            f"{_PROPERTIES}.{slot.name}" if slot.name in taken else slot.name: slot
            for slot in shape.slots
        }
        if by_type:
            self._slots = _by_type(shape, wanted, taken)
        self._shape = shape
        self._steps = SchemaMemo(self._plan)

    def of(self, batch: pa.RecordBatch, publishers: Publishers = ()) -> pa.RecordBatch:
        """Raises ``InvalidArgument`` naming a column whose values do not fit its Spark type."""
        arrays = self._arrays(batch)
        rows = rows_with_more(batch)
        if len(rows) and self._slots:
            arrays = self._lifted(batch, rows, arrays)
        if publishers and "headers" in self._extras and "headers" in self._wanted.names:
            at = self._wanted.get_field_index("headers")
            arrays[at] = with_publishers(arrays[at], batch.column("event_id"), publishers)
        if NULLS in self._extras and NULLS in self._wanted.names:
            properties = self._properties(arrays)
            arrays[self._wanted.get_field_index(NULLS)] = nulls_of(batch, properties)
        return pa.RecordBatch.from_arrays(arrays, schema=self._wanted)

    def _arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        steps = self._steps.of(batch.schema)
        return [
            self._named(batch.num_rows, field)
            if field.name == CHANNEL and CHANNEL in self._extras
            else _column(batch, step, field)
            for step, field in zip(steps, self._wanted, strict=True)
        ]

    def _lifted(self, batch: pa.RecordBatch, rows: Any, arrays: list[pa.Array]) -> list[pa.Array]:
        """With the properties that a file has put into ``more``, because few events have them."""
        names = {slot.logical for name, slot in self._slots.items() if name in self._wanted.names}
        some = batch.take(pa.array(rows))
        found = lifted(some, names)
        if found is some:
            return arrays
        inside, at = self._arrays(found), np.arange(batch.num_rows)
        at[rows] = batch.num_rows + np.arange(len(rows))
        places = pa.array(at)
        return [
            pa.concat_arrays([whole, few]).take(places) if field.name in self._slots else whole
            for field, whole, few in zip(self._wanted, arrays, inside, strict=True)
        ]

    def _properties(self, arrays: list[pa.Array]) -> dict[str, tuple[str, pa.Array]]:
        """The columns of properties, each with the property it is of."""
        found = {}
        for name, array in zip(self._wanted.names, arrays, strict=True):
            if name in self._slots:
                found[name] = (self._slots[name].logical, array)
            elif name not in FLAT and name not in self._extras:
                logical, _, _ = name.removeprefix(f"{_PROPERTIES}.").partition("::")
                found[name] = (logical, array)
        return found

    def _named(self, rows: int, field: pa.Field) -> pa.Array:
        return _cast(pa.repeat(pa.scalar(self._channel), rows), field)

    def _plan(self, schema: pa.Schema) -> list[_ColumnSource | None]:
        properties = schema.get_field_index(_PROPERTIES)
        shape = StructShape() if properties < 0 else struct_shape(schema.field(properties).type)
        return [self._step(name, schema, properties, shape) for name in self._wanted.names]

    def _step(
        self, name: str, schema: pa.Schema, properties: int, shape: StructShape
    ) -> _ColumnSource | None:
        slot = self._slots.get(name)
        if slot is not None:
            child = self._source(slot, shape)
            if child is None:
                return None
            return _ColumnSource(properties, child, shape.slots[child].shape, slot.shape)
        index = schema.get_field_index(name) if name in FLAT or name in self._extras else -1
        if index < 0:
            return None
        if name in _SHAPES:
            kind = schema.field(index).type
            return _ColumnSource(index, source=struct_shape(kind), target=_SHAPES[name])
        return _ColumnSource(index)

    def _source(self, slot: Slot, shape: StructShape) -> int | None:
        """The property of a batch for the ``slot`` of the channel."""
        for index, source in enumerate(shape.slots):
            place = place_of(source, self._shape)
            if place is not None and place.name == slot.name:
                return index
        return None


def _by_type(shape: StructShape, wanted: pa.Schema, taken: set[str]) -> dict[str, Slot]:
    """The channel's property for each wanted column: one that fits its type, otherwise the one of
    its name if no other column fits that better."""
    columns: dict[str, list[tuple[str, Shape | None]]] = {}
    for field in wanted:
        if field.name not in taken:
            logical, _, _ = field.name.removeprefix(f"{_PROPERTIES}.").partition("::")
            columns.setdefault(logical, []).append((field.name, _property_shape(field.type)))
    found: dict[str, Slot] = {}
    for slot in shape.slots:
        free = [each for each in columns.get(slot.logical, []) if each[0] not in found]
        fitting = [name for name, kind in free if kind is not None and fits(kind, slot.shape)]
        if fitting:
            found[fitting[0]] = slot
    for slot in shape.slots:
        plain = f"{_PROPERTIES}.{slot.name}" if slot.name in taken else slot.name
        if slot not in found.values() and plain in wanted.names and plain not in found:
            found[plain] = slot
    return found


def _property_shape(kind: pa.DataType) -> Shape | None:
    try:
        return shape_of(kind)
    except Unsupported:
        return None


def _column(batch: pa.RecordBatch, step: _ColumnSource | None, field: pa.Field) -> pa.Array:
    if step is None:
        if field.name == "data":
            return _cast(_no_data(batch.num_rows), field)
        return pa.nulls(batch.num_rows, field.type)
    array: Any = batch.column(step.index)
    if step.child is not None:
        # Without nulls of its own the struct hides no nulls of its fields.
        by_index = [step.child]
        array = pc.struct_field(array, by_index) if array.null_count else array.field(step.child)
    if step.source is not None and step.target is not None:
        array = fitted(array, step.source, step.target)
    return _cast(array, field)


def _no_data(rows: int) -> pa.Array:
    # Building it from Python values would import pandas if installed: half a second in each task's
    # process. Channels without data are common.
    buffers = [None, pa.py_buffer(bytes(4 * (rows + 1))), pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type.equals(field.type):
        return array
    try:
        return narrowed(array, field.type).cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(
            f"column {field.name} is stored as {array.type}, which does not fit the type "
            f"{field.type} of this query ({error}); start the query again to read it as it is "
            "stored now, or give it another type in .schema(...)"
        ) from error
