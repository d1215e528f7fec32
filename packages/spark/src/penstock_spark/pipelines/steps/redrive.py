"""The step ``redrive``: changes dead events by SQL or Python, and publishes each of them once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa
from msgspec import field

from penstock.client.sync.sync import Session, connect
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.pipelines.bounds import check_selector
from penstock_spark.pipelines.sources import Source
from penstock_spark.pipelines.step import Context, Progress, Step, Work, WorkOutcome
from penstock_spark.pipelines.steps.query import (
    Query,
    describe_sql_error,
    names_in_sql,
    parameters_of,
)
from penstock_spark.redriving.dead import (
    DeadEventChannel,
    DeadEventQueue,
    dead_store,
    transformation_view,
)
from penstock_spark.redriving.redrive import (
    PORTION,
    RealmCommit,
    RedriveCounts,
    RedriveOutcome,
    RedriveRun,
    Transformation,
    commit_nothing,
)
from penstock_spark.redriving.verdict import KEPT, RedriveRules
from penstock_spark.replaying.live import WallTimer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW: Final = "dead"
"""Name of the table of dead events in SQL, and of the parameter of a Python function for it."""

SESSION: Final = "spark"
"""Name of the parameter of a Python function that receives the Spark session."""


class RedriveStep(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes dead events, publishes them to their origin, removes them from the dead event store,
    and records the outcome."""

    kind: ClassVar[str] = "redrive"

    store: str = field(name="from", default="")
    """Name of the channel or queue with the dead events."""

    selector: str = ""
    """A condition on the dead events to redrive; empty means all."""

    sql: str = ""
    """A SELECT over ``dead`` and tables among the sources; each row has the ``event_id`` of its
    dead event. Without ``sql`` and ``python``, events are published unchanged."""

    python: Any = ""
    """``"module:function"``. The function has a parameter ``dead`` for the DataFrame of dead
    events, and returns a DataFrame like the result of ``sql``."""

    unmatched: Literal["kept", "dropped"] = "kept"
    """Outcome of dead events that are missing in the result of the transformation."""

    channel: str = ""
    """Name of the target of all events. If it is empty, the column ``channel`` of the result names
    the target of an event; without such a value, the event returns to its origin."""

    record: str = ""
    """Name of the channel for a record of each event that leaves the store. It is created if it
    does not exist."""

    redrive_of: bool = False
    """Whether events get a property ``redrive_of`` with their original channel, id and time."""

    max_events: int = PORTION
    """Largest number of dead events in one transaction."""

    once: bool = False
    """Whether the step ends when every dead event was processed, instead of waiting for more."""

    dry_run: bool = False
    """Whether the step only reports the outcome, without committing it. It then ends as with
    ``once``."""

    def __post_init__(self) -> None:
        if not self.store:
            raise InvalidArgument("from is missing; name the channel with the dead events")
        if self.sql and self.python:
            raise InvalidArgument("sql or python: both are given; give only one of them")
        if not self.record:
            raise InvalidArgument(
                "record is missing; name the channel that gets a record of each event that "
                f'leaves, such as "record/{self.store}"'
            )
        for key in ("record", "channel"):
            if getattr(self, key) == self.store:
                raise InvalidArgument(
                    f"{key} is {self.store!r}, which stores the dead events; name another channel"
                )
        if self.max_events < 1:
            raise InvalidArgument(f"max_events is {self.max_events}; it must be 1 or more")
        check_selector(self.selector)
        self._query()

    def _query(self) -> Query | None:
        """Return the transformation as a query step, which checks it; None without one."""
        if not (self.sql or self.python):
            return None
        return Query(name=self.name, sql=self.sql, python=self.python, channel=self.store)

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        return (f"channel {self.store}", *self._tables(sources))

    def writes(self) -> tuple[str, ...]:
        where = f"channel {self.channel}" if self.channel else "the origin of each event"
        return (where, f"channel {self.record}")

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        query = self._query()
        if self.sql and VIEW not in names_in_sql(self.sql, (VIEW,)):
            raise InvalidArgument(f"sql does not read {VIEW}, the name of the dead events")
        if self.python and query is not None:
            names = query.parameters(folder)
            if VIEW not in names:
                raise InvalidArgument(
                    f"python: its function has no parameter {VIEW}; it has {', '.join(names)}"
                )
        for name in self._tables(sources):
            if sources[name].is_stream:
                raise InvalidArgument(
                    f"{name} is a stream; in addition to the dead events, read only tables or "
                    f"sources with bounded = true"
                )

    def _tables(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        if self.sql:
            return tuple(names_in_sql(self.sql, sources))
        names = parameters_of(self.python) if callable(self.python) else ()
        return tuple(name for name in names if name in sources)

    def plan(self, context: Context) -> Work:
        """Return the work. Unless ``once`` is set, the work waits for more dead events."""
        return partial(redrive, self, context)


def redrive(step: RedriveStep, context: Context) -> WorkOutcome:
    """Redrive dead events until the pipeline is stopped or, with ``once``, none is unprocessed.

    Raises ``NameDoesNotExist`` if the store or the target does not exist, and ``InvalidArgument``
    if the result of the transformation is not valid.
    """
    with connect(context.url) as session:
        source = dead_store(session, step.store, step.selector)
        if step.channel:
            _check_target(session, step.channel)
        realm = RealmCommit(session, source, "" if step.dry_run else step.record)
        total = source.store.info().events
        redrive_run = RedriveRun(
            source,
            lambda: _rules(step, source, realm),
            commit_nothing if step.dry_run else realm,
            timer=WallTimer(context.stopping),
            transformation=_transformation(step, context),
            report=partial(_report, step, context, total),
            portion=step.max_events,
        )
        # A dry run leaves all events in the store, so it would process them for ever without
        # `once`.
        once = step.once or step.dry_run or context.once
        done = redrive_run.run(once=once)
        remaining = source.store.info().events
    return _outcome(step, done, remaining)


def _rules(
    step: RedriveStep, source: DeadEventChannel | DeadEventQueue, realm: RealmCommit
) -> RedriveRules:
    return RedriveRules(
        step=step.name,
        targets=realm.targets(),
        store=source.name,
        channel=step.channel,
        unmatched=step.unmatched,
        marks=step.redrive_of,
    )


def _check_target(session: Session, name: str) -> None:
    """Raise ``NameDoesNotExist`` if neither a queue nor a channel has this name."""
    if name not in session.queues.list():
        session.channels.get(name)


def _transformation(step: RedriveStep, context: Context) -> Transformation | None:
    """Return the transformation, which runs on Spark; None if events stay unchanged."""
    if not (step.sql or step.python):
        return None
    function = _function(step, context) if step.python else None

    def transform(dead: pa.RecordBatch) -> pa.Table:
        spark = context.spark
        # The DataFrame contains the rows themselves, so Spark's processes do not read the realm.
        frame = spark.createDataFrame(transformation_view(dead))
        table = _by_sql(step, context, frame) if function is None else function(spark, frame)
        return table.toArrow()

    return transform


def _by_sql(step: RedriveStep, context: Context, frame: DataFrame) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    # Views are shared within a session, and other steps may also redrive: use a unique name.
    view = f"`{VIEW} of {step.name}`"
    frame.createOrReplaceTempView(view)
    for name in names_in_sql(step.sql, context.sources):
        context.table(name).createOrReplaceTempView(name)
    try:
        query = step.sql.strip().rstrip(";")
        return context.spark.sql(f"WITH {VIEW} AS (SELECT * FROM {view}) SELECT * FROM ({query}\n)")
    except (ParseException, AnalysisException) as error:
        raise InvalidArgument(f"sql: {describe_sql_error(str(error), step.sql)}") from error


def _function(
    step: RedriveStep, context: Context
) -> Callable[[SparkSession, DataFrame], DataFrame]:
    query = step._query()
    assert query is not None, "the step has python"
    function = query.function(context.folder)
    names = parameters_of(function)

    def call(spark: SparkSession, frame: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        inputs = {VIEW: frame, SESSION: spark}
        arguments = {
            name: inputs[name] if name in inputs else context.table(name) for name in names
        }
        table = function(**arguments)
        if not isinstance(table, DataFrame):
            raise InvalidArgument(
                f"python: the function returned {type(table).__name__}; it must return a DataFrame"
            )
        return table

    return call


def _report(step: RedriveStep, context: Context, total: int, counts: RedriveCounts) -> None:
    """Report the progress of the step. ``total`` is the number of dead events at its start."""
    text = counts.refusal or f"{counts.redriven:,} redriven, {counts.dropped:,} dropped"
    if counts.kept and not counts.refusal:
        text += f", {counts.kept:,} kept"
    context.report(
        Progress(
            step=step.name,
            rows=counts.looked_at,
            rows_out=counts.published,
            total=max(total, counts.looked_at),
            text=text,
        )
    )


def _outcome(step: RedriveStep, done: RedriveOutcome, remaining: int) -> WorkOutcome:
    counts = done.done
    verb = "would be" if step.dry_run else "were"
    text = (
        f"{counts.redriven:,} dead events of {step.store} {verb} redriven, "
        f"{counts.dropped:,} dropped, {counts.kept:,} {KEPT}"
    )
    if counts.homeless:
        text += f" ({counts.homeless:,} with no channel to go to)"
    return WorkOutcome(
        text=text,
        rows=counts.published,
        facts={
            "redriven": counts.redriven,
            "dropped": counts.dropped,
            "kept": counts.kept,
            "homeless": counts.homeless,
            "published": done.channels,
            "left": remaining,
            "is_complete": done.is_complete,
            "dry_run": step.dry_run,
        },
    )
