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
from penstock_core.columns.selectors.lanes import (
    Column,
    LaneType,
    Value,
    floor_divided,
    lane_of,
    rows_of,
    value_of,
)
from penstock_core.columns.selectors.outcomes import PredicateOutcomes
from penstock_core.columns.selectors.overflow import Overflow, steps_inside
from penstock_core.columns.selectors.patterns import Check, unlimited


class Root(NamedTuple):
    """A column, and the steps from there to a value."""

    column: Column
    steps: tuple[Step, ...]


class RowFrame(Protocol):
    """Rows a selector is evaluated on."""

    @property
    def rows(self) -> int: ...

    @property
    def now_us(self) -> int: ...

    @property
    def check(self) -> Check:
        """Raise if the evaluation is to stop: it was cancelled, or takes too long."""
        ...

    def lookup(self, steps: tuple[Step, ...]) -> Value:
        """The value of a reference in every row."""
        ...

    def data(self) -> Column:
        """The bytes of the row's event."""
        ...

    def roots(self, steps: tuple[Step, ...]) -> list[Root]:
        """The columns that may hold the value of a reference; each row has it in one of them."""
        ...

    def outcome(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        """The outcome of ``holds``, which evaluates the predicate with this text."""
        ...

    def stamped(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        """The outcome of a predicate that also depends on what the realm adds to events."""
        ...


class MessageAccess(Protocol):
    """Access to fields of the messages in the events' data (SEM P1)."""

    def roots(self, batch: pa.RecordBatch, name: str) -> tuple[list[Column], Column | None]:
        """The columns of the field ``name``, one per message type, and the rows that have it."""
        ...


class EventFrame:
    """The events of one batch. Values of a column that it lacks are unknown."""

    __slots__ = (
        "_batch",
        "_known",
        "_messages",
        "_outcomes",
        "_overflow",
        "_stamped",
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
        """``outcomes`` is the cache of predicates on these events; it is read and filled."""
        self.check = check
        self._outcomes = outcomes
        self._batch = batch
        self._messages = messages
        self._known: dict[tuple[Step, ...], Value] = {}
        self._overflow: Overflow | None = None
        self._stamped: dict[str, Column] = {}
        self.rows: int = batch.num_rows
        self.now_us = now_us

    def lookup(self, steps: tuple[Step, ...]) -> Value:
        if steps not in self._known:
            columns = [c for root in self.roots(steps) for c in resolved(*root)]
            self._known[steps] = value_of(columns)
        return self._known[steps]

    def outcome(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        """The outcome of ``holds``, from the cache if it was evaluated on these events before."""
        if self._outcomes is None:
            return holds(self)
        key = (self._messages, predicate)
        found = self._outcomes.find(key)
        if found is None:
            found = rows_of(holds(self), self.rows)
            self._outcomes.keep(key, found)
        return found

    def stamped(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        """The outcome of ``holds``, evaluated once for all selectors that share this frame."""
        found = self._stamped.get(predicate)
        if found is None:
            found = self._stamped[predicate] = holds(self)
        return found

    def data(self) -> Column:
        column = self._column("data")
        return pa.repeat(pa.scalar(b""), self.rows) if column is None else column

    def roots(self, steps: tuple[Step, ...]) -> list[Root]:
        name, inside = str(steps[0]), steps[1:]
        if name in HEADERS:
            return [Root(column, inside) for column in self._header(name)]
        if self._messages is None:
            return self._properties(steps)
        fields, owned = self._messages.roots(self._batch, name)
        if owned is None:
            return self._properties(steps)
        # A field of the event's message takes precedence over a property of that name.
        hidden = [
            Root(pc.if_else(owned, None, column), left) for column, left in self._properties(steps)
        ]
        return [*(Root(column, inside) for column in fields), *hidden]

    def _properties(self, steps: tuple[Step, ...]) -> list[Root]:
        name, inside = str(steps[0]), steps[1:]
        properties = self._present(self._column("properties"))
        overflow = self._overflow_column()
        if overflow is None:
            return [Root(column, steps) for column in properties]
        found = [
            Root(overflow.uncovered(name, child), inside)
            for column in properties
            for child in _children(column, name)
        ]
        return found + [Root(c, steps_inside(inside)) for c in overflow.columns(name)]

    def _overflow_column(self) -> Overflow | None:
        if self._overflow is None:
            column = self._column("more")
            if column is None or column.null_count == len(column):
                return None
            self._overflow = Overflow(column)
        return self._overflow

    def _column(self, path: str) -> Column | None:
        name, *below = path.split(".")
        index = self._batch.schema.get_field_index(name)
        if index < 0:
            return None
        found = resolved(self._batch.column(index), tuple(below))
        return found[0] if found else None

    def _header(self, name: str) -> list[Column]:
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
        if column is None:
            return pa.repeat(pa.scalar(PRIORITY_DEFAULT, pa.int64()), self.rows)
        return column.cast(pa.int64()).fill_null(PRIORITY_DEFAULT)

    def _times(self, column: Column | None) -> list[Column]:
        lane = None if column is None else lane_of(column)
        return [lane.column] if lane is not None and lane.kind is LaneType.TIME else []

    def _delivery_mode(self, stated: Column | None) -> Column:
        """The header, or else the event's flag ``persistent``, which is true by default."""
        persistent = self._column("persistent")
        if persistent is None:
            persistent = pa.scalar(True)
        flag = pc.if_else(pc.fill_null(persistent, fill_value=True), "PERSISTENT", "NON_PERSISTENT")
        if stated is not None:
            names = pa.array(["NON_PERSISTENT", "PERSISTENT"])
            codes = pa.array([1, 2], stated.type)
            flag = pc.coalesce(names.take(pc.index_in(stated, value_set=codes)), flag)
        return rows_of(flag, self.rows)


class ElementFrame:
    """One row per array element, for one reference that names elements.

    Every other reference gives each element the value of its event.
    """

    __slots__ = (
        "_elements",
        "_events",
        "_known",
        "_outer",
        "_steps",
        "_tail",
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
        self._known: dict[tuple[Step, ...], Value] = {}
        self.rows = len(elements)
        self.now_us = outer.now_us
        self.check = outer.check

    def lookup(self, steps: tuple[Step, ...]) -> Value:
        if steps not in self._known:
            self._known[steps] = self._found(steps)
        return self._known[steps]

    def _found(self, steps: tuple[Step, ...]) -> Value:
        if steps == self._steps:
            return value_of(resolved(self._elements, self._tail))
        lanes = self._outer.lookup(steps)
        return tuple(lane._replace(column=lane.column.take(self._events)) for lane in lanes)

    def data(self) -> Column:
        return self._outer.data().take(self._events)

    def outcome(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        return holds(self)

    def stamped(self, predicate: str, holds: Callable[[RowFrame], Column]) -> Column:
        return holds(self)

    def roots(self, steps: tuple[Step, ...]) -> list[Root]:
        return [
            Root(column.take(self._events), inside) for column, inside in self._outer.roots(steps)
        ]


def resolved(column: Column, steps: tuple[Step, ...]) -> list[Column]:
    """Follow ``steps`` into structs and lists; one column per type found at the end."""
    columns = [column]
    for step in steps:
        assert not isinstance(step, Each), "elements are searched in a frame of their own"
        if isinstance(step, str):
            columns = [child for each in columns for child in _children(each, step)]
        else:
            columns = [_element(each, step) for each in columns if is_list(each)]
    return columns


def _children(column: Column, name: str) -> list[Column]:
    kind = column.type
    if pa.types.is_map(kind):
        return [pc.map_lookup(column, name, "first")] if pa.types.is_string(kind.key_type) else []
    if not pa.types.is_struct(kind):
        return []
    wanted = name.encode()
    found = []
    for index in range(kind.num_fields):
        field = kind.field(index)
        known_as = field.metadata.get(LOGICAL_NAME) if field.metadata else None
        if known_as == wanted or (known_as is None and field.name == name):
            # A struct that has no nulls itself does not mask its fields.
            by_index = [index]
            hides = column.null_count > 0
            found.append(pc.struct_field(column, by_index) if hides else column.field(index))
    return found


def is_list(column: Column) -> bool:
    """True for lists and maps; elements of a map are structs of ``key`` and ``value``."""
    kind = column.type
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_map(kind)
    )


def _bounds(column: Column) -> tuple[Any, Any, Any, Any]:
    """The values of a list column, and by row the first index, the count, and if it is present."""
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    elif pa.types.is_map(column.type):
        entries = [("key", column.type.key_type), ("value", column.type.item_type)]
        column = column.cast(pa.list_(pa.struct(entries)))
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    counts = np.where(present, np.diff(offsets), 0)
    return column.values, offsets[:-1], counts, present


def _element(column: Column, index: int) -> Column:
    values, first, counts, _ = _bounds(column)
    missing = counts <= index
    return values.take(pa.array(np.where(missing, 0, first + index), mask=missing))


def exploded(column: Column) -> tuple[Column, Any, Any]:
    """The elements of a list column, the row each belongs to, and which rows have a list."""
    values, first, counts, present = _bounds(column)
    rows = np.repeat(np.arange(len(counts)), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    places = np.arange(len(rows)) - before + np.repeat(first, counts)
    return values.take(pa.array(places, pa.int64())), rows, present
