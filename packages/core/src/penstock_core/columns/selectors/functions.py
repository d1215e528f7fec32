"""The functions of selectors over columns (SEM F3)."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.selectors.expressions import DataText, Distance, DistanceUnit
from penstock_core.columns.selectors.frames import RowFrame
from penstock_core.columns.selectors.typed_columns import (
    Column,
    ColumnType,
    TypedColumn,
    Value,
    first_known,
    numbers_of,
)

EARTH_RADIUS: Final = {
    DistanceUnit.KILOMETRES: 6_371.0088,
    DistanceUnit.MILES: 6_371.0088 / 1.609344,
    DistanceUnit.NAUTICAL_MILES: 6_371.0088 / 1.852,
}
"""Mean radius of the earth in each unit."""

# Valid UTF-8 as bytes, without surrogates and overlong forms (RFC 3629).
_UTF8: Final = (
    r"\A(?:[\x00-\x7F]|[\xC2-\xDF][\x80-\xBF]|\xE0[\xA0-\xBF][\x80-\xBF]"
    r"|[\xE1-\xEC\xEE\xEF][\x80-\xBF]{2}|\xED[\x80-\x9F][\x80-\xBF]"
    r"|\xF0[\x90-\xBF][\x80-\xBF]{2}|[\xF1-\xF3][\x80-\xBF]{3}|\xF4[\x80-\x8F][\x80-\xBF]{2})*\z"
)


def now(frame: RowFrame) -> Value:
    """Return the value of ``NOW()``: milliseconds since the epoch."""
    return (TypedColumn(ColumnType.INTEGER, pa.scalar(frame.now_us // 1_000, pa.int64())),)


def data_length(frame: RowFrame) -> Value:
    """Return the value of ``EVENTDATA.LENGTH()``: bytes of the event's data; 0 if the batch has no
    data."""
    return (TypedColumn(ColumnType.INTEGER, pc.binary_length(frame.data()).cast(pa.int64())),)


def data_text(node: DataText, frame: RowFrame) -> Value:
    """Return the value of ``EVENTDATA.AS_STRING()``: a part of the data as text; unknown if not
    UTF-8."""
    part = pc.binary_slice(frame.data().cast(pa.binary()), node.offset, node.offset + node.length)
    try:
        return (TypedColumn(ColumnType.TEXT, part.cast(pa.string())),)
    except pa.ArrowInvalid:  # some rows are not UTF-8: they become unknown
        valid = pc.match_substring_regex(part, _UTF8)
        part = pc.if_else(valid, part, pa.scalar(None, pa.binary()))
        return (TypedColumn(ColumnType.TEXT, part.cast(pa.string())),)


def distance(node: Distance, frame: RowFrame) -> Value:
    """Return the value of ``DISTANCE()`` by the haversine formula; unknown without valid
    coordinates."""
    latitude, no_latitude = _degrees(frame, "latitude", 90)
    longitude, no_longitude = _degrees(frame, "longitude", 180)
    from_latitude, from_longitude = math.radians(node.latitude), math.radians(node.longitude)
    to_latitude, to_longitude = np.radians(latitude), np.radians(longitude)
    half = (
        np.sin((to_latitude - from_latitude) / 2) ** 2
        + math.cos(from_latitude)
        * np.cos(to_latitude)
        * np.sin((to_longitude - from_longitude) / 2) ** 2
    )
    # For opposite points, rounding may raise the value slightly above 1.
    arc = 2 * EARTH_RADIUS[node.unit] * np.arcsin(np.sqrt(np.minimum(half, 1.0)))
    return (TypedColumn(ColumnType.FLOAT, pa.array(arc, mask=no_latitude | no_longitude)),)


def _degrees(frame: RowFrame, name: str, limit: int) -> tuple[Any, Any]:
    """Return the values of a coordinate, and a mask of rows where it is missing or out of range."""
    columns: list[Column] = [
        pc.cast(typed_column.column, pa.float64(), safe=False)
        for typed_column in frame.lookup((name,))
        if typed_column.kind in (ColumnType.INTEGER, ColumnType.FLOAT)
    ]
    if not columns:
        return np.zeros(frame.rows), np.ones(frame.rows, dtype=bool)
    numbers, absent = numbers_of(first_known(columns))
    # Not `abs(numbers) > limit`, which is false for NaN.
    outside = ~(np.abs(numbers) <= limit)
    return np.where(outside, 0.0, numbers), absent | outside
