"""Rare properties have their columns in Spark and in archives (SEM E2)."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

import penstock
from packages.core.tests.columns.properties import row_properties
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.files.archives import ArchiveLayout, from_archive
from penstock_core.columns.files.lean_columns import lean
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
from penstock_spark.columns.projection import Extras, Projection, arrow_schema, spark_schema
from penstock_spark.connections import disconnect
from penstock_spark.source import PenstockSource

pytestmark = pytest.mark.spec("E2")

WIDE: dict[str, Any] = {f"p{number:03d}": number for number in range(250)}
ROWS: list[dict[str, Any]] = [
    *({"sku": f"a{n}", "price": n / 2} for n in range(1_000)),
    {"sku": "w", "p007": None, **{name: n for name, n in WIDE.items() if name != "p007"}},
    *({"sku": f"b{n}"} for n in range(500)),
]


@pytest.fixture
def sealed() -> tuple[ChannelSchema, pa.RecordBatch]:
    """A channel's schema, and a batch of a file of it that leaves most of its columns out."""
    body = body_of_columns([b""] * len(ROWS), properties=ROWS)
    batch = stamp(body, Span(0, len(ROWS)), 0)
    channel = ChannelSchema.empty().grown(batch.schema)
    (kept,) = lean([batch], channel)
    assert {field.name for field in kept.schema.field("properties").type} == {"sku", "price"}
    return channel, kept


@pytest.mark.slow
def test_a_read_has_the_column_of_every_name(sealed: tuple[ChannelSchema, pa.RecordBatch]) -> None:
    channel, batch = sealed
    extras = Extras(nulls=True)
    wanted = arrow_schema(spark_schema([channel.arrow], extras=extras))

    result = Projection(channel.arrow, wanted, extras=extras).project(batch)

    assert result.column("p042").to_pylist() == [None] * 1_000 + [42] + [None] * 500
    assert result.column("sku").to_pylist() == [row["sku"] for row in ROWS]
    assert result.column("price").null_count == 501
    assert result.column("nulls").to_pylist() == [None] * 1_000 + [["p007"]] + [None] * 500


def test_a_read_of_some_columns_has_them(sealed: tuple[ChannelSchema, pa.RecordBatch]) -> None:
    channel, batch = sealed
    wanted = arrow_schema(spark_schema([channel.arrow], columns=("p001", "event_id")))

    result = Projection(channel.arrow, wanted).project(batch)

    assert result.schema.names == ["p001", "event_id"]
    assert result.column("p001").drop_null().to_pylist() == [1]


@pytest.mark.slow
def test_an_archive_has_the_columns_and_gives_the_events_back(
    sealed: tuple[ChannelSchema, pa.RecordBatch],
) -> None:
    channel, batch = sealed

    rows = ArchiveLayout(channel.arrow, channel="orders", epoch="1").of(batch)

    assert rows.column("p042").drop_null().to_pylist() == [42]
    assert "$penstock_more" not in rows.schema.names
    again = from_archive(rows, rows.schema)
    assert [row_properties(again, n) for n in (0, 1_000, 1_400)] == [
        ROWS[0],
        ROWS[1_000],
        ROWS[1_400],
    ]


def test_what_a_task_is_sent_stays_small_on_a_wide_channel() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        wide = session.channels.create("wide", type="persistent")
        wide.publish_many([penstock.Event(b"x", properties={"n": n}) for n in range(1_000)])
        wide.publish(b"y", properties={f"p{n}": n for n in range(250)})
        source = PenstockSource({"url": realm.listen(), "channel": "wide"})
        reader = source.reader(source.schema())

        tasks = [len(pickle.dumps(part)) for part in reader.partitions()]

    assert tasks
    assert max(tasks) < 32 << 10  # names and types, not a cell of any event


def test_a_query_that_names_a_property_beyond_the_columns_of_a_channel_has_its_values() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        wide = session.channels.create("wide", type="persistent")
        wide.publish(b"x", properties={f"p{n}": n for n in range(400)})
        wide.publish(b"y", properties={"p399": 7})
        url = {"url": realm.listen(), "channel": "wide"}
        schema = StructType().add("p399", LongType()).add("p0", LongType()).add("new", LongType())
        reader = PenstockSource(url).reader(schema)

        rows = [
            row
            for part in reader.partitions()
            for batch in reader.read(part)
            for row in batch.to_pylist()
        ]
        disconnect()

    assert rows == [{"p399": 399, "p0": 0, "new": None}, {"p399": 7, "p0": None, "new": None}]
