"""Writers as Spark drives them, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from penstock_spark.writing.writing import Staged


@contextmanager
def in_task(partition: int = 0, query: str = "q-1", batch: int = 0) -> Iterator[None]:
    """Run the block with the context of this task, as in a worker of Spark."""
    context = TaskContext._getOrCreate()
    context._partitionId = partition
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    context._localProperties = properties if query else {}
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


def written(
    writer: Any,
    batches: Iterable[pa.RecordBatch],
    partition: int = 0,
    *,
    query: str = "q-1",
    batch: int = 0,
) -> Staged:
    """Write ``batches`` in a task; return its message as the driver gets it. The writer and the
    message are pickled on the way, as in Spark."""
    with in_task(partition, query, batch):
        message = pickle.loads(pickle.dumps(writer)).write(iter(batches))
    return pickle.loads(pickle.dumps(message))  # type: ignore[no-any-return]  # the same type again
