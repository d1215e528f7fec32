"""Rows that replace others: once in each target, however often a micro-batch is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from packages.spark.tests.pipelines.deltas import rows_in
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.pipelines.batch_target import BatchTarget
from penstock_spark.pipelines.keyed import KeyedTarget, check_keyed
from penstock_spark.pipelines.step import ChannelTarget, MicroBatch, TableTarget


def test_a_target_has_to_be_one_whose_rows_can_be_replaced() -> None:
    check_keyed("live", "table", "states replace each other")
    check_keyed(None, "iceberg://prod/lake/states", "states replace each other")

    with pytest.raises(InvalidArgument, match="states replace each other, and only Delta"):
        check_keyed(None, TableTarget(path="t", format="parquet"), "states replace each other")
    numbered = ChannelTarget(name="live", options={"txnAppId": "x", "TXNVERSION": "1"})
    with pytest.raises(InvalidArgument, match="options has txnappid, txnversion; the step"):
        check_keyed(numbered, None, "")
    with pytest.raises(InvalidArgument, match="none is given"):
        check_keyed(None, None, "")


def test_a_table_is_compacted_after_each_of_so_many_micro_batches(tmp_path: Path) -> None:
    table = TableTarget(path=str(tmp_path / "table"), compact_every=2)
    target = BatchTarget(url="", table=table)
    rows: Any = pa.table({"id": [1]})
    counts = []
    for number in range(4):
        target(rows, MicroBatch("query", number))
        counts.append(len(target.opened.files()))

    assert counts == [1, 1, 2, 1]


def test_a_micro_batch_that_broke_off_between_its_targets_is_completed(
    spark: SparkSession, url: str, client: Session, tmp_path: Path
) -> None:
    table = TableTarget(path=str(tmp_path / "table"))
    keyed = KeyedTarget(key=("id",), url=url, channel=ChannelTarget(name="live"), table=table)
    first, second = MicroBatch("query", 0), MicroBatch("query", 1)

    def rows(*pairs: tuple[int, str]) -> DataFrame:
        return spark.createDataFrame(list(pairs), "id int, name string")

    with pytest.raises(Exception, match="no channel 'live'"):
        keyed(rows((1, "a"), (2, "b")), first)
    live = client.channels.create("live", type="persistent")
    keyed(rows((1, "never twice"), (2, "b")), first)
    keyed(rows((2, "c")), second)
    keyed(rows((2, "c")), second)

    assert sorted(row["name"] for row in rows_in(tmp_path / "table")) == ["a", "c"]
    assert live.read().column("id").to_pylist() == [1, 2, 2]
