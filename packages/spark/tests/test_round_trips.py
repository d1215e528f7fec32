"""Spark as a source and as a sink of what other protocols say, as the guide's tables have it."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import penstock
from penstock_spark.connections import disconnect
from tests.round_trips import (
    AS_EVENT,
    BYTES,
    CHANNEL,
    NESTED,
    PAYLOAD,
    SECOND,
    SINGLE,
    SINKS,
    SOURCES,
    TOPIC,
    assert_as_told,
    parts_of_events,
    world,
)

IS_AMQP = find_spec("proton") is not None
HERE = [name for name in SOURCES if IS_AMQP or name != "AMQP"]
PATIENCE_S = 600
PROPERTIES = ("topic", *SINGLE, *NESTED)
COLUMNS = (
    "data BINARY, tag STRING, ttl BIGINT, persistent BOOLEAN, topic STRING, unit STRING, n BIGINT,"
    "celsius DOUBLE, ok BOOLEAN, tags ARRAY<STRING>, place STRUCT<line: BIGINT>,"
    "headers STRUCT<reply_to: STRING, correlation_id: STRING, mqtt: STRING>"
)


def event_of(row: Row) -> dict[str, Any]:
    """A row as the event that native clients get."""
    values = row.asDict(recursive=True)
    properties = {name: values[name] for name in PROPERTIES if values[name] is not None}
    return {**values, "data": bytes(values["data"]), "properties": properties}


@pytest.mark.spec("M3")
def test_spark_reads_and_writes_what_the_guide_says(spark: SparkSession, tmp_path: Path) -> None:
    # A job of Spark may take longer than a client that waits for it may be silent.
    patient = {"listen__idle_timeout_s": PATIENCE_S}
    with (
        penstock.Realm(tmp_path, **patient) as realm,
        world(realm, is_amqp=IS_AMQP) as everybody,
        ExitStack() as stack,
    ):
        stack.callback(disconnect)
        url = realm.listen()
        for source in HERE:
            SOURCES[source](everybody)
        reader = (
            spark.read.format("penstock").option("url", url).option("includeHeaders", value=True)
        )
        rows = [event_of(row) for row in reader.load(CHANNEL).orderBy("event_id").collect()]
        assert len(rows) == 2 * len(HERE)
        for index, source in enumerate(HERE):
            assert_as_told(parts_of_events(rows[2 * index : 2 * index + 2]), source, "Spark")

        hearing = {sink: SINKS[sink](everybody) for sink in HERE}
        headers = AS_EVENT["headers"]
        first = [PAYLOAD.encode(), AS_EVENT["tag"], AS_EVENT["ttl"], True, TOPIC, *SINGLE.values()]
        first += [*NESTED.values(), headers]
        second = [BYTES, None, None, SECOND["persistent"], TOPIC, *[None] * 7]
        table = spark.createDataFrame([first, second], COLUMNS).coalesce(1)
        writer = table.write.format("penstock").option("url", url).option("nulls", "absent")
        writer.mode("append").save(CHANNEL)
        for sink, heard in hearing.items():
            assert_as_told(heard(), "Spark", sink)
