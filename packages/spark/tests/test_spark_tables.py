"""Tables written by Spark's tasks and read by Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from packages.client.tests.catalogs import configured
from penstock.tables import Format
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_spark.pipelines.sources import Source
from penstock_spark.tables import Table


@pytest.mark.parametrize("format", ["delta", "iceberg", "parquet"])
def test_a_dataframe_is_appended_once_and_read_again(
    spark: SparkSession, tmp_path: Path, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the driver has the configuration of the Iceberg catalog."""
    configured(tmp_path, monkeypatch)
    uri = "iceberg://prod/lake/t" if format == "iceberg" else str(tmp_path / "t")
    table = Table.open(uri, format, ["day"])
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
        frame.where("event_id = 3").selectExpr("event_id", "day"), "event_id", "m", version=0
    )

    result = {row.event_id: row for row in table.read(spark).collect()}
    assert sorted(result) == list(range(20))
    assert result[4].s.n == 4
    assert (result[3].s, result[3].day) == (None, "1")
    assert (result[4].more, result[14].more) == (None, 1)
    source = Source(name="rows", table=uri)
    assert source.frame(spark, url="").where("day = '0'").count() == 10


def test_rows_that_a_table_cannot_hold_leave_nothing_of_their_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table.open(str(tmp_path / "t"))
    assert table.append(spark.sql("select 1 as event_id, 1 as n"), "app", 0)
    words = spark.sql("select id as event_id, if(id < 9, '1', 'x') as n from range(0, 10, 1, 2)")

    with pytest.raises(PythonException, match=r"InvalidArgument.*column 'n'"):
        table.append(words, "app", 1)
    assert table.read(spark).count() == 1
    assert table.last_of("app") == 0


def test_rows_are_added_beside_those_of_another_writer(spark: SparkSession, tmp_path: Path) -> None:
    """Also if the other writer has added a column meanwhile, and without rows."""
    table, other_table = Table.open(str(tmp_path / "t")), Table.open(str(tmp_path / "t"))
    assert table.append(spark.sql("select 1 as event_id where false"), "app", 0)
    assert table.schema.names == ["event_id"]
    assert other_table.append(pa.table({"event_id": [2], "more": ["m"]}), "other", 0)
    assert table.append(spark.sql("select 3 as event_id, 'l' as less"), "app", 1)

    rows = {row.event_id: (row.more, row.less) for row in table.read(spark).collect()}
    assert rows == {2: ("m", None), 3: (None, "l")}
