"""The step that keeps the latest of each key: of events, or of what deltas add up to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from pyarrow import fs

from penstock_core.columns.schema.layout import RESERVED_PREFIX, key_path
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.columns.nulls import NULLS
from penstock_spark.options import nearest
from penstock_spark.pipelines.batch_target import publish
from penstock_spark.pipelines.expressions import words_of
from penstock_spark.pipelines.keyed import KeyedTarget, check_keyed
from penstock_spark.pipelines.sources import Source
from penstock_spark.pipelines.states import (
    BY_ID,
    DELETED,
    StateRules,
    column_of,
    expression_of,
    states,
    widened,
)
from penstock_spark.pipelines.step import (
    ChannelTarget,
    Context,
    Flow,
    MicroBatch,
    StreamStep,
    TableTarget,
    Work,
    WorkOutcome,
    channel_target,
    named_targets,
    table_target,
)
from penstock_spark.session.session import activate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AS_OF: Final = "as_of"
PATHS: Final = f"{RESERVED_PREFIX}_nulls"
_DAY: Final = "published_day"
_PLAIN: Final = ("event_id", "published", "tag", "data", "ttl", "priority", "persistent", "headers")
_ON_REQUEST: Final = _PLAIN[4:]
_FILE: Final = "columns.json"
_BEGUN: Final = "query/offsets"
"""Not empty when the query has begun with a micro-batch."""
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class LatestStep(StreamStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of each key, kept up to date, or as it was as of an event."""

    kind: ClassVar[str] = "latest"

    source: str
    """Name of a ``[[source]]``: a channel whose events are states or deltas."""
    key: str | tuple[str, ...]
    """The columns that say whose state it is."""
    order: str = BY_ID
    """SQL: which of two events of a key is newer."""
    deltas: bool = False
    """Events have only what has changed."""
    replaces: str = ""
    """SQL condition: which events are all there is, among deltas."""
    deleted: str = ""
    """SQL condition: which events take their key away."""
    as_of: int | None = None
    """Once, the states as this event (value of ``order``) left them, instead of for ever."""
    archive: str = ""
    """Name of a ``[[source]]`` with the events the channel does not have any more."""
    partial: bool = False
    """With ``as_of``: do without the events the channel does not have any more."""
    channel: ChannelTarget | str | None = None
    table: TableTarget | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.keys or not all(self.keys):
            raise InvalidArgument("key is empty; name the column that holds the key")
        for key in ("order", "replaces", "deleted"):
            if key == "order" or getattr(self, key):
                words_of(key, getattr(self, key))
        if self.replaces and not self.deltas:
            raise InvalidArgument(
                "replaces applies to deltas; without deltas = true each event replaces the state"
            )
        if self.as_of is None and (self.archive or self.partial):
            key = "archive" if self.archive else "partial"
            raise InvalidArgument(f"{key} needs as_of; a stream reads events as they arrive")
        if self.as_of is None:
            check_keyed(self.channel, self.table, "states replace each other")
        else:
            self._check_bounded()

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return (self.key,) if isinstance(self.key, str) else self.key

    @property
    def rules(self) -> StateRules:
        """The rules by which events become states."""
        return StateRules(
            key=self.keys,
            order=self.order,
            deltas=self.deltas,
            replaces=self.replaces,
            deleted=self.deleted,
        )

    def _check_bounded(self) -> None:
        assert self.as_of is not None, "it is asked for"
        if self.as_of < 0:
            raise InvalidArgument(f"as_of is {self.as_of}; it is the id of an event, 0 or more")
        if self.channel is None and self.table is None:
            raise InvalidArgument("channel, table: none is given; give where the states go")

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        return (self.source, self.archive) if self.archive else (self.source,)

    def writes(self) -> tuple[str, ...]:
        return named_targets(self.channel, self.table)

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        from penstock_spark.pipelines.definition import known_source

        source = known_source(sources, self.source)
        if self.archive and self.archive not in sources:
            hint = nearest(self.archive, tuple(sources))
            raise InvalidArgument(f"archive is {self.archive!r}, which is not a source: {hint}")
        if self.as_of is None and not source.is_stream:
            raise InvalidArgument(
                f"source is {self.source!r}, which is not a stream; give as_of, or a channel as "
                f"source"
            )
        if _reads_several(source) and self.order == BY_ID and "channel" not in self.keys:
            raise InvalidArgument(
                "order is 'event_id', and ids of several channels cannot be compared; give an "
                "order such as 'published', or make channel part of the key"
            )

    def plan(self, context: Context) -> Flow | Work:
        if self.as_of is not None:
            return AsOf(self, context)
        events = self._events(context)
        names = remembered(context.checkpoint, dict(widened(events).dtypes))
        found = states(events.select(*map(column_of, names)), self.rules)
        return Flow(
            frame=found,
            write=KeyedTarget(
                key=self.keys,
                url=context.url,
                channel=channel_target(self.channel),
                table=_located(table_target(self.table), context),
                folder=context.checkpoint,
            ),
            output_mode="update",
            trigger=self.trigger,
            poison=self.poison,
        )

    def _events(self, context: Context) -> DataFrame:
        source = context.source(self.source)
        options = self.options_of(source)
        if source.starting == "" and not source.durable:
            # A state is made from all events.
            options["startingOffsets"] = "earliest"
        return context.table(self.source, **options)

    def options_of(self, source: Source) -> dict[str, str]:
        """Options the reading needs beside those of the definition."""
        if source.is_table or not self.deltas:
            return {}
        options = {"includeNulls": "true"}
        if source.columns:
            needed = (*self.keys, BY_ID, *source.columns, NULLS)
            options["columns"] = ",".join(dict.fromkeys(needed))
        return options


class AsOf:
    """The work of finding and storing the states as of an event."""

    def __init__(self, step: LatestStep, context: Context) -> None:
        self._step = step
        self._context = context

    def __call__(self) -> WorkOutcome:
        step = self._step
        activate(self._context.spark)
        found = self.states().persist()
        try:
            rows = found.count()
            written = self._stored(found)
        finally:
            found.unpersist()
        where = " and ".join(step.writes())
        text = f"{rows:,} states as of {step.as_of} to {where}"
        if not written:
            text = f"the states as of {step.as_of} were in {where} already"
        return WorkOutcome(text=text, rows=rows if written else 0, facts={AS_OF: step.as_of})

    def states(self) -> DataFrame:
        """One row for each key there was, with the column ``as_of``."""
        from pyspark.sql import functions as sf

        step = self._step
        events = self._events()
        order = expression_of(events, "order", step.order)
        found = states(events.where(order <= sf.lit(step.as_of)), step.rules)
        if step.deleted:
            found = found.where(f"NOT {DELETED}").drop(DELETED)
        return found.withColumn(AS_OF, sf.lit(step.as_of).cast("bigint"))

    def _events(self) -> DataFrame:
        step, context = self._step, self._context
        source = context.source(step.source)
        ending = {}
        if step.order == BY_ID and not source.is_table and isinstance(source.channel, str):
            self._check_stored(choice_of(source.channel).names[0])
            ending = {"endingOffsets": str(int(step.as_of or 0) + 1)}
        events = self._read(step.source, ending)
        if not step.archive:
            return events
        # Events that both have come twice, which changes nothing.
        return events.unionByName(self._read(step.archive, {}), allowMissingColumns=True)

    def _read(self, name: str, options: dict[str, str]) -> DataFrame:
        """A source as a whole, also where it is a stream for others."""
        source = self._context.source(name)
        path = self._context.located(source.table) if source.is_table else ""
        if not source.is_table:
            source = msgspec.structs.replace(source, durable="", starting="earliest", bounded=True)
        options = {**self._step.options_of(source), **options}
        return as_read(source.frame(self._context.spark, self._context.url, path, **options))

    def _check_stored(self, channel: str) -> None:
        """Raises ``InvalidArgument`` where the channel has not, or no longer, all that counts."""
        from penstock.client.sync.sync import connect

        with connect(self._context.url) as session:
            info = session.channels.get(channel).info()
        end = info.last_event_id + 1
        first = end if info.first_event_id is None else info.first_event_id
        as_of = self._step.as_of or 0
        if info.definition.engine == "merge":
            raise InvalidArgument(
                f"as_of is {as_of}, but merge channel {channel} has only the newest states; read "
                f"a channel that a join from it feeds"
            )
        if as_of >= end:
            newest = f"the newest event is {end - 1}" if end else "there is no event yet"
            raise InvalidArgument(f"as_of is {as_of}, but in channel {channel} {newest}")
        if first > 0 and not self._step.archive and not self._step.partial:
            raise InvalidArgument(
                f"as_of is {as_of}, but channel {channel} begins at event {first}; name an "
                f"archive with the earlier events, or accept what there is with partial = true"
            )

    def _stored(self, found: DataFrame) -> bool:
        """Whether it was not there before."""
        step, context = self._step, self._context
        # States after an earlier event may be asked for later, so each has its own number 0.
        batch = MicroBatch(f"{context.pipeline}/{step.name}/as-of/{step.as_of}", 0)
        written = True
        if (table := _located(table_target(step.table), context)) is not None:
            from penstock_spark.tables import Table

            opened = Table.open(table.path, table.format, table.partition_by)
            written = opened.append(found, batch.app, batch.number)
        if (channel := channel_target(step.channel)) is not None:
            publish(found, channel, context.url, batch=batch)
        return written


def _reads_several(source: Source) -> bool:
    return not isinstance(source.channel, str) or not choice_of(source.channel).is_one


def _located(table: TableTarget | None, context: Context) -> TableTarget | None:
    if table is None:
        return None
    return msgspec.structs.replace(table, path=context.located(table.path))


# --- rows of an archive, with the columns that a read of the channel has ----------------------
#
# An archive keeps which nulls are meant as the channel stores it: as paths of properties, beside
# the columns. What is merged needs them as a read with ``includeNulls`` gives them.


def as_read(archive: DataFrame) -> DataFrame:
    """A table that no archive step has written stays as it is."""
    from pyspark.sql import functions as sf

    has_paths = PATHS in archive.columns  # once an event has set something to null
    if not has_paths and not {_DAY, *_PLAIN}.issubset(archive.columns):
        return archive
    left_out = [name for name in archive.columns if name.startswith(RESERVED_PREFIX)]
    left_out += [name for name in (_DAY, *_ON_REQUEST) if name in archive.columns]
    names = [name for name in archive.columns if name not in (*left_out, *_PLAIN)]
    by_property: dict[str, list[str]] = {}
    for name in names:
        by_property.setdefault(_property(name), []).append(name)
    said = [_said(name, by_property[_property(name)], has_paths=has_paths) for name in names]
    nulls = sf.array_compact(sf.array(*said)) if said else sf.lit(None)
    return archive.withColumn(NULLS, nulls.cast("array<string>")).drop(*left_out)


def _property(column: str) -> str:
    return column.removeprefix("properties.").partition("::")[0]


def _said(name: str, columns: list[str], *, has_paths: bool) -> Column:
    """The name of a column where an event sets it to null: that, or another type, is its value."""
    from pyspark.sql import functions as sf

    path = key_path("", _property(name))
    sets = sf.lit(col=False)
    if has_paths:
        sets = sf.coalesce(sf.array_contains(column_of(PATHS), path), sets)
    for other in columns:
        if other != name:
            sets |= column_of(other).isNotNull()
    return sf.when(column_of(name).isNull() & sets, sf.lit(name))


# --- the columns of a query's state, which are those of its first run for ever -----------------
#
# Spark refuses a state of other columns with words about its own files. So a step whose columns
# follow those of its source writes them down, and says what is new.


def remembered(checkpoint: str, columns: Mapping[str, str]) -> list[str]:
    """The columns in the order of the first run, which is kept in the folder of a step, with
    their types, once its query has begun.

    Raises ``InvalidArgument`` naming the columns that are others now, and what can be done.
    """
    known = _read(checkpoint)
    if known is None:
        _write(checkpoint, columns)
        return list(columns)
    new = [name for name in columns if name not in known]
    gone = [name for name in known if name not in columns]
    other = [name for name in known if name in columns and known[name] != columns[name]]
    if not (new or gone or other):
        return list(known)
    found = [
        f"{text} {', '.join(names)}"
        for text, names in (
            ("has new columns", new),
            ("has lost", gone),
            ("has other types of", other),
        )
        if names
    ]
    others = [name for name in columns if name in known]
    raise InvalidArgument(
        f"source {' and '.join(found)}, but the step's stored state has the columns of its first "
        f"run: name these in the source (columns = {msgspec.json.encode(others).decode()}), or "
        f"delete {checkpoint} to start over with the first event"
    )


def _read(checkpoint: str) -> dict[str, str] | None:
    files, path = _place(checkpoint)
    begun = fs.FileSelector(f"{path.removesuffix(_FILE)}{_BEGUN}", allow_not_found=True)
    is_there = files.get_file_info(path).type != fs.FileType.NotFound
    if not (is_there and files.get_file_info(begun)):
        return None
    with files.open_input_stream(path) as stream:
        return msgspec.json.decode(stream.read(), type=dict[str, str])


def _write(checkpoint: str, columns: Mapping[str, str]) -> None:
    files, path = _place(checkpoint)
    aside = f"{path}.tmp"
    with files.open_output_stream(aside) as stream:
        stream.write(msgspec.json.encode(columns))
    files.move(aside, path)


def _place(checkpoint: str) -> tuple[fs.FileSystem, str]:
    if _URI.match(checkpoint):
        files, path = fs.FileSystem.from_uri(checkpoint)
    else:
        files, path = fs.LocalFileSystem(), checkpoint
    return files, f"{path}/{_FILE}"
