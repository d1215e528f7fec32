"""Writing a Spark table to a channel: every row once, however often Spark tries.

Tasks put their rows aside on the realm, where nobody sees them. The driver then publishes all of
them in one step, whichever channels they are for, under the name of the query and the number of
the micro-batch. Spark writes a micro-batch again when it does not know how the last attempt ended;
the realm does, and answers the second commit with what the first one has stored.

What is put aside is in the realm's memory, and a realm that restarts has lost it. Of a stream the
rows of small tasks travel with what the task says it has done, so that the driver can put them
aside again; a query of small micro-batches then outlives the realm.
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
from penstock_spark.columns.rows import ChannelRows, as_table, deltas_in, events_of, routed
from penstock_spark.connections import ask_realm
from penstock_spark.errors.errors import tells_spark
from penstock_spark.options import SinkOptions
from penstock_spark.writing.batch_content import content_of, explaining

PORTION_ROWS_MAX: Final = 65_536
PORTION_BYTES_MAX: Final = 6 << 20
"""Rows are put aside in portions of about this size, which then fit one request."""
ROUTED_TIMES: Final = 8
"""Rows for several channels are gathered in portions so many times as large: each channel gets a
request of its own."""

CARRIED_BYTES_MAX: Final = 256 << 10
"""Rows a task of a stream hands to the driver. Beyond a megabyte Spark would take another way for
what a task says, and of all tasks together it takes a gigabyte."""

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class StagedPart(NamedTuple):
    """The rows that a task has staged for one channel."""

    channel: str
    number: int
    """Id of the channel; a channel that was deleted and created again has another one."""
    stages: tuple[str, ...]
    rows: tuple[bytes, ...] | None = None
    """The content of the stages, each batch as an Arrow stream; None if it is too large or not of a
    streaming query."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The rows that one task has staged."""

    partition: int
    query: str
    """The streaming query's id; empty in a batch write."""
    realm: str
    """Identity of the realm it is put aside on."""
    parts: tuple[StagedPart, ...]
    group: str = ""
    """Name of the group of the stages."""


@tells_spark
class ChannelWriter(DataSourceArrowWriter):
    """Publishes a table in one step; twice the same ``txnAppId`` and ``txnVersion`` is once."""

    def __init__(self, options: SinkOptions) -> None:
        if (options.version is None) != (not options.app):
            missing = "txnVersion" if options.app else "txnAppId"
            raise InvalidArgument(
                f"txnAppId and txnVersion must be given together; {missing} is missing"
            )
        self._options = options
        self._work = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return staged(self._options, iterator, self._work)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        app, version = self._options.app, self._options.version
        if version is None:
            app, version = f"once:{uuid.uuid4().hex}", 0
        else:
            app = f"{LASTING_PREFIX}{app}"
        with explaining(f"query {app.removeprefix(LASTING_PREFIX)}", version):
            publish(self._options, messages, app, sequence=version, content=self._options.content)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        forget(self._options, messages)


@tells_spark
class ChannelStreamWriter(DataSourceStreamArrowWriter):
    """Publishes each micro-batch in one step and once."""

    def __init__(self, options: SinkOptions) -> None:
        if options.version is not None:
            raise InvalidArgument(
                "txnVersion is only for batch writes; a stream counts its micro-batches itself"
            )
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return staged(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        queries = {message.query for message in _staged(messages)}
        app = self._options.app or "".join(queries)
        content = content_of(self._options.checkpoint, batchId)
        with explaining(f"query {app}", batchId):
            publish(
                self._options, messages, f"{LASTING_PREFIX}{app}", sequence=batchId, content=content
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        forget(self._options, messages)


# --- in a task ------------------------------------------------------------------------------


def staged(options: SinkOptions, batches: Iterator[pa.RecordBatch], work: str = "") -> Staged:
    """Put the rows of a task aside. Runs in the task; nothing is seen of it. ``work`` names what
    is to be published; without it the micro-batch does, over all attempts at it."""
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    partition, query = context.partitionId(), context.getLocalProperty(_QUERY) or ""
    group = work or f"{query}.{context.getLocalProperty(_BATCH)}"
    task = _Task(options, group, carries=not work)
    try:
        for first_row, table in _portions(batches, options):
            for rows in routed(table, first_row, partition, options=options):
                task.put_aside(rows)
    except BaseException:
        _drop(options, task.stages)
        raise
    realm = ask_realm(options.where.realm, lambda session: session.realm_id)
    return Staged(partition, query, realm, parts=task.parts, group=group)


class _Task:
    """The rows that a task is staging, by channel in the order of their first rows."""

    def __init__(self, options: SinkOptions, group: str, *, carries: bool) -> None:
        self._options = options
        self._group = group
        self._carried: dict[str, list[bytes]] | None = {} if carries else None
        self._carried_bytes = 0
        self._channels: dict[str, Channel] = {}
        self._keys: dict[str, str | None] = {}
        """The publish key of each channel; None: it does not merge."""
        self._stages: dict[str, list[str]] = {}

    @property
    def stages(self) -> list[str]:
        return [stage for stages in self._stages.values() for stage in stages]

    @property
    def parts(self) -> tuple[StagedPart, ...]:
        return tuple(
            StagedPart(
                name,
                self._channels[name].number,
                tuple(stages),
                rows=None if self._carried is None else tuple(self._carried[name]),
            )
            for name, stages in self._stages.items()
        )

    def put_aside(self, rows: ChannelRows) -> None:
        """Raises ``InvalidEvent``, ``EventTooLarge``, ``NameDoesNotExist`` naming the row."""

        def put(session: Session) -> tuple[list[str], list[pa.RecordBatch]]:
            channel = self._channel(session, rows)
            self._check_deltas(channel, rows)
            limit = session.event_bytes_max
            events = events_of(rows, self._options, limit)
            return session.stage(channel, events, group=self._group), events

        stages, events = ask_realm(self._options.where.realm, put)
        self._stages.setdefault(rows.channel, []).extend(stages)
        self._carry(rows.channel, events)

    def _carry(self, channel: str, events: list[pa.RecordBatch]) -> None:
        if self._carried is None:
            return
        self._carried_bytes += sum(batch.nbytes for batch in events)
        if self._carried_bytes > CARRIED_BYTES_MAX:
            self._carried = None
            return
        self._carried.setdefault(channel, []).extend(map(_packed, events))

    def _channel(self, session: Session, rows: ChannelRows) -> Channel:
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
                raise rows.refused(0, reason, type(error)) from error
        return self._channels[name]

    def _check_deltas(self, channel: Channel, rows: ChannelRows) -> None:
        """Raises ``IllegalState`` or ``InvalidEvent`` for deltas nothing can be merged with."""
        deltas = deltas_in(rows.table, self._options)
        if deltas is None:
            return
        if channel.name not in self._keys:
            definition = channel.info().definition
            merges = definition.engine == "merge"
            self._keys[channel.name] = next(iter(definition.keys)) if merges else None
        key = self._keys[channel.name]
        first = int(np.argmax(deltas))
        if key is None:
            reason = f"is a delta, but the engine of {channel.name} is not merge: write whole rows"
            raise rows.refused(first, reason, IllegalState)
        if key in rows.table.column_names:
            empty = np.asarray(rows.table.column(key).is_null().to_numpy(), dtype=np.bool_)
            if (wrong := deltas & empty).any():
                reason = (
                    f"is a delta, and {key}, the publish key of {channel.name}, is null: give the "
                    "key of the event it changes"
                )
                raise rows.refused(int(np.argmax(wrong)), reason, InvalidEvent)
        elif "." not in key and "properties" not in rows.table.column_names:
            reason = f"is a delta without {key}, the publish key of {channel.name}: add that column"
            raise rows.refused(first, reason, InvalidEvent)


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]  # pyarrow has no types


def _portions(
    batches: Iterator[pa.RecordBatch], options: SinkOptions
) -> Iterator[tuple[int, pa.Table]]:
    """The rows in portions, each with the number of its first one."""
    times = ROUTED_TIMES if options.channel_column else 1
    rows_max, bytes_max = times * PORTION_ROWS_MAX, times * PORTION_BYTES_MAX
    held: list[pa.RecordBatch] = []
    first = rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held and (rows + batch.num_rows > rows_max or size >= bytes_max):
            yield first, as_table(pa.concat_batches(held), options)
            first += rows
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if held:
        yield first, as_table(pa.concat_batches(held), options)


# --- in the driver --------------------------------------------------------------------------


def publish(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    producer: str,
    sequence: int,
    content: str = "",
) -> None:
    """Publish what the tasks put aside, in the order of the partitions, in one step.

    A name of the user's for a write to one channel counts for that channel; every other one, and
    the id of a query, counts for the whole realm: the rows of a repetition may name other channels.
    ``content`` identifies what is published: another one under a stored number is refused.
    """
    found = sorted(_staged(messages), key=lambda message: message.partition)
    if not any(part.stages for message in found for part in message.parts):
        return
    for attempt in range(options.realm_restarts + 1):
        try:
            return _commit(options, found, producer, sequence=sequence, content=content)
        except NoSuchStage as error:
            if attempt == options.realm_restarts or not _is_carried(found):
                raise NoSuchStage(
                    "the realm lost rows of this write before they were published, most likely by "
                    "a restart; nothing was published: start the query again "
                    f"({error})"
                ) from error
        # Nothing was published under this number, and the driver has the rows.
        found = _put_again(options, found)


def _commit(
    options: SinkOptions,
    messages: Sequence[Staged],
    producer: str,
    sequence: int,
    content: str,
) -> None:
    names = {part.number: part.channel for message in messages for part in message.parts}
    realms = {message.realm for message in messages}
    stages = _stages(messages)
    of_channel = bool(options.app) and not options.channel_column

    def commit(session: Session) -> None:
        if realms != {session.realm_id}:
            raise IllegalState(
                f"the realm that now answers at {safe(options.where.url)} is not the one the rows "
                f"were written to; "
                "nothing was published: start the query again"
            )
        if of_channel:
            _commit_to_channel(
                session, names, stages, producer=producer, sequence=sequence, content=content
            )
        else:
            session.commit_stages(
                list(stages.items()), producer=producer, sequence=sequence, content=content
            )

    try:
        ask_realm(options.where.realm, commit, patient=True, known_as=min(realms))
    except NameDoesNotExist as error:
        raise _deleted(names.values()) from error


def _stages(messages: Sequence[Staged]) -> dict[int, list[str]]:
    """The stages by number of the channel, in the order of the partitions."""
    stages: dict[int, list[str]] = {}
    for message in messages:
        for part in message.parts:
            stages.setdefault(part.number, []).extend(part.stages)
    return stages


def _is_carried(messages: Sequence[Staged]) -> bool:
    return all(part.rows is not None for message in messages for part in message.parts)


def _put_again(options: SinkOptions, messages: Sequence[Staged]) -> list[Staged]:
    """The messages as if their tasks had just staged the rows that these carry."""

    def put(session: Session, part: StagedPart, group: str) -> StagedPart:
        channel = session.channels.get(part.channel)
        if channel.number != part.number:
            raise NameDoesNotExist(f"channel {part.channel} was replaced by another one")
        batches = [batch for each in part.rows or () for batch in pa.ipc.open_stream(each)]
        return part._replace(stages=tuple(session.stage(channel, batches, group=group)))

    def put_all(session: Session) -> list[Staged]:
        return [
            replace(
                message, parts=tuple(put(session, part, message.group) for part in message.parts)
            )
            for message in messages
        ]

    try:
        return ask_realm(options.where.realm, put_all, patient=True)
    except NameDoesNotExist as error:
        raise _deleted([part.channel for each in messages for part in each.parts]) from error


def _deleted(channels: Iterable[str]) -> IllegalState:
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
    for number, name in names.items():
        channel = session.channels.get(name)
        if channel.number != number or len(names) > 1:
            raise NameDoesNotExist(f"channel {name} was replaced by another one")
        channel.commit_stages(stages[number], producer=producer, sequence=sequence, content=content)


def forget(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop stages. Published events stay: Spark calls this even after a commit whose outcome it
    does not know."""
    parts = [part for message in _staged(messages) for part in message.parts]
    _drop(options, [stage for part in parts for stage in part.stages])


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _drop(options: SinkOptions, stages: Sequence[str]) -> None:
    # The realm drops stages by itself after a while; the original error is the one to show.
    with suppress(PenstockError):
        if stages:
            ask_realm(options.where.realm, lambda session: session.drop_stages(stages))
