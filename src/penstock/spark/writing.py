"""Writing a Spark table to a channel: every row once, however often Spark tries.

Tasks put their rows aside on the realm, where nobody sees them. The driver then publishes all of
them in one step, under the name of the query and the number of the micro-batch. Spark writes a
micro-batch again when it does not know how the last attempt ended; the realm does, and answers
the second commit with what the first one has stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.columns.layout import STAMPED
from penstock.columns.tables import bodies_of_table
from penstock.core.errors import (
    IllegalState,
    InvalidArgument,
    InvalidEvent,
    NoSuchStage,
    PenstockError,
)
from penstock.core.producers import LASTING_PREFIX
from penstock.spark.connections import Link, ask
from penstock.spark.options import SinkOptions, Where
from penstock.spark.projection import arrow_schema

STAGE_ROWS_MAX: Final = 65_536
STAGE_BYTES_MAX: Final = 6 << 20
"""Rows are put aside in portions of about this size, which then fit one request."""

_QUERY: Final = "sql.streaming.queryId"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task has put aside."""

    partition: int
    query: str
    """The streaming query's id; empty in a batch write."""
    epoch: str
    """The channel it is put aside for."""
    stages: tuple[str, ...]


class ChannelWriter(DataSourceArrowWriter):
    """Publishes a table in one step; twice the same ``txnAppId`` and ``txnVersion`` is once."""

    def __init__(self, options: SinkOptions) -> None:
        if (options.version is None) != (not options.app):
            missing = "txnVersion" if options.app else "txnAppId"
            raise InvalidArgument(
                f"txnAppId and txnVersion belong together; {missing} is not given"
            )
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return staged(self._options.where, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        app, version = self._options.app, self._options.version
        if version is None:
            app, version = f"once:{uuid.uuid4().hex}", 0
        else:
            app = f"{LASTING_PREFIX}{app}"
        publish(self._options.where, messages, app, version)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        forget(self._options.where, messages)


class ChannelStreamWriter(DataSourceStreamArrowWriter):
    """Publishes each micro-batch in one step and once."""

    def __init__(self, options: SinkOptions) -> None:
        if options.version is not None:
            raise InvalidArgument(
                "txnVersion is for batch writes; a stream counts its micro-batches itself"
            )
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return staged(self._options.where, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        queries = {message.query for message in _staged(messages)}
        app = self._options.app or "".join(queries)
        publish(self._options.where, messages, f"{LASTING_PREFIX}{app}", batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        forget(self._options.where, messages)


def check_writable(schema: StructType, *, overwrite: bool) -> None:
    """Raises ``InvalidArgument`` or ``InvalidEvent`` for what no channel takes, ahead of tasks."""
    if overwrite:
        raise InvalidArgument(
            "a channel only ever grows: write with mode append, a stream with output mode "
            "append; to begin anew, purge the channel first"
        )
    given = [name for name in STAMPED if name in schema.names]
    if given:
        names = ", ".join(repr(name) for name in given)
        raise InvalidEvent(
            f"the realm gives {' and '.join(given)}; leave them out with .drop({names}), or "
            "rename them to keep them as properties"
        )
    nulls = [pa.nulls(1, field.type) for field in arrow_schema(schema)]
    bodies_of(pa.RecordBatch.from_arrays(nulls, names=schema.names))


def bodies_of(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The events of a batch of Spark's: ``data`` may be text there, and fields NOT NULL."""
    return bodies_of_table(as_table(batch))


def as_table(batch: pa.RecordBatch) -> pa.Table:
    """A batch of Spark's as the client publishes it."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if len(columns) < batch.num_columns:
        raise InvalidEvent(f"two columns have one name: {', '.join(batch.schema.names)}")
    data = columns.get("data")
    if data is not None and pa.types.is_string(data.type):
        columns["data"] = data.cast(pa.binary())
    return pa.table(columns)


def staged(where: Where, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Put the rows of a task aside. Runs in the task; nothing is seen of it."""
    context = TaskContext.get()
    query = (context.getLocalProperty(_QUERY) or "") if context is not None else ""
    partition = context.partitionId() if context is not None else 0
    link = ask(where, lambda link: link)
    stages: list[str] = []
    try:
        for table in _portions(batches):
            stages += link.channel.stage(table)
    except BaseException:
        _drop(where, stages)
        raise
    return Staged(partition, query, link.epoch, tuple(stages))


def _portions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held and (rows + batch.num_rows > STAGE_ROWS_MAX or size >= STAGE_BYTES_MAX):
            yield as_table(pa.concat_batches(held))
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if held:
        yield as_table(pa.concat_batches(held))


def publish(
    where: Where, messages: Sequence[WriterCommitMessage | None], producer: str, sequence: int
) -> None:
    """Publish what the tasks put aside, in the order of the partitions, in one step."""
    found = sorted(_staged(messages), key=lambda message: message.partition)
    stages = [stage for message in found for stage in message.stages]
    if not stages:
        return
    epochs = {message.epoch for message in found}

    def commit(link: Link) -> None:
        if epochs != {link.epoch}:
            raise IllegalState(
                f"channel {where.channel} was deleted and created again while rows were written "
                "to it; nothing was published: start the query again"
            )
        link.channel.commit_stages(stages, producer=producer, sequence=sequence)

    try:
        ask(where, commit)
    except NoSuchStage as error:
        raise NoSuchStage(
            f"the realm has lost rows of this write before they were published, most likely in a "
            f"restart; nothing was published: start the query again ({error})"
        ) from error


def forget(where: Where, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what is put aside. What was published stays: Spark calls this after a commit whose
    outcome it does not know, too."""
    _drop(where, [stage for message in _staged(messages) for stage in message.stages])


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _drop(where: Where, stages: Sequence[str]) -> None:
    # The realm drops them by itself after a while; the error on the way is the one to be seen.
    with suppress(PenstockError):
        if stages:
            ask(where, lambda link: link.channel.drop_stages(stages))
