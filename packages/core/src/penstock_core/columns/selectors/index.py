"""Selectors in an index: found by the values of events, at a cost by what matches.

Selectors that require a value, a prefix or a range of a property are looked up by the values that
a batch has there, each distinct one once. Whatever else they require is then asked of those found.
The others, which require nothing of that kind, are put to every batch. The answers are those of
:meth:`~penstock_core.columns.selectors.Selector.mask_in`, whichever way they come about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, KeysView, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.selectors.accesses import (
    Access,
    Accesses,
    Equal,
    Number,
    NumberRange,
    Prefix,
    Steps,
    ValueFamily,
    accesses_of,
)
from penstock_core.columns.selectors.frames import EventFrame
from penstock_core.columns.selectors.lanes import Lane, LaneType, floor_divided, rows_of
from penstock_core.columns.selectors.ranges import RangeTable
from penstock_core.columns.selectors.selector import Selector

Rows = npt.NDArray[np.int64]

SELECTOR_COST: Final = 16.0
"""About what it takes to put one selector to a batch, in microseconds, however few rows it has."""
SELECTOR_ROW_COST: Final = 0.002
VALUE_COST: Final = 0.5
"""About what it takes to look up one value."""

_FAMILIES: Final = {
    LaneType.TEXT: ValueFamily.TEXT,
    LaneType.INTEGER: ValueFamily.NUMBER,
    LaneType.FLOAT: ValueFamily.NUMBER,
    LaneType.TRUTH: ValueFamily.TRUTH,
}


class _IndexedSelector(Struct, frozen=True):
    """How a selector is found."""

    accesses: Accesses
    steps: tuple[Steps, ...]


class _Table:
    """The selectors that are found by one property; texts, in the order they were added."""

    __slots__ = ("_lengths", "count", "equal", "prefixes", "ranges")

    def __init__(self) -> None:
        self.count = 0
        self.equal: dict[ValueFamily, dict[Any, dict[str, None]]] = {}
        self.prefixes: dict[str, dict[str, None]] = {}
        self._lengths: dict[int, int] = {}
        """How many prefixes there are of each length."""
        self.ranges: RangeTable[str] = RangeTable()

    def crowd(self, access: Access) -> int:
        """About how many are found together by this access."""
        match access:
            case Equal(_, family, value):
                return len(self.equal.get(family, {}).get(value, ()))
            case Prefix(_, text):
                return 1 + len(self.prefixes.get(text, ()))
            case NumberRange():
                return 2 + len(self.ranges)

    def add(self, access: Access, text: str) -> None:
        self.count += 1
        match access:
            case Equal(_, family, value):
                self.equal.setdefault(family, {}).setdefault(value, {})[text] = None
            case Prefix(_, prefix):
                if prefix not in self.prefixes:
                    self.prefixes[prefix] = {}
                    self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
                self.prefixes[prefix][text] = None
            case NumberRange():
                self.ranges.add(access, text)

    def remove(self, access: Access, text: str) -> None:
        self.count -= 1
        match access:
            case Equal(_, family, value):
                _drop(self.equal[family], value, text)
                if not self.equal[family]:
                    del self.equal[family]
            case Prefix(_, prefix):
                if _drop(self.prefixes, prefix, text):
                    self._lengths[len(prefix)] -= 1
                    if not self._lengths[len(prefix)]:
                        del self._lengths[len(prefix)]
            case NumberRange():
                self.ranges.remove(access, text)

    def found(self, kind: LaneType) -> Callable[[Any], Iterable[str]] | None:
        """What looks up a value of a lane; None where no value of it finds anything."""
        family = _FAMILIES.get(kind)
        equal = {} if family is None else self.equal.get(family, {})
        if family is ValueFamily.NUMBER and len(self.ranges):
            return lambda number: [*equal.get(number, ()), *self.ranges.including(number)]
        if family is ValueFamily.TEXT and self.prefixes:
            return lambda text: [*equal.get(text, ()), *self._begins(text)]
        return (lambda value: equal.get(value, ())) if equal else None

    def _begins(self, text: str) -> Iterator[str]:
        for length in self._lengths:
            if length <= len(text):
                yield from self.prefixes.get(text[:length], ())


def _drop(table: dict[Any, dict[str, None]], key: Any, text: str) -> bool:
    """Take a text out; gives whether the key went with it."""
    del table[key][text]
    if table[key]:
        return False
    del table[key]
    return True


class FoundSelectors(Struct):
    """The selectors that may match some events of a batch."""

    exact: dict[str, list[Rows]]
    """Selectors that match, with the rows: nothing else is to be asked."""
    asked: dict[str, None]
    """Selectors to put to the batch."""

    def masks(
        self, frame: EventFrame, selector_of: Callable[[str], Selector]
    ) -> Iterator[tuple[str, pa.BooleanArray]]:
        """The selectors that match some events of the batch, each with its mask. Raises what
        ``selector_of`` does for a text."""
        for text, parts in self.exact.items():
            yield text, _mask(parts, frame.rows)
        for text in self.asked:
            frame.check()
            mask = selector_of(text).mask_in(frame)
            if mask.true_count:
                yield text, mask


class SelectorIndex:
    """Selectors by their texts. Holds no compiled ones."""

    __slots__ = ("_entries", "_rest", "_stamped", "_tables", "version", "work")

    def __init__(self) -> None:
        self.version = 0
        """Another one after each change."""
        self.work = 0
        """The work of all of them together."""
        self._stamped: Counter[str] = Counter()
        self._entries: dict[str, _IndexedSelector] = {}
        self._tables: dict[Steps, _Table] = {}
        self._rest: dict[str, None] = {}
        """Selectors that are put to every batch."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._rest)

    def __contains__(self, text: str) -> bool:
        return text in self._entries or text in self._rest

    def finds(self, text: str) -> bool:
        """Whether a selector that was added is found by values."""
        return text in self._entries

    @property
    def stamped(self) -> KeysView[str]:
        """The predicates in them that depend on what the realm adds to events."""
        return self._stamped.keys()

    def add(self, text: str, selector: Selector | None) -> None:
        """Add a selector that is not there yet. None: the text is no selector, and whoever puts it
        to events is told."""
        self.version += 1
        if selector is not None:
            self.work += selector.work
            self._stamped.update(selector.stamped)
        ways = () if selector is None else accesses_of(selector.expression)
        if not ways:
            self._rest[text] = None
            return
        accesses = min(ways, key=self._crowd) if len(ways) > 1 else ways[0]
        self._entries[text] = _IndexedSelector(
            accesses, tuple({a.steps: None for a in accesses.any_of})
        )
        for access in accesses.any_of:
            table = self._tables.get(access.steps)
            if table is None:
                table = self._tables[access.steps] = _Table()
            table.add(access, text)

    def _crowd(self, way: Accesses) -> int:
        """About how many are found together, where a selector is looked up this way."""
        tables = [(self._tables.get(access.steps), access) for access in way.any_of]
        return sum(1 if table is None else 1 + table.crowd(access) for table, access in tables)

    def remove(self, text: str, selector: Selector | None) -> None:
        """Remove a selector that is there."""
        self.version += 1
        if selector is not None:
            self.work -= selector.work
            self._stamped -= Counter(selector.stamped)
        entry = self._entries.pop(text, None)
        if entry is None:
            del self._rest[text]
            return
        for access in entry.accesses.any_of:
            table = self._tables[access.steps]
            table.remove(access, text)
            if not table.count:
                del self._tables[access.steps]

    def found_in(self, frame: EventFrame) -> FoundSelectors:
        """The selectors that may match events of a frame, in which nothing that the realm adds to
        events needs to be known."""
        looked = len(self._tables) * VALUE_COST * frame.rows
        if len(self._entries) * (SELECTOR_COST + SELECTOR_ROW_COST * frame.rows) < looked:
            return FoundSelectors({}, dict.fromkeys((*self._entries, *self._rest)))
        found = FoundSelectors({}, {})
        for steps, table in self._tables.items():
            self._look(found, table, frame.lookup(steps), frame.rows)
        found.asked.update(self._rest)
        for text in found.asked:
            found.exact.pop(text, None)
        return found

    def _look(self, found: FoundSelectors, table: _Table, lanes: Sequence[Lane], rows: int) -> None:
        is_single = len(lanes) == 1
        for kind, column in _lanes(lanes):
            look_up = table.found(kind) if kind is not LaneType.TIME else _moments(table)
            if look_up is None:
                continue
            for value, there in _values(column, rows):
                for text in look_up(value):
                    if is_single and self._entries[text].accesses.is_exact:
                        found.exact.setdefault(text, []).append(there())
                    else:
                        found.asked[text] = None


def _lanes(lanes: Sequence[Lane]) -> Iterator[Lane]:
    """The lanes by which selectors are found: a time is also a number."""
    for lane in lanes:
        yield lane
        if lane.kind is LaneType.TIME:
            yield Lane(LaneType.INTEGER, floor_divided(lane.column, 1_000))


def _moments(table: _Table) -> Callable[[Number], Iterable[str]] | None:
    equal = table.equal.get(ValueFamily.MOMENT)
    return None if equal is None else lambda moment: equal.get(moment, ())


def _values(column: Any, rows: int) -> Iterator[tuple[Any, Callable[[], Rows]]]:
    """The distinct values of a column with the rows that have them, which are found when they are
    asked for."""
    if isinstance(column, pa.Scalar):
        column = rows_of(column, rows)
    if rows == 1:
        if (value := column[0].as_py()) is not None:
            yield value, lambda: np.zeros(1, dtype=np.int64)
        return
    encoded = column.dictionary_encode()
    order: list[Any] = []

    def rows_with(code: int) -> Rows:
        if not order:
            codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            sorted_rows = np.argsort(codes, kind="stable")
            order[:] = sorted_rows, codes[sorted_rows]
        sorted_rows, codes = order
        first, end = np.searchsorted(codes, [code, code + 1])
        return np.asarray(sorted_rows[first:end], dtype=np.int64)

    for code, value in enumerate(encoded.dictionary.to_pylist()):
        if value is not None:
            yield value, lambda code=code: rows_with(code)  # type: ignore[misc]


def _mask(parts: Sequence[Rows], rows: int) -> pa.BooleanArray:
    found = np.zeros(rows, dtype=np.bool_)
    for part in parts:
        found[part] = True
    return pa.array(found)
