"""Converts JSON payloads to property columns, all those of one turn of the loop at once (SEM M14).

A field becomes a property. A number becomes a double, unless the channel has whole numbers under
its name or it is a whole number without an exact double. Null is treated as absent. So neither the
payload of one device nor the number of messages in a turn decides the type of a column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock_core.columns.schema.layout import check_property_name
from penstock_core.columns.schema.number_columns import EXACT_MAX
from penstock_core.columns.schema.properties import PropertyColumns, property_columns
from penstock_core.columns.schema.shapes import (
    holds_empty_struct,
    leaf_count,
    nesting,
    struct_shape,
)
from penstock_core.vocabulary.errors import InvalidArgument, InvalidEvent
from penstock_core.vocabulary.nesting import NESTING_MAX, check_json_nesting, json_nesting
from penstock_mqtt.wire.reasons import MqttViolation, Reason

FEW: Final = 16
"""Below this number of messages Python is faster than Arrow's JSON reader."""
LEAVES_MAX: Final = 200
"""Maximum number of fields of the payloads that Arrow converts, also in nested objects. Wider
payloads are converted row by row, without this limit."""
COLUMN_LEVELS_MAX: Final = 20
"""Maximum number of levels of the payloads that Arrow converts. Deeper payloads are converted row
by row, without this limit."""
_NOT_AN_OBJECT: Final = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    InvalidEvent,
    RecursionError,
    OverflowError,
    InvalidArgument,
)
"""Errors that show that a payload cannot be converted to properties."""
_OPEN, _BETWEEN, _CLOSE = b'{"v":', b'}\n{"v":', b"}"
"""Text before, between and after payloads, so that each is a field of a separate JSON line."""
_VALUE: Final = "v"


class JsonColumns:
    """Makes the columns of one channel's payloads."""

    def __init__(self, reserved: Collection[str]) -> None:
        """``reserved`` names properties that fields of payloads cannot set."""
        self._reserved = frozenset(reserved)
        self._hints: pa.Schema | None = None
        """Types of texts that look like times, which Arrow's reader would convert to timestamps."""

    def rows(
        self, payloads: Sequence[bytes], whole_numbers: Collection[str]
    ) -> list[dict[str, Any] | MqttViolation]:
        """Return the properties of each payload, or the reason why it has none. ``whole_numbers``
        names the properties that are whole numbers in the channel."""
        return [self._row(payload, whole_numbers) for payload in payloads]

    def _row(
        self, payload: bytes, whole_numbers: Collection[str]
    ) -> dict[str, Any] | MqttViolation:
        """Return the properties in a JSON payload, or the error for its publisher. Numbers in the
        fields ``whole_numbers`` stay integers."""
        if not payload:  # an empty payload removes a retained message
            return {}
        try:
            check_json_nesting(payload, "the payload")
            fields = msgspec.json.decode(payload, type=dict[str, Any])
            properties = {
                name: value if name in whole_numbers and type(value) is int else _as_property(value)
                for name, value in fields.items()
                if value is not None and name not in self._reserved
            }
            # Raises the errors that a publish of these properties would raise.
            property_columns([properties])
        except _NOT_AN_OBJECT as error:
            text = f"the payload is not a JSON object whose fields can be properties: {error}"
            return MqttViolation(Reason.PAYLOAD_FORMAT_INVALID, text)
        return properties

    def columns(
        self,
        payloads: Sequence[bytes],
        others: Mapping[str, Sequence[str]],
        whole_numbers: Collection[str],
    ) -> PropertyColumns | None:
        """Return the columns of all payloads and the text columns ``others``. Return None if the
        payloads are not objects of one form, so that each must be converted alone."""
        if len(payloads) < FEW or not all(payloads):
            return None
        # Arrow's reader recurses in native code without a bound. A payload cannot hide nesting from
        # this count: brackets left open at its end are an error to the reader.
        if any(
            payload.count(b"[") + payload.count(b"{") > NESTING_MAX < json_nesting(payload)
            for payload in payloads
            if len(payload) > NESTING_MAX
        ):
            return None
        try:
            # Each payload becomes a field of a separate object, so that Arrow's reader cannot merge
            # or split payloads.
            data = _OPEN + _BETWEEN.join(payloads) + _CLOSE
            arrays = self._read(data, len(payloads), whole_numbers)
        except (pa.ArrowException, ValueError, RecursionError):
            return None
        if arrays is None:
            return None
        columns = {
            name: array
            for name, array in arrays.items()
            if name not in self._reserved and array.null_count < len(array)
        }
        try:
            for name in columns:
                check_property_name(name)
        except InvalidEvent:
            return None
        columns |= {name: pa.array(values, pa.string()) for name, values in others.items()}
        properties = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
        has_nulls = any(_holds_nulls(array) for array in columns.values())
        sparse = pa.repeat(pa.scalar(True), len(payloads)) if has_nulls else None
        return PropertyColumns(properties, sparse)

    def _read(
        self, data: bytes, count: int, whole_numbers: Collection[str]
    ) -> dict[str, pa.Array] | None:
        """Return the fields of ``count`` payloads as columns, or None if they must be converted row
        by row. In ``data`` each payload is wrapped in a separate object, so that it can neither
        become two rows nor end another payload."""
        value = _parse(data, self._hints)
        if value is None or len(value) != count or value.null_count:
            return None
        if _has_type(value.type, pa.types.is_timestamp):
            # Read again with these fields as text. The hints also serve later payloads.
            self._hints = pa.schema([(_VALUE, _as_text_type(value.type))])
            value = _parse(data, self._hints)
            if value is None or _has_type(value.type, pa.types.is_timestamp):
                return None
        fields = {
            field.name: (value.field(index), field.type) for index, field in enumerate(value.type)
        }
        arrays = {
            name: array for name, (array, row_type) in fields.items() if array.null_count < count
        }
        # A column of whole numbers must keep its type, so these payloads are converted row by row.
        if any(
            name in arrays and not pa.types.is_int64(arrays[name].type) for name in whole_numbers
        ):
            return None
        converted = {
            name: array if name in whole_numbers else _as_doubles(array)
            for name, array in arrays.items()
        }
        row_type = pa.struct([(name, array.type) for name, array in converted.items()])
        if len(row_type) and (_has_type(row_type, pa.types.is_null) or not _fits(row_type)):
            return None
        for array in converted.values():
            array.validate(full=True)
            if not _are_exact(array):
                return None
        return converted


def _parse(data: bytes, hints: pa.Schema | None) -> pa.StructArray | None:
    """Return the wrapped payloads of JSON lines, or None if they are not one column of objects."""
    # A single block makes Arrow infer the types from all payloads.
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=hints, unexpected_field_behavior="infer"),
    )
    if table.schema.names != [_VALUE]:
        return None
    value = table.column(0)
    if value.num_chunks != 1 or not pa.types.is_struct(value.type):
        return None
    return value.chunk(0)


def _fits(kind: pa.StructType) -> bool:
    """Return whether columns may have this type; otherwise payloads are converted row by row."""
    shape = struct_shape(kind)
    return not (
        holds_empty_struct(shape)
        or leaf_count(shape) > LEAVES_MAX
        or nesting(shape) > COLUMN_LEVELS_MAX
    )


def _has_type(kind: pa.DataType, is_type: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a field of a type, at any depth, is of the type that ``is_type`` accepts."""
    if pa.types.is_struct(kind):
        return any(_has_type(field.type, is_type) for field in kind)
    if pa.types.is_list(kind):
        return _has_type(kind.value_type, is_type)
    return is_type(kind)


def _with_changed_leaves(
    kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]
) -> pa.DataType:
    """Return a type with ``change`` applied to its fields that are neither objects nor lists."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _with_changed_leaves(field.type, change)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_with_changed_leaves(kind.value_type, change))
    return change(kind)


def _as_text_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with text in place of timestamps, reduced to the fields that need the hint."""
    if pa.types.is_struct(kind):
        fields = ((field.name, _as_text_type(field.type), field.type) for field in kind)
        return pa.struct(
            [(n, new) for n, new, old in fields if _has_type(old, pa.types.is_timestamp)]
        )
    if pa.types.is_list(kind):
        return pa.list_(_as_text_type(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _as_doubles(array: pa.Array) -> pa.Array:
    """Return an array with its whole numbers as doubles, at any depth."""
    double_type = _with_changed_leaves(
        array.type, lambda k: pa.float64() if pa.types.is_int64(k) else k
    )
    return array if double_type == array.type else array.cast(double_type)


def _leaves(array: pa.Array) -> list[pa.Array]:
    """Return the arrays inside an array that are neither objects nor lists."""
    if pa.types.is_struct(array.type):
        return [leaf for child in array.flatten() for leaf in _leaves(child)]
    return _leaves(array.flatten()) if pa.types.is_list(array.type) else [array]


def _are_exact(array: pa.Array) -> bool:
    """Return whether all doubles equal the numbers in the JSON text. Arrow's reader accepts NaN,
    which JSON does not allow, and rounds large whole numbers."""
    numbers = (leaf for leaf in _leaves(array) if pa.types.is_floating(leaf.type))
    return all(pc.all(pc.less(pc.abs(leaf), EXACT_MAX), min_count=0).as_py() for leaf in numbers)


def _holds_nulls(array: pa.Array) -> bool:
    if array.null_count:
        return True
    if pa.types.is_struct(array.type):
        return any(_holds_nulls(child) for child in array.flatten())
    return pa.types.is_list(array.type) and _holds_nulls(array.flatten())


def _fits_int64(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _as_property(value: Any) -> Any:
    """Return a value as a property: without nulls, and with numbers as doubles."""
    if type(value) is int:
        # Kept whole only if no double equals it. A column of whole numbers has 64 bits.
        return value if abs(value) > EXACT_MAX and _fits_int64(value) else float(value)
    if isinstance(value, dict):
        return {name: _as_property(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_as_property(item) for item in value]
    return value
