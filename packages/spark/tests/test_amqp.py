"""Spark reads events of AMQP clients, and AMQP clients read events of Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampType,
)

import penstock
from penstock.client.sync.sync import Session

pytest.importorskip("proton", reason="python-qpid-proton is not installed: `make setup` says why")

from proton import Message, byte, float32, int32, short, timestamp, ulong

from packages.amqp.tests.clients import WAIT_S, Client

AT_MS = 1_772_368_215_250
PROPERTIES: dict[str, Any] = {
    "yes": True,
    "tiny": byte(-3),
    "small": short(300),
    "number": int32(-70_000),
    "large": 1 << 40,
    "half": float32(0.5),
    "third": 1 / 3,
    "text": "ß",
    "bytes": b"\x00\xff",
    "at": timestamp(AT_MS),
}
TYPES = {
    "yes": BooleanType(),
    "tiny": ByteType(),
    "small": ShortType(),
    "number": IntegerType(),
    "large": LongType(),
    "half": FloatType(),
    "third": DoubleType(),
    "text": StringType(),
    "bytes": BinaryType(),
    "at": TimestampType(),
}


def sent() -> Message:
    """One with every kind of property, and what no column says."""
    return Message(
        body="Grüße",
        id=ulong(7),
        correlation_id="c",
        subject="greeting",
        reply_to="answers",
        properties=PROPERTIES,
        annotations={"x-opt-mine": "kept"},
        priority=7,
        ttl=3_600.0,
    )


def read(spark: SparkSession, url: str, channel: str, **options: Any) -> DataFrame:
    reader = spark.read.format("penstock").option("url", url).option("channel", channel)
    return reader.options(startingOffsets="earliest", **options).load()


def test_spark_reads_what_an_amqp_client_has_published(
    spark: SparkSession, realm: penstock.Realm, client: Session, url: str
) -> None:
    client.channels.create("news", ttl=0)
    with Client(realm.listen_amqp()) as publisher:
        publisher.sender("news", "topic").send(sent())

    result = read(spark, url, "news", includeHeaders=True)
    kinds = {field.name: field.dataType for field in result.schema}
    (row,) = result.collect()

    assert {name: kinds[name] for name in TYPES} == TYPES
    time = datetime.fromtimestamp(AT_MS / 1_000, UTC).astimezone().replace(tzinfo=None)
    assert {name: row[name] for name in TYPES} == {**PROPERTIES, "at": time}
    assert bytes(row["data"]).decode() == "Grüße"
    assert (row["priority"], row["ttl"]) == (7, 3_600_000)
    assert row["headers"]["correlation_id"] == "c"
    assert row["headers"]["message_id"] == "7"
    assert row["headers"]["type"] == "greeting"
    assert row["headers"]["reply_to"] == "answers"
    assert '"body":"text"' in row["headers"]["amqp"]


def test_an_amqp_client_reads_what_spark_has_written(
    spark: SparkSession, realm: penstock.Realm, client: Session, url: str
) -> None:
    """A message that Spark copies is the same for another AMQP client."""
    client.channels.create("in")
    client.channels.create("out")
    with Client(realm.listen_amqp()) as amqp:
        receiver = amqp.receiver("out", "topic")
        amqp.sender("in", "topic").send(sent())
        rows = read(spark, url, "in", includeHeaders=True).drop("event_id", "published")
        writer = rows.write.format("penstock").option("url", url).option("channel", "out")
        writer.mode("append").save()
        received = receiver.receive(WAIT_S)

    original = sent()
    for part in ("body", "id", "correlation_id", "subject", "reply_to", "properties", "priority"):
        assert getattr(received, part) == getattr(original, part), part
    for name, value in PROPERTIES.items():
        assert type(received.properties[name]) is type(value) or name == "bytes", name
    assert received.annotations["x-opt-mine"] == "kept"
    assert 0 < received.ttl <= 3_600.0
