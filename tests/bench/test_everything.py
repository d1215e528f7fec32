"""A run of everything: it continues after each run, and never mixes commits or machines."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from bench import store
from bench.everything import Choice, Everything, opened, plan_of
from bench.page import measured
from bench.plan import RIVAL, RULE, SUMMARY, PlannedCase, PlannedCell
from bench.report import IDLE, LEFT_OUT, Cell, markdown
from bench.running import FAILED, run_once
from bench.shape import Case, Figures, Shape
from bench.store import Environment, FullRun, Refused
from bench.surroundings import CHANGED, commit_of, wait_until_idle

HERE = Environment(
    commit="abc",
    system="Linux 6",
    processor="a processor",
    cores=2,
    memory_gb=8.0,
    python="3.11.7",
    libraries={"pyarrow": "20"},
    peers={"nats": "2.11"},
)
LOST = RuntimeError("the machine was switched off")


class Work:
    """A shape without work."""

    title = "some work"
    figure = "events_per_s"
    higher_is_better = True
    contenders: Sequence[str] = ("penstock", "nats")

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = 0

    def cases(self, *, quick: bool) -> Sequence[Case]:
        return []

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        raise AssertionError("the tests measure by a function of their own")

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A run of two shapes with a clock that advances by ten seconds per run."""

    def __init__(self, file: Path, hours: float = 1.0) -> None:
        self.file = file
        self.hours = hours
        self.works = [Work("S1"), Work("S2")]
        self.cases = [
            planned("S1", 0, "important", SUMMARY),
            planned("S1", 0, "minor", RIVAL),
            planned("S2", 1, "other", RIVAL),
        ]
        self.run_s = 10.0
        self.done: list[tuple[str, str]] = []
        self.now_s = 0.0
        self.busy = 0.0
        self.reasons: dict[str, str] = {}
        """Reasons why contenders have no figures."""

    def measure(self, ends_after: int = 1_000) -> bool:
        """Continue in a new process, which is killed after some runs. Return whether all runs
        succeeded."""
        numbers = count(1)

        def run(shape: Shape, case: PlannedCase, contender: str) -> Figures | str:
            if next(numbers) > ends_after:
                raise LOST
            self.now_s += self.run_s
            self.done.append((case.case.label, contender))
            return self.reasons.get(contender) or {"events_per_s": float(len(self.done))}

        full = opened(self.file, HERE, hours=self.hours, quick=False, resumes=True)
        shapes: Mapping[str, Shape] = {work.name: work for work in self.works}
        return Everything(
            self.file,
            full,
            shapes,
            self.cases,
            run=run,
            wait=lambda: self.busy,
            clock=lambda: self.now_s,
        ).measure()

    @property
    def full(self) -> FullRun:
        stored = store.read(self.file)
        assert isinstance(stored, FullRun)
        return stored

    def cell(self, label: str, contender: str) -> Cell:
        [cell] = (
            cell
            for result in self.full.results
            for cell in result.cells
            if (cell.case, cell.contender) == (label, contender)
        )
        return cell


def planned(shape: str, importance: int, label: str, rank: int) -> PlannedCase:
    cells = tuple(PlannedCell(name, rank, run_s=10.0, runs=3) for name in Work.contenders)
    return PlannedCase(shape, importance, Case(label, "D1"), cells)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "all.json")


EVERY_RUN = [
    (label, contender)
    for label in ("important", "minor", "other")
    for _ in range(3)
    for contender in Work.contenders
]
"""Systems take turns within a case."""


def test_systems_take_turns_and_each_cell_has_three_runs(bench: Bench) -> None:
    assert bench.measure()

    assert bench.done == EVERY_RUN
    for label in ("important", "minor", "other"):
        for contender in Work.contenders:
            cell = bench.cell(label, contender)
            assert len(cell.runs) == cell.planned == 3
            assert cell.took_s == [10.0] * 3
    assert bench.full.spent_s == 180.0


@pytest.mark.parametrize("first", range(len(EVERY_RUN)))
def test_a_killed_run_continues_where_it_stopped(bench: Bench, first: int) -> None:
    with pytest.raises(RuntimeError, match="switched off"):
        bench.measure(ends_after=first)

    assert bench.measure()

    assert bench.done == EVERY_RUN, "no run is repeated, and none is lost"
    assert bench.full.spent_s == 180.0


def test_a_complete_run_measures_nothing_more(bench: Bench) -> None:
    bench.measure()
    before = bench.full.results

    assert bench.measure()

    assert bench.done == EVERY_RUN
    assert bench.full.results == before


def test_a_shape_ends_what_it_keeps_running_before_the_next_shape(bench: Bench) -> None:
    bench.measure()

    assert [work.closed for work in bench.works] == [1, 1]


def test_a_run_that_failed_is_repeated_by_the_next_call(bench: Bench) -> None:
    bench.reasons = {"nats": f"{FAILED}no room"}
    assert not bench.measure()
    assert bench.cell("other", "nats").missing == "failed: no room"
    assert len(bench.done) == 12, "a contender that failed has no further turn in its case"

    bench.reasons = {}
    assert bench.measure()

    assert not bench.cell("other", "nats").missing
    assert len(bench.cell("other", "nats").runs) == 3
    assert len(bench.cell("other", "penstock").runs) == 3


def test_a_contender_that_cannot_take_part_is_not_tried_again(bench: Bench) -> None:
    bench.reasons = {"nats": "nats is not installed"}
    assert bench.measure()
    bench.reasons = {}

    assert bench.measure()

    assert bench.cell("minor", "nats").missing == "nats is not installed"


def test_what_does_not_fit_is_left_out_and_named(bench: Bench) -> None:
    bench.hours = 130 / 3_600

    assert bench.measure()

    runs = [len(bench.cell(label, "nats").runs) for label in ("important", "minor", "other")]
    assert runs == [3, 1, 1]
    again = Bench(bench.file.with_name("shorter.json"), 60 / 3_600)
    again.measure()
    assert again.done == EVERY_RUN[:6]
    assert again.cell("other", "penstock").missing == LEFT_OUT
    assert "Left out to fit the time: other D1 (penstock, nats)." in markdown(
        again.full.results[-1]
    )
    assert RULE in measured(again.full)


def test_more_time_measures_the_cases_that_were_left_out(bench: Bench) -> None:
    bench.hours = 60 / 3_600
    bench.measure()
    bench.hours = 1.0

    assert bench.measure()

    assert bench.done == EVERY_RUN
    assert RULE not in measured(bench.full)


def test_slower_runs_than_estimated_leave_out_more(bench: Bench) -> None:
    bench.hours, bench.run_s = 1.0, 400.0
    bench.cases = [
        replace(case, cells=tuple(replace(cell, run_s=100.0) for cell in case.cells))
        for case in bench.cases
    ]

    bench.measure()

    assert [label for label, _ in bench.done] == ["important"] * 6 + ["minor"] * 2
    assert bench.full.spent_s == 3_200.0
    assert bench.cell("other", "penstock").missing == LEFT_OUT


def test_a_busy_machine_is_recorded_with_its_case(bench: Bench) -> None:
    bench.measure(ends_after=18)
    assert bench.full.results[0].busy == {"important D1": 0.0, "minor D1": 0.0}
    assert "not idle" not in markdown(bench.full.results[0])

    bench = Bench(bench.file.with_name("busy.json"))
    bench.busy = IDLE + 0.25
    bench.measure()

    assert bench.full.results[0].busy == {"important D1": 0.4, "minor D1": 0.4}
    assert "The machine was not idle before: important D1 (40%); minor D1 (40%)." in markdown(
        bench.full.results[0]
    )


def stored(file: Path, *, quick: bool = False, environment: Environment = HERE) -> Path:
    store.write(file, FullRun(environment, "today", 0.0, hours=1.0, rule=RULE, is_quick=quick))
    return file


@pytest.mark.parametrize(
    ("there", "difference"),
    [
        (replace(HERE, commit="def"), "commit was def, and is abc now"),
        (replace(HERE, processor="another"), "processor was another, and is a processor now"),
        (replace(HERE, system="Linux 5"), "system was Linux 5, and is Linux 6 now"),
        (replace(HERE, cores=4), "cores was 4, and is 2 now"),
        (replace(HERE, python="3.12.0"), "python was 3.12.0, and is 3.11.7 now"),
        (replace(HERE, libraries={"pyarrow": "19"}), "pyarrow was 19, and is 20 now"),
        (replace(HERE, peers={"redis": "7"}), "redis was 7, and is not installed now"),
    ],
)
def test_another_commit_or_machine_is_refused(
    tmp_path: Path, there: Environment, difference: str
) -> None:
    file = stored(tmp_path / "all.json", environment=there)
    before = file.read_bytes()

    with pytest.raises(Refused, match=f"of another commit or machine .*{difference}"):
        opened(file, HERE, hours=1.0, quick=False, resumes=True)

    assert file.read_bytes() == before


def test_a_peer_that_was_installed_since_is_no_difference(tmp_path: Path) -> None:
    file = stored(tmp_path / "all.json", environment=replace(HERE, peers={}))

    full = opened(file, HERE, hours=2.0, quick=False, resumes=True)

    assert full.environment.peers == {"nats": "2.11"}
    assert full.hours == 2.0


@pytest.mark.parametrize("commit", ["", f"abc{CHANGED}"])
def test_code_that_is_not_committed_is_refused_unless_the_run_is_quick(
    tmp_path: Path, commit: str
) -> None:
    here = replace(HERE, commit=commit)

    with pytest.raises(Refused, match="commit the changes"):
        opened(tmp_path / "all.json", here, hours=1.0, quick=False, resumes=False)

    assert opened(tmp_path / "all.json", here, hours=1.0, quick=True, resumes=False).is_quick
    planned_run = opened(
        tmp_path / "all.json", here, hours=1.0, quick=False, resumes=False, measures=False
    )
    assert planned_run.results == []


def test_a_file_is_only_continued_on_request(tmp_path: Path) -> None:
    file = stored(tmp_path / "all.json")

    with pytest.raises(Refused, match="continue it with --resume"):
        opened(file, HERE, hours=1.0, quick=False, resumes=False)


def test_quick_and_full_runs_do_not_share_a_file(tmp_path: Path) -> None:
    file = stored(tmp_path / "all.json", quick=True)

    with pytest.raises(Refused, match="measured with --quick"):
        opened(file, HERE, hours=1.0, quick=False, resumes=True)


def test_shapes_that_were_measured_one_by_one_are_not_continued(tmp_path: Path) -> None:
    file = tmp_path / "shapes.json"
    store.write(file, [])

    with pytest.raises(Refused, match="one by one"):
        opened(file, HERE, hours=1.0, quick=False, resumes=True)


def test_a_shape_is_not_added_to_a_run_of_everything(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is a run of everything"):
        store.shape_results(stored(tmp_path / "all.json"))


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan"), 1_000.0])
def test_a_budget_is_a_sensible_number(tmp_path: Path, hours: float) -> None:
    with pytest.raises(Refused, match="--hours is"):
        opened(tmp_path / "all.json", HERE, hours=hours, quick=False, resumes=False)


def test_a_choice_is_of_shapes_peers_and_cases() -> None:
    full = FullRun(HERE, "today", 0.0, hours=1.0, rule=RULE, is_quick=True)
    choice = Choice(shapes=["S13", "S11"], peers=["nats"], text="D1", runs=2)

    _, cases = plan_of(full, choice, None)

    assert {case.shape for case in cases} == {"S11"}
    assert {cell.contender for case in cases for cell in case.cells} == {"penstock", "nats"}
    assert {cell.runs for case in cases for cell in case.cells} == {2}


def test_times_of_an_earlier_run_replace_the_estimates(bench: Bench) -> None:
    earlier = FullRun(HERE, "today", 0.0, hours=1.0, rule=RULE, is_quick=True)
    shapes, cases = plan_of(earlier, Choice(shapes=["S11"], text="sequential"), None)
    earlier_run = Everything(
        bench.file,
        earlier,
        shapes,
        cases,
        run=lambda shape, case, contender: {"p50_us": 1.0},
        wait=lambda: 0.0,
        clock=map(float, count(step=7)).__next__,
    )
    earlier_run.measure()

    _, again = plan_of(earlier, Choice(shapes=["S11"], text="sequential"), earlier)

    measured_cells = [cell for case in again for cell in case.cells if cell.run_s]
    assert {cell.run_s for cell in measured_cells} == {7.0}


def test_a_failed_run_has_the_last_line_with_a_text() -> None:
    shape = Failing("S1")

    done = run_once(shape, Case("a case", "D1"), "penstock")

    assert done == f"{FAILED}Too many connections"


class Failing(Work):
    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        raise LookupError("bench.client failed:\n  | Too many connections\n  +------------")


def test_the_wait_for_an_idle_machine_ends() -> None:
    shares = iter([0.9, 0.6, 0.1])
    assert wait_until_idle(60.0, lambda: next(shares)) == 0.1
    assert wait_until_idle(0.0, lambda: 0.9) == 0.9


@pytest.mark.process
def test_a_commit_is_marked_if_measured_code_differs_from_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert commit_of(tmp_path) == ""
    git("init", "-q")
    code, page = tmp_path / "bench" / "code.py", tmp_path / "docs" / "page.md"
    for path in (code, page):
        path.parent.mkdir()
        path.write_text("one")
    git("add", "-A")
    git("commit", "-qm", "one")
    head = git("rev-parse", "HEAD").strip()

    page.write_text("two")
    assert commit_of(tmp_path) == head, "pages are not measured"

    code.write_text("two")
    assert commit_of(tmp_path) == head + CHANGED


def test_a_file_has_a_whole_run_or_the_one_before(tmp_path: Path) -> None:
    file = stored(tmp_path / "all.json")

    stored(file, quick=True)

    assert [path.name for path in tmp_path.iterdir()] == ["all.json"]
    assert msgspec.json.decode(file.read_bytes())["is_quick"] is True
