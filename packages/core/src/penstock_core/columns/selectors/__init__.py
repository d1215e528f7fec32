"""Selectors: SQL-92 conditions that choose events, evaluated over columns (SEM F).

``parse`` reads the text, ``Selector`` applies it to batches of events. Invalid text raises
``InvalidSelector`` with line, column and what was expected.
"""

from __future__ import annotations

from penstock_core.columns.selectors.expressions import Expression
from penstock_core.columns.selectors.faults import MalformedSelector
from penstock_core.columns.selectors.frames import EventFrame
from penstock_core.columns.selectors.index import SelectorIndex
from penstock_core.columns.selectors.parser import parse
from penstock_core.columns.selectors.selector import (
    Selector,
    row_bytes_of,
    selector_of,
    stamped_of,
    work_of,
)
from penstock_core.columns.selectors.statistics import ColumnStatistics
from penstock_core.columns.selectors.summaries import summary_of
from penstock_core.vocabulary.errors import InvalidSelector

__all__ = [
    "ColumnStatistics",
    "EventFrame",
    "Expression",
    "InvalidSelector",
    "MalformedSelector",
    "Selector",
    "SelectorIndex",
    "parse",
    "row_bytes_of",
    "selector_of",
    "stamped_of",
    "summary_of",
    "work_of",
]
