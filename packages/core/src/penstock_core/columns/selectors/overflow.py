"""Reads properties in the overflow column ``more`` as columns for selectors.

Few events have properties there: lists of mixed types, and properties beyond the columns of a
channel. Cells are decoded one by one, and only names used by a selector become columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.layout import LOGICAL_NAME
from penstock_core.columns.selectors.expressions import Step
from penstock_core.columns.selectors.typed_columns import Column
from penstock_core.vocabulary.errors import InvalidEvent

_ELEMENT: Final = ""
"""Name of the field that wraps each list element in a struct, because types may differ."""

_TIME: Final = pa.timestamp("us", tz="UTC")


class Overflow:
    """The overflow column of a batch."""

    __slots__ = ("_cells", "_rows")

    def __init__(self, column: Column) -> None:
        self._rows = len(column)
        self._cells: dict[int, dict[str, Any]] = {
            int(row): _readable(column[int(row)].as_py())
            for row in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        }

    def columns(self, name: str) -> list[Column]:
        """Return the values of a property, one column per type."""
        values: list[Any] = [None] * self._rows
        for row, cell in self._cells.items():
            values[row] = cell.get(name)
        return _columns(values)

    def uncovered(self, name: str, column: Column) -> Column:
        """Return the column of a property, null in rows with a value of the property in the
        overflow, which takes precedence."""
        rows = [row for row, cell in self._cells.items() if name in cell]
        if not rows:
            return column
        covered = np.zeros(self._rows, dtype=bool)
        covered[rows] = True
        return column.take(pa.array(np.arange(self._rows), mask=covered))


def _readable(cell: bytes) -> dict[str, Any]:
    """Return the properties of a stored cell.

    An older realm may have stored a property with more levels than events may have today. Its value
    is unknown to selectors, because one such event must not fail the evaluation of the batch.
    """
    try:
        overflow.check_nesting(cell)
        return overflow.decoded(cell)
    except InvalidEvent:
        nodes = overflow.nodes(cell)
    shallow = {name: node for name, node in nodes.items() if not overflow.is_too_deep(node)}
    return dict.fromkeys(nodes) | overflow.decoded(overflow.of_nodes(shallow))


def steps_inside(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return ``steps`` for columns of :class:`Overflow`: there, each list element is the field of a
    struct."""
    adapted: list[Step] = []
    for step in steps:
        adapted.append(step)
        if not isinstance(step, str):
            adapted.append(_ELEMENT)
    return tuple(adapted)


def _columns(values: list[Any]) -> list[Column]:
    """Return a column for each type of the values, null in the rows of other types."""
    by_type: dict[type, list[Any]] = {}
    for row, value in enumerate(values):
        if value is not None:
            by_type.setdefault(type(value), [None] * len(values))[row] = value
    return [_MAKERS[kind](typed_values) for kind, typed_values in by_type.items()]


def _structs(values: list[Any]) -> Column:
    """Return a column of structs, with a numbered field for each name and type."""
    names = dict.fromkeys(name for value in values if value is not None for name in value)
    fields: list[pa.Field] = []
    columns = []
    for name in names:
        inner_values = [None if value is None else value.get(name) for value in values]
        for column in _columns(inner_values):
            metadata = {LOGICAL_NAME: name.encode()}
            # The columns are numbered, because a name with values of several types has several.
            fields.append(pa.field(str(len(fields)), column.type, metadata=metadata))
            columns.append(column)
    if not fields:
        return pa.array(values, pa.struct([]))
    mask = pa.array([value is None for value in values])
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _lists(values: list[Any]) -> Column:
    """Return a column of lists from lists of plain values; null for None."""
    elements = [{_ELEMENT: element} for value in values for element in value or ()]
    ends = np.cumsum([0, *(len(value or ()) for value in values)])
    mask = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), _structs(elements), mask=mask)


def _times(values: Iterable[datetime | None]) -> Column:
    """Return a column of times. A time without a zone counts as UTC."""
    zoned = [v.replace(tzinfo=UTC) if v is not None and v.tzinfo is None else v for v in values]
    return pa.array(zoned, _TIME)


def _plain(kind: pa.DataType) -> Callable[[list[Any]], Column]:
    """Return a function that converts values to a column of type ``kind``."""
    return lambda values: pa.array(values, kind)


_MAKERS: Final[dict[type, Callable[[list[Any]], Column]]] = {
    bool: _plain(pa.bool_()),
    int: _plain(pa.int64()),
    float: _plain(pa.float64()),
    str: _plain(pa.string()),
    bytes: _plain(pa.binary()),
    datetime: _times,
    dict: _structs,
    list: _lists,
}
