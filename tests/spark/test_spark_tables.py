"""Tables written by Spark's tasks and read by Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.core.vocabulary.errors import NameDoesNotExist
from penstock.spark.tables import Table
from penstock.tables import Format


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_dataframe_is_appended_once_and_read_again(
    spark: SparkSession, tmp_path: Path, format: Format
) -> None:
    table = Table.open(str(tmp_path / "t"), format, ["day"])
    frame = spark.sql(
        "select id as event_id, cast(id % 2 as string) as day, struct(id as n) as s, "
        "timestamp_millis(id) as at, null as nothing from range(0, 10, 1, 2)"
    )
    with pytest.raises(NameDoesNotExist):
        table.read(spark)

    assert table.append(frame, "app", 0)
    assert not table.append(frame, "app", 0)
    assert table.append(frame.selectExpr("event_id + 10 as event_id", "day", "1 as more"), "app", 1)
    assert table.merge(
        frame.where("event_id = 3").selectExpr("event_id", "day"), "event_id", "m", 0
    )

    found = {row.event_id: row for row in table.read(spark).collect()}
    assert sorted(found) == list(range(20))
    assert found[4].s.n == 4
    assert (found[3].s, found[3].day) == (None, "1")
    assert (found[4].more, found[14].more) == (None, 1)
    assert table.read(spark).where("day = '0'").count() == 10
