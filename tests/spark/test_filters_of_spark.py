"""Why ``where`` is not handed to the source (ADR 8): what Spark 4.3 makes of pushed filters.

This tests Spark, not Penstock. Once it fails, filters can be pushed down: see docs/adr/0008.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, GreaterThan, InputPartition

ROWS = 10


def numbers() -> type[DataSource]:
    """A source of 0 to 9 that leaves out what is at most a pushed bound. Made in a function, for
    Spark's processes do not find this module: what it is goes to them with it."""
    rows = ROWS

    class Reader(DataSourceReader):
        above = -1

        def pushFilters(self, filters: Sequence[Any]) -> Iterable[Any]:  # noqa: N802  Spark's name
            for each in filters:
                if isinstance(each, GreaterThan):
                    self.above = each.value
                yield each  # Spark is to look at each row all the same

        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(self.above)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((n,) for n in range(partition.value + 1, rows))

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers_above"

        def schema(self) -> str:
            return "n bigint"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    return Numbers


def test_spark_keeps_the_filters_of_one_query_for_the_next_without_any(spark: SparkSession) -> None:
    spark.dataSource.register(numbers())
    fresh = spark.read.format("numbers_above").load()
    assert fresh.count() == ROWS
    table = spark.read.format("numbers_above").load()
    assert table.where("n > 6").count() == 3
    assert table.count() == 3, "Spark is mended: all 10 rows; hand filters over (ADR 8)"
