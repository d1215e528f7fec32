"""The step ``roll-up``: aggregates the events of windows of time, into final rows or running
values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import msgspec

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.options import nearest
from penstock_spark.pipelines.expressions import called_functions, explaining_sql, tokens_of
from penstock_spark.pipelines.keyed import KeyedTarget, check_keyed
from penstock_spark.pipelines.sources import Source
from penstock_spark.pipelines.states import widen_numbers
from penstock_spark.pipelines.step import (
    ChannelTarget,
    Context,
    Flow,
    StreamStep,
    TableTarget,
    channel_target,
    deprecated_formats_of,
    describe_targets,
    table_target,
)
from penstock_spark.pipelines.windows import close_windows, duration

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

START: Final = "window_start"
"""Column of the result with the start of a window."""
END: Final = "window_end"
"""Column of the result with the end of a window."""

AGGREGATES: Final = frozenset(
    [
        "any",
        "bool_and",
        "bool_or",
        "every",
        "some",
        "count",
        "count_if",
        "sum",
        "try_sum",
        "avg",
        "try_avg",
        "mean",
        "min",
        "max",
        "min_by",
        "max_by",
        "mode",
        "median",
        "percentile",
        "percentile_approx",
        "approx_percentile",
        "approx_count_distinct",
        "collect_list",
        "collect_set",
        "listagg",
        "string_agg",
        "std",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "variance",
        "var_pop",
        "var_samp",
        "corr",
        "covar_pop",
        "covar_samp",
        "kurtosis",
        "skewness",
        "regr_slope",
        "bit_and",
        "bit_or",
        "bit_xor",
    ]
)
"""Aggregate functions of Spark. An expression in ``aggregates`` must contain one of them."""

_UNSUITABLE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("first", "first_value", "any_value"),
        "which row is first differs from run to run: min_by(value, event_id) is the first by id",
    ),
    **dict.fromkeys(
        ("last", "last_value"),
        "which row is last differs from run to run: max_by(value, event_id) is the last by id",
    ),
    "distinct": "a stream counts distinct values by approx_count_distinct(value), or exactly, "
    "with all of them kept, by size(collect_set(value))",
    "over": "a window function ranks rows that a stream does not have yet",
    **dict.fromkeys(
        ("rand", "randn", "random", "uuid", "shuffle"),
        "a repeated micro-batch must produce the same rows",
    ),
}


class RollUpStep(StreamStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Aggregates the events of each window of time and group."""

    kind: ClassVar[str] = "roll-up"

    source: str
    """Name of a ``[[source]]`` that is a stream."""
    aggregates: dict[str, str]
    """SQL aggregates by name of the result column, such as ``{ flights = "count(*)" }``."""
    time: str = "published"
    """SQL expression for the time of an event, usually a column."""
    window: str = ""
    """Length of the windows, such as ``"1 hour"``; empty for windows that end with a gap."""
    slide: str = ""
    """Time between the starts of two windows; empty means the length of the windows."""
    gap: str = ""
    """Time without an event after which a window ends; replaces ``window``."""
    delay: str = ""
    """Longest delay of an event behind the newest one. Later events are dropped. Empty means the
    source's watermark."""
    group_by: tuple[str, ...] | dict[str, str] = ()
    """Names of columns, or SQL expressions by name of the result column."""
    where: str = ""
    """SQL condition on the events to aggregate; empty means all events."""
    output: Literal["append", "update"] = "append"
    """With ``append``, the step writes the final row of a window when the window closes; with
    ``update``, it writes a row at each change."""
    key: str = "key"
    """Name of the text column that identifies window and group if ``output`` is ``update``."""
    at_end: Literal["keep", "close"] = "keep"
    """Whether windows that are open at the end of a run stay open for the next run (``keep``) or
    are closed, so that their final rows are written."""
    channel: ChannelTarget | str | None = None
    table: TableTarget | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_windows()
        self._check_expressions()
        self._check_names()
        if self.output == "update":
            check_keyed(self.channel, self.table, "running values replace each other")
        elif self.channel is None and self.table is None:
            raise InvalidArgument(
                "channel, table: none is given; give at least one target of the rows"
            )

    def _check_windows(self) -> None:
        if bool(self.window) == bool(self.gap):
            count_text = "both are given" if self.gap else "none is given"
            raise InvalidArgument(f"window or gap: {count_text}; give exactly one")
        length = duration("window" if self.window else "gap", self.window or self.gap)
        if self.slide and (not self.window or duration("slide", self.slide) > length):
            raise InvalidArgument(
                f"slide is {self.slide!r}; it applies to windows and may be at most their length"
            )
        if self.gap and not self.groups:
            raise InvalidArgument("gap needs group_by, because Spark finds gaps only within groups")
        if self.delay and self.delay.split()[0] != "0":
            duration("delay", self.delay)
        if self.output == "update" and (self.gap or self.at_end == "close"):
            option = "gap" if self.gap else "at_end = 'close'"
            raise InvalidArgument(f'{option} needs output = "append"; running values never end')

    def _check_expressions(self) -> None:
        if not self.aggregates:
            raise InvalidArgument('aggregates is empty; give one such as { events = "count(*)" }')
        for name, text in self.aggregates.items():
            check_aggregate(f"aggregates.{name}", text)
        for name, text in self.groups.items():
            _check_single(f"group_by.{name}", text)
        for key in ("time", "where"):
            if text := getattr(self, key):
                _check_single(key, text)

    def _check_names(self) -> None:
        reserved = {START, END, *((self.key,) if self.output == "update" else ())}
        if self.channel is not None:
            reserved |= {"event_id", "published"}
        seen: set[str] = set()
        for key, names in (("group_by", self.groups), ("aggregates", self.aggregates)):
            for name in names:
                if not name or name in reserved or name.lower() in seen:
                    raise InvalidArgument(
                        f"{key} has {name!r}, which is a column of the result already; choose "
                        f"another name"
                    )
                seen.add(name.lower())

    @property
    def groups(self) -> dict[str, str]:
        """The SQL expression of each grouping column, by name."""
        if isinstance(self.group_by, dict):
            return self.group_by
        return {name: "`" + name.replace("`", "``") + "`" for name in self.group_by}

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        return (self.source,)

    def writes(self) -> tuple[str, ...]:
        return describe_targets(self.channel, self.table)

    def deprecations(self) -> tuple[str, ...]:
        return deprecated_formats_of(self.table)

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        from penstock_spark.pipelines.definition import known_source

        source = known_source(sources, self.source)
        if not source.is_stream:
            raise InvalidArgument(
                f"source is {self.source!r}, which is not a stream; windows close only in streams"
            )
        watermark = source.watermark
        if watermark is None and not self.delay:
            raise InvalidArgument(
                "delay is missing; it sets how late an event may arrive, for example "
                '"10 minutes", and so when a window closes'
            )
        if watermark is not None and self.delay:
            raise InvalidArgument(
                f"delay is {self.delay!r}, but source {self.source} has a watermark; keep only one"
            )
        if watermark is not None and watermark.column != self.time:
            raise InvalidArgument(
                f"time is {self.time!r}, but the watermark of source {self.source} is of "
                f"{watermark.column!r}; they must be the same"
            )

    def plan(self, context: Context) -> Flow:
        frame = aggregate_windows(context.table(self.source), self)
        channel, table = channel_target(self.channel), table_target(self.table)
        if self.output == "append":
            return Flow(
                frame=frame,
                channel=channel,
                table=table,
                trigger=self.trigger,
                poison=self.poison,
                at_end=partial(_close, context) if self.at_end == "close" else None,
            )
        if table is not None:
            table = msgspec.structs.replace(table, path=context.located(table.path))
        return Flow(
            frame=frame,
            write=KeyedTarget(
                key=(self.key,),
                url=context.url,
                channel=channel,
                table=table,
                folder=context.checkpoint,
            ),
            output_mode="update",
            trigger=self.trigger,
            poison=self.poison,
        )


def _close(context: Context) -> bool:
    return close_windows(context.spark, f"{context.checkpoint}/query")


def check_aggregate(key: str, text: str) -> None:
    """Raise ``InvalidArgument`` if the tokens of the expression show that it cannot aggregate a
    window of a stream."""
    words = tokens_of(key, text)
    function_names = called_functions(words)
    for word in (*function_names, *(word for word in words if word in ("distinct", "over"))):
        if word in _UNSUITABLE:
            raise InvalidArgument(f"{key} is {text!r}; {_UNSUITABLE[word]}")
    if not AGGREGATES & set(function_names):
        suggestions = [nearest(word, tuple(sorted(AGGREGATES))) for word in function_names[:1]]
        hint = (
            suggestions[0]
            if suggestions and suggestions[0].startswith("did")
            else "for example sum(value)"
        )
        raise InvalidArgument(f"{key} is {text!r}, which is not an aggregate: {hint}")


def _check_single(key: str, text: str) -> None:
    """Raise ``InvalidArgument`` if the expression has an aggregate and thus needs several
    events."""
    aggregates = AGGREGATES & set(called_functions(tokens_of(key, text)))
    if aggregates:
        raise InvalidArgument(
            f"{key} is {text!r}; {min(aggregates)} summarises many events, but this expression is "
            f"about one"
        )


_TIME: Final = "__time"
_WINDOW: Final = "__window"


def aggregate_windows(events: DataFrame, step: RollUpStep) -> DataFrame:
    """Return a table with one row for each window and group.

    Its columns are ``window_start``, ``window_end``, the groups, the aggregates and, with output
    ``update``, the key. Raises ``InvalidArgument`` if Spark refuses an expression; the text names
    the expression.
    """
    from pyspark.sql import functions as sf

    timed_events, time = _with_time(widen_numbers(events), step)
    if step.delay:
        timed_events = timed_events.withWatermark(time, step.delay)
    if step.where:
        with explaining_sql("where", step.where):
            timed_events = timed_events.where(step.where)
    if step.gap:
        window = sf.session_window(time, step.gap)
    else:
        window = sf.window(time, step.window, step.slide or None)
    groups = [
        _checked_column(timed_events, f"group_by.{name}", name, text=text)
        for name, text in step.groups.items()
    ]
    grouped = timed_events.groupBy(window.alias(_WINDOW), *groups)
    aggregates = []
    for name, text in step.aggregates.items():
        with explaining_sql(f"aggregates.{name}", text):
            aggregates.append(sf.expr(text).alias(name))
            grouped.agg(aggregates[-1]).schema  # noqa: B018 - makes Spark check it now
    rows = grouped.agg(*aggregates).select(
        sf.col(f"{_WINDOW}.start").alias(START),
        sf.col(f"{_WINDOW}.end").alias(END),
        *_columns((*step.groups, *step.aggregates)),
    )
    return rows.withColumn(step.key, _key(step.groups)) if step.output == "update" else rows


def _with_time(events: DataFrame, step: RollUpStep) -> tuple[DataFrame, str]:
    """Return the events and the name of their time column, which is added if ``time`` is an
    expression. Raises ``InvalidArgument`` if the time is not a TIMESTAMP."""
    time_column = _checked_column(events, "time", _TIME, text=step.time)
    type_name = events.select(time_column).schema[0].dataType.typeName()
    if type_name != "timestamp":
        raise InvalidArgument(
            f"time is {step.time!r}, of type {type_name}; it must be a TIMESTAMP, for example "
            f'time = "CAST({step.time} AS TIMESTAMP)"'
        )
    if step.time in events.columns:
        return events, step.time
    return events.withColumn(_TIME, time_column), _TIME


def _checked_column(events: DataFrame, key: str, name: str, text: str) -> Column:
    """Return the SQL expression ``text`` as column ``name``. Raises ``InvalidArgument``, with a
    text that begins with ``key``, if Spark refuses it."""
    from pyspark.sql import functions as sf

    with explaining_sql(key, text):
        column = sf.expr(text).alias(name)
        events.select(column).schema  # noqa: B018 - makes Spark check it now
    return column


def _columns(names: Iterable[str]) -> list[Column]:
    from pyspark.sql import functions as sf

    return [sf.col("`" + name.replace("`", "``") + "`") for name in names]


def _key(groups: Sequence[str] | Mapping[str, str]) -> Column:
    """Return the column that identifies window and group: the start in UTC and the values of the
    groups, such as ``2013-01-01T06:00:00.000Z/EWR/UA``. A null is written ``\\N``."""
    from pyspark.sql import functions as sf

    start = sf.to_utc_timestamp(START, sf.current_timezone())
    key_parts = [sf.date_format(start, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")]
    for column in _columns(groups):
        # Slashes in values are escaped, so that different groups always have different keys.
        text = sf.regexp_replace(column.cast("string"), r"([\\/])", r"\\$1")
        key_parts.append(sf.coalesce(text, sf.lit(r"\N")))
    return sf.concat_ws("/", *key_parts)
