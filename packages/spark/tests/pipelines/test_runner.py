"""A step under supervision, without Spark: when it is started again, and when it is given up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkRuntimeError

from penstock_core.vocabulary.errors import CannotConnect, NoSuchStage, StorageFailed
from penstock_spark.pipelines import Pipeline, run
from penstock_spark.pipelines.runner import Run, SupervisedStep, is_not_of_gateway
from penstock_spark.pipelines.standing import StepFiles
from penstock_spark.pipelines.step import Context, Flow, Progress, Step, Work, WorkOutcome

DONE = WorkOutcome(text="3 events moved", rows=3)


class Trying(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step that does at each start what the test says."""

    start: Callable[[Context], Flow | Work]

    def plan(self, context: Context) -> Flow | Work:
        return self.start(context)


class Lines:
    """Records reports."""

    def __init__(self) -> None:
        self.told_of: list[str] = []

    def told(self, step: str, text: str) -> None:
        self.told_of.append(text)

    def moved(self, progress: Sequence[Progress]) -> None:
        raise AssertionError("nobody asks a step that is supervised by hand")


class Lab:
    """One step and its time."""

    def __init__(
        self, folder: Path, start: Callable[[Context], Flow | Work], restarts: int = 5
    ) -> None:
        self.now_s = 0.0
        self.lines = Lines()
        self.stopping = threading.Event()
        step = Trying(name="move", start=start)
        self.pipeline = Pipeline(name="lab", steps=(step,), restarts=restarts, folder=folder)
        run = Run(
            self.pipeline,
            url="penstock://localhost:9000",
            master="local[2]",
            once=True,
            stopping=self.stopping,
            session=None,
            clock=lambda: self.now_s,
        )
        self.step = SupervisedStep(run, step)
        self.step.begin(self.lines)

    def at(self, now_s: float) -> None:
        """Look at a time."""
        self.now_s = now_s
        self.step.check(self.lines)

    def until_told(self, text: str) -> None:
        """Look until something was told; what runs in a thread takes its time."""
        while not self.lines.told_of[-1].startswith(text):
            assert not self.step.is_over, self.lines.told_of
            self.step.check(self.lines)

    def waits_s(self) -> list[float]:
        """Return the times between a failure and the next start."""
        words = [text.split() for text in self.lines.told_of]
        return [
            float(line_words[3])
            for line_words in words
            if line_words[:3] == ["starts", "again", "in"]
        ]


def failing(*errors: Exception) -> Callable[[Context], Work]:
    """Starts that fail one after the other, and then one that does not."""
    remaining = list(errors)

    def start(context: Context) -> Work:
        if remaining:
            raise remaining.pop(0)
        return lambda: DONE

    return start


def test_a_start_that_fails_in_passing_is_tried_again_later_and_later(tmp_path: Path) -> None:
    away = "no realm answers"
    lab = Lab(tmp_path, failing(CannotConnect(away), NoSuchStage("rows are gone")))
    assert lab.lines.told_of == [f"starts again in 1 s: {away} [cannot-connect]"]

    lab.at(0.99)
    assert len(lab.lines.told_of) == 1
    lab.at(1.0)
    assert lab.lines.told_of[1:] == ["starts again in 2 s: rows are gone [no-such-stage]"]
    lab.at(2.9)
    assert len(lab.lines.told_of) == 2
    lab.at(3.0)
    lab.until_told(DONE.text)

    assert lab.lines.told_of[2:] == ["runs", DONE.text]
    report = lab.step.report()
    assert (report.state, report.rows, report.restarts) == ("done", 3, 2)
    kept = StepFiles(lab.pipeline, "move").status()
    assert kept is not None
    assert (kept.state, kept.restarts, kept.error) == (
        "done",
        2,
        "rows are gone [no-such-stage]",
    )


def test_a_step_waits_while_the_disk_of_its_target_is_full_and_goes_on_then(
    tmp_path: Path,
) -> None:
    """Tables raise this error: packages/client/tests/tables/test_table.py."""
    full = "lake/delays cannot be written: No space left on device"
    lab = Lab(tmp_path, failing(StorageFailed(full), StorageFailed(full)))
    assert lab.lines.told_of == [f"starts again in 1 s: {full} [storage-failed]"]

    lab.at(1.0)
    assert lab.lines.told_of[1:] == [f"starts again in 2 s: {full} [storage-failed]"]
    lab.at(3.0)
    lab.until_told(DONE.text)

    report = lab.step.report()
    assert (report.state, report.rows, report.restarts) == ("done", 3, 2)


def test_a_step_is_given_up_after_so_many_restarts_in_a_row(tmp_path: Path) -> None:
    lab = Lab(tmp_path, failing(*[CannotConnect("away")] * 8), restarts=7)

    while not lab.step.is_over:
        lab.at(lab.now_s + 1)

    assert lab.waits_s() == [1, 2, 4, 8, 16, 30, 30]
    assert lab.lines.told_of[-1] == "away [cannot-connect]"
    assert lab.step.report().state == "failed"


def test_work_that_gets_on_between_failures_is_not_given_up(tmp_path: Path) -> None:
    """A realm that is restarted six times in a year is no reason to end."""
    starts = 0

    def start(context: Context) -> Work:
        nonlocal starts
        starts += 1

        def work() -> WorkOutcome:
            if starts == 6:
                return DONE
            context.report(Progress(step="move", rows=10 * starts))
            context.report(Progress(step="move", rows=10 * starts + 5))
            raise CannotConnect("away")

        return work

    lab = Lab(tmp_path, start, restarts=1)
    for _ in range(5):
        lab.until_told("starts again")
        lab.at(lab.now_s + 1)
    lab.until_told(DONE.text)

    assert lab.waits_s() == [1] * 5


def test_work_that_never_gets_on_is_given_up(tmp_path: Path) -> None:
    def start(context: Context) -> Work:
        def work() -> WorkOutcome:
            context.report(Progress(step="move", rows=40))
            raise CannotConnect("away")

        return work

    lab = Lab(tmp_path, start, restarts=2)
    while not lab.step.is_over:
        lab.at(lab.now_s + 1)

    assert lab.step.report().restarts == 2


def test_what_does_not_pass_is_not_tried_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path, failing(ValueError("no number")))

    assert lab.lines.told_of == ["no number"]
    assert lab.step.failure is not None


def test_a_step_that_waits_is_not_started_while_the_run_is_stopped(tmp_path: Path) -> None:
    lab = Lab(tmp_path, failing(CannotConnect("away")))
    lab.stopping.set()

    lab.at(60)
    lab.step.stop(lab.lines)

    assert lab.lines.told_of[1:] == ["stopped"]


@pytest.mark.parametrize("poison", ["", "bury"])
def test_a_failure_to_bury_is_told_with_what_it_is_about(tmp_path: Path, poison: Any) -> None:
    def start(context: Context) -> Flow:
        return Flow(frame=SimpleNamespace(isStreaming=False), poison=poison)  # type: ignore[arg-type]  # as far as anybody looks

    lab = Lab(tmp_path, start)

    (line,) = lab.lines.told_of
    first = "sql reads no stream; read a channel or queue [invalid-argument]"
    assert line.startswith(first)
    assert ("nothing was buried: step move: poison needs a durable" in line) == bool(poison)


def test_a_value_that_overflows_is_told_with_how_to_learn_whose_it_is(tmp_path: Path) -> None:
    overflow = PySparkRuntimeError("[ARITHMETIC_OVERFLOW] overflow. SQLSTATE: 22003")

    lab = Lab(tmp_path, failing(overflow))

    way = 'to learn which event causes it, give the source a durable and the step poison = "bury"'
    assert lab.lines.told_of == [f"overflow. [ARITHMETIC_OVERFLOW]; {way}"]


@pytest.mark.parametrize(
    ("error", "is_printed"),
    [(Py4JError("the JVM is gone"), False), (ValueError("of the user's"), True), (None, True)],
)
def test_what_py4j_logs_of_a_lost_jvm_is_not_printed(
    error: Exception | None, is_printed: bool
) -> None:
    info = (type(error), error, None) if error is not None else None
    record = logging.LogRecord(
        "root", logging.ERROR, "", lineno=0, msg="while sending", args=None, exc_info=info
    )

    assert is_not_of_gateway(record) == is_printed


class Signal(threading.Event):
    """A stop signal whose waits return at once."""

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError("a run that takes what is there waits for its steps alone")


def test_a_run_that_takes_what_is_there_is_over_with_its_last_step(tmp_path: Path) -> None:
    steps = tuple(Trying(name=name, start=failing()) for name in ("move", "copy"))
    pipeline = Pipeline(name="lab", steps=steps, folder=tmp_path)

    report = run(pipeline, url="penstock://localhost:9000", once=True, stopping=Signal())

    assert [step.state for step in report.steps] == ["done", "done"]
