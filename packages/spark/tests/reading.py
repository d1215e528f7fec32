"""Reads channels as the tasks of a query do."""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.sql.datasource import InputPartition

from penstock_spark.reading.reading import ChannelReader, ChannelStreamReader

Row = dict[str, Any]


def rows_of(reader: ChannelReader | ChannelStreamReader, parts: list[InputPartition]) -> list[Row]:
    """Return the rows of partitions. Reader and partitions are pickled first, as for tasks."""
    reader, parts = pickle.loads(pickle.dumps((reader, parts)))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
