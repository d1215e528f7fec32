"""From the columns a channel stores to the columns Spark has asked for.

Spark takes record batches of exactly the schema it derives from its own, so everything ends in
a cast that loses nothing or says which column does not fit.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.columns.batch import FLAT
from penstock.columns.fitting import fitted, place_of
from penstock.columns.layout import FIELDS, HEADERS, STAMPED
from penstock.columns.memo import SchemaMemo
from penstock.columns.shapes import Shape, Slot, StructShape, struct_shape
from penstock.core.errors import InvalidArgument
from penstock.spark.options import nearest

ON_REQUEST: Final[dict[str, pa.DataType]] = {
    "ttl": FIELDS["ttl"].type,
    "priority": FIELDS["priority"].type,
    "persistent": FIELDS["persistent"].type,
    "headers": pa.struct(list(HEADERS.items())),
}
"""Columns that ``includeHeaders`` adds; null where an event does not say."""

_PROPERTIES: Final = "properties"


def spark_schema(
    stored: pa.Schema, *, columns: tuple[str, ...] = (), include_headers: bool = False
) -> StructType:
    """Spark's schema for a channel that stores ``stored``: all columns, or the chosen ones.

    Raises ``InvalidArgument`` for a chosen column that is not there.
    """
    kinds: dict[str, pa.DataType] = {
        name: STAMPED[name] if name in STAMPED else FIELDS[name].type for name in FLAT
    }
    if include_headers:
        kinds |= ON_REQUEST
    for slot_name, kind in _property_types(stored):
        name = f"{_PROPERTIES}.{slot_name}" if slot_name in kinds else slot_name
        kinds[name] = _readable(kind)
    for name in columns:
        if name not in kinds:
            raise InvalidArgument(f"no column {name!r}: {nearest(name, tuple(kinds))}")
    wanted = {name: kinds[name] for name in columns} if columns else kinds
    return from_arrow_schema(pa.schema(list(wanted.items())))


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark compares the batches of a source with."""
    return to_arrow_schema(schema, timezone="UTC")


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


_HEADERS_SHAPE: Final = struct_shape(ON_REQUEST["headers"])


class _Step(Struct, frozen=True):
    """Where one wanted column is in batches of one schema."""

    index: int
    child: int | None = None
    """Its place in the struct of properties."""
    source: Shape | None = None
    target: Shape | None = None
    """Set where the stored shape may be a narrower one."""


class Projection:
    """Turns stored batches of any age into batches of one Spark schema.

    ``stored`` is the channel's schema, at least as new as the batches. A wanted column that the
    channel does not have is null.
    """

    def __init__(
        self, stored: pa.Schema, wanted: pa.Schema, *, include_headers: bool = False
    ) -> None:
        self._wanted = wanted
        index = stored.get_field_index(_PROPERTIES)
        shape = StructShape() if index < 0 else struct_shape(stored.field(index).type)
        taken = {*FLAT, *(ON_REQUEST if include_headers else ())}
        self._slots = {
            f"{_PROPERTIES}.{slot.name}" if slot.name in taken else slot.name: slot
            for slot in shape.slots
        }
        self._shape = shape
        self._steps = SchemaMemo(self._plan)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Raises ``InvalidArgument`` naming a column whose values do not fit its Spark type."""
        steps = self._steps.of(batch.schema)
        arrays = [
            _column(batch, step, field) for step, field in zip(steps, self._wanted, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._wanted)

    def _plan(self, schema: pa.Schema) -> list[_Step | None]:
        properties = schema.get_field_index(_PROPERTIES)
        shape = StructShape() if properties < 0 else struct_shape(schema.field(properties).type)
        return [self._step(name, schema, properties, shape) for name in self._wanted.names]

    def _step(
        self, name: str, schema: pa.Schema, properties: int, shape: StructShape
    ) -> _Step | None:
        slot = self._slots.get(name)
        if slot is not None:
            child = self._source(slot, shape)
            if child is None:
                return None
            return _Step(properties, child, shape.slots[child].shape, slot.shape)
        index = schema.get_field_index(name) if name in FLAT or name in ON_REQUEST else -1
        if index < 0:
            return None
        if name == "headers":
            kind = schema.field(index).type
            return _Step(index, source=struct_shape(kind), target=_HEADERS_SHAPE)
        return _Step(index)

    def _source(self, slot: Slot, shape: StructShape) -> int | None:
        """Which property of a batch goes into ``slot`` of the channel."""
        for index, source in enumerate(shape.slots):
            place = place_of(source, self._shape)
            if place is not None and place.name == slot.name:
                return index
        return None


def _column(batch: pa.RecordBatch, step: _Step | None, field: pa.Field) -> pa.Array:
    if step is None:
        if field.name == "data":
            return _cast(pa.array([b""] * batch.num_rows, pa.binary()), field)
        return pa.nulls(batch.num_rows, field.type)
    array: Any = batch.column(step.index)
    if step.child is not None:
        # Without nulls of its own the struct hides nothing of its fields.
        by_index = [step.child]
        array = pc.struct_field(array, by_index) if array.null_count else array.field(step.child)
    if step.source is not None and step.target is not None:
        array = fitted(array, step.source, step.target)
    return _cast(array, field)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type.equals(field.type):
        return array
    try:
        return array.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(
            f"column {field.name} is stored as {array.type}, which does not fit the type "
            f"{field.type} of this query ({error}); start the query again to read it as it is "
            "stored now, or give it another type in .schema(...)"
        ) from error
