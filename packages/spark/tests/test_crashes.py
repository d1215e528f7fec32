"""The Spark driver is killed at the worst moment, and every event still comes once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.client.sync.sync import Session

DRIVER = """
import os, signal, sys
from pyspark import SparkContext
from penstock_spark.session.session import session
from penstock_spark.source import PenstockSource
from penstock_spark.writing.writing import ChannelStreamWriter

url, checkpoint = sys.argv[1:]
spark = session("doomed", "local[2]")
driver = SparkContext._gateway.proc.pid

class Doomed(ChannelStreamWriter):
    def commit(self, messages, batchId):
        super().commit(messages, batchId)
        if batchId == 1:
            os.kill(driver, signal.SIGKILL)

class DoomedSource(PenstockSource):
    @classmethod
    def name(cls):
        return "doomed"
    def streamWriter(self, schema, overwrite):
        return Doomed(self._sink(schema, overwrite=overwrite))

spark.dataSource.register(DoomedSource)
(
    spark.readStream.format("penstock")
    .options(url=url, channel="orders", startingOffsets="earliest", maxEventsPerTrigger=1000)
    .load()
    .select("n")
    .writeStream.format("doomed")
    .options(url=url, channel="out", checkpointLocation=checkpoint)
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_driver_killed_between_publish_and_checkpoint_publishes_nothing_twice(
    spark: SparkSession, url: str, client: Session, tmp_path: Path
) -> None:
    orders = client.channels.create("orders", type="persistent")
    out = client.channels.create("out", type="persistent")
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(2_500)])
    checkpoint = tmp_path / "checkpoint"

    killed = subprocess.run(
        [sys.executable, "-c", DRIVER, url, str(checkpoint)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert killed.returncode != 0
    assert out.info().events == 2_000, killed.stderr
    assert {path.name for path in (checkpoint / "commits").glob("?")} == {"0"}
    query = (
        spark.readStream.format("penstock")
        .options(url=url, channel="orders", maxEventsPerTrigger=1_000)
        .load()
        .select("n")
        .writeStream.format("penstock")
        .options(url=url, channel="out", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert [progress["numInputRows"] for progress in query.recentProgress] == [1_000, 500]
    assert out.read().column("n").to_pylist() == list(range(2_500))
