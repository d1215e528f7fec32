"""Bounds of columns exclude parts of the store in which a selector cannot match (SEM F5)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

from packages.core.tests.columns.selectors.batches import batch_of
from packages.core.tests.columns.selectors.strategies import EXPRESSIONS, batches
from penstock_core.columns.schema import overflow
from penstock_core.columns.selectors import ColumnStatistics, Selector
from penstock_core.columns.selectors.expressions import Expression
from penstock_core.columns.selectors.wording import canonical
from tests.thorough import examples

KNOWN = {
    "properties.carrier": ColumnStatistics("AA", "WN", 0, distinct=["AA", "DL", "WN"]),
    "properties.delay": ColumnStatistics(-20, 55, 3),
    "properties.price": ColumnStatistics(1.5, 9.5, 0),
    "properties.flag": ColumnStatistics(minimum=True, maximum=True, null_count=0),
    "properties.a.b": ColumnStatistics(5, 5, 0),
    "properties.odd": ColumnStatistics(None, None),
    "published": ColumnStatistics(
        datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC), 0
    ),
    "priority": ColumnStatistics(7, 9, 2),
    "event_id": ColumnStatistics(1000, 1999, 0),
}

NOW_US = 1_704_240_000_000_000
"""A day after the last event was published."""


@pytest.mark.spec("F5")
@pytest.mark.parametrize(
    "text",
    [
        "carrier = 'UA'",
        "'UA' = carrier",
        "carrier = 'UA' AND delay > 0",
        "carrier IN ('UA', 'BA')",
        "carrier LIKE 'X%'",
        "carrier MATCHES 'X/+'",
        "carrier MATCHES 'X'",
        "NOT carrier NOT MATCHES 'X/#'",
        "carrier IS NULL",
        "delay > 60",
        "60 < delay",
        "delay < -20",
        "delay <= -21",
        "delay >= 56",
        "delay BETWEEN 56 AND 99",
        "NOT delay BETWEEN -20 AND 55",
        "NOT (delay <= 55)",
        "price < 1.5 OR price > 9.5",
        "flag <> TRUE",
        "a.b <> 5",
        "NOT a.b = 5",
        "a.b NOT IN (5)",
        "event_id < 1000",
        "published >= '2024-01-03'",
        "published < 1704067200000",
        "JMSTimestamp > 1704153600000",
        "delay = 'x'",
        "NOT delay = 'x'",
        "carrier > 5",
        "delay = TRUE",
        "NOT flag",
        "delay > 40 + 3 * 5",
        "published > NOW() - 1000",
        "JMSPriority < 4",
        "FALSE",
        "NOT TRUE",
    ],
)
def test_it_cannot_match(text: str) -> None:
    assert not Selector(text).may_match(KNOWN, now_us=NOW_US)
    assert Selector(text).may_match({}) or text in ("FALSE", "NOT TRUE")


@pytest.mark.spec("F5")
@pytest.mark.parametrize(
    "text",
    [
        "carrier = 'DL'",
        "carrier <> 'AA'",
        "carrier = 'UA' OR delay > 0",
        "carrier IN ('UA', 'WN')",
        "carrier LIKE 'D%'",
        "carrier MATCHES 'DL/#'",
        "carrier MATCHES '+'",
        "carrier NOT MATCHES 'X'",
        "carrier LIKE 'A%'",
        "delay < -19",
        "delay <= -20",
        "delay >= 55",
        "carrier LIKE '_X'",
        "NOT carrier LIKE 'X%'",
        "delay IS NULL",
        "delay > 54",
        "delay > other",
        "NOT (price <= 9.5)",
        "price <> 3.0",
        "flag",
        "odd = 1",
        "a[] = 5",
        "a.b[0] <> 5",
        "published = 1704067200000",
        "JMSPriority = 4",
        "published > NOW() - 5",
    ],
)
def test_it_may_match(text: str) -> None:
    assert Selector(text).may_match(KNOWN)


def statistics_of(batch: pa.RecordBatch) -> dict[str, ColumnStatistics]:
    """Return the statistics of each column that alone has all values of its property."""
    statistics = {}
    elsewhere = _in_more(batch)
    for path, columns in _leaves(batch.to_struct_array(), ""):
        if len(columns) == 1 and path not in elsewhere and _has_bounds(columns[0].type):
            least, most = pc.min_max(columns[0]).as_py().values()
            distinct = pc.unique(columns[0]).drop_null().to_pylist()
            statistics[path] = ColumnStatistics(
                least, most, columns[0].null_count, distinct=distinct
            )
    return statistics


def _in_more(batch: pa.RecordBatch) -> set[str]:
    """Return the properties that have no column in some event."""
    cells = batch.column("more").to_pylist() if "more" in batch.schema.names else []
    return {f"properties.{name}" for cell in cells if cell for name in overflow.decoded(cell)}


def _has_bounds(kind: Any) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string)
    return any(test(kind) for test in (*tests, pa.types.is_boolean, pa.types.is_timestamp))


def _leaves(column: Any, path: str) -> Iterator[tuple[str, list[Any]]]:
    by_name: dict[str, list[Any]] = {}
    for index in range(column.type.num_fields):
        name = column.type.field(index).name.split("::")[0]
        by_name.setdefault(name, []).append(pc.struct_field(column, [index]))
    for name, columns in by_name.items():
        below = f"{path}.{name}".removeprefix(".")
        yield below, columns
        if len(columns) == 1 and pa.types.is_struct(columns[0].type):
            yield from _leaves(columns[0], below)


@pytest.mark.slow
@pytest.mark.spec("F5")
@settings(max_examples=examples(60), deadline=None)
@given(EXPRESSIONS, batches())
def test_nothing_that_matches_is_pruned(
    expression: Expression, events: list[dict[str, Any]]
) -> None:
    selector = Selector(canonical(expression))
    batch = batch_of(events)

    matches = selector.mask(batch, now_us=2_500).true_count

    assert not matches or selector.may_match(statistics_of(batch))
