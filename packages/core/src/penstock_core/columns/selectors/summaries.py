"""Summaries: statistics of each column of a record batch, kept in the index of its segment.

A *summary* lets a selector skip events without reading them (SEM F5). It has bounds, null counts,
and all values of a column with few distinct values. A summary is small, because the indexes of all
segments are in memory. Columns beyond its size limit are left out, and may have any values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.layout import LOGICAL_NAME, UNSELECTED
from penstock_core.columns.selectors.statistics import NOTHING_KNOWN, ONLY_NULLS, ColumnStatistics

BYTES_MAX: Final = 2_048
"""Maximum number of bytes of one summary."""
DISTINCT_MAX: Final = 16
"""Maximum number of distinct values that are listed; a column with more has bounds only."""
TEXT_MAX: Final = 32
"""Maximum number of characters of a bound. Longer text is shortened so that it remains a bound."""
_SAMPLE: Final = 512
"""Number of first rows that are examined for distinct values before all rows are."""
_DEPTH_MAX: Final = 8
"""Maximum number of dictionaries inside one another whose fields have statistics."""

_OVERFLOW: Final = "more"
_PROPERTIES: Final = "properties"
_LAST: Final = 0x10FFFF
"""The last code point of Unicode."""
_SURROGATES: Final = range(0xD800, 0xE000)
"""Code points that are not characters, so that UTF-8 cannot encode them."""

OptionalStatistics = ColumnStatistics | None
"""Statistics of a column; None if nothing is known of it and of the columns inside it."""

_Packed = tuple[bool, dict[str, tuple[Any, ...] | None]]
"""Whether all columns are described, and the fields of their statistics by path."""
_decoder = msgspec.msgpack.Decoder(_Packed)


def summary_of(batch: pa.RecordBatch) -> bytes:
    """Return the summary of a stored batch."""
    overflows = _overflows(batch)
    statistics: dict[str, OptionalStatistics] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in UNSELECTED or name == _OVERFLOW:
            continue
        if name == _PROPERTIES and overflows:
            statistics[name] = None  # None, because values in the overflow override the column
        else:
            statistics.update(_described(name, [column], 0))
    return _packed(statistics)


def statistics_in(summary: bytes, paths: Collection[str]) -> Mapping[str, ColumnStatistics]:
    """Return the statistics that a summary has for ``paths``; an empty mapping for an empty
    summary."""
    if not summary:
        return {}
    is_complete, packed = _decoder.decode(summary)
    statistics = {}
    for path in paths:
        if path in packed:
            values = packed[path]
            if values is not None:
                statistics[path] = ColumnStatistics(*values)
        elif is_complete and not _is_below(path, packed):
            statistics[path] = ONLY_NULLS  # the column does not exist
    return statistics


def _is_below(path: str, packed: Mapping[str, tuple[Any, ...] | None]) -> bool:
    """Whether ``path`` is inside a column without statistics, so that the column may exist."""
    above = path.rpartition(".")[0]
    while above:
        if above in packed:
            return packed[above] is None
        above = above.rpartition(".")[0]
    return path.split(".")[0] in UNSELECTED


def _overflows(batch: pa.RecordBatch) -> bool:
    """Whether some row has properties in the overflow column."""
    index = batch.schema.get_field_index(_OVERFLOW)
    return index >= 0 and bool(batch.column(index).null_count < batch.num_rows)


def _packed(statistics: dict[str, OptionalStatistics]) -> bytes:
    """Pack as many columns as fit into :data:`BYTES_MAX`, in the order of ``statistics``."""
    bytes_left = BYTES_MAX
    packed: dict[str, tuple[Any, ...] | None] = {}
    is_complete = True
    for path, column in statistics.items():
        value = None if column is None else _short(column)
        size = len(msgspec.msgpack.encode((path, value)))
        if size > bytes_left:
            is_complete = False
            continue
        bytes_left -= size
        packed[path] = value
    return msgspec.msgpack.encode((is_complete, packed))


def _short(column: ColumnStatistics) -> tuple[Any, ...]:
    """Return the statistics as a tuple without the nulls at its end."""
    values = tuple(column)
    while values and values[-1] is None:
        values = values[:-1]
    return values


def _described(
    path: str, columns: list[Any], depth: int
) -> Iterator[tuple[str, OptionalStatistics]]:
    """Yield the statistics of a name, and of the names inside it. ``columns`` are the columns of
    the name, one for each type."""
    column, *others = columns
    if others or depth > _DEPTH_MAX:
        yield path, None
    elif pa.types.is_struct(column.type):
        yield path, NOTHING_KNOWN
        for name, inner_columns in _children(column).items():
            yield from _described(f"{path}.{name}", inner_columns, depth + 1)
    else:
        yield path, _statistics(column)


def _children(column: Any) -> dict[str, list[Any]]:
    """Return struct fields by name, without names with a dot, which selectors cannot use."""
    children: dict[str, list[Any]] = {}
    for index in range(column.type.num_fields):
        field = column.type.field(index)
        logical_name = field.metadata.get(LOGICAL_NAME) if field.metadata else None
        name = field.name if logical_name is None else logical_name.decode()
        if "." not in name:
            children.setdefault(name, []).append(pc.struct_field(column, [index]))
    return children


def _statistics(column: Any) -> OptionalStatistics:
    """Return the statistics of a column; None if its type has no order, or if it has times outside
    the years 1 to 9999."""
    if column.null_count == len(column):
        return ONLY_NULLS
    kind = column.type
    if not any(test(kind) for test in _ORDERED):
        return None
    try:
        minimum, maximum = pc.min_max(column).as_py().values()
        distinct = _distinct(column)
    except (OverflowError, ValueError):  # a time that datetime cannot hold
        return None
    return _bounded(minimum, maximum, column.null_count, distinct=distinct)


_ORDERED: Final = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_floating,
    pa.types.is_string,
    lambda kind: pa.types.is_timestamp(kind) and kind.unit == "us",
)


def _bounded(
    minimum: Any, maximum: Any, nulls: int, distinct: tuple[Any, ...] | None
) -> OptionalStatistics:
    """Return statistics with bounds of limited length; None if text has no short upper bound."""
    if isinstance(minimum, datetime):
        if minimum.tzinfo is None:
            return None
    elif isinstance(minimum, str):
        if distinct is not None and any(len(value) > TEXT_MAX for value in distinct):
            distinct = None
        # A prefix is a lower bound, but an upper bound has to be raised.
        minimum, maximum = minimum[:TEXT_MAX], _above(maximum)
        if maximum is None:
            return None
    return ColumnStatistics(minimum, maximum, nulls, distinct=distinct)


def _above(text: str) -> str | None:
    """Return text of at most ``TEXT_MAX`` characters that is not less than ``text``."""
    if len(text) <= TEXT_MAX:
        return text
    next_code = ord(text[TEXT_MAX - 1]) + 1
    if next_code > _LAST:
        return None
    # Half of a surrogate pair is not text, so the next character is behind all of them.
    if next_code in _SURROGATES:
        next_code = _SURROGATES.stop
    return text[: TEXT_MAX - 1] + chr(next_code)


def _distinct(column: Any) -> tuple[Any, ...] | None:
    """Return all values if they are few, otherwise None. A sample of the first rows excludes most
    columns."""
    if pa.types.is_floating(column.type):
        return None
    for part in (column.slice(0, _SAMPLE), column):
        values = pc.unique(part)
        if len(values) > DISTINCT_MAX + 1:  # one of them may be null
            return None
    values = values.drop_null()
    return tuple(values.to_pylist()) if len(values) <= DISTINCT_MAX else None
