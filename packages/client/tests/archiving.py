"""Writes archives as the archive pipeline does, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.client.sync.sync import Channel, Session
from penstock.tables import Format, Table
from penstock_core.columns.files.archives import DAY, ArchiveLayout


class Archiver:
    """Archives events of a channel to a table, in steps."""

    def __init__(
        self, session: Session, channel: Channel, path: Path, format: Format = "parquet"
    ) -> None:
        self.channel = channel
        self.uri = str(path)
        self.table = Table.open(self.uri, format, [DAY])
        self.epoch = f"{session.realm_id}/{channel.number}"
        self.end = 0

    def take(self, end: int) -> None:
        """Archive the events below ``end`` that are not archived yet."""
        if end <= self.end:
            return
        existing_schema = self.table.schema if self.table.exists else None
        layout = ArchiveLayout(
            self.channel.columns(), existing_schema, channel=self.channel.name, epoch=self.epoch
        )
        with self.channel.browse(start=self.end, end=end - 1) as reading:
            rows = [layout.of(batch.to_arrow(), batch.publishers) for batch in reading.batches()]
        if rows:
            self.table.append(pa.Table.from_batches(rows), "archive", end)
        self.end = end

    def move(self, end: int) -> None:
        """Archive the events below ``end`` and remove them from the channel."""
        self.take(end)
        self.channel.purge(end=end - 1)
