"""The page on speed says how often each cell was measured, and claims no more than that; each row
where Penstock is slower has a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench import store
from bench.__main__ import MEASURED, main
from bench.page import MORE, PAGE, PICTURES, README, measured, page_of, readme_of
from bench.plan import RULE
from bench.report import LEFT_OUT, Cell, Result, markdown, number, pairs
from bench.shape import OURS, shapes
from bench.slower import EQUAL, REASONS, slow_rows, slower_table, without_reason
from bench.store import Environment, FullRun
from bench.summary import LINES, README_ROWS, readme_table, summary

STORED = store.read(MEASURED)
RESULTS = store.results_of(STORED)


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


def test_a_difference_that_is_too_small_to_be_measured_has_no_ratio_and_no_spread() -> None:
    table = markdown(result(cell(OURS, 2.0, 3.0), cell("nats", -3.0, -2e-14, 1.0)))

    _, theirs = rows(table)
    assert theirs[2:] == ["nats", "3", "0"], "no spread, and no ratio after the figure"
    assert slow_rows([result(cell(OURS, 1.0), cell("nats", -5.0))]) == []


def test_a_shape_that_was_left_out_has_no_table() -> None:
    left_out = replace(cell(OURS), missing=LEFT_OUT)

    text = markdown(result(left_out))
    assert "Left out to fit the time: batches D1" in text
    assert "|" not in text


def test_a_table_of_single_runs_claims_no_median() -> None:
    table = markdown(result(cell(OURS, 400.0), cell("nats", 100.0)))

    assert "Each cell is one run." in table
    assert "±" not in table


def test_the_page_is_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = [case_result.shape for case_result in RESULTS]
    pictures = {name: path for name in names if (path := PICTURES / f"{name.lower()}.svg").exists()}

    assert page_of(page, STORED, pictures) == page, "python -m bench report writes the page"
    assert not re.search(r"Median of \d", page)


def test_the_table_of_the_readme_is_what_was_measured() -> None:
    readme = README.read_text(encoding="utf-8")

    assert readme_of(readme, STORED) == readme, "python -m bench report writes the README"


def test_the_readme_has_ten_rows_with_the_worst_of_all_tables() -> None:
    ratios = [row_of[5].strip("*") for row_of in _cells(readme_table(RESULTS))]
    others = [
        float(slow.ratio)
        for slow in slow_rows(RESULTS)
        if not slow.cell.contender.startswith("penstock")
    ]

    assert len(ratios) == README_ROWS
    assert float(ratios[-1]) == min(others)


def test_a_worst_row_that_no_line_of_the_summary_has_is_in_the_readme() -> None:
    own, other = replace(cell(OURS, 100.0), case="odd"), replace(cell("redis", 9e9), case="odd")
    odd = result(own, other, replace(cell("penstock, no key", 9e12), case="odd"))

    *_, last = _cells(readme_table([*RESULTS[1:], odd]))

    assert last[0] == "the smallest ratio: odd, D1"
    assert last[1] == "redis", "Penstock is not compared with itself"


def _cells(table: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


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


def test_each_row_below_one_has_a_reason() -> None:
    assert without_reason(RESULTS) == []
    text = slower_table(RESULTS)
    assert all(
        slow.reason is not None and slow.reason.sentence in text for slow in slow_rows(RESULTS)
    )
    assert {reason.shape for reason in REASONS} <= set(shapes())


def test_a_row_below_one_without_a_reason_is_named() -> None:
    odd = replace(result(cell(OURS, 50.0), cell("nats", 100.0)), shape="S99")

    assert without_reason([odd]) == ["S99, batches, D1, nats: 0.50"]


def test_overlapping_runs_need_no_reason_of_their_own() -> None:
    close = result(cell(OURS, 90.0, 99.0, 101.0), cell("nats", 98.0, 100.0, 110.0))
    apart = result(cell(OURS, 90.0, 99.0, 99.0), cell("nats", 100.0, 100.0, 110.0))

    assert without_reason([close]) == []
    assert EQUAL in slower_table([close])
    assert without_reason([apart]) == ["S1, batches, D1, nats: 0.99"]


def test_of_several_reasons_the_most_specific_one_counts() -> None:
    spark = next(one for one in RESULTS if one.shape == "S12")
    slower = [
        replace(cell, runs=[{spark.figure: 1.0 if cell.contender == spark.ours else 2.0}])
        for cell in spark.cells
    ]
    works = {
        slow.cell.case.partition(",")[0]: slow.reason.work
        for slow in slow_rows([replace(spark, cells=slower)])
        if slow.reason
    }

    assert works["streaming write"] == "Spark writes"
    assert works["streaming read"] == "Spark reads"


def test_report_refuses_results_with_an_unexplained_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page = tmp_path / "odd.json", PAGE.read_bytes()
    store.write(file, [replace(result(cell(OURS, 50.0), cell("nats", 100.0)), shape="S99")])

    assert main(["report", "--json", str(file)]) == 1

    assert "S99, batches, D1, nats: 0.50" in capsys.readouterr().err
    assert PAGE.read_bytes() == page


def test_report_refuses_a_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "quick.json", PAGE.read_bytes()
    store.write(file, replace(FULL, is_quick=True))

    assert main(["report", "--json", str(file)]) == 2

    assert "--quick" in capsys.readouterr().err
    assert PAGE.read_bytes() == page


PLACE = Environment(
    commit="abc",
    system="Linux 6",
    processor="a processor",
    cores=2,
    memory_gb=8.0,
    python="3.11.7",
    libraries={"pyarrow": "20"},
    peers={"nats": "2.11"},
)
FULL = FullRun(
    PLACE,
    "2026-12-01 10:00 UTC",
    load=0.1,
    hours=2.7,
    rule=RULE,
    spent_s=9_000.0,
    results=[replace(result(cell(OURS, 400.0), cell("nats", 100.0)), machine="")],
)


def test_a_page_of_one_run_names_its_commit_and_machine_once() -> None:
    page = page_of(PAGE.read_text(encoding="utf-8"), FULL, {})

    assert page.count("commit `abc`") == 1
    assert "Linux 6, a processor, 2 cores, 8 GB of memory, Python 3.11.7" in page
    assert "nats 2.11" in page
    assert "2 runs in 2.5 hours" in page
    assert "Newer figures" not in page, "text on tables of several runs is gone"
    assert markdown(FULL.results[0]).splitlines()[2] == "Each cell is one run."
    assert page_of(page, FULL, {}) == page


def test_tables_of_several_runs_are_marked() -> None:
    assert "The commits were not recorded." in measured([])


def test_a_new_shape_gets_a_section() -> None:
    new = replace(result(cell(OURS, 400.0)), shape="S99", title="some work")

    page = page_of(PAGE.read_text(encoding="utf-8"), [new], {})

    assert "## Some work (S99)\n\n<!-- S99 -->\n### S99: some work" in page
    assert page.count(MORE) == 1
    assert page_of(page, [new], {}) == page


def test_each_row_is_compared_with_ours_of_the_same_case() -> None:
    other_case = replace(cell("nats", 9.0), case="another")

    assert pairs(result(cell(OURS, 400.0), cell("nats", 100.0), other_case)) == [
        (cell(OURS, 400.0), cell("nats", 100.0))
    ]
