"""Where the micro-batches of a query go, each exactly once: a table, a channel, or both."""

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
    """A target that gets rows beside those it has."""

    url: str
    channel: ChannelTarget | None = None
    table: TableTarget | None = None
    """The table, with its path made absolute."""
    folder: str = ""
    """The folder of the step, which remembers its table; empty: nothing does."""

    def __call__(self, rows: DataFrame, batch: MicroBatch) -> None:
        """Store a micro-batch once."""
        # Computed once for both: a second computation would cost, and a stateful query refuses it.
        both = self.table is not None and self.channel is not None
        rows = rows.persist() if both else rows
        try:
            if self.table is not None:
                self.written.check(self.opened, batch)
                self.to_table(self.opened, rows, batch)
                self.written.wrote(self.opened, batch)
            if self.channel is not None:
                publish(rows, self.channel, self.url, batch=batch)
        finally:
            if both:
                rows.unpersist()

    def to_table(self, table: Table, rows: DataFrame, batch: MicroBatch) -> None:
        """Put the rows of a micro-batch into the table."""
        table.append(rows, batch.app, batch.number, content=batch.content)

    @cached_property
    def written(self) -> WrittenTables:
        """The tables that the step has written."""
        return WrittenTables(self.folder)

    @cached_property
    def opened(self) -> Table:
        """The table, open from the first micro-batch on: later ones read only what is new in its
        log."""
        from penstock_spark.tables import Table

        assert self.table is not None, "it is asked for where there is one"
        return Table.open(self.table.path, self.table.format, self.table.partition_by)


def publish(rows: DataFrame, target: ChannelTarget, url: str, batch: MicroBatch) -> None:
    """Publish rows once: the realm recognises ``batch`` if it is repeated."""
    options = {"url": url, **target.sink_options(), **secret_options()}
    transaction = {"txnAppId": batch.app, "txnVersion": str(batch.number)}
    if batch.content:
        transaction["txnContent"] = batch.content
    rows.write.format("penstock").mode("append").options(**options, **transaction).save()
