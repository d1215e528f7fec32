"""Rows that replace those of the same key: into a Delta table, a channel, or both.

A query that keeps running values hands over the keys a micro-batch has changed. The table gets
them by a merge, the channel by a publish; each knows the micro-batch by its query and number, so
a repeated one changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.core.vocabulary.errors import InvalidArgument
from penstock.spark.pipelines.step import (
    ChannelTarget,
    MicroBatch,
    TableTarget,
    channel_target,
    table_target,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.tables import Table


class KeyedTarget(Struct, frozen=True, kw_only=True, dict=True):
    """A target whose rows replace earlier rows of the same key."""

    key: tuple[str, ...]
    url: str
    channel: ChannelTarget | None = None
    table: TableTarget | None = None
    """The table, with its path made absolute."""

    def __call__(self, rows: DataFrame, batch: MicroBatch) -> None:
        """Store a micro-batch once."""
        # Computed once for both: a second computation would cost, and a stateful query refuses it.
        both = self.table is not None and self.channel is not None
        rows = rows.persist() if both else rows
        try:
            if self.table is not None:
                self.opened.merge(rows, self.key, batch.app, batch.number)
            if self.channel is not None:
                publish(rows, self.channel, self.url, batch)
        finally:
            if both:
                rows.unpersist()

    @cached_property
    def opened(self) -> Table:
        """The table, open from the first micro-batch on: later ones read only what is new in its
        log."""
        from penstock.spark.tables import Table

        assert self.table is not None, "it is asked for where there is one"
        return Table.open(self.table.path, self.table.format, self.table.partition_by)


def publish(rows: DataFrame, target: ChannelTarget, url: str, batch: MicroBatch) -> None:
    """Publish rows once: the realm recognises ``batch`` if it is repeated."""
    options = {"url": url, **target.sink_options()}
    transaction = {"txnAppId": batch.app, "txnVersion": str(batch.number)}
    rows.write.format("penstock").mode("append").options(**options, **transaction).save()


def check_keyed(
    channel: ChannelTarget | str | None, table: TableTarget | str | None, why: str
) -> None:
    """Raises ``InvalidArgument`` for targets whose rows cannot be replaced."""
    if channel is None and table is None:
        raise InvalidArgument("channel, table: none is given; give where the rows go")
    target = table_target(table)
    if target is not None and target.format != "delta":
        raise InvalidArgument(
            f"table.format is {target.format!r}; {why}, and only Delta tables can replace rows"
        )
    _without_transaction(channel_target(channel))


def _without_transaction(channel: ChannelTarget | None) -> None:
    names = {name.lower() for name in (channel.options if channel is not None else ())}
    taken: Sequence[str] = sorted(names & {"txnappid", "txnversion"})
    if taken:
        raise InvalidArgument(f"channel.options has {', '.join(taken)}; the step sets these itself")
