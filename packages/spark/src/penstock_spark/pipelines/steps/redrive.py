"""``kind = "redrive"``: dead events are changed by SQL or Python and go back, each once."""

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
from penstock_spark.pipelines.steps.query import Query, parameters_of, said, used_in
from penstock_spark.redriving.dead import ChannelOfDead, QueueOfDead, dead_store, seen
from penstock_spark.redriving.redrive import (
    PORTION,
    RealmCommit,
    RedriveCounts,
    Transformation,
    nothing,
)
from penstock_spark.redriving.redrive import RedriveOutcome as Done
from penstock_spark.redriving.redrive import RedriveRun as Engine
from penstock_spark.redriving.verdict import KEPT, RedriveRules
from penstock_spark.replaying.live import WallTimer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW: Final = "dead"
"""The name of the view of dead events in SQL, and of the parameter of a Python function."""

SESSION: Final = "spark"


class RedriveStep(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Takes dead events, changes them, publishes them where they came from, and records it."""

    kind: ClassVar[str] = "redrive"

    store: str = field(name="from", default="")
    """The channel or queue with the dead events."""

    selector: str = ""
    """Only dead events that match."""

    sql: str = ""
    """A SELECT over ``dead`` and tables among the sources; each row has the ``event_id`` of the
    dead event it is made of. Neither ``sql`` nor ``python``: they go back as they were."""

    python: Any = ""
    """``"module:function"`` with a parameter ``dead``, a DataFrame; it returns another one."""

    unmatched: Literal["kept", "dropped"] = "kept"
    """Fate of dead events for which the transformation makes no row."""

    channel: str = ""
    """The channel that all events go to. Empty: each event goes to the channel in its column
    ``channel``, otherwise to the one it came from."""

    record: str = ""
    """The channel that gets a record of each event that leaves; made where it is missing."""

    redrive_of: bool = False
    """Whether events get a property ``redrive_of`` with the channel, id and time they had."""

    max_events: int = PORTION
    """Dead events of one transaction."""

    once: bool = False
    """End when every dead event was processed; otherwise wait for more."""

    dry_run: bool = False
    """Only report what would be done; ends as with ``once``."""

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
                    f"{key} is {self.store!r}, which holds the dead events; name another channel"
                )
        if self.max_events < 1:
            raise InvalidArgument(f"max_events is {self.max_events}; 1 or more is needed")
        check_selector(self.selector)
        self._checked_query()

    def _checked_query(self) -> Query | None:
        """The transformation, as the step that is a query has it."""
        if not (self.sql or self.python):
            return None
        return Query(name=self.name, sql=self.sql, python=self.python, channel=self.store)

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        return (f"channel {self.store}", *self._tables(sources))

    def writes(self) -> tuple[str, ...]:
        where = f"channel {self.channel}" if self.channel else "where they came from"
        return (where, f"channel {self.record}")

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        query = self._checked_query()
        if self.sql and VIEW not in used_in(self.sql, (VIEW,)):
            raise InvalidArgument(f"sql does not read {VIEW}, the name of the dead events")
        if self.python and query is not None:
            names = query.parameters(folder)
            if VIEW not in names:
                raise InvalidArgument(
                    f"python: its function has no parameter {VIEW}; there are {', '.join(names)}"
                )
        for name in self._tables(sources):
            if sources[name].is_stream:
                raise InvalidArgument(
                    f"{name} is a stream; besides the dead events, read only tables or sources "
                    f"with bounded = true"
                )

    def _tables(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        if self.sql:
            return tuple(used_in(self.sql, sources))
        names = parameters_of(self.python) if callable(self.python) else ()
        return tuple(name for name in names if name in sources)

    def plan(self, context: Context) -> Work:
        """The work: it waits for more dead events, unless it is to end."""
        return partial(redrive, self, context)


def redrive(step: RedriveStep, context: Context) -> WorkOutcome:
    """Redrive until nothing is left or it is stopped.

    Raises ``NameDoesNotExist``, and ``InvalidArgument`` for a result that cannot be redriven.
    """
    with connect(context.url) as session:
        source = dead_store(session, step.store, step.selector)
        if step.channel:
            _check_target(session, step.channel)
        realm = RealmCommit(session, source, "" if step.dry_run else step.record)
        total = source.store.info().events
        engine = Engine(
            source,
            lambda: _rules(step, source, realm),
            nothing if step.dry_run else realm,
            timer=WallTimer(context.stopping),
            transformation=_transformation(step, context),
            report=partial(_report, step, context, total),
            portion=step.max_events,
        )
        once = step.once or step.dry_run or context.once
        done = engine.run(once=once)
        left = source.store.info().events
    return _outcome(step, done, left)


def _rules(
    step: RedriveStep, source: ChannelOfDead | QueueOfDead, realm: RealmCommit
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
    if name not in session.queues.list():
        session.channels.get(name)


def _transformation(step: RedriveStep, context: Context) -> Transformation | None:
    """The transformation that runs on Spark; None if nothing is changed and Spark is not needed."""
    if not (step.sql or step.python):
        return None
    function = _function(step, context) if step.python else None

    def transform(dead: pa.RecordBatch) -> pa.Table:
        spark = context.spark
        # The frame is local to this driver, and does not use the realm.
        frame = spark.createDataFrame(seen(dead))
        found = _by_sql(step, context, frame) if function is None else function(spark, frame)
        return found.toArrow()

    return transform


def _by_sql(step: RedriveStep, context: Context, frame: DataFrame) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    # A view's name is shared within a session, and other steps may have dead events, too.
    view = f"`{VIEW} of {step.name}`"
    frame.createOrReplaceTempView(view)
    for name in used_in(step.sql, context.sources):
        context.table(name).createOrReplaceTempView(name)
    try:
        query = step.sql.strip().rstrip(";")
        return context.spark.sql(f"WITH {VIEW} AS (SELECT * FROM {view}) SELECT * FROM ({query}\n)")
    except (ParseException, AnalysisException) as error:
        raise InvalidArgument(f"sql: {said(str(error), step.sql)}") from error


def _function(
    step: RedriveStep, context: Context
) -> Callable[[SparkSession, DataFrame], DataFrame]:
    query = step._checked_query()
    assert query is not None, "there is a function"
    function = query.function(context.folder)
    names = parameters_of(function)

    def call(spark: SparkSession, frame: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        known = {VIEW: frame, SESSION: spark}
        given = {name: known[name] if name in known else context.table(name) for name in names}
        found = function(**given)
        if not isinstance(found, DataFrame):
            raise InvalidArgument(
                f"python: it returned {type(found).__name__}; it must return a DataFrame"
            )
        return found

    return call


def _report(step: RedriveStep, context: Context, total: int, done: RedriveCounts) -> None:
    text = done.is_refused or f"{done.redriven:,} redriven, {done.dropped:,} dropped"
    if done.kept and not done.is_refused:
        text += f", {done.kept:,} kept"
    context.report(
        Progress(
            step=step.name,
            rows=done.looked_at,
            rows_out=done.published,
            total=max(total, done.looked_at),
            text=text,
        )
    )


def _outcome(step: RedriveStep, done: Done, left: int) -> WorkOutcome:
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
            "left": left,
            "is_complete": done.is_complete,
            "dry_run": step.dry_run,
        },
    )
