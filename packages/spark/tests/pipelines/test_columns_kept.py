"""Columns of a first run, compared with those of a later one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.pipelines.steps.latest import state_columns

FIRST = {"event_id": "bigint", "ccy": "string", "bid": "double"}


def begin(step: Path) -> None:
    """Begin the first micro-batch, as a query does."""
    (step / "query" / "offsets").mkdir(parents=True)
    (step / "query" / "offsets" / "0").touch()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_order_of_the_first_run_stays(tmp_path: Path, scheme: str) -> None:
    assert state_columns(f"{scheme}{tmp_path}", FIRST) == list(FIRST)
    begin(tmp_path)

    assert state_columns(f"{scheme}{tmp_path}", dict(reversed(FIRST.items()))) == list(FIRST)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["columns.json", "query"]


def test_a_query_that_has_not_begun_may_have_other_columns(tmp_path: Path) -> None:
    state_columns(str(tmp_path), {"other": "string"})

    assert state_columns(str(tmp_path), FIRST) == list(FIRST)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {**FIRST, "ask": "double"},
            r"source has new columns ask, .* \(columns = \[\"event_id\",\"ccy\"",
        ),
        ({"event_id": "bigint", "ccy": "string"}, "source has lost bid, but"),
        ({**FIRST, "bid": "string"}, "source has other types of bid, but"),
    ],
)
def test_other_columns_are_named(tmp_path: Path, columns: dict[str, str], said: str) -> None:
    state_columns(str(tmp_path), FIRST)
    begin(tmp_path)

    with pytest.raises(InvalidArgument, match=said):
        state_columns(str(tmp_path), columns)
    assert state_columns(str(tmp_path), FIRST) == list(FIRST)
