"""Frames: the rows a selector is evaluated on, either events of a batch or array elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.layout import LOGICAL_NAME, PRIORITY_DEFAULT
from penstock_core.columns.selectors.expressions import Each, Step
from penstock_core.columns.selectors.headers import HEADERS
from penstock_core.columns.selectors.outcomes import PredicateOutcomes
from penstock_core.columns.selectors.overflow import Overflow, steps_inside
from penstock_core.columns.selectors.patterns import Check, unlimited
from penstock_core.columns.selectors.typed_columns import (
    Column,
    ColumnType,
    Value,
    floor_divided,
    rows_of,
    typed_column_of,
    value_of,
)


class Root(NamedTuple):
    """A column, and the steps from this column to a value inside it."""

    column: Column
    steps: tuple[Step, ...]


class RowFrame(Protocol):
    """Rows a selector is evaluated on."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def now_us(self) -> int:
        """The time of ``NOW()``, in microseconds since 1970."""
        ...

    @property
    def check(self) -> Check:
        """Raises if the evaluation has to stop, because it was cancelled or takes too long."""
        ...

    def lookup(self, steps: tuple[Step, ...]) -> Value:
        """Return the value of a reference in every row."""
        ...

    def data(self) -> Column:
        """Return the bytes of each row's event."""
        ...

    def roots(self, steps: tuple[Step, ...]) -> list[Root]:
        """Return the columns that may hold the value of a reference. In each row at most one of
        them has the value."""
        ...

    def outcome(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        """Return the outcome of ``holds``, which evaluates the predicate with this text."""
        ...

    def stamped(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        """Return the outcome of a predicate that also depends on columns stamped by the realm."""
        ...


class MessageAccess(Protocol):
    """Access to fields of the messages in the events' data (SEM P1)."""

    def roots(self, batch: pa.RecordBatch, name: str) -> tuple[list[Column], Column | None]:
        """Return the columns of the field ``name``, one per message type, and a mask of the rows
        whose message has the field; None instead of the mask if no message has."""
        ...


class EventFrame:
    """The events of one batch. Values of an absent column are unknown."""

    __slots__ = (
        "_batch",
        "_messages",
        "_outcomes",
        "_overflow",
        "_stamped",
        "_values",
        "check",
        "now_us",
        "rows",
    )

    def __init__(
        self,
        batch: pa.RecordBatch,
        now_us: int,
        messages: MessageAccess | None = None,
        *,
        check: Check = unlimited,
        outcomes: PredicateOutcomes | None = None,
    ) -> None:
        """``outcomes`` is the cache of predicates on these events. The frame reads and fills it."""
        self.check = check
        self._outcomes = outcomes
        self._batch = batch
        self._messages = messages
        self._values: dict[tuple[Step, ...], Value] = {}
        self._overflow: Overflow | None = None
        self._stamped: dict[str, Column] = {}
        self.rows: int = batch.num_rows
        self.now_us = now_us

    def lookup(self, steps: tuple[Step, ...]) -> Value:
        if steps not in self._values:
            columns = [c for root in self.roots(steps) for c in resolved(*root)]
            self._values[steps] = value_of(columns)
        return self._values[steps]

    def outcome(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        """Return the outcome of ``holds``, from the cache if it was evaluated on these events
        before."""
        if self._outcomes is None:
            return holds(self)
        key = (self._messages, predicate)
        column = self._outcomes.find(key)
        if column is None:
            column = rows_of(holds(self), self.rows)
            self._outcomes.keep(key, column)
        return column

    def stamped(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        """Return the outcome of ``holds``, evaluated once for all selectors that share this
        frame."""
        column = self._stamped.get(predicate)
        if column is None:
            column = self._stamped[predicate] = holds(self)
        return column

    def data(self) -> Column:
        column = self._column("data")
        return pa.repeat(pa.scalar(b""), self.rows) if column is None else column

    def roots(self, steps: tuple[Step, ...]) -> list[Root]:
        """Return the columns of a header, message field or property."""
        name, inside = str(steps[0]), steps[1:]
        if name in HEADERS:
            return [Root(column, inside) for column in self._header(name)]
        if self._messages is None:
            return self._properties(steps)
        fields, has_field = self._messages.roots(self._batch, name)
        if has_field is None:
            return self._properties(steps)
        # A field of the event's message takes precedence over a property of the same name.
        hidden = [
            Root(pc.if_else(has_field, None, column), inner_steps)
            for column, inner_steps in self._properties(steps)
        ]
        return [*(Root(column, inside) for column in fields), *hidden]

    def _properties(self, steps: tuple[Step, ...]) -> list[Root]:
        """Return the columns of a property, including its values in the overflow column."""
        name, inside = str(steps[0]), steps[1:]
        properties = self._present(self._column("properties"))
        overflow = self._overflow_column()
        if overflow is None:
            return [Root(column, steps) for column in properties]
        roots = [
            Root(overflow.uncovered(name, child), inside)
            for column in properties
            for child in _children(column, name)
        ]
        return roots + [Root(c, steps_inside(inside)) for c in overflow.columns(name)]

    def _overflow_column(self) -> Overflow | None:
        if self._overflow is None:
            column = self._column("more")
            if column is None or column.null_count == len(column):
                return None
            self._overflow = Overflow(column)
        return self._overflow

    def _column(self, path: str) -> Column | None:
        """Return the column of a field with a dotted path; None if the batch does not have it."""
        name, *inner_names = path.split(".")
        index = self._batch.schema.get_field_index(name)
        if index < 0:
            return None
        columns = resolved(self._batch.column(index), tuple(inner_names))
        return columns[0] if columns else None

    def _header(self, name: str) -> list[Column]:
        """Return the column of a header name, with the default where it is not set."""
        column = self._column(HEADERS[name])
        match name:
            case "JMSPriority":
                return [self._priority(column)]
            case "JMSTimestamp":
                return [floor_divided(c, 1_000) for c in self._times(column)]
            case "JMSDeliveryMode":
                return [self._delivery_mode(column)]
            case _:
                return self._present(column)

    def _present(self, column: Column | None) -> list[Column]:
        return [] if column is None else [column]

    def _priority(self, column: Column | None) -> Column:
        """Return the priority of each row; null means the default."""
        if column is None:
            return pa.repeat(pa.scalar(PRIORITY_DEFAULT, pa.int64()), self.rows)
        return column.cast(pa.int64()).fill_null(PRIORITY_DEFAULT)

    def _times(self, column: Column | None) -> list[Column]:
        """Return the column in microseconds; empty unless it holds times."""
        typed_column = None if column is None else typed_column_of(column)
        return (
            [typed_column.column]
            if typed_column is not None and typed_column.kind is ColumnType.TIME
            else []
        )

    def _delivery_mode(self, header: Column | None) -> Column:
        """Return the header, or by default the event's flag ``persistent``, which is true by
        default."""
        persistent = self._column("persistent")
        if persistent is None:
            persistent = pa.scalar(True)
        flag = pc.if_else(pc.fill_null(persistent, fill_value=True), "PERSISTENT", "NON_PERSISTENT")
        if header is not None:
            # JMS numbers the delivery modes 1 and 2, and selectors use their names.
            names = pa.array(["NON_PERSISTENT", "PERSISTENT"])
            codes = pa.array([1, 2], header.type)
            flag = pc.coalesce(names.take(pc.index_in(header, value_set=codes)), flag)
        return rows_of(flag, self.rows)


class ElementFrame:
    """A frame with one row per array element, for one reference that names elements.

    The value of every other reference, in the row of an element, is the value of the element's
    event.
    """

    __slots__ = (
        "_elements",
        "_events",
        "_outer",
        "_steps",
        "_tail",
        "_values",
        "check",
        "now_us",
        "rows",
    )

    def __init__(
        self,
        outer: RowFrame,
        events: Column,
        *,
        steps: tuple[Step, ...],
        elements: Column,
        tail: tuple[Step, ...],
    ) -> None:
        self._outer = outer
        self._events = events
        """The row of ``outer`` that each element belongs to."""
        self._steps = steps
        self._elements = elements
        self._tail = tail
        """The steps of the reference that follow the element."""
        self._values: dict[tuple[Step, ...], Value] = {}
        self.rows = len(elements)
        self.now_us = outer.now_us
        self.check = outer.check

    def lookup(self, steps: tuple[Step, ...]) -> Value:
        if steps not in self._values:
            self._values[steps] = self._read(steps)
        return self._values[steps]

    def _read(self, steps: tuple[Step, ...]) -> Value:
        if steps == self._steps:
            return value_of(resolved(self._elements, self._tail))
        typed_columns = self._outer.lookup(steps)
        return tuple(
            typed_column._replace(column=typed_column.column.take(self._events))
            for typed_column in typed_columns
        )

    def data(self) -> Column:
        return self._outer.data().take(self._events)

    def outcome(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        # Not cached, because cached outcomes have a row for each event, not for each element.
        return holds(self)

    def stamped(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        return holds(self)

    def roots(self, steps: tuple[Step, ...]) -> list[Root]:
        return [
            Root(column.take(self._events), inside) for column, inside in self._outer.roots(steps)
        ]


def resolved(column: Column, steps: tuple[Step, ...]) -> list[Column]:
    """Return the columns to which ``steps`` lead from ``column``, into structs and lists: one
    column per type."""
    columns = [column]
    for step in steps:
        assert not isinstance(step, Each), "an ElementFrame searches elements"
        if isinstance(step, str):
            columns = [child for parent in columns for child in _children(parent, step)]
        else:
            columns = [_element(parent, step) for parent in columns if is_list(parent)]
    return columns


def _children(column: Column, name: str) -> list[Column]:
    """Return the columns of a struct's field or a map's key, one for each type."""
    kind = column.type
    if pa.types.is_map(kind):
        return [pc.map_lookup(column, name, "first")] if pa.types.is_string(kind.key_type) else []
    if not pa.types.is_struct(kind):
        return []
    encoded_name = name.encode()
    children = []
    for index in range(kind.num_fields):
        field = kind.field(index)
        logical_name = field.metadata.get(LOGICAL_NAME) if field.metadata else None
        if logical_name == encoded_name or (logical_name is None and field.name == name):
            # A struct without nulls does not mask its fields.
            by_index = [index]
            hides = column.null_count > 0
            children.append(pc.struct_field(column, by_index) if hides else column.field(index))
    return children


def is_list(column: Column) -> bool:
    """Whether a column has lists or maps. The elements of a map are structs of ``key`` and
    ``value``."""
    kind = column.type
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_map(kind)
    )


def _bounds(column: Column) -> tuple[Any, Any, Any, Any]:
    """Return the values of a list column, and by row the first index, the count, and its
    validity."""
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    elif pa.types.is_map(column.type):
        entries = [("key", column.type.key_type), ("value", column.type.item_type)]
        column = column.cast(pa.list_(pa.struct(entries)))
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    # A null list may still cover elements.
    counts = np.where(present, np.diff(offsets), 0)
    return column.values, offsets[:-1], counts, present


def _element(column: Column, index: int) -> Column:
    """Return the element with this index of each list; null for shorter lists."""
    values, first, counts, _ = _bounds(column)
    missing = counts <= index
    return values.take(pa.array(np.where(missing, 0, first + index), mask=missing))


def exploded(column: Column) -> tuple[Column, Any, Any]:
    """Return the elements of a list column, the row each belongs to, and a mask of rows with a
    list."""
    values, first, counts, present = _bounds(column)
    rows = np.repeat(np.arange(len(counts)), counts)
    elements_before = np.repeat(np.cumsum(counts) - counts, counts)
    indexes = np.arange(len(rows)) - elements_before + np.repeat(first, counts)
    return values.take(pa.array(indexes, pa.int64())), rows, present
