"""Selectors that are compiled once and applied to many batches (SEM F5)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Generic, TypeVar

import pyarrow as pa

from penstock_core.columns.selectors.compiler import condition
from penstock_core.columns.selectors.expressions import (
    CONDITIONS,
    PREDICATES,
    And,
    Arithmetic,
    DataLength,
    DataText,
    Distance,
    Expression,
    In,
    Like,
    Matches,
    Negative,
    Not,
    Or,
    Reference,
    children,
    walk,
)
from penstock_core.columns.selectors.faults import fault
from penstock_core.columns.selectors.frames import EventFrame, MessageAccess
from penstock_core.columns.selectors.headers import column_path
from penstock_core.columns.selectors.lanes import rows_of
from penstock_core.columns.selectors.outcomes import stamped_texts
from penstock_core.columns.selectors.parser import parse
from penstock_core.columns.selectors.patterns import search_row_bytes, search_work
from penstock_core.columns.selectors.statistics import ColumnStatistics, StoreStatistics, outcomes
from penstock_core.columns.selectors.summaries import known_of
from penstock_core.columns.selectors.tokens import LENGTH_MAX
from penstock_core.columns.selectors.topic_search import topic_search_work
from penstock_core.columns.selectors.wording import canonical

_STORED_CHARACTERS_MAX: Final = 1 << 21
"""Characters of the stored texts whose selectors are kept. Compiled, a character can take 500
bytes."""
_COSTS_CHARACTERS_MAX: Final = 1 << 23
"""Characters of the stored texts whose costs are kept."""

T = TypeVar("T")

REPEATED_WORK = 256
"""Work of a comparison that copies a value for each element of an array: as many elements as an
array is taken to have. With texts of any length that is much, and a thread does it."""


class Selector:
    """A condition on events, compiled once.

    ``text`` is the canonical text: one for all spellings of a selector, and it parses to this
    selector again. Raises ``InvalidSelector`` for text that is not a selector (SEM F4).
    """

    __slots__ = (
        "__weakref__",
        "_condition",
        "columns",
        "expression",
        "row_bytes",
        "stamped",
        "text",
        "work",
    )

    def __init__(self, text: str, *, is_stored: bool = False) -> None:
        self.expression: Expression = parse(text, is_stored=is_stored)
        self.text = canonical(self.expression)
        if len(self.text) > LENGTH_MAX:
            # The canonical text is what gets stored, so it has to parse again.
            expected = f"at most {LENGTH_MAX} characters with spaces around operators"
            raise fault(text, 0, expected, found=f"{len(self.text)} of them")
        self.columns = _columns(self.expression)
        """Dotted paths of the stored columns it reads, down to the first array, such as
        ``properties.carrier``, ``headers.type``, ``data``. Other columns need not be read."""
        self.work = sum(map(_work, walk(self.expression))) or 1
        """Approximate cost per event: one for each comparison, calculation and wildcard."""
        self.row_bytes = sum(
            search_row_bytes(node.pattern, node.escape)
            for node in walk(self.expression)
            if isinstance(node, Like)
        )
        """Approximate cost that comes with each event, however small, in bytes that a comparison
        reads in that time."""
        self.stamped = stamped_texts(self.expression)
        """The predicates that depend on what the realm adds to events."""
        self._condition = condition(self.expression)

    def mask(
        self, batch: pa.RecordBatch, *, now_us: int = 0, messages: MessageAccess | None = None
    ) -> pa.BooleanArray:
        """A mask, without nulls, of the events of ``batch`` that it selects.

        Events for which it is unknown are not selected. Values without a column are unknown;
        ``event_id`` is unknown for events not stored yet. ``now_us`` is the time of ``NOW()``
        in microseconds; ``messages`` reads the fields of messages in the data (SEM P1).
        """
        return self.mask_in(EventFrame(batch, now_us, messages))

    def mask_in(self, frame: EventFrame) -> pa.BooleanArray:
        """Like :meth:`mask`, on a frame shared by several selectors, so each value is read once."""
        found = rows_of(self._condition(frame), frame.rows)
        return found.fill_null(fill_value=False) if found.null_count else found

    def may_match(
        self, statistics: Mapping[str, ColumnStatistics], *, now_us: int | None = None
    ) -> bool:
        """False only if a part of the store with these statistics has no event that it selects.

        Statistics are by column path, as in ``columns``. Nothing is known about a missing path.
        A name that is stored in several columns, one per type, must be missing. ``now_us`` is
        the time of ``NOW()`` in microseconds, if it is known.
        """
        return outcomes(self.expression, StoreStatistics(statistics, now_us)).may_hold

    def may_match_in(self, summary: bytes, *, now_us: int | None = None) -> bool:
        """False only if a record batch with this summary has no event that it selects (SEM F5)."""
        if not summary:
            return True
        return self.may_match(known_of(summary, self.columns), now_us=now_us)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class TextCache(Generic[T]):
    """A function of a text that keeps its answers for the texts used last, as long as these have
    at most ``characters_max`` characters together, and for the last one in any case. Threads may
    share it: each step on the dictionary is one call, and the sum is taken anew where it counts."""

    def __init__(self, answer: Callable[[str], T], characters_max: int) -> None:
        self._answer = answer
        self._characters_max = characters_max
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._characters = 0

    def __call__(self, text: str) -> T:
        found = self._kept.get(text)
        if found is None:
            found = self._answer(text)
            self.keep(text, found)
            return found
        with suppress(KeyError):  # another thread may have dropped it
            self._kept.move_to_end(text)
        return found

    def keep(self, text: str, found: T) -> None:
        """Keep an answer that is known already."""
        if self._kept.setdefault(text, found) is not found:
            return
        self._characters += len(text)
        if self._characters <= self._characters_max:
            return
        left = sum(map(len, tuple(self._kept)))
        # To three quarters, so that the sum is not taken for each text.
        while left > self._characters_max * 3 // 4 and len(self._kept) > 1:
            left -= len(self._kept.popitem(last=False)[0])
        self._characters = left


selector_of: Final = TextCache(lambda text: Selector(text, is_stored=True), _STORED_CHARACTERS_MAX)
"""The selector of a stored text, cached so that it is not parsed at every publish. Raises
``InvalidSelector``."""


def _work(node: Expression) -> int:
    if isinstance(node, Like):
        return search_work(node.pattern, node.escape)
    if isinstance(node, Matches):
        return topic_search_work(node.filter)
    if isinstance(node, In):
        # A set is searched at once, unless its values are of several types, or the column is of
        # another type than they are.
        is_set = len(set(map(type, node.options))) == 1
        return 1 + (len(node.options) // 8 if is_set else len(node.options))
    if isinstance(node, PREDICATES) and _repeats_values(node):
        return 1 + REPEATED_WORK
    if isinstance(node, And | Or | Not):
        # A property that stands alone is a comparison, too: whether it is true.
        return sum(not isinstance(each, CONDITIONS) for each in children(node))
    return int(isinstance(node, (*PREDICATES, Arithmetic, Negative, DataText, Distance)))


def _repeats_values(node: Expression) -> bool:
    """Whether it compares elements of an array with another value of the same event, which is
    copied for each of them then."""
    values = [each for each in walk(node) if isinstance(each, Reference | DataText)]
    has_elements = any(isinstance(each, Reference) and each.has_each for each in values)
    return has_elements and len(values) > 1


work_of: Final = TextCache(lambda text: selector_of(text).work, _COSTS_CHARACTERS_MAX)
"""The cached ``work`` of the selector of a stored text."""
stamped_of: Final = TextCache(lambda text: selector_of(text).stamped, _COSTS_CHARACTERS_MAX)
"""The cached predicates of the selector of a stored text that depend on what the realm adds to
events."""
row_bytes_of: Final = TextCache(lambda text: selector_of(text).row_bytes, _COSTS_CHARACTERS_MAX)
"""The cached ``row_bytes`` of the selector of a stored text."""


def _columns(expression: Expression) -> frozenset[str]:
    found: set[str] = set()
    for node in walk(expression):
        match node:
            case Reference(steps):
                found.add(column_path(steps))
                if steps[0] == "JMSDeliveryMode":
                    found.add("persistent")
            case Distance():
                found |= {"properties.latitude", "properties.longitude"}
            case DataLength() | DataText():
                found.add("data")
            case _:
                pass
    if any(path.startswith("properties.") for path in found):
        found.add("more")
    return frozenset(found)
