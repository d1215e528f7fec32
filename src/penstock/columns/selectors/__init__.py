"""Selectors: SQL-92 conditions that choose events, evaluated over columns (SEM F).

``parse`` reads the text, ``Selector`` applies it to batches of events. Invalid text raises
``InvalidSelector`` with line, column and what was expected.
"""

from __future__ import annotations

from penstock.columns.selectors.expressions import Expression
from penstock.columns.selectors.faults import MalformedSelector
from penstock.columns.selectors.frames import EventFrame
from penstock.columns.selectors.index import SelectorIndex
from penstock.columns.selectors.parser import parse
from penstock.columns.selectors.selector import (
    Selector,
    row_bytes_of,
    selector_of,
    stamped_of,
    work_of,
)
from penstock.columns.selectors.statistics import ColumnStatistics
from penstock.columns.selectors.summaries import summary_of
from penstock.core.vocabulary.errors import InvalidSelector

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
