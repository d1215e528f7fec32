"""Selectors that are compiled once and applied to many batches (SEM F5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
from penstock_core.columns.selectors.outcomes import stamped_texts
from penstock_core.columns.selectors.parser import parse
from penstock_core.columns.selectors.patterns import search_row_bytes, search_work
from penstock_core.columns.selectors.statistics import ColumnStatistics, StoreStatistics, outcomes
from penstock_core.columns.selectors.summaries import statistics_in
from penstock_core.columns.selectors.tokens import LENGTH_MAX
from penstock_core.columns.selectors.topic_search import topic_search_work
from penstock_core.columns.selectors.typed_columns import rows_of
from penstock_core.columns.selectors.wording import canonical
from penstock_core.vocabulary.text_cache import TextCache

_STORED_CHARACTERS_MAX: Final = 1 << 21
"""Maximum number of characters of the stored texts whose selectors are cached. A compiled selector
can take 500 bytes per character."""
_COSTS_CHARACTERS_MAX: Final = 1 << 23
"""Maximum number of characters of the stored texts whose costs are cached."""


REPEATED_WORK = 256
"""Assumed length of an array. A comparison that copies a value for each element of an array counts
as this number of comparisons. With long texts this is much work, which is done in a thread."""


class Selector:
    """A condition on events, compiled once.

    ``text`` is the canonical text, which is the same for all spellings of a selector and parses to
    this selector again. Raises ``InvalidSelector`` for text that is not a selector (SEM F4).
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
            # The canonical text is stored, so it must be short enough to be parsed again.
            expected = f"at most {LENGTH_MAX} characters with spaces around operators"
            raise fault(text, 0, expected, actual=f"{len(self.text)} of them")
        self.columns = _columns(self.expression)
        """Dotted paths of the stored columns that the selector reads, down to the first array, such
        as ``properties.carrier``, ``headers.type``, ``data``."""
        self.work = sum(map(_work, walk(self.expression))) or 1
        """Approximate cost per event: one for each comparison, calculation and wildcard."""
        self.row_bytes = sum(
            search_row_bytes(node.pattern, node.escape)
            for node in walk(self.expression)
            if isinstance(node, Like)
        )
        """Approximate fixed cost per event, as the number of bytes that a comparison reads in the
        same time."""
        self.stamped = stamped_texts(self.expression)
        """The predicates that depend on columns stamped by the realm."""
        self._condition = condition(self.expression)

    def mask(
        self, batch: pa.RecordBatch, *, now_us: int = 0, messages: MessageAccess | None = None
    ) -> pa.BooleanArray:
        """Return a mask, without nulls, of the events of ``batch`` that the selector matches.

        Events for which the selector is unknown do not match. Values without a column are unknown;
        ``event_id`` is unknown for events not stored yet. ``now_us`` is the time of ``NOW()`` in
        microseconds; ``messages`` reads the fields of messages in the data (SEM P1).
        """
        return self.mask_in(EventFrame(batch, now_us, messages))

    def mask_in(self, frame: EventFrame) -> pa.BooleanArray:
        """Return the mask of a frame shared by several selectors, so that each value is read
        once."""
        mask = rows_of(self._condition(frame), frame.rows)
        return mask.fill_null(fill_value=False) if mask.null_count else mask

    def may_match(
        self, statistics: Mapping[str, ColumnStatistics], *, now_us: int | None = None
    ) -> bool:
        """Return False only if a part of the store with these statistics has no matching event.

        The keys of ``statistics`` are column paths, as in ``columns``; a column without entry may
        have any values. A name that is stored in several columns, one per type, must have no entry.
        ``now_us`` is the time of ``NOW()`` in microseconds; None if it is not known.
        """
        return outcomes(self.expression, StoreStatistics(statistics, now_us)).may_hold

    def may_match_in(self, summary: bytes, *, now_us: int | None = None) -> bool:
        """Return False only if a record batch with this summary has no matching event (SEM F5)."""
        if not summary:
            return True
        return self.may_match(statistics_in(summary, self.columns), now_us=now_us)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


selector_of: Final[TextCache[str, Selector]] = TextCache(
    lambda text: Selector(text, is_stored=True), _STORED_CHARACTERS_MAX
)
"""Returns the selector of a stored text, cached so that it is not parsed at every publish. Raises
``InvalidSelector``."""


def _work(node: Expression) -> int:
    """Return the number of comparisons that one node costs for an event."""
    if isinstance(node, Like):
        return search_work(node.pattern, node.escape)
    if isinstance(node, Matches):
        return topic_search_work(node.filter)
    if isinstance(node, In):
        # Options of one type are looked up in a set at once; with several types they are compared
        # one by one.
        is_set = len(set(map(type, node.options))) == 1
        return 1 + (len(node.options) // 8 if is_set else len(node.options))
    if isinstance(node, PREDICATES) and _repeats_values(node):
        return 1 + REPEATED_WORK
    if isinstance(node, And | Or | Not):
        # A property that stands alone is a comparison with TRUE.
        return sum(not isinstance(child, CONDITIONS) for child in children(node))
    return int(isinstance(node, (*PREDICATES, Arithmetic, Negative, DataText, Distance)))


def _repeats_values(node: Expression) -> bool:
    """Whether ``node`` compares array elements with another value of the event, which is copied for
    each element."""
    values = [operand for operand in walk(node) if isinstance(operand, Reference | DataText)]
    has_elements = any(isinstance(operand, Reference) and operand.has_each for operand in values)
    return has_elements and len(values) > 1


work_of: Final[TextCache[str, int]] = TextCache(
    lambda text: selector_of(text).work, _COSTS_CHARACTERS_MAX
)
"""Returns the cached ``work`` of the selector of a stored text."""
stamped_of: Final[TextCache[str, frozenset[str]]] = TextCache(
    lambda text: selector_of(text).stamped, _COSTS_CHARACTERS_MAX
)
"""Returns the cached predicates of a stored selector that depend on columns stamped by the
realm."""
row_bytes_of: Final[TextCache[str, int]] = TextCache(
    lambda text: selector_of(text).row_bytes, _COSTS_CHARACTERS_MAX
)
"""Returns the cached ``row_bytes`` of the selector of a stored text."""


def _columns(expression: Expression) -> frozenset[str]:
    """Return the dotted paths of the stored columns that an expression reads."""
    columns: set[str] = set()
    for node in walk(expression):
        match node:
            case Reference(steps):
                columns.add(column_path(steps))
                if steps[0] == "JMSDeliveryMode":
                    # Events without the header have the mode of this flag.
                    columns.add("persistent")
            case Distance():
                columns |= {"properties.latitude", "properties.longitude"}
            case DataLength() | DataText():
                columns.add("data")
            case _:
                pass
    if any(path.startswith("properties.") for path in columns):
        # Any property may be in the overflow column in some events.
        columns.add("more")
    return frozenset(columns)
