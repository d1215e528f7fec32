"""The page on speed says how often each cell was measured, and claims no more than that."""

from __future__ import annotations

import re

import msgspec

from bench.__main__ import MEASURED, PAGE
from bench.report import Cell, Result, between_marks, markdown, number
from bench.shape import OURS
from bench.summary import LINES, SUMMARY, summary

RESULTS = msgspec.json.decode(MEASURED.read_bytes(), type=list[Result])


def result(*cells: Cell) -> Result:
    return Result(
        shape="S1",
        title="publish",
        figure="events_per_s",
        higher_is_better=True,
        machine="a machine",
        at="today",
        versions={},
        cells=list(cells),
    )


def cell(contender: str, *rates: float) -> Cell:
    return Cell("batches", "D1", contender, runs=[{"events_per_s": rate} for rate in rates])


def rows(table: str) -> list[list[str]]:
    lines = [line.strip("| ") for line in table.splitlines() if line.startswith("| batches")]
    return [[part.strip() for part in line.split(" | ")] for line in lines]


def test_a_cell_that_ran_once_has_no_spread_and_says_that_it_ran_once() -> None:
    table = markdown(result(cell("nats", 100.0), cell(OURS, 380.0, 400.0, 420.0)))

    ours, theirs = rows(table)
    assert ours[2:5] == [OURS, "3", "400 ± 5%"]
    assert theirs[2:] == ["nats", "1", "100", "4.00"]


def test_a_table_of_single_runs_claims_no_median() -> None:
    table = markdown(result(cell(OURS, 400.0), cell("nats", 100.0)))

    assert "Each cell is one run." in table
    assert "±" not in table


def test_the_page_is_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    tables = {case_result.shape: markdown(case_result) for case_result in RESULTS}

    for shape, table in tables.items():
        assert table in page, f"{shape}: python -m bench report writes the page"
    text = {SUMMARY: summary(RESULTS)}
    assert between_marks(page, text) == page
    assert not re.search(r"Median of \d", page)


def test_the_summary_has_a_row_for_each_line_with_what_is_worse_in_bold() -> None:
    table = summary(RESULTS)
    ratios = [line.split(" | ")[5] for line in table.splitlines()[2:]]

    assert len(ratios) == len(LINES)
    assert [text.startswith("**") for text in ratios] == [
        float(text.strip("*")) < 1 for text in ratios
    ]
    assert any(text.startswith("**") for text in ratios)


def test_a_line_that_was_not_measured_is_left_out_of_the_summary() -> None:
    assert len(summary([result(cell(OURS, 400.0))]).splitlines()) == 2


def test_a_figure_has_three_digits_or_is_whole_also_below_zero() -> None:
    assert [number(value) for value in (0.1234, 12.34, 123.4, 12_345.6)] == [
        "0.123",
        "12.3",
        "123",
        "12,346",
    ]
    assert [number(-value) for value in (12.34, 123.4, 12_345.6)] == ["-12.3", "-123", "-12,346"]
