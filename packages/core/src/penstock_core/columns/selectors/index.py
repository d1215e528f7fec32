"""An index of selectors by the property values they require.

A selector that requires a value, a prefix or a range of a property is looked up by the property's
values in a batch, each distinct value once. If the lookup finds the selector, its other conditions
are evaluated. Selectors without such a requirement are evaluated on every batch. The results equal
those of :meth:`~penstock_core.columns.selectors.Selector.mask_in` in all cases.
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
from penstock_core.columns.selectors.headers import HEADERS
from penstock_core.columns.selectors.ranges import RangeTable
from penstock_core.columns.selectors.selector import Selector
from penstock_core.columns.selectors.typed_columns import (
    ColumnType,
    TypedColumn,
    floor_divided,
    rows_of,
)

Rows = npt.NDArray[np.int64]

SELECTOR_COST: Final = 16.0
"""Approximate cost of evaluating one selector on a batch, in microseconds, in addition to the cost
of its rows."""
SELECTOR_ROW_COST: Final = 0.002
"""Approximate cost of evaluating one selector on one row, in microseconds."""
VALUE_COST: Final = 0.5
"""Approximate cost of looking up one value, in microseconds."""

_FAMILIES: Final = {
    ColumnType.TEXT: ValueFamily.TEXT,
    ColumnType.INTEGER: ValueFamily.NUMBER,
    ColumnType.FLOAT: ValueFamily.NUMBER,
    ColumnType.TRUTH: ValueFamily.TRUTH,
}
_KINDS: Final = {
    str: ColumnType.TEXT,
    int: ColumnType.INTEGER,
    float: ColumnType.FLOAT,
    bool: ColumnType.TRUTH,
}
"""Column types of single values; values of other types are read from their columns."""


class _IndexedSelector(Struct, frozen=True):
    """A selector's accesses and the properties they use."""

    accesses: Accesses
    steps: tuple[Steps, ...]


class _Table:
    """The selectors that are looked up by one property, as texts in the order of addition."""

    __slots__ = ("_lengths", "count", "equal", "prefixes", "ranges")

    def __init__(self) -> None:
        self.count = 0
        """Number of accesses in the table."""
        self.equal: dict[ValueFamily, dict[Any, dict[str, None]]] = {}
        """Selectors that require a value, by family and value."""
        self.prefixes: dict[str, dict[str, None]] = {}
        """Selectors that require a prefix, by the prefix."""
        self._lengths: dict[int, int] = {}
        """Number of prefixes of each length."""
        self.ranges: RangeTable[str] = RangeTable()
        """Selectors that require a number in a range."""

    def candidate_count(self, access: Access) -> int:
        """Return the approximate number of selectors that a lookup by this access
        returns."""
        match access:
            case Equal(_, family, value):
                return len(self.equal.get(family, {}).get(value, ()))
            case Prefix(_, text):
                return 1 + len(self.prefixes.get(text, ()))
            case NumberRange():
                return 2 + len(self.ranges)

    def add(self, access: Access, text: str) -> None:
        """Add a selector under one of its accesses."""
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
        """Remove a selector, and entries that become empty."""
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

    def look_up_of(self, kind: ColumnType) -> Callable[[Any], Iterable[str]] | None:
        """Return the lookup function for values of a type; None if no selector requires such
        values."""
        family = _FAMILIES.get(kind)
        equal = {} if family is None else self.equal.get(family, {})
        if family is ValueFamily.NUMBER and len(self.ranges):
            return lambda number: [*equal.get(number, ()), *self.ranges.including(number)]
        if family is ValueFamily.TEXT and self.prefixes:
            return lambda text: [*equal.get(text, ()), *self._with_prefix_of(text)]
        return (lambda value: equal.get(value, ())) if equal else None

    def _with_prefix_of(self, text: str) -> Iterator[str]:
        """Yield the selectors that require a prefix with which ``text`` begins."""
        for length in self._lengths:
            if length <= len(text):
                yield from self.prefixes.get(text[:length], ())


def _drop(table: dict[Any, dict[str, None]], key: Any, text: str) -> bool:
    """Remove a text from an entry of a table, and the entry with its last text. Return whether the
    entry was removed."""
    del table[key][text]
    if table[key]:
        return False
    del table[key]
    return True


class CandidateSelectors(Struct):
    """The selectors that may match some events of a batch."""

    exact: dict[str, list[Rows]]
    """Selectors that match, each with the rows that it matches. They need no evaluation."""
    inexact: dict[str, None]
    """Selectors that may match some rows, and must be evaluated on the batch to know which."""

    def masks(
        self, frame: EventFrame, selector_of: Callable[[str], Selector]
    ) -> Iterator[tuple[str, pa.BooleanArray]]:
        """Yield the selectors that match some events of the batch, each with its mask.

        Raises the errors of ``selector_of``.
        """
        for text, parts in self.exact.items():
            yield text, _mask(parts, frame.rows)
        for text in self.inexact:
            frame.check()
            mask = selector_of(text).mask_in(frame)
            if mask.true_count:
                yield text, mask


class SelectorIndex:
    """Selectors by their texts. Holds no compiled selectors."""

    __slots__ = ("_entries", "_stamped", "_tables", "_unindexed", "_value_cost", "version", "work")

    def __init__(self, value_cost: float = VALUE_COST) -> None:
        self._value_cost = value_cost
        self.version = 0
        """Changes with each added or removed selector."""
        self.work = 0
        """Total work of all selectors."""
        self._stamped: Counter[str] = Counter()
        """Number of selectors with each predicate that depends on columns stamped by the realm."""
        self._entries: dict[str, _IndexedSelector] = {}
        """Selectors that are looked up by values."""
        self._tables: dict[Steps, _Table] = {}
        """The lookup table of each property that selectors are indexed by."""
        self._unindexed: dict[str, None] = {}
        """Selectors that are evaluated on every batch."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._unindexed)

    def __contains__(self, text: str) -> bool:
        return text in self._entries or text in self._unindexed

    def finds(self, text: str) -> bool:
        """Whether an added selector is looked up by values, instead of evaluated on every batch."""
        return text in self._entries

    @property
    def stamped(self) -> KeysView[str]:
        """The predicates of the selectors that depend on columns stamped by the realm."""
        return self._stamped.keys()

    def add(self, text: str, selector: Selector | None) -> None:
        """Add a new selector.

        ``selector`` is None if the text is invalid; the evaluation of the text reports the error.
        """
        self.version += 1
        if selector is not None:
            self.work += selector.work
            self._stamped.update(selector.stamped)
        alternatives = () if selector is None else accesses_of(selector.expression)
        if not alternatives:
            self._unindexed[text] = None
            return
        # The alternative with the fewest other selectors leads to the fewest needless evaluations.
        accesses = (
            min(alternatives, key=self._candidate_count)
            if len(alternatives) > 1
            else alternatives[0]
        )
        self._entries[text] = _IndexedSelector(
            accesses, tuple({a.steps: None for a in accesses.any_of})
        )
        for access in accesses.any_of:
            table = self._tables.get(access.steps)
            if table is None:
                table = self._tables[access.steps] = _Table()
            table.add(access, text)

    def _candidate_count(self, alternative: Accesses) -> int:
        """Return the approximate number of selectors that are returned together by these
        accesses."""
        tables = [(self._tables.get(access.steps), access) for access in alternative.any_of]
        return sum(
            1 if table is None else 1 + table.candidate_count(access) for table, access in tables
        )

    def remove(self, text: str, selector: Selector | None) -> None:
        """Remove a selector that was added."""
        self.version += 1
        if selector is not None:
            self.work -= selector.work
            self._stamped -= Counter(selector.stamped)
        entry = self._entries.pop(text, None)
        if entry is None:
            del self._unindexed[text]
            return
        for access in entry.accesses.any_of:
            table = self._tables[access.steps]
            table.remove(access, text)
            if not table.count:
                del self._tables[access.steps]

    def candidates_in(self, frame: EventFrame) -> CandidateSelectors:
        """Return the selectors that may match events of a frame.

        The lookup uses only published values, and no values stamped by the realm.
        """
        lookup_cost = len(self._tables) * self._value_cost * frame.rows
        # With few selectors, evaluating all is cheaper than looking up every value.
        if len(self._entries) * (SELECTOR_COST + SELECTOR_ROW_COST * frame.rows) < lookup_cost:
            return CandidateSelectors({}, dict.fromkeys((*self._entries, *self._unindexed)))
        candidates = CandidateSelectors({}, {})
        for steps, table in self._tables.items():
            self._look_up(candidates, table, frame.lookup(steps), frame.rows)
        return self._with_unindexed(candidates)

    def _with_unindexed(self, candidates: CandidateSelectors) -> CandidateSelectors:
        """Add the selectors that are evaluated on every batch."""
        candidates.inexact.update(self._unindexed)
        # A selector found by one exact access and one inexact access has to be evaluated.
        for text in candidates.inexact:
            candidates.exact.pop(text, None)
        return candidates

    def candidates_of(self, value_of: Callable[[str], Any]) -> CandidateSelectors | None:
        """Return the selectors that may match a single event whose properties ``value_of`` returns,
        as :meth:`candidates_in` does; None if that needs the event's columns. ``value_of`` returns
        None for an absent property, and ``NotImplemented`` for one that only columns show."""
        candidates = CandidateSelectors({}, {})
        for steps, table in self._tables.items():
            name = steps[0]
            if len(steps) > 1 or not isinstance(name, str) or name in HEADERS:
                return None
            value = value_of(name)
            if value is None:
                continue
            kind = _KINDS.get(type(value))
            if kind is None:
                return None
            self._add(candidates, table.look_up_of(kind), [(value, _first_row)], is_single=True)
        return self._with_unindexed(candidates)

    def _look_up(
        self,
        candidates: CandidateSelectors,
        table: _Table,
        typed_columns: Sequence[TypedColumn],
        rows: int,
    ) -> None:
        """Add the selectors that the values of a property lead to."""
        # The rows of a value can be trusted only if the property has a single type in the batch.
        is_single = len(typed_columns) == 1
        for kind, column in _lookup_columns(typed_columns):
            look_up = table.look_up_of(kind) if kind is not ColumnType.TIME else _moments(table)
            self._add(candidates, look_up, _values(column, rows), is_single=is_single)

    def _add(
        self,
        candidates: CandidateSelectors,
        look_up: Callable[[Any], Iterable[str]] | None,
        values: Iterable[tuple[Any, Callable[[], Rows]]],
        *,
        is_single: bool,
    ) -> None:
        """Add the selectors that values lead to. Each value comes with a function that returns its
        rows, which can be trusted if ``is_single``."""
        if look_up is None:
            return
        for value, rows_of_value in values:
            for text in look_up(value):
                if is_single and self._entries[text].accesses.is_exact:
                    candidates.exact.setdefault(text, []).append(rows_of_value())
                else:
                    candidates.inexact[text] = None


def _lookup_columns(typed_columns: Sequence[TypedColumn]) -> Iterator[TypedColumn]:
    """Yield the typed columns used for lookups. A time is also a number."""
    for typed_column in typed_columns:
        yield typed_column
        if typed_column.kind is ColumnType.TIME:
            yield TypedColumn(ColumnType.INTEGER, floor_divided(typed_column.column, 1_000))


def _moments(table: _Table) -> Callable[[Number], Iterable[str]] | None:
    """Return a function that looks up the selectors that require a given time; None if no selector
    compares times."""
    equal = table.equal.get(ValueFamily.MOMENT)
    return None if equal is None else lambda moment: equal.get(moment, ())


def _values(column: Any, rows: int) -> Iterator[tuple[Any, Callable[[], Rows]]]:
    """Yield the distinct values of a column, each with a function that returns its rows."""
    if isinstance(column, pa.Scalar):
        column = rows_of(column, rows)
    if rows == 1:
        if (value := column[0].as_py()) is not None:
            yield value, _first_row
        return
    encoded = column.dictionary_encode()
    # Sorted at the first request for rows, because most values find no selector.
    order: list[Any] = []

    def rows_with(code: int) -> Rows:
        """Return the indexes of the rows with the value number ``code``."""
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


def _first_row() -> Rows:
    return np.zeros(1, dtype=np.int64)


def _mask(parts: Sequence[Rows], rows: int) -> pa.BooleanArray:
    """Return a mask of ``rows`` rows that is true for the row numbers in ``parts``."""
    mask = np.zeros(rows, dtype=np.bool_)
    for part in parts:
        mask[part] = True
    return pa.array(mask)
