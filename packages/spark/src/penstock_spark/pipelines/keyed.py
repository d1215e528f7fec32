"""Writes rows that replace earlier rows of the same key: to a table, a channel, or both.

A query with running values outputs a row for each key that a micro-batch has changed. The table
merges these rows; the channel receives them as events. Both recognise a repeated micro-batch by its
query and number, and skip it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.pipelines.batch_target import BatchTarget
from penstock_spark.pipelines.step import (
    ChannelTarget,
    MicroBatch,
    TableTarget,
    channel_target,
    table_target,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock_spark.tables import Table


class KeyedTarget(BatchTarget, frozen=True, kw_only=True):
    """Merges the rows of micro-batches into a table by key, and publishes them on a channel."""

    key: tuple[str, ...]
    """Names of the columns that identify a row of the table."""

    def to_table(self, table: Table, rows: DataFrame, batch: MicroBatch) -> None:
        table.merge(rows, self.key, batch.app, version=batch.number, content=batch.content)


def check_keyed(
    channel: ChannelTarget | str | None, table: TableTarget | str | None, why: str
) -> None:
    """Raise ``InvalidArgument`` if the targets cannot replace rows. ``why`` states in the error
    text why the step needs this."""
    if channel is None and table is None:
        raise InvalidArgument("channel, table: none is given; give at least one target of the rows")
    target = table_target(table)
    if target is not None and target.table_format == "parquet":
        raise InvalidArgument(
            f"table.format is 'parquet'; {why}, and only Delta and Iceberg tables can replace rows"
        )
    _refuse_transaction_options(channel_target(channel))


def _refuse_transaction_options(channel: ChannelTarget | None) -> None:
    """Raise ``InvalidArgument`` if the options of the channel set the identity of micro-batches,
    which the step sets itself."""
    names = {name.lower() for name in (channel.options if channel is not None else ())}
    reserved: Sequence[str] = sorted(names & {"txnappid", "txnversion"})
    if reserved:
        raise InvalidArgument(
            f"channel.options has {', '.join(reserved)}; the step sets these itself"
        )
