"""Writes the micro-batches of a query to a channel, a table, or both, each exactly once.

Both targets record the number of the last stored micro-batch of each query under the query's id.
The id is in Spark's checkpoint, so a query with a new checkpoint is a new writer. If Spark repeats
a micro-batch, the targets that have stored it already skip it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.errors.error_marks import driver_secret, marking, secret_options
from penstock_spark.pipelines.batch_target import BatchTarget
from penstock_spark.pipelines.definition import Pipeline
from penstock_spark.pipelines.standing import QUERY
from penstock_spark.pipelines.step import ASAP, AVAILABLE_NOW, Flow, MicroBatch
from penstock_spark.writing.batch_content import QUERY_ID, content_of, explaining

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

COUNTED: Final = "penstock_rows"
"""Name of the metric in a query's progress that counts written rows."""
READ: Final = "penstock_events"
"""Name of the metric that counts events if each row stands for several events. It is used for both
rows in and rows out."""


class QueryTarget:
    """The names and places that belong to a query: its realm, its folder and its checkpoint."""

    def __init__(self, pipeline: Pipeline, step: str, url: str, checkpoint: str) -> None:
        self.located = pipeline.located
        self.url = url
        self.name = f"{pipeline.name}/{step}"
        self.folder = checkpoint
        self.checkpoint = f"{checkpoint}/{QUERY}"


def start(flow: Flow, target: QueryTarget, *, once: bool) -> StreamingQuery:
    """Start the query of a step. With ``once``, the query ends after the stored events.

    Raises ``InvalidArgument`` if the flow cannot be written to its targets, and errors of Spark.
    """
    from pyspark.sql.utils import is_remote

    _check(flow)
    if is_remote() and not _can_write_directly(flow):
        raise InvalidArgument(
            "under Spark Connect a step writes to one channel, in output mode append, and to no "
            "table, because the code that stores micro-batches would run on its server"
        )
    writer = (
        _with_row_count(flow)
        .writeStream.queryName(target.name)
        .option("checkpointLocation", target.checkpoint)
        .outputMode(flow.output_mode)
        .trigger(**trigger_of(flow.trigger, once=once))
    )
    if _can_write_directly(flow):
        assert flow.channel is not None, "the only target is a channel"
        options = {"url": target.url, **flow.channel.sink_options(), **secret_options()}
        return writer.format("penstock").options(**options).start()
    write = flow.write or batch_target(flow, target)

    def store_batch(frame: DataFrame, number: int) -> None:
        with marking(driver_secret()):  # the JVM passes an exception of this function on as text
            batch = MicroBatch(_query_id(frame), number, content_of(target.checkpoint, number))
            with explaining(f"step {target.name}", number):
                write(frame, batch)

    return writer.foreachBatch(store_batch).start()


def trigger_of(text: str, *, once: bool) -> dict[str, Any]:
    """Return the arguments of ``DataStreamWriter.trigger`` for a trigger of a definition."""
    if once or text == AVAILABLE_NOW:
        return {"availableNow": True}
    return {"processingTime": "0 seconds" if text == ASAP else text}


def batch_target(flow: Flow, target: QueryTarget) -> BatchTarget:
    """Return the target that stores micro-batches in the channel and the table of a flow."""
    table = flow.table
    if table is not None:
        table = msgspec.structs.replace(table, path=target.located(table.path))
    return BatchTarget(url=target.url, channel=flow.channel, table=table, folder=target.folder)


def _can_write_directly(flow: Flow) -> bool:
    """Return whether Spark can write to the sink without ``foreachBatch``, which saves some
    milliseconds for each micro-batch."""
    return flow.write is None and flow.table is None and flow.output_mode == "append"


def _with_row_count(flow: Flow) -> DataFrame:
    """Return the rows of a flow with a metric that counts them in the query's progress."""
    from pyspark.sql import functions

    name = READ if flow.events else COUNTED
    return flow.frame.observe(name, functions.expr(flow.events or "count(1)").alias("rows"))


def _query_id(frame: DataFrame) -> str:
    """Return the id of the query that passes the micro-batch ``frame`` to ``foreachBatch``."""
    query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    assert query_id, "Spark names the query for each of its micro-batches"
    return str(query_id)


def _check(flow: Flow) -> None:
    """Raise ``InvalidArgument`` if the flow is not a stream or has no target."""
    if not flow.frame.isStreaming:
        raise InvalidArgument("sql reads no stream; read a channel or queue")
    if flow.write is None and flow.channel is None and flow.table is None:
        raise InvalidArgument("the step has no target; give channel or table")
