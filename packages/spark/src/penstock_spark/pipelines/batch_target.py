"""Stores the micro-batches of a query in a table, a channel, or both, each exactly once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock_spark.errors.error_marks import secret_options
from penstock_spark.pipelines.step import ChannelTarget, MicroBatch, TableTarget
from penstock_spark.pipelines.written_tables import WrittenTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock_spark.tables import Table


class BatchTarget(Struct, frozen=True, kw_only=True, dict=True):
    """Appends the rows of micro-batches to a table, which it compacts from time to time, and
    publishes them on a channel."""

    url: str
    """URL of the realm."""
    channel: ChannelTarget | None = None
    table: TableTarget | None = None
    """The table; its path is absolute or a URI."""
    folder: str = ""
    """The folder of the step, which contains the list of written tables. Empty means that no list
    is stored."""

    def __call__(self, rows: DataFrame, batch: MicroBatch) -> None:
        """Store ``rows`` in each target that has not stored ``batch`` yet."""
        # Rows are persisted for two targets, because Spark refuses to compute a stateful query
        # twice.
        is_written_twice = self.table is not None and self.channel is not None
        rows = rows.persist() if is_written_twice else rows
        try:
            if self.table is not None:
                self.written.check(self.opened, batch)
                self.to_table(self.opened, rows, batch)
                # Recorded after the commit: a record of a table that does not have the commit would
                # look like a removed table.
                self.written.wrote(self.opened, batch)
                if batch.completes(self.table.compaction_interval):
                    self.opened.compact(keep_hours=self.table.keep_hours)
            if self.channel is not None:
                publish(rows, self.channel, self.url, batch=batch)
        finally:
            if is_written_twice:
                rows.unpersist()

    def to_table(self, table: Table, rows: DataFrame, batch: MicroBatch) -> None:
        """Append the rows of a micro-batch to the table."""
        table.append(rows, batch.app, batch.number, content=batch.content)

    @cached_property
    def written(self) -> WrittenTables:
        """The tables that the step has written."""
        return WrittenTables(self.folder)

    @cached_property
    def opened(self) -> Table:
        """The open table. It stays open, so that later micro-batches read only the new entries of
        the table's log."""
        from penstock_spark.tables import Table

        assert self.table is not None, "only flows with a table open it"
        return Table.open(self.table.path, self.table.table_format, self.table.partition_by)


def publish(rows: DataFrame, target: ChannelTarget, url: str, batch: MicroBatch) -> None:
    """Publish rows on a channel once: the realm recognises a repeated ``batch`` and skips it."""
    options = {"url": url, **target.sink_options(), **secret_options()}
    transaction = {"txnAppId": batch.app, "txnVersion": str(batch.number)}
    if batch.content:
        transaction["txnContent"] = batch.content
    rows.write.format("penstock").mode("append").options(**options, **transaction).save()
