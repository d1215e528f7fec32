"""The step ``latest``: keeps the latest state of each key, from complete events or deltas."""

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
from penstock_spark.pipelines.expressions import tokens_of
from penstock_spark.pipelines.keyed import KeyedTarget, check_keyed
from penstock_spark.pipelines.sources import Source
from penstock_spark.pipelines.states import (
    BY_ID,
    DELETED,
    StateRules,
    column_of,
    expression_of,
    states,
    widen_numbers,
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
    deprecated_formats_of,
    describe_targets,
    table_target,
)
from penstock_spark.session.session import activate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AS_OF: Final = "as_of"
"""Column of the result of a run with ``as_of``, and key of its facts."""
PATHS: Final = f"{RESERVED_PREFIX}_nulls"
"""Column of an archive with the paths of properties that are explicitly null."""
_DAY: Final = "published_day"
"""Column that partitions an archive."""
_EVENT_COLUMNS: Final = (
    "event_id",
    "published",
    "tag",
    "data",
    "ttl",
    "priority",
    "persistent",
    "headers",
)
_DROPPED_COLUMNS: Final = _EVENT_COLUMNS[4:]
"""Columns of an archive that a read of the channel does not have."""
_FILE: Final = "columns.json"
"""File in the step's folder with the columns of the first run."""
_OFFSETS: Final = "query/offsets"
"""Folder in the checkpoint that has files as soon as the query has begun a micro-batch."""
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class LatestStep(StreamStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Computes the latest state of each key: continuously, or once as of an event."""

    kind: ClassVar[str] = "latest"

    source: str
    """Name of a ``[[source]]``: a channel whose events are states or deltas."""
    key: str | tuple[str, ...]
    """Names of the columns of the key."""
    order: str = BY_ID
    """SQL expression that orders events: of two events, the one with the greater value is newer."""
    deltas: bool = False
    """Whether events contain only the changed columns."""
    replaces: str = ""
    """SQL condition that is true for the deltas that are complete states."""
    deleted: str = ""
    """SQL condition that is true for events that delete their key."""
    as_of: int | None = None
    """Value of ``order``. If it is set, the step computes the states after the event with this
    value once, instead of continuously."""
    archive: str = ""
    """Name of a ``[[source]]`` with the events that the channel no longer has."""
    partial: bool = False
    """Whether a step with ``as_of`` accepts that the channel no longer has all events."""
    channel: ChannelTarget | str | None = None
    table: TableTarget | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.keys or not all(self.keys):
            raise InvalidArgument("key is empty; name the column that holds the key")
        for key in ("order", "replaces", "deleted"):
            if key == "order" or getattr(self, key):
                tokens_of(key, getattr(self, key))
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
        """The rules that compute states from events."""
        return StateRules(
            key=self.keys,
            order=self.order,
            deltas=self.deltas,
            replaces=self.replaces,
            deleted=self.deleted,
        )

    def _check_bounded(self) -> None:
        """Raise ``InvalidArgument`` for mistakes in a step with ``as_of``."""
        assert self.as_of is not None, "the caller has checked the step"
        if self.as_of < 0:
            raise InvalidArgument(
                f"as_of is {self.as_of}; it must be the id of an event, 0 or more"
            )
        if self.channel is None and self.table is None:
            raise InvalidArgument(
                "channel, table: none is given; give at least one target of the states"
            )

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        return (self.source, self.archive) if self.archive else (self.source,)

    def writes(self) -> tuple[str, ...]:
        return describe_targets(self.channel, self.table)

    def deprecations(self) -> tuple[str, ...]:
        return deprecated_formats_of(self.table)

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
        names = state_columns(context.checkpoint, dict(widen_numbers(events).dtypes))
        state_rows = states(events.select(*map(column_of, names)), self.rules)
        return Flow(
            frame=state_rows,
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
        """Return the stream of events from which the step computes states."""
        source = context.source(self.source)
        options = self.options_of(source)
        if source.starting == "" and not source.durable:
            # A state depends on all events, so the default start of streams would be wrong.
            options["startingOffsets"] = "earliest"
        return context.table(self.source, **options)

    def options_of(self, source: Source) -> dict[str, str]:
        """Return the read options that the step needs in addition to those of the source."""
        if source.is_table or not self.deltas:
            return {}
        options = {"includeNulls": "true"}
        if source.columns:
            needed = (*self.keys, BY_ID, *source.columns, NULLS)
            options["columns"] = ",".join(dict.fromkeys(needed))
        return options


class AsOf:
    """Computes and stores the states as of an event; the work of a step with ``as_of``."""

    def __init__(self, step: LatestStep, context: Context) -> None:
        self._step = step
        self._context = context

    def __call__(self) -> WorkOutcome:
        step = self._step
        activate(self._context.spark)
        state_rows = self.states().persist()
        try:
            rows = state_rows.count()
            written = self._store(state_rows)
        finally:
            state_rows.unpersist()
        where = " and ".join(step.writes())
        text = f"{rows:,} states as of {step.as_of} to {where}"
        if not written:
            text = f"the states as of {step.as_of} were in {where} already"
        return WorkOutcome(text=text, rows=rows if written else 0, facts={AS_OF: step.as_of})

    def states(self) -> DataFrame:
        """Return one row for each key that existed at the event, with the column ``as_of``."""
        from pyspark.sql import functions as sf

        step = self._step
        events = self._events()
        order = expression_of(events, "order", step.order)
        state_rows = states(events.where(order <= sf.lit(step.as_of)), step.rules)
        if step.deleted:
            state_rows = state_rows.where(f"NOT {DELETED}").drop(DELETED)
        return state_rows.withColumn(AS_OF, sf.lit(step.as_of).cast("bigint"))

    def _events(self) -> DataFrame:
        """Return the events of the source, up to ``as_of`` if possible, and of the archive. Raises
        ``InvalidArgument`` if the channel does not have all events up to ``as_of``."""
        step, context = self._step, self._context
        source = context.source(step.source)
        ending = {}
        if step.order == BY_ID and not source.is_table and isinstance(source.channel, str):
            self._check_stored(choice_of(source.channel).names[0])
            ending = {"endingOffsets": str(int(step.as_of or 0) + 1)}
        events = self._read(step.source, ending)
        if not step.archive:
            return events
        # Events that both the archive and the channel have are read twice, which does not change
        # the states.
        return events.unionByName(self._read(step.archive, {}), allowMissingColumns=True)

    def _read(self, name: str, options: dict[str, str]) -> DataFrame:
        """Return a source as a table with all its events, even if other steps read it as a
        stream."""
        source = self._context.source(name)
        path = self._context.located(source.table) if source.is_table else ""
        if not source.is_table:
            source = msgspec.structs.replace(source, durable="", starting="earliest", bounded=True)
        options = {**self._step.options_of(source), **options}
        return with_null_names(
            source.frame(self._context.spark, self._context.url, path, **options)
        )

    def _check_stored(self, channel: str) -> None:
        """Raise ``InvalidArgument`` if the channel does not have all events up to ``as_of``."""
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
            newest = f"the newest event is {end - 1}" if end else "no event is published yet"
            raise InvalidArgument(f"as_of is {as_of}, but in channel {channel} {newest}")
        if first > 0 and not self._step.archive and not self._step.partial:
            raise InvalidArgument(
                f"as_of is {as_of}, but channel {channel} begins at event {first}; name an "
                f"archive with the earlier events, or accept missing events with partial = true"
            )

    def _store(self, state_rows: DataFrame) -> bool:
        """Store the states in the targets. Return False if the table already had them."""
        step, context = self._step, self._context
        # Each as_of is a separate writer, because a later run may compute an earlier as_of.
        batch = MicroBatch(f"{context.pipeline}/{step.name}/as-of/{step.as_of}", 0)
        written = True
        if (table := _located(table_target(step.table), context)) is not None:
            from penstock_spark.tables import Table

            opened = Table.open(table.path, table.table_format, table.partition_by)
            written = opened.append(state_rows, batch.app, batch.number)
        if (channel := channel_target(step.channel)) is not None:
            publish(state_rows, channel, context.url, batch=batch)
        return written


def _reads_several(source: Source) -> bool:
    """Return whether the source may have several channels."""
    return not isinstance(source.channel, str) or not choice_of(source.channel).is_one


def _located(table: TableTarget | None, context: Context) -> TableTarget | None:
    """Return the target with an absolute path."""
    if table is None:
        return None
    return msgspec.structs.replace(table, path=context.located(table.path))


# --- rows of an archive, with the columns that a read of the channel has ----------------------
#
# An archive stores explicit nulls as the channel does: as paths of properties, in a separate
# column. Merging needs them in the form of a read with ``includeNulls``.


def with_null_names(archive: DataFrame) -> DataFrame:
    """Return an archive with the column ``nulls``: for each event, the names of the columns that
    the event sets to null. Other tables are returned unchanged."""
    from pyspark.sql import functions as sf

    has_paths = PATHS in archive.columns  # only if some event has explicit nulls
    if not has_paths and not {_DAY, *_EVENT_COLUMNS}.issubset(archive.columns):
        return archive
    dropped = [name for name in archive.columns if name.startswith(RESERVED_PREFIX)]
    dropped += [name for name in (_DAY, *_DROPPED_COLUMNS) if name in archive.columns]
    names = [name for name in archive.columns if name not in (*dropped, *_EVENT_COLUMNS)]
    by_property: dict[str, list[str]] = {}
    for name in names:
        by_property.setdefault(_property(name), []).append(name)
    null_names = [
        _null_name(name, by_property[_property(name)], has_paths=has_paths) for name in names
    ]
    nulls = sf.array_compact(sf.array(*null_names)) if null_names else sf.lit(None)
    return archive.withColumn(NULLS, nulls.cast("array<string>")).drop(*dropped)


def _property(column: str) -> str:
    """Return the property of a column; columns for its second type have a suffix."""
    return column.removeprefix("properties.").partition("::")[0]


def _null_name(name: str, columns: list[str], *, has_paths: bool) -> Column:
    """Return an expression: the name of the column if the event sets it to null, otherwise null.

    An event sets a column to null explicitly, or by a value of another type, which is in another of
    the property's ``columns``.
    """
    from pyspark.sql import functions as sf

    path = key_path("", _property(name))
    is_null_set = sf.lit(col=False)
    if has_paths:
        is_null_set = sf.coalesce(sf.array_contains(column_of(PATHS), path), is_null_set)
    for column in columns:
        if column != name:
            is_null_set |= column_of(column).isNotNull()
    return sf.when(column_of(name).isNull() & is_null_set, sf.lit(name))


# --- the columns of a query's state, which never change after the first run ---------------------
#
# If the columns change, Spark refuses the state with an error about its files. A step takes its
# columns from its source, so it stores those of the first run, and names the differences itself.


def state_columns(checkpoint: str, columns: Mapping[str, str]) -> list[str]:
    """Return the names of ``columns`` in the order of the step's first run.

    The step's folder stores the columns and their types, given in ``columns`` by name. They are
    final when the query has begun its first micro-batch. Raises ``InvalidArgument`` if the columns
    have changed since; the text names them and the remedies.
    """
    stored = _read(checkpoint)
    if stored is None:
        _write(checkpoint, columns)
        return list(columns)
    new_columns = [name for name in columns if name not in stored]
    missing_columns = [name for name in stored if name not in columns]
    changed_columns = [name for name in stored if name in columns and stored[name] != columns[name]]
    if not (new_columns or missing_columns or changed_columns):
        return list(stored)
    differences = [
        f"{text} {', '.join(names)}"
        for text, names in (
            ("has new columns", new_columns),
            ("has lost", missing_columns),
            ("has other types of", changed_columns),
        )
        if names
    ]
    remaining = [name for name in columns if name in stored]
    raise InvalidArgument(
        f"source {' and '.join(differences)}, but the step's stored state has the columns of its "
        "first run: name these in the source "
        f"(columns = {msgspec.json.encode(remaining).decode()}), or delete "
        f"{checkpoint} to start over with the first event"
    )


def _read(checkpoint: str) -> dict[str, str] | None:
    """Return the stored columns with their types; None if the query has not begun a micro-batch."""
    files, path = _place(checkpoint)
    begun = fs.FileSelector(f"{path.removesuffix(_FILE)}{_OFFSETS}", allow_not_found=True)
    is_there = files.get_file_info(path).type != fs.FileType.NotFound
    if not (is_there and files.get_file_info(begun)):
        return None
    with files.open_input_stream(path) as stream:
        return msgspec.json.decode(stream.read(), type=dict[str, str])


def _write(checkpoint: str, columns: Mapping[str, str]) -> None:
    """Store the columns atomically."""
    files, path = _place(checkpoint)
    temporary = f"{path}.tmp"
    with files.open_output_stream(temporary) as stream:
        stream.write(msgspec.json.encode(columns))
    files.move(temporary, path)


def _place(checkpoint: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and the path of the file with the columns."""
    if _URI.match(checkpoint):
        files, path = fs.FileSystem.from_uri(checkpoint)
    else:
        files, path = fs.LocalFileSystem(), checkpoint
    return files, f"{path}/{_FILE}"
