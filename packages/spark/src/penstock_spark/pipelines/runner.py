"""Runs a pipeline until all steps are done or the run is stopped.

All steps share one Spark session; each step is a query or a thread. A step with a transient failure
is restarted after a delay, while the others continue. A step that fails permanently ends the
pipeline: the others are stopped, and the error names the step.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument, StepFailed, Unavailable
from penstock_spark.options import URL_VARIABLE
from penstock_spark.pipelines.definition import Pipeline, known_source
from penstock_spark.pipelines.failures import FIND_EVENT, FailureCause, cause_of, jvm_loss
from penstock_spark.pipelines.running import Running, RunningQuery, RunningWork
from penstock_spark.pipelines.sources import Source
from penstock_spark.pipelines.standing import QUERY, Status, StepFiles, pipeline_locked
from penstock_spark.pipelines.step import (
    Context,
    Flow,
    Progress,
    Step,
    Stopping,
    WorkOutcome,
    left_out,
)
from penstock_spark.pipelines.targets import QueryTarget, start

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

CHECK_S: Final = 0.25
"""Seconds between two checks of the steps."""
STOP_S: Final = 10.0
"""Seconds that running micro-batches have to finish when the pipeline is stopped."""
STATUS_EVERY_S: Final = 2.0
"""Seconds between two writes of a step's status file."""
BACKOFF_MAX_S: Final = 30.0
"""Longest wait before a restart, in seconds."""
SEARCH_REPORT_S: Final = 10.0
"""Seconds between two reports about a search for events that make a step fail."""
CONNECT: Final = "sc://"
"""Beginning of a master URL for Spark Connect."""
LOG_LEVEL: Final = "spark.log.level"
"""The setting that turns Spark's log on."""


class PipelineWatcher(Protocol):
    """Receives the state changes and the progress of a running pipeline."""

    def told(self, step: str, text: str) -> None:
        """Handle a change of a step's state, such as started, restarting or stopped.

        ``text`` describes the change in one line. It may also be a note about the definition.
        """
        ...

    def moved(self, progress: Sequence[Progress]) -> None:
        """Handle the progress of all steps; called a few times a second."""
        ...


class IgnoringWatcher:
    """A watcher that does nothing."""

    def told(self, step: str, text: str) -> None:
        pass

    def moved(self, progress: Sequence[Progress]) -> None:
        pass


class StepReport(Struct, frozen=True, kw_only=True):
    """The result of one step of a run."""

    name: str
    state: str
    """``done``, ``stopped`` or ``failed``."""
    rows: int
    """Number of rows read in this run."""
    rows_out: int | None
    """Number of rows stored in this run; None if unknown."""
    rows_late: int = 0
    """Number of rows dropped because they were older than the watermark."""
    batch: int | None
    """Number of the last micro-batch; None if the step is not a query."""
    restarts: int
    """Number of restarts in this run."""
    text: str = ""
    """The result of work that ends by itself, or the cause of a failure."""


class Report(Struct, frozen=True, kw_only=True):
    """The result of a run of a pipeline."""

    pipeline: str
    steps: tuple[StepReport, ...]


class StepContext:
    """The context of a step in a run; its methods are those of
    :class:`penstock_spark.pipelines.step.Context`."""

    def __init__(self, run: Run, step: Step) -> None:
        self._run = run
        self.pipeline = run.pipeline.name
        self.step = step.name
        self.url = run.url
        self.once = run.once
        self.stopping: Stopping = run.stopping
        self.checkpoint = StepFiles(run.pipeline, step.name).checkpoint
        self.folder: Path = run.pipeline.folder
        self.work: RunningWork | None = None
        """The thread of the step; None for a query."""
        self.replacements: dict[str, DataFrame] = {}
        """Tables that :meth:`table` returns instead of a source, by name of the source."""

    @property
    def spark(self) -> SparkSession:
        return self._run.spark()

    @property
    def sources(self) -> Mapping[str, Source]:
        return self._run.pipeline.by_name

    def source(self, name: str) -> Source:
        return known_source(self.sources, name)

    def table(self, source: str, **options: str) -> DataFrame:
        if source in self.replacements:
            return self.replacements[source]
        definition = self.source(source)
        path = self.located(definition.table) if definition.table else ""
        return definition.frame(self.spark, self.url, path, **options)

    def located(self, path: str) -> str:
        return self._run.pipeline.located(path)

    def report(self, progress: Progress) -> None:
        if self.work is not None:
            self.work.report(progress)


class Run:
    """One run of a pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        url: str,
        master: str,
        once: bool,
        stopping: threading.Event,
        session: SparkSession | None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.pipeline = pipeline
        self.url = url
        self.once = once
        self.stopping = stopping
        self.clock = clock
        """Returns the current time in seconds, for the time between restarts."""
        self._master = master
        self._session = session
        self._is_own_session = session is None and not _has_session()
        """Whether the run ends the session when the run is over. A session that existed before the
        run stays open."""
        self._starting = threading.Lock()

    def spark(self) -> SparkSession:
        """Return the Spark session; the first call starts it."""
        # The threads of several steps may call this at the same time, but only one session must be
        # started.
        with self._starting:
            if self._session is None:
                self._session = session_for(self.pipeline, self._master, self.url)
            return self._session

    def close(self) -> None:
        """End the session if this run has started it."""
        if self._is_own_session and self._session is not None:
            try:
                self._session.stop()
            except Exception:
                # A session whose JVM has ended cannot be stopped, and need not be.
                if jvm_loss() is None:
                    raise


class SupervisedStep:
    """Starts, restarts and stops one step of a run, and records its state."""

    def __init__(self, run: Run, step: Step) -> None:
        self.name = step.name
        self._run = run
        self._step = step
        self._files = StepFiles(run.pipeline, step.name)
        self._status = Status()
        self._running: Running | None = None
        """The query or work that was started last; None after a failure."""
        self._restart_at_s: float | None = None
        """Time of the run's clock for the next restart; None if none is planned."""
        self._at_end: Callable[[], bool] | None = None
        """:attr:`Flow.at_end` of the running query."""
        self._failures_in_row = 0
        """Number of transient failures since the step last made progress."""
        self._written_at_s = 0.0
        """Time of ``perf_counter`` at which the status file was written last."""
        self._is_burying = False
        """Whether to bury events that make the step fail."""
        self._reported_left_out: dict[str, list[str]] = {}
        """Properties that the step leaves out and that the watcher was told about, by channel."""
        self.failure: FailureCause | None = None
        """The permanent failure of the step; None if it has not failed."""
        self.progress = Progress(step=step.name, text="starts")

    @property
    def is_over(self) -> bool:
        """Whether the step is done, was stopped, or has failed permanently."""
        return self._status.state in ("done", "failed", "stopped")

    @property
    def active(self) -> Running | None:
        """The running query or work; None if the step is over, or waits for a restart."""
        return None if self.is_over or self._restart_at_s is not None else self._running

    @property
    def is_busy(self) -> bool:
        """Whether the step is doing work that should be finished rather than interrupted."""
        if self.is_over or self._running is None:
            return False
        try:
            return self._running.is_busy
        except Exception:  # noqa: BLE001 - Spark no longer answers
            return False

    def begin(self, watch: PipelineWatcher) -> None:
        """Start the query or the work."""
        self._restart_at_s = None
        try:
            self._running = self._start()
        except Exception as error:  # noqa: BLE001 - any error is a failure of this step
            self._handle_failure(error, watch)
            return
        self._change_state("runs", watch)

    def check(self, watch: PipelineWatcher) -> None:
        """Update the progress, and handle an end, a failure or a due restart of the step."""
        try:
            self._check(watch)
        except Exception as error:  # noqa: BLE001 - Spark no longer answers
            self._handle_failure(error, watch)

    def _check(self, watch: PipelineWatcher) -> None:
        if self.is_over:
            return
        if self._restart_at_s is not None:
            if self._run.clock() >= self._restart_at_s and not self._run.stopping.is_set():
                self.begin(watch)
            return
        running = self._running
        assert running is not None, "a step that is not over runs, or waits for its restart"
        # The end is read before the progress, which otherwise could miss the last micro-batch of a
        # step that ends in between.
        is_over = running.is_over
        self.progress = running.progress()
        if running.has_moved:
            self._failures_in_row = 0
        if self.progress.later and self.progress.later != self._reported_left_out:
            self._reported_left_out = self.progress.later
            watch.told(self.name, left_out(self._reported_left_out))
        if not is_over:
            self._write_status()
        elif (error := running.error) is not None and not self._run.stopping.is_set():
            self._handle_failure(error, watch)
        else:
            self._finish(running, watch)

    def stop(self, watch: PipelineWatcher) -> None:
        """Stop the query or work, even in the middle of a micro-batch."""
        if self.is_over:
            return
        if self._running is not None:
            self._running.stop()
            with contextlib.suppress(Exception):  # Spark may no longer answer
                self.progress = self._running.progress()
        self._change_state("stopped", watch)

    def report(self) -> StepReport:
        """Return the result of the step."""
        return StepReport(
            name=self.name,
            state=self._status.state,
            rows=self.progress.rows,
            rows_out=self.progress.rows_out,
            rows_late=self.progress.rows_late,
            batch=self.progress.batch,
            restarts=self._status.restarts,
            text=self.failure.text if self.failure is not None else self._status.text,
        )

    def _start(self) -> Running:
        """Plan the step, and start its query or its thread."""
        self._files.prepare()
        context = StepContext(self._run, self._step)
        planned = self._step.plan(context)
        self._at_end = None
        if isinstance(planned, Flow):
            self._is_burying = planned.poison == "bury"
            self._at_end = planned.at_end
            query_target = QueryTarget(
                self._run.pipeline, self.name, self._run.url, checkpoint=context.checkpoint
            )
            query = start(planned, query_target, once=self._run.once)
            return RunningQuery(self.name, query, self.progress)
        context.work = RunningWork(self.name, planned)
        context.work.start()
        return context.work

    def _finish(self, running: Running, watch: PipelineWatcher) -> None:
        """Handle the end of a step without an error: start the step again if its ``at_end``
        requests this, otherwise record the end."""
        at_end = None if self._run.stopping.is_set() else self._at_end
        try:
            is_repeated = at_end is not None and at_end()
        except Exception as error:  # noqa: BLE001 - any error is a failure of this step
            self._handle_failure(error, watch)
            return
        if is_repeated:
            self.begin(watch)
        else:
            self._end(running, watch)

    def _handle_failure(self, error: BaseException, watch: PipelineWatcher) -> None:
        """Plan a restart if events were buried or the failure is transient; otherwise record a
        permanent failure."""
        lost_jvm = jvm_loss(error)
        cause = lost_jvm or cause_of(error)
        self._status.error = cause.text
        if cause.is_of_value and not self._is_burying:
            self._status.error += f"; {FIND_EVENT}"
        self._running = None
        if lost_jvm is None and not cause.may_pass and (buried := self._bury_poison(watch)):
            self._status.restarts += 1
            self._restart_at_s = self._run.clock()
            self._change_state(
                "restarts", watch, f"starts again without the buried events: {buried}"
            )
            return
        if cause.may_pass and self._failures_in_row < self._run.pipeline.restarts:
            # Progress resets `_failures_in_row`, so only failures in a row lengthen the wait.
            wait_s = min(BACKOFF_MAX_S, 2.0**self._failures_in_row)
            self._failures_in_row += 1
            self._status.restarts += 1
            self._restart_at_s = self._run.clock() + wait_s
            self._change_state("restarts", watch, f"starts again in {wait_s:g} s: {cause.text}")
            return
        self.failure = FailureCause(self._status.error, may_pass=False)
        self._change_state("failed", watch, self.failure.text)

    def _bury_poison(self, watch: PipelineWatcher) -> str:
        """Bury the events that made the step fail, if its definition allows this.

        Return a description of the buried events; empty if none was buried.
        """
        if not self._is_burying:
            return ""
        context = StepContext(self._run, self._step)
        reported_at_s: float | None = None

        def report_search(run: int) -> None:
            nonlocal reported_at_s
            if reported_at_s is None or self._run.clock() - reported_at_s >= SEARCH_REPORT_S:
                reported_at_s = self._run.clock()
                so_far = f", run {run} over a part of the micro-batch" if run > 1 else ""
                watch.told(self.name, f"searches for the events that make it fail{so_far}")

        try:
            burial = bury(self._run.pipeline, self._step, context, watch=report_search)
        except Exception as error:  # noqa: BLE001 - the step's own failure is reported, with this reason
            burial = Burial(why_none=cause_of(error).text)
        if burial.why_none:
            self._status.error += f"; nothing was buried: {burial.why_none}"
        return burial.text

    def _end(self, running: Running, watch: PipelineWatcher) -> None:
        """Record that the step is done or stopped."""
        if running.outcome is not None:
            self._status.text = running.outcome.text
            self.progress = (
                self.progress
                if self.progress.rows
                else _progress_of_outcome(running.outcome, self.name)
            )
        is_stopped = self._run.stopping.is_set() and running.outcome is None
        self._change_state("stopped" if is_stopped else "done", watch, self._status.text)

    def _change_state(self, state: str, watch: PipelineWatcher, text: str = "") -> None:
        """Write a new state to the status file and report it to the watcher."""
        self._status.state = state
        self._write_status(now=True)
        watch.told(self.name, text or state)

    def _write_status(self, *, now: bool = False) -> None:
        """Write the status file; without ``now``, only if the last write is old enough."""
        if now or perf_counter() - self._written_at_s > STATUS_EVERY_S:
            self._written_at_s = perf_counter()
            self._status.progress = self.progress
            self._files.write(self._status)


def run(
    pipeline: Pipeline,
    *,
    url: str = "",
    master: str = "",
    once: bool = False,
    steps: Sequence[str] = (),
    watch: PipelineWatcher | None = None,
    stopping: threading.Event | None = None,
    spark: SparkSession | None = None,
) -> Report:
    """Run a pipeline until all steps are done, ``stopping`` is set, or a step fails permanently.

    ``url`` and ``master`` override the definition. With ``once``, the run ends after the events
    that are stored now. If ``steps`` are named, only these run. ``spark`` is the session to use; it
    is not ended.

    Raises ``StepFailed`` with the step and the cause, ``InvalidArgument`` for an unknown name of a
    step, ``IllegalState`` if the pipeline is already running, and ``Unavailable`` if PySpark is not
    installed.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise Unavailable(
            'pipelines run on PySpark, which is not installed: pip install "penstock-realm[spark]"'
        )
    steps_to_run = [pipeline.step(name) for name in dict.fromkeys(steps)] or list(pipeline.steps)
    run = Run(
        pipeline,
        url=realm_of(pipeline, url),
        master=master or pipeline.master,
        once=once,
        stopping=stopping or threading.Event(),
        session=spark,
    )
    if spark is not None:
        from penstock_spark.session.session import activate

        activate(spark)  # the session may have been started in another thread
    watch = watch or IgnoringWatcher()
    for step in steps_to_run:
        for text in step.deprecations():
            watch.told(step.name, text)
    with pipeline_locked(pipeline):
        supervised = [SupervisedStep(run, step) for step in steps_to_run]
        try:
            _supervise(run, supervised, watch)
        finally:
            run.close()
    failed = [step for step in supervised if step.failure is not None]
    if failed:
        failures = "; ".join(
            f"step {step.name}: {step.failure.text}" for step in failed if step.failure
        )
        raise StepFailed(f"{pipeline.file or pipeline.name}: {failures}")
    return Report(pipeline=pipeline.name, steps=tuple(step.report() for step in supervised))


def realm_of(pipeline: Pipeline, url: str = "") -> str:
    """Return the URL of the realm: ``url``, the definition's, or that of the environment.

    Raises ``InvalidArgument`` if none is set.
    """
    realm_url = url or pipeline.url or os.environ.get(URL_VARIABLE, "")
    if not realm_url:
        raise InvalidArgument(
            f"pipeline {pipeline.name} names no realm: set url in its definition, or "
            f"{URL_VARIABLE}, for example to penstock://localhost:9000"
        )
    return realm_url


def _supervise(run: Run, steps: Sequence[SupervisedStep], watch: PipelineWatcher) -> None:
    """Start all steps, check them regularly, and stop them when the run is over."""
    try:
        for step in steps:
            if not run.stopping.is_set():
                step.begin(watch)
        while not _is_over(run, steps):
            watch.moved([step.progress for step in steps])
            _wait(run, steps)
            for step in steps:
                step.check(watch)
        watch.moved([step.progress for step in steps])
    finally:
        run.stopping.set()
        _stop(steps, watch)


def _wait(run: Run, steps: Sequence[SupervisedStep]) -> None:
    """Wait until the next check is due. A run with ``once`` stops waiting when a step ends, so that
    the run ends with its last step."""
    running = next(filter(None, (step.active for step in steps)), None)
    if run.once and running is not None and not run.stopping.is_set():
        running.join(CHECK_S)
    else:
        run.stopping.wait(CHECK_S)


def _is_over(run: Run, steps: Sequence[SupervisedStep]) -> bool:
    """Return whether a step has failed, the run was stopped, or all steps are over."""
    has_failed_step = any(step.failure is not None for step in steps)
    return has_failed_step or run.stopping.is_set() or all(step.is_over for step in steps)


def _stop(steps: Sequence[SupervisedStep], watch: PipelineWatcher) -> None:
    """Wait up to :data:`STOP_S` until running micro-batches are finished, then stop all steps."""
    deadline_s = perf_counter() + STOP_S
    waiting = threading.Event()
    while any(step.is_busy for step in steps) and perf_counter() < deadline_s:
        waiting.wait(CHECK_S / 5)
    for step in steps:
        step.check(watch)
        step.stop(watch)


def _progress_of_outcome(outcome: WorkOutcome, step: str) -> Progress:
    return Progress(step=step, rows=outcome.rows, rows_out=outcome.rows, text="done")


def _has_session() -> bool:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def session_for(pipeline: Pipeline, master: str, url: str) -> SparkSession:
    """Start the Spark session for a pipeline, with the format ``penstock`` registered.

    Several runs can share the session: pass it as ``run(spark=…)``.
    """
    from penstock_spark import register
    from penstock_spark.session.session import activate, session

    if master.startswith(CONNECT):
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.remote(master)
        for key, value in pipeline.spark.items():
            builder = builder.config(key, str(value))
        started = builder.getOrCreate()
    else:
        stop_timeout = {"spark.sql.streaming.stopTimeout": f"{STOP_S:g}s"}
        started = session(f"penstock {pipeline.name}", master, **(stop_timeout | pipeline.spark))
    _silence_spark(started, pipeline, master)
    register(started, url)
    activate(started)
    return started


def _silence_spark(spark: SparkSession, pipeline: Pipeline, master: str) -> None:
    """Turn off Spark's own reports of failures, because the run reports each failure in one line.
    Spark's log stays on if the definition sets its level."""
    for name in ("SQLQueryContextLogger", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    if not master.startswith(CONNECT):
        _silence_accumulators(spark.sparkContext)
    logging.getLogger().addFilter(is_not_of_gateway)
    if LOG_LEVEL not in pipeline.spark and not master.startswith(CONNECT):
        spark.sparkContext.setLogLevel("OFF")


def is_not_of_gateway(record: logging.LogRecord) -> bool:
    """Return False for log records about a broken connection to the JVM. Py4j writes them to the
    root logger."""
    error = record.exc_info[1] if record.exc_info else None
    return not type(error).__module__.startswith("py4j.")


def _silence_accumulators(context: SparkContext) -> None:
    """Turn off the traceback that Spark prints when a killed JVM breaks the connection for
    accumulators, because the run reports the loss in one line."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    report = server.handle_error

    def handle(request: object, address: object) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | OSError):
            report(request, address)

    server.handle_error = handle


# --- burial of events that make a step fail --------------------------------------------------


class Replaceable(Context, Protocol):
    """A context whose sources can be replaced."""

    replacements: dict[str, DataFrame]


class Burial(Struct, frozen=True):
    """The result of a search for events that make a step fail."""

    text: str = ""
    """Description of the buried events; empty if none was buried."""
    why_none: str = ""
    """Why no event was buried; empty if an event was buried."""


def bury(
    pipeline: Pipeline, step: Step, context: Replaceable, watch: Callable[[int], object]
) -> Burial:
    """Find and bury the events that made the last micro-batch of a step's query fail.

    ``watch`` is called before each run of the query during the search, with the number of the run.
    """
    from penstock_spark.reading.poison import bury_poison

    source = pipeline.bound_source(step)

    def attempt(table: DataFrame) -> None:
        context.replacements[source.name] = table
        planned = step.plan(context)
        if not isinstance(planned, Flow):
            raise InvalidArgument(
                "only the events of a step that runs as a query can be buried; step "
                f"{step.name} does not"
            )
        planned.frame.write.format("noop").mode("overwrite").save()

    options = {"url": context.url, **source.format_options()}
    verdict = bury_poison(
        context.spark, options, f"{context.checkpoint}/{QUERY}", attempt=attempt, watch=watch
    )
    buried = ", ".join(f"event {poison.event_id} of {poison.channel}" for poison in verdict.buried)
    return Burial(buried, verdict.why_none)
