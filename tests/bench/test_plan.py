"""The plan of a run of everything: its order, and what a small budget leaves out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bench.catalogue import ENTRIES, everything
from bench.everything import HOURS, Choice
from bench.plan import (
    LEADING,
    OTHER,
    RIVAL,
    SUMMARY,
    PlannedCase,
    PlannedCell,
    as_table,
    fitted,
    in_order,
    left_out,
    seconds_of,
)
from bench.shape import Case, ours_in, shapes
from bench.summary import LINES


def case_of(shape: str, importance: int, *ranks: int, label: str = "a case") -> PlannedCase:
    """Return a case with a contender of ten seconds a run for each rank."""
    cells = tuple(
        PlannedCell(f"peer-{number}", rank, run_s=10.0, runs=3) for number, rank in enumerate(ranks)
    )
    return PlannedCase(shape, importance, Case(label), cells)


def runs_of(cases: list[PlannedCase]) -> list[list[int]]:
    return [[cell.runs for cell in case.cells] for case in cases]


IMPORTANT = case_of("S1", 0, SUMMARY, RIVAL, LEADING, OTHER)
MINOR = case_of("S9", 1, RIVAL, LEADING, OTHER)


def test_a_plan_that_fits_stays_as_it_is() -> None:
    assert fitted([IMPORTANT, MINOR], 210.0) == [IMPORTANT, MINOR]


def test_the_rule_takes_from_the_least_important_shape_first() -> None:
    budgets = (180.0, 150.0, 130.0, 110.0, 100.0, 90.0, 70.0, 50.0, 40.0, 30.0, 0.0)

    plans = [runs_of(fitted([IMPORTANT, MINOR], budget_s)) for budget_s in budgets]

    assert plans == [
        [[3, 3, 3, 3], [3, 3, 0]],
        [[3, 3, 3, 0], [3, 3, 0]],
        [[3, 3, 3, 0], [3, 1, 0]],
        [[3, 3, 1, 0], [3, 1, 0]],
        [[3, 3, 1, 0], [3, 0, 0]],
        [[3, 3, 0, 0], [3, 0, 0]],
        [[3, 3, 0, 0], [1, 0, 0]],
        [[3, 1, 0, 0], [1, 0, 0]],
        [[3, 1, 0, 0], [0, 0, 0]],
        [[3, 0, 0, 0], [0, 0, 0]],
        [[3, 0, 0, 0], [0, 0, 0]],
    ]


def test_what_is_left_out_is_named() -> None:
    cases = [IMPORTANT, MINOR]

    assert left_out(cases, fitted(cases, 210.0)) == []
    assert left_out(cases, fitted(cases, 110.0)) == [
        "S1: in some cases without peer-3; fewer runs of peer-2",
        "S9: in some cases without peer-2; fewer runs of peer-1",
    ]
    assert left_out(cases, fitted(cases, 30.0))[1] == "S9: no measurement of a case"


def test_a_contender_that_cannot_take_part_is_not_left_out() -> None:
    cell = PlannedCell("absent", OTHER, run_s=0.0, runs=3)
    case = PlannedCase("S1", 0, Case("a case"), (*case_of("S1", 0, RIVAL).cells, cell))

    [reduced] = fitted([case], 0.0)

    assert [kept.runs for kept in reduced.cells] == [0, 3]
    assert reduced.runs == 0


CELLS = st.builds(
    PlannedCell,
    st.sampled_from(["penstock", "nats", "redis"]),
    st.sampled_from([SUMMARY, RIVAL, LEADING, OTHER]),
    run_s=st.floats(0.0, 100.0),
    runs=st.integers(1, 3),
)
CASES = st.lists(
    st.builds(
        PlannedCase,
        st.sampled_from(["S1", "S2", "S3"]),
        st.integers(0, 2),
        st.just(Case("a case")),
        st.lists(CELLS, min_size=1, max_size=4).map(tuple),
    ),
    max_size=8,
)


@given(CASES, st.floats(0.0, 1_000.0))
def test_a_fitted_plan_fits_or_is_the_summary_alone(
    cases: list[PlannedCase], budget_s: float
) -> None:
    reduced = fitted(cases, budget_s)

    assert [case.case for case in reduced] == [case.case for case in cases]
    for before, after in zip(cases, reduced, strict=True):
        for old, new in zip(before.cells, after.cells, strict=True):
            assert new.runs <= old.runs
            assert new.rank != SUMMARY or new == old
    others = [
        cell for case in reduced for cell in case.cells if cell.rank != SUMMARY and cell.run_s
    ]
    assert seconds_of(reduced) <= budget_s or all(cell.runs == 0 for cell in others)


@given(CASES)
def test_cases_of_the_summary_come_first_then_shape_by_shape(cases: list[PlannedCase]) -> None:
    ordered = in_order(cases)

    assert sorted(map(repr, ordered)) == sorted(map(repr, cases))
    for before, after in pairwise(ordered):
        assert (not before.is_in_summary, before.importance) <= (
            not after.is_in_summary,
            after.importance,
        )


def test_the_usual_budget_has_every_case_of_every_shape_and_three_runs_of_the_main_peers() -> None:
    shapes_by_name, cases = everything(quick=False, runs=3)

    plan = fitted(Choice().select(shapes_by_name, cases), HOURS * 3_600)

    assert seconds_of(plan) <= HOURS * 3_600
    assert {case.shape for case in plan} == set(shapes())
    for case in plan:
        for cell in case.cells:
            assert cell.runs == 3 or cell.rank in (LEADING, OTHER), (case.shape, case.case.label)


def test_each_line_of_the_summary_is_a_case_of_a_run_of_everything() -> None:
    shapes_by_name, cases = everything(quick=False, runs=3)
    cells = {
        (case.shape, case.case.label, case.case.durability, cell.contender): cell.rank
        for case in cases
        for cell in case.cells
    }

    for line in LINES:
        for contender in (line.peer, ours_in(shapes_by_name[line.shape])):
            assert cells[line.shape, line.case, line.durability, contender] == SUMMARY, line


def test_each_entry_of_the_catalogue_is_a_shape_with_these_sizes() -> None:
    assert set(ENTRIES) <= set(shapes())
    for name, entry in ENTRIES.items():
        assert all(hasattr(shapes()[name], size) for size in entry.sizes), name
        assert bool(entry.caption) == bool(entry.sizes) or name == "S3"


def test_the_sizes_of_the_catalogue_do_not_change_the_shape_itself() -> None:
    before = [case.label for case in shapes()["S5"].cases(quick=False)]

    sized, _ = everything(quick=False, runs=3)

    assert [case.label for case in sized["S5"].cases(quick=False)] != before
    assert [case.label for case in shapes()["S5"].cases(quick=False)] == before


def test_the_printed_plan_has_a_line_for_each_shape_and_the_total() -> None:
    lines = as_table([IMPORTANT, MINOR], pace=2.0).splitlines()

    assert [line.split() for line in lines[1:]] == [
        ["S1", "1", "4", "12", "4.0"],
        ["S9", "1", "3", "9", "3.0"],
        ["total", "2", "7", "21", "7.0"],
    ]
