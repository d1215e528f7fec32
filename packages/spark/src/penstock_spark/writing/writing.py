"""Writes a Spark table to channels: each row once, even if Spark repeats the write.

Tasks stage their rows on the realm, where readers do not see them. The driver then publishes the
staged rows of all channels in one step, under the id of the query and the number of the
micro-batch. Spark repeats a micro-batch if the outcome of the last attempt is unknown. The realm
recognises the repeated commit and returns the result of the first.

Staged rows are in the realm's memory, so a restart of the realm loses them. In a stream, tasks with
few rows also send the rows to the driver with their commit messages, so that the driver can stage
them again. A query of small micro-batches thus continues after a restart of the realm.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.client.connection.urls import safe
from penstock.client.sync.sync import Channel, Session
from penstock_core.channel.producers import LASTING_PREFIX
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    InvalidEvent,
    NameDoesNotExist,
    NoSuchStage,
    PenstockError,
)
from penstock_spark.columns.rows import ChannelRows, as_table, deltas_in, events_of, route_rows
from penstock_spark.connections import ask_realm
from penstock_spark.errors.errors import converts_errors
from penstock_spark.options import SinkOptions
from penstock_spark.writing.batch_content import content_of, explaining

PORTION_ROWS_MAX: Final = 65_536
"""Largest number of rows that are staged together."""
PORTION_BYTES_MAX: Final = 6 << 20
"""Approximate limit for the size of rows that are staged together, in bytes, so that they fit into
one request."""
ROUTED_TIMES: Final = 8
"""Factor for the size of portions with rows for several channels, because each channel gets a
separate request."""

CARRIED_BYTES_MAX: Final = 256 << 10
"""Largest size of the rows that a task of a stream sends to the driver, in bytes. Spark transfers
task results above a megabyte in another way, and accepts a gigabyte of all tasks together."""

_QUERY: Final = "sql.streaming.queryId"
"""Spark's local property with the id of the query that a task belongs to."""
_BATCH: Final = "streaming.sql.batchId"
"""Spark's local property with the number of the micro-batch that a task belongs to."""


class StagingLimits(NamedTuple):
    """Limits for the rows that one task stages and sends to the driver."""

    portion_rows_max: int = PORTION_ROWS_MAX
    """Largest number of rows that are staged together."""
    carried_bytes_max: int = CARRIED_BYTES_MAX
    """Largest size of the rows that are sent to the driver, in bytes."""


_LIMITS: Final = StagingLimits()


class StagedPart(NamedTuple):
    """The rows that a task has staged for one channel."""

    channel: str
    number: int
    """Id of the channel. A recreated channel has another id."""
    stages: tuple[str, ...]
    """Names of the stages with the rows, in the order of the rows."""
    rows: tuple[bytes, ...] | None = None
    """The rows of the stages, each batch as an Arrow stream. None if they are too large for the
    driver, or in a batch write."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The commit message of a task: the rows that it has staged."""

    partition: int
    """Number of the task's partition, which decides the order of the rows."""
    query: str
    """Id of the streaming query; empty in a batch write."""
    realm: str
    """Identity of the realm that has the stages."""
    parts: tuple[StagedPart, ...]
    """The staged rows of each channel."""
    group: str = ""
    """Name of the group of the stages."""


@converts_errors
class ChannelWriter(DataSourceArrowWriter):
    """Spark's writer of a batch: publishes a table in one step. A repetition with equal
    ``txnAppId`` and ``txnVersion`` publishes nothing."""

    def __init__(self, options: SinkOptions) -> None:
        if (options.version is None) != (not options.app):
            missing = "txnVersion" if options.app else "txnAppId"
            raise InvalidArgument(
                f"txnAppId and txnVersion must be given together; {missing} is missing"
            )
        self._options = options
        self._work = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage_rows(self._options, iterator, self._work)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        app, version = self._options.app, self._options.version
        if version is None:
            # A unique name: without txnVersion, a repeated write is a new one.
            app, version = f"once:{uuid.uuid4().hex}", 0
        else:
            app = f"{LASTING_PREFIX}{app}"
        with explaining(f"query {app.removeprefix(LASTING_PREFIX)}", version):
            publish(self._options, messages, app, sequence=version, content=self._options.content)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        forget(self._options, messages)


@converts_errors
class ChannelStreamWriter(DataSourceStreamArrowWriter):
    """Spark's writer of a stream: publishes each micro-batch once, in one step."""

    def __init__(self, options: SinkOptions, limits: StagingLimits = _LIMITS) -> None:
        if options.version is not None:
            raise InvalidArgument(
                "txnVersion is only for batch writes; a stream counts its micro-batches itself"
            )
        self._options = options
        self._limits = limits

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage_rows(self._options, iterator, limits=self._limits)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        queries = {message.query for message in _staged_messages(messages)}
        app = self._options.app or "".join(queries)
        content = content_of(self._options.checkpoint, batchId)
        with explaining(f"query {app}", batchId):
            publish(
                self._options, messages, f"{LASTING_PREFIX}{app}", sequence=batchId, content=content
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        forget(self._options, messages)


# --- in a task ------------------------------------------------------------------------------


def stage_rows(
    options: SinkOptions,
    batches: Iterator[pa.RecordBatch],
    work: str = "",
    limits: StagingLimits = _LIMITS,
) -> Staged:
    """Stage the rows of a task on the realm. Runs in the task.

    ``work`` identifies a batch write. It is empty in a stream, whose stages belong to a group named
    after the micro-batch, so that all attempts use one group.
    """
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    partition, query = context.partitionId(), context.getLocalProperty(_QUERY) or ""
    group = work or f"{query}.{context.getLocalProperty(_BATCH)}"
    task = _Task(options, group, limits.carried_bytes_max, carries=not work)
    try:
        for first_row, table in _portions(batches, options, limits.portion_rows_max):
            for rows in route_rows(table, first_row, partition, options=options):
                task.stage(rows)
    except BaseException:
        # `SystemExit` and `KeyboardInterrupt`, which are not `Exception`s, also end a task.
        _drop(options, task.stages)
        raise
    realm = ask_realm(options.where.realm, lambda session: session.realm_id)
    return Staged(partition, query, realm, parts=task.parts, group=group)


class _Task:
    """Stages the rows of one task, channel by channel."""

    def __init__(
        self, options: SinkOptions, group: str, carried_bytes_max: int, *, carries: bool
    ) -> None:
        """``carries`` states whether rows are also sent to the driver, up to
        ``carried_bytes_max``."""
        self._options = options
        self._group = group
        self._rows_for_driver: dict[str, list[bytes]] | None = {} if carries else None
        self._bytes_for_driver, self._carried_bytes_max = 0, carried_bytes_max
        self._channels: dict[str, Channel] = {}
        self._keys: dict[str, str | None] = {}
        """The publish key of each channel; None for a channel that does not merge."""
        self._stages: dict[str, list[str]] = {}
        """Names of the stages by channel, in the order of the channels' first rows."""

    @property
    def stages(self) -> list[str]:
        """Names of all stages."""
        return [stage for stages in self._stages.values() for stage in stages]

    @property
    def parts(self) -> tuple[StagedPart, ...]:
        """The staged rows of each channel, for the commit message."""
        return tuple(
            StagedPart(
                name,
                self._channels[name].number,
                tuple(stages),
                rows=None if self._rows_for_driver is None else tuple(self._rows_for_driver[name]),
            )
            for name, stages in self._stages.items()
        )

    def stage(self, rows: ChannelRows) -> None:
        """Stage rows for one channel. Raises ``InvalidEvent``, ``EventTooLarge`` or
        ``NameDoesNotExist``; the text has the number of the row."""

        def stage(session: Session) -> tuple[list[str], list[pa.RecordBatch]]:
            channel = self._channel(session, rows)
            self._check_deltas(channel, rows)
            limit = session.event_bytes_max
            events = events_of(rows, self._options, limit)
            return session.stage(channel, events, group=self._group), events

        stages, events = ask_realm(self._options.where.realm, stage)
        self._stages.setdefault(rows.channel, []).extend(stages)
        self._keep_for_driver(rows.channel, events)

    def _keep_for_driver(self, channel: str, events: list[pa.RecordBatch]) -> None:
        """Add rows to the commit message; if they are too large, remove all rows from it."""
        if self._rows_for_driver is None:
            return
        self._bytes_for_driver += sum(batch.nbytes for batch in events)
        # All or nothing: the driver can stage rows again only if it has all rows of the task.
        if self._bytes_for_driver > self._carried_bytes_max:
            self._rows_for_driver = None
            return
        self._rows_for_driver.setdefault(channel, []).extend(map(_encode, events))

    def _channel(self, session: Session, rows: ChannelRows) -> Channel:
        """Return the channel of ``rows``, opened once in a task."""
        name = rows.channel
        if name not in self._channels:
            try:
                self._channels[name] = session.channels.get(name)
            except PenstockError as error:
                url = self._options.where.url
                reason = f"is for channel {name!r}, which cannot be opened at {safe(url)}: {error}"
                if isinstance(error, NameDoesNotExist):
                    reason = (
                        f"is for channel {name!r}, which the realm at {safe(url)} does not have; "
                        f"create it first, for example: penstock channel create {name}"
                    )
                raise rows.row_error(0, reason, type(error)) from error
        return self._channels[name]

    def _check_deltas(self, channel: Channel, rows: ChannelRows) -> None:
        """Raise ``IllegalState`` or ``InvalidEvent`` for deltas that the channel cannot merge."""
        is_delta = deltas_in(rows.table, self._options)
        if is_delta is None:
            return
        if channel.name not in self._keys:
            definition = channel.info().definition
            is_merge = definition.engine == "merge"
            self._keys[channel.name] = next(iter(definition.keys)) if is_merge else None
        key = self._keys[channel.name]
        first = int(np.argmax(is_delta))
        if key is None:
            reason = f"is a delta, but the engine of {channel.name} is not merge: write whole rows"
            raise rows.row_error(first, reason, IllegalState)
        if key in rows.table.column_names:
            is_key_null = np.asarray(rows.table.column(key).is_null().to_numpy(), dtype=np.bool_)
            if (is_without_key := is_delta & is_key_null).any():
                reason = (
                    f"is a delta, and {key}, the publish key of {channel.name}, is null: give the "
                    "key of the event it changes"
                )
                raise rows.row_error(int(np.argmax(is_without_key)), reason, InvalidEvent)
        elif "." not in key and "properties" not in rows.table.column_names:
            reason = f"is a delta without {key}, the publish key of {channel.name}: add that column"
            raise rows.row_error(first, reason, InvalidEvent)


def _encode(batch: pa.RecordBatch) -> bytes:
    """Return a batch as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]  # pyarrow has no types


def _portions(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, portion_rows_max: int
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows in portions, each with the index of its first row in the partition."""
    size_factor = ROUTED_TIMES if options.channel_column else 1
    rows_max, bytes_max = size_factor * portion_rows_max, size_factor * PORTION_BYTES_MAX
    batches_of_portion: list[pa.RecordBatch] = []
    first_row = rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if batches_of_portion and (rows + batch.num_rows > rows_max or size >= bytes_max):
            yield first_row, as_table(pa.concat_batches(batches_of_portion), options)
            first_row += rows
            batches_of_portion, rows, size = [], 0, 0
        batches_of_portion.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if batches_of_portion:
        yield first_row, as_table(pa.concat_batches(batches_of_portion), options)


# --- in the driver --------------------------------------------------------------------------


def publish(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    producer: str,
    sequence: int,
    content: str = "",
) -> None:
    """Publish the staged rows of all tasks in one step, in the order of the partitions.

    ``producer`` and ``sequence`` identify the write; the realm publishes a repetition only once.
    With ``txnAppId``, they apply to the target channel alone if the write has only one; otherwise
    they apply to the whole realm, because a repetition may name other channels. ``content``
    identifies the rows: the realm refuses other content under a stored number.

    Raises ``NoSuchStage`` if the realm lost rows that the driver cannot stage again,
    ``IllegalState`` if a channel or the realm was replaced, and ``DifferentContent``.
    """
    staged = sorted(_staged_messages(messages), key=lambda message: message.partition)
    if not any(part.stages for message in staged for part in message.parts):
        return
    for attempt in range(options.realm_restarts + 1):
        try:
            return _commit(options, staged, producer, sequence=sequence, content=content)
        except NoSuchStage as error:
            if attempt == options.realm_restarts or not _can_stage_again(staged):
                raise NoSuchStage(
                    "the realm lost rows of this write before they were published, most likely by "
                    "a restart; nothing was published: start the query again "
                    f"({error})"
                ) from error
        # The failed commit published nothing, and the driver has all rows, so a repetition is safe.
        staged = stage_again(options, staged)


def _commit(
    options: SinkOptions,
    messages: Sequence[Staged],
    producer: str,
    sequence: int,
    content: str,
) -> None:
    """Publish the stages. Raises ``NoSuchStage`` if the realm lost one of them."""
    names = {part.number: part.channel for message in messages for part in message.parts}
    realms = {message.realm for message in messages}
    stages = _stages(messages)
    is_scoped_to_channel = bool(options.app) and not options.channel_column

    def commit(session: Session) -> None:
        if realms != {session.realm_id}:
            raise IllegalState(
                f"the realm at {safe(options.where.url)} is not the one that the rows were written "
                f"to; nothing was published: start the query again"
            )
        if is_scoped_to_channel:
            _commit_to_channel(
                session, names, stages, producer=producer, sequence=sequence, content=content
            )
        else:
            session.commit_stages(
                list(stages.items()), producer=producer, sequence=sequence, content=content
            )

    try:
        ask_realm(options.where.realm, commit, patient=True, realm_id=min(realms))
    except NameDoesNotExist as error:
        raise _deleted_error(names.values()) from error


def _stages(messages: Sequence[Staged]) -> dict[int, list[str]]:
    """Return the names of the stages by channel id, in the order of the partitions."""
    stages: dict[int, list[str]] = {}
    for message in messages:
        for part in message.parts:
            stages.setdefault(part.number, []).extend(part.stages)
    return stages


def _can_stage_again(messages: Sequence[Staged]) -> bool:
    """Return whether the driver has received all rows of the write."""
    return all(part.rows is not None for message in messages for part in message.parts)


def stage_again(options: SinkOptions, messages: Sequence[Staged]) -> list[Staged]:
    """Stage the rows in the messages once more; return messages with the new stages.

    Raises ``IllegalState`` if a channel was deleted or recreated.
    """

    def stage(session: Session, part: StagedPart, group: str) -> StagedPart:
        channel = session.channels.get(part.channel)
        if channel.number != part.number:
            raise NameDoesNotExist(f"channel {part.channel} was replaced by another one")
        batches = [batch for encoded in part.rows or () for batch in pa.ipc.open_stream(encoded)]
        return part._replace(stages=tuple(session.stage(channel, batches, group=group)))

    def stage_all(session: Session) -> list[Staged]:
        return [
            replace(
                message, parts=tuple(stage(session, part, message.group) for part in message.parts)
            )
            for message in messages
        ]

    try:
        return ask_realm(options.where.realm, stage_all, patient=True)
    except NameDoesNotExist as error:
        raise _deleted_error(
            [part.channel for message in messages for part in message.parts]
        ) from error


def _deleted_error(channels: Iterable[str]) -> IllegalState:
    names = ", ".join(dict.fromkeys(channels))
    return IllegalState(
        f"one of the channels {names} was deleted, and perhaps created again, while rows were "
        "written to it; nothing was published: start the query again"
    )


def _commit_to_channel(
    session: Session,
    names: dict[int, str],
    stages: dict[int, list[str]],
    producer: str,
    sequence: int,
    content: str,
) -> None:
    """Publish the stages of a write to one channel. Raises ``NameDoesNotExist`` if the channel was
    recreated."""
    for number, name in names.items():
        channel = session.channels.get(name)
        # Two ids of one name mean that the channel was recreated while tasks were writing.
        if channel.number != number or len(names) > 1:
            raise NameDoesNotExist(f"channel {name} was replaced by another one")
        channel.commit_stages(stages[number], producer=producer, sequence=sequence, content=content)


def forget(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop the stages of a failed write. Events that were published stay, because Spark also aborts
    a write whose commit has an unknown outcome."""
    parts = [part for message in _staged_messages(messages) for part in message.parts]
    _drop(options, [stage for part in parts for stage in part.stages])


def _staged_messages(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """Return the messages of tasks that have committed; Spark passes None for the others."""
    return [message for message in messages if isinstance(message, Staged)]


def _drop(options: SinkOptions, stages: Sequence[str]) -> None:
    """Drop stages; ignore errors."""
    # An error here must not hide the original error. The realm drops stages itself after a timeout.
    with suppress(PenstockError):
        if stages:
            ask_realm(options.where.realm, lambda session: session.drop_stages(stages))
