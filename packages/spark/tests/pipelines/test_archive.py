"""The archive step: every event once, with everything about it, and read back by the client."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock
from packages.client.tests.catalogs import configured
from penstock.client.archiving.lake import Lake
from penstock.client.sync.sync import Channel, Session
from penstock.tables import DataFile, Format, Table
from penstock_core.columns.schema.ipc import schema_from
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_core.vocabulary.names import escaped, file_part
from penstock_spark import register
from penstock_spark.archives.archiving import ArchiveSource, Written, commit, compact
from penstock_spark.archives.archiving import register as name_archive
from penstock_spark.pipelines import parse, run
from penstock_spark.pipelines.sources import joined_names
from penstock_spark.pipelines.steps.archive import ArchiveStep

LAKE = {"name": "lake", "kind": "archive", "source": "flights", "table": "lake/flights"}
WITHOUT = {"source": "few", "register": False}


@pytest.fixture
def flights(client: Session) -> Channel:
    return client.channels.create("flights", type="persistent")


def publish(channel: Channel, first: int, end: int, **more: Any) -> None:
    channel.publish_many(
        [
            penstock.Event(
                f"d{n}".encode(),
                tag="late" if n % 2 else None,
                properties={"n": n, "carrier": "AA", **more},
                headers={"correlation_id": str(n)},
                priority=n % 10,
            )
            for n in range(first, end)
        ]
    )


# --- without a JVM ------------------------------------------------------------------------


class Query:
    """A query by hand: the driver's steps and the tasks', in this process."""

    def __init__(self, url: str, lake: Lake, **options: str) -> None:
        all_options = {"url": url, "channel": "flights", "startingOffsets": "earliest", **options}
        text = msgspec.json.encode(lake).decode()
        source = ArchiveSource({**all_options, "archive": text})
        self.lake = lake
        self.reader = source.streamReader(source.schema())
        self.at = self.reader.initialOffset()

    def written(self) -> list[Written]:
        """Return the files that the tasks of the next micro-batch write."""

        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        written_files = []
        for partition in self.reader.partitions(self.at, end):
            for batch in self.reader.read(partition):
                (row,) = batch.to_pylist()
                files = msgspec.json.decode(row["files"], type=tuple[DataFile, ...])
                columns = schema_from(row["columns"])
                written_files.append(
                    Written(
                        row["channel"], row["epoch"], row["events"], files=files, columns=columns
                    )
                )
        self.end = end
        return written_files

    def step(self, number: int) -> None:
        commit(self.lake, self.written(), "query", version=number)
        self.at = self.end


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    if request.param == "iceberg":
        configured(tmp_path, monkeypatch)
        return Lake("iceberg://prod/lake/flights", "iceberg")
    return Lake(str(tmp_path / "lake"), request.param)


@pytest.mark.slow
def test_events_are_archived_once_and_read_back(
    url: str, client: Session, flights: Channel, lake: Lake
) -> None:
    publish(flights, 0, 60)
    query = Query(url, lake, maxEventsPerTrigger="25", minPartitions="2")
    before = flights.read(columns=["event_id", "published", "tag", "data", "n"])
    for number in range(2):
        query.step(number)
    commit(lake, query.written(), "query", version=1)  # tried again: stored already
    query.step(2)
    name_archive(url, lake, "flights")
    flights.purge(end=39)

    assert flights.read(columns=before.column_names).equals(before)
    with flights.subscribe(start=0) as reading:
        events = [event for _, event in zip(range(60), reading, strict=False)]
    for n, event in enumerate(events):
        assert (event.event_id, event.properties["n"], event.priority) == (n, n, n % 10)
        assert event.headers["correlation_id"] == str(n)
        assert event.headers.keys() == events[59].headers.keys(), "publisher and host, too"
    compact(lake, "flights", 0)
    assert flights.read(columns=before.column_names).equals(before)


@pytest.mark.slow
def test_columns_that_turn_up_later_are_added(
    url: str, client: Session, flights: Channel, lake: Lake
) -> None:
    publish(flights, 0, 5)
    query = Query(url, lake)
    query.step(0)
    publish(flights, 5, 10, gate={"name": "B4"}, Carrier="mixed")
    query.step(1)
    publish(flights, 10, 12, gate={"name": "B5", "level": 2}, n_="x", carrier=7)
    query.step(2)

    table = lake.table_of("flights")
    rows = {row["event_id"]: row for row in table.to_arrow().to_pylist()}
    assert rows[0]["gate"] is None
    assert rows[6]["gate"] == {"name": "B4", "level": None}
    assert (rows[6]["carrier"], rows[6]["properties.Carrier"]) == ("AA", "mixed")
    assert (rows[11]["carrier"], rows[11]["carrier::int"]) == (None, 7)
    flights.purge()
    result = flights.browse(archive=lake.uri)
    properties = {event.event_id: event.properties for event in result}
    assert properties[0] == {"n": 0, "carrier": "AA"}
    assert properties[6] == {
        "n": 6,
        "carrier": "AA",
        "gate": {"name": "B4"},
        "Carrier": "mixed",
    }
    assert properties[11]["carrier"] == 7


@pytest.mark.slow
def test_a_local_time_that_turns_up_later_is_a_column(
    url: str, flights: Channel, lake: Lake
) -> None:
    local = datetime(2026, 5, 4, 23, 59)  # noqa: DTZ001  a time without a zone is meant
    query = Query(url, lake)
    publish(flights, 0, 2)
    query.step(0)
    publish(flights, 2, 4, local=local)
    query.step(1)

    table = lake.table_of("flights").to_arrow().sort_by("event_id")
    assert table.schema.field("local").type == pa.timestamp("us")
    assert table.column("local").to_pylist() == [None, None, local, local]
    flights.purge()
    events = flights.browse(archive=lake.uri)
    value_by_id = {event.event_id: event.properties.get("local") for event in events}
    assert value_by_id == {0: None, 1: None, 2: local, 3: local}


@pytest.mark.slow
@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_each_channel_has_a_table(
    url: str, client: Session, tmp_path: Path, format: Format
) -> None:
    for name in ("flights/ewr", "flights/jfk"):
        publish(client.channels.create(name), 0, 5)
    lake = Lake(str(tmp_path / "lake"), format, several=True)
    Query(url, lake, channel="flights/*").step(0)

    assert sorted(path.name for path in (tmp_path / "lake").iterdir()) == [
        "flights~2Fewr",
        "flights~2Fjfk",
    ]
    assert Table.found(lake.uri_of("flights/jfk")).to_arrow().num_rows == 5


@pytest.mark.slow
@pytest.mark.spec("C2")
@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_any_name_has_a_table_of_its_own(
    url: str, client: Session, tmp_path: Path, format: Format
) -> None:
    names = ("flights", "flights/delays", "a,b*?", "100% größe", ".日", "~2F", "x" * 255)
    for name in names:
        publish(client.channels.create(name), 0, 3)
    lake = Lake(str(tmp_path / "lake"), format, several=True)
    Query(url, lake, channel=joined_names([*map(escaped, names[:-1]), "x*"])).step(0)

    folders = sorted(path.name for path in (tmp_path / "lake").iterdir())
    assert folders == sorted(map(file_part, names))
    for name in names:
        assert Table.found(lake.uri_of(name)).to_arrow().num_rows == 3
        name_archive(url, lake, name)
        archived = client.channels.get(name)
        archived.purge()
        assert archived.read().num_rows == 3, name


@pytest.mark.slow
def test_an_archive_is_of_one_channel_for_ever(
    url: str, client: Session, flights: Channel, lake: Lake
) -> None:
    publish(flights, 0, 5)
    Query(url, lake).step(0)
    client.channels.delete("flights")
    publish(client.channels.create("flights"), 0, 5)

    with pytest.raises(IllegalState, match="of an earlier time or another realm"):
        Query(url, lake).step(0)
    Table.open(f"{lake.uri}2", lake.format).append(pa.table({"event_id": [1]}), "app", 0)
    with pytest.raises(InvalidArgument, match=r"not an archive of a channel: .*; choose another"):
        Query(url, Lake(f"{lake.uri}2", lake.format, by_day=False)).step(0)


def test_a_channel_that_names_an_archive_keeps_it(url: str, flights: Channel, lake: Lake) -> None:
    flights.edit(archive="elsewhere")
    name_archive(url, lake, "flights")
    assert flights.info().definition.archive == "elsewhere"
    flights.edit(archive="")
    name_archive(url, lake, "flights")
    assert flights.info().definition.archive == lake.uri


@pytest.mark.slow
def test_events_of_sealed_files_keep_their_publishers(
    url: str, client: Session, sealed: Any, tmp_path: Path
) -> None:
    channel = client.channels.create(
        "flights", type="persistent", storage={"events_per_spindle": 50}
    )
    publish(channel, 0, 120)
    sealed(channel, 2)
    lake = Lake(str(tmp_path / "lake"), "parquet", by_day=False)
    Query(url, lake).step(0)

    table = lake.table_of("flights")
    assert table.partition_by == ()
    headers = table.to_arrow(["headers"]).column(0).to_pylist()
    assert len(headers) == 120
    expected = channel.browse()
    for row, event in zip(headers, expected, strict=True):
        assert {name: value for name, value in row.items() if value is not None} == event.headers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"source": "nothing"},
            "source is 'nothing', which is not defined; defined are flights, t, q, few, some",
        ),
        ({"source": "t"}, "an archive step needs channels, read as a stream"),
        ({"source": "q"}, "an archive step needs channels, read as a stream"),
        ({"source": "few"}, "would miss events in its archive: set register = false"),
        ({"source": "some"}, "would miss events in its archive: set register = false"),
        ({"source": "narrow"}, "source narrow has the option columns"),
        ({"table": ""}, "table is empty"),
        ({"compact_every": -1}, "compact_every is -1"),
        ({"keep_hours": -5}, "keep_hours is -5"),
        ({"format": "csv"}, "format"),
        ({"format": "iceberg"}, "format is 'iceberg' and the table is 'lake/flights'"),
        ({"partition_by": "hour"}, "partition_by"),
    ],
)
def test_a_definition_that_cannot_be_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    sources = [
        {"name": "flights", "channel": "flights"},
        {"name": "t", "table": "airports.csv"},
        {"name": "q", "queue": "work"},
        {"name": "few", "channel": "flights", "selector": "n > 3"},
        {"name": "some", "channel": "flights", "options": {"Selector": "n > 3"}},
        {"name": "narrow", "channel": "flights", "options": {"columns": "n"}},
    ]
    parse({"name": "p", "source": sources, "step": [{**LAKE, **WITHOUT}]}, folder=tmp_path)
    document = {"name": "p", "source": sources, "step": [{**LAKE, **changes}]}
    with pytest.raises(InvalidArgument, match=message):
        parse(document, file="p.toml", folder=tmp_path)


def test_what_a_step_reads_and_writes_is_told(tmp_path: Path) -> None:
    step = ArchiveStep(name="lake", source="flights", table="lake/flights")
    assert step.reads({}) == ("flights",)
    assert step.writes() == ("table lake/flights",)


# --- in Spark -----------------------------------------------------------------------------


@pytest.fixture
def pipeline_spark(spark: SparkSession, url: str) -> SparkSession:
    register(spark, url)
    return spark


@pytest.mark.slow
def test_a_pipeline_archives_what_is_there_and_goes_on_where_it_was(
    pipeline_spark: SparkSession, url: str, flights: Channel, tmp_path: Path
) -> None:
    document = {
        "name": "small",
        "url": url,
        "source": [{"name": "flights", "channel": "flights", "max_events": 60}],
        "step": [{**LAKE, "compact_every": 2}],
    }
    pipeline = parse(document, file="small.toml", folder=tmp_path)
    publish(flights, 0, 100)
    report = run(pipeline, once=True, spark=pipeline_spark)
    publish(flights, 100, 150, gate="B4")
    flights.purge(end=89)
    run(pipeline, once=True, spark=pipeline_spark)

    assert [(step.rows, step.rows_out) for step in report.steps] == [(100, 100)]
    table = Table.found(str(tmp_path / "lake" / "flights"))
    assert sorted(table.to_arrow(["event_id"]).column(0).to_pylist()) == list(range(150))
    assert flights.info().definition.archive == str(tmp_path / "lake" / "flights")
    assert flights.read().column("n").to_pylist() == list(range(150))
