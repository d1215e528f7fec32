"""JSON payloads as property columns, those of one turn of the loop at once (SEM M14).

A field is a property, a number a double unless the channel has whole numbers under its name or it
is a whole number without an exact double, and null is as good as absent: what a device writes
decides neither the type of a column nor, by the number of messages that happen to come together,
how it is read.
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
"""Below so many messages Python is faster than a reader of columns."""
LEAVES_MAX: Final = 200
COLUMN_LEVELS_MAX: Final = 20
"""What is wider or deeper is taken row by row, where there are no such limits."""
_NO_OBJECT: Final = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    InvalidEvent,
    RecursionError,
    OverflowError,
    InvalidArgument,
)
_OPEN, _BETWEEN, _CLOSE = b'{"v":', b'}\n{"v":', b"}"
_VALUE: Final = "v"


class JsonColumns:
    """Makes the columns of one channel's payloads."""

    def __init__(self, reserved: Collection[str]) -> None:
        """``reserved``: names that the fields of payloads do not get."""
        self._reserved = frozenset(reserved)
        self._hints: pa.Schema | None = None
        """Texts that look like times, which the reader of columns would take for such."""

    def rows(
        self, payloads: Sequence[bytes], whole: Collection[str]
    ) -> list[dict[str, Any] | MqttViolation]:
        """Each payload as properties, or why it can be none; ``whole`` names the properties that
        are whole numbers in the channel."""
        return [self._row(each, whole) for each in payloads]

    def _row(self, payload: bytes, whole: Collection[str]) -> dict[str, Any] | MqttViolation:
        if not payload:  # what removes a retained message says nothing else
            return {}
        try:
            check_json_nesting(payload, "the payload")
            found = msgspec.json.decode(payload, type=dict[str, Any])
            plain = {
                name: value if name in whole and type(value) is int else _plain(value)
                for name, value in found.items()
                if value is not None and name not in self._reserved
            }
            property_columns([plain])
        except _NO_OBJECT as error:
            text = f"the payload is no JSON object whose fields are properties: {error}"
            return MqttViolation(Reason.PAYLOAD_FORMAT_INVALID, text)
        return plain

    def columns(
        self,
        payloads: Sequence[bytes],
        others: Mapping[str, Sequence[str]],
        whole: Collection[str],
    ) -> PropertyColumns | None:
        """The columns of all payloads, beside ``others`` of text. None: they are not all objects of
        one form, so that each has to be looked at by itself."""
        if len(payloads) < FEW or not all(payloads):
            return None
        # Arrow's reader recurses in native code without a bound. A payload cannot hide levels from
        # the count of another one: what is left open at its end is an error to the reader.
        if any(
            each.count(b"[") + each.count(b"{") > NESTING_MAX < json_nesting(each)
            for each in payloads
            if len(each) > NESTING_MAX
        ):
            return None
        try:
            found = self._read(_OPEN + _BETWEEN.join(payloads) + _CLOSE, len(payloads), whole)
        except (pa.ArrowException, ValueError, RecursionError):
            return None
        if found is None:
            return None
        columns = {
            name: array
            for name, array in found.items()
            if name not in self._reserved and array.null_count < len(array)
        }
        try:
            for name in columns:
                check_property_name(name)
        except InvalidEvent:
            return None
        columns |= {name: pa.array(values, pa.string()) for name, values in others.items()}
        properties = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
        has_nulls = any(_holds_nulls(each) for each in columns.values())
        sparse = pa.repeat(pa.scalar(True), len(payloads)) if has_nulls else None
        return PropertyColumns(properties, sparse)

    def _read(self, data: bytes, count: int, whole: Collection[str]) -> dict[str, pa.Array] | None:
        """The fields. Each payload stands in an object of its own, so that none can be two rows,
        or end another."""
        value = _parsed(data, self._hints)
        if value is None or len(value) != count or value.null_count:
            return None
        if _any(value.type, pa.types.is_timestamp):
            self._hints = pa.schema([(_VALUE, _texts(value.type))])
            value = _parsed(data, self._hints)
            if value is None or _any(value.type, pa.types.is_timestamp):
                return None
        fields = {each.name: (value.field(at), each.type) for at, each in enumerate(value.type)}
        arrays = {name: array for name, (array, kind) in fields.items() if array.null_count < count}
        if any(name in arrays and not pa.types.is_int64(arrays[name].type) for name in whole):
            return None
        kept = {
            name: array if name in whole and pa.types.is_int64(array.type) else _doubles(array)
            for name, array in arrays.items()
        }
        kind = pa.struct([(name, array.type) for name, array in kept.items()])
        if len(kind) and (_any(kind, pa.types.is_null) or not _fits(kind)):
            return None
        for array in kept.values():
            array.validate(full=True)
            if not _are_exact(array):
                return None
        return kept


def _parsed(data: bytes, hints: pa.Schema | None) -> pa.StructArray | None:
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
    shape = struct_shape(kind)
    return not (
        holds_empty_struct(shape)
        or leaf_count(shape) > LEAVES_MAX
        or nesting(shape) > COLUMN_LEVELS_MAX
    )


def _any(kind: pa.DataType, claim: Callable[[pa.DataType], bool]) -> bool:
    if pa.types.is_struct(kind):
        return any(_any(each.type, claim) for each in kind)
    if pa.types.is_list(kind):
        return _any(kind.value_type, claim)
    return claim(kind)


def _changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _changed(each.type, change)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_changed(kind.value_type, change))
    return change(kind)


def _texts(kind: pa.DataType) -> pa.DataType:
    """The type with texts for times, and otherwise nothing that is not to be found out anew."""
    if pa.types.is_struct(kind):
        kept = ((each.name, _texts(each.type), each.type) for each in kind)
        return pa.struct([(n, new) for n, new, old in kept if _any(old, pa.types.is_timestamp)])
    if pa.types.is_list(kind):
        return pa.list_(_texts(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _doubles(array: pa.Array) -> pa.Array:
    wanted = _changed(array.type, lambda k: pa.float64() if pa.types.is_int64(k) else k)
    return array if wanted == array.type else array.cast(wanted)


def _leaves(array: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(array.type):
        return [leaf for each in array.flatten() for leaf in _leaves(each)]
    return _leaves(array.flatten()) if pa.types.is_list(array.type) else [array]


def _are_exact(array: pa.Array) -> bool:
    """Whether all doubles are the numbers that were written: the reader takes NaN, which is no
    JSON, and makes doubles of whole numbers that have none."""
    numbers = (each for each in _leaves(array) if pa.types.is_floating(each.type))
    return all(pc.all(pc.less(pc.abs(each), EXACT_MAX), min_count=0).as_py() for each in numbers)


def _holds_nulls(array: pa.Array) -> bool:
    if array.null_count:
        return True
    if pa.types.is_struct(array.type):
        return any(_holds_nulls(each) for each in array.flatten())
    return pa.types.is_list(array.type) and _holds_nulls(array.flatten())


def _fits_int64(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _plain(value: Any) -> Any:
    """A value as a property: without what is null, and with numbers that are doubles."""
    if type(value) is int:
        # Beyond 64 bits no column could hold it as a whole number.
        return value if abs(value) > EXACT_MAX and _fits_int64(value) else float(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
