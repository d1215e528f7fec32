"""The sink under a real Spark session: repeated, renamed, cut off in the middle, killed.

The recipe is that of apache/paimon#9667 with our own cases. Tasks that fail, two queries into one
channel and a commit of unknown outcome are in ``test_streams``, a killed driver in
``test_crashes``, and hundreds of kills without Spark in ``test_kills``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from packages.spark.tests.mortal import Mortal
from penstock.client.sync.sync import Channel, Session
from penstock_spark.source import PenstockSource
from penstock_spark.writing.writing import ChannelStreamWriter

pytestmark = [pytest.mark.slow, pytest.mark.spec("X3", "X4")]

QUERY_TIMEOUT_S = 120
TARGETS = ("even", "odd")
REALM_KILLS = 6
STARTS_MAX = 60


def publish(channel: Channel, first: int, end: int) -> None:
    channel.publish_many([penstock.Event(properties={"n": n}) for n in range(first, end)])


def create(session: Session) -> Channel:
    for name in TARGETS:
        session.channels.create(name, type="persistent")
    return session.channels.create("orders", type="persistent")


def routed(spark: SparkSession, url: str, portion: int = 1_000) -> DataFrame:
    """The numbers of ``orders``, each with the channel it is for."""
    table = (
        spark.readStream.format("penstock")
        .options(url=url, channel="orders", startingOffsets="earliest", maxEventsPerTrigger=portion)
        .load()
    )
    return table.selectExpr("n", "if(n % 2 = 0, 'even', 'odd') AS channel")


def run(
    table: DataFrame, url: str, checkpoint: Path, sink: str = "penstock", **options: Any
) -> StreamingQuery:
    """Process the stored events, and end."""
    query = (
        table.writeStream.format(sink)
        .options(url=url, checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    return query


def published_numbers(session: Session) -> list[list[int]]:
    tables = [session.channels.get(name).read() for name in TARGETS]
    return [table.column("n").to_pylist() if table.num_rows else [] for table in tables]


def halves(end: int) -> list[list[int]]:
    return [list(range(0, end, 2)), list(range(1, end, 2))]


def test_a_repetition_under_another_query_name_is_stored_once_on_all_channels(
    spark: SparkSession, url: str, client: Session, tmp_path: Path
) -> None:
    orders, checkpoint = create(client), tmp_path / "checkpoint"
    publish(orders, 0, 1_500)
    run(routed(spark, url), url, checkpoint, queryName="first")
    assert published_numbers(client) == halves(1_500)
    (checkpoint / "commits" / "1").unlink()
    publish(orders, 1_500, 1_600)

    run(routed(spark, url), url, checkpoint, queryName="second")

    assert published_numbers(client) == halves(1_600)


def test_a_repetition_whose_rows_name_another_channel_is_stored_once(
    spark: SparkSession, url: str, client: Session, tmp_path: Path
) -> None:
    orders, checkpoint = create(client), tmp_path / "checkpoint"
    publish(orders, 0, 500)
    run(routed(spark, url), url, checkpoint)
    (checkpoint / "commits" / "0").unlink()
    publish(orders, 500, 600)

    run(routed(spark, url).drop("channel"), url, checkpoint, channel="even")

    even, odd = halves(500)
    assert published_numbers(client) == [[*even, *range(500, 600)], odd]


def test_an_older_copy_of_a_checkpoint_is_refused_before_it_loses_rows(
    spark: SparkSession, url: str, client: Session, tmp_path: Path
) -> None:
    orders, checkpoint, copy = create(client), tmp_path / "checkpoint", tmp_path / "copy"
    publish(orders, 0, 10)
    run(routed(spark, url), url, checkpoint)
    shutil.copytree(checkpoint, copy)
    run(routed(spark, url), url, copy)  # exact: nothing was new
    publish(orders, 10, 20)
    run(routed(spark, url), url, checkpoint)
    publish(orders, 20, 30)

    with pytest.raises(StreamingQueryException, match="a copy was restored") as refused:
        run(routed(spark, url), url, copy)

    assert "micro-batch 1 of query" in str(refused.value)
    assert "newest checkpoint" in str(refused.value)
    run(routed(spark, url), url, checkpoint)
    assert published_numbers(client) == halves(30)


def test_an_older_copy_of_a_checkpoint_over_files_is_refused_before_it_loses_rows(
    spark: SparkSession, url: str, client: Session, tmp_path: Path
) -> None:
    create(client)
    checkpoint, copy, files = tmp_path / "checkpoint", tmp_path / "copy", tmp_path / "files"
    files.mkdir()

    def add_file(first: int) -> None:
        lines = [
            f'{{"n":{n},"channel":"{"odd" if n % 2 else "even"}"}}\n'
            for n in range(first, first + 10)
        ]
        (files / f"{first}.json").write_text("".join(lines))

    def write(to: Path) -> None:
        run(spark.readStream.schema("n bigint, channel string").json(str(files)), url, to)

    add_file(0)
    write(checkpoint)
    shutil.copytree(checkpoint, copy)
    add_file(10)
    write(checkpoint)
    (checkpoint / "commits" / "1").unlink()  # a repetition has the same files
    write(checkpoint)
    add_file(20)

    with pytest.raises(StreamingQueryException, match="a copy was restored"):
        write(copy)
    write(checkpoint)

    assert published_numbers(client) == halves(30)


def test_a_new_checkpoint_is_another_query_unless_it_has_a_name(
    spark: SparkSession, url: str, client: Session, tmp_path: Path
) -> None:
    publish(create(client), 0, 10)
    for checkpoint in ("a", "b"):
        run(routed(spark, url), url, tmp_path / checkpoint)
    assert published_numbers(client) == [half * 2 for half in halves(10)]
    for checkpoint in ("c", "d"):
        run(routed(spark, url), url, tmp_path / checkpoint, txnAppId="copy")

    assert published_numbers(client) == [half * 3 for half in halves(10)]


def test_a_row_that_cannot_be_an_event_ends_the_query_with_the_row(
    spark: SparkSession, url: str, client: Session, tmp_path: Path
) -> None:
    publish(create(client), 0, 50)
    table = routed(spark, url).selectExpr("*", "if(n = 40, -5L, 1000L) AS ttl")

    with pytest.raises(StreamingQueryException, match=r"row 40 of partition 0 .*ttl=-5"):
        run(table, url, tmp_path / "a")
    lost = routed(spark, url).selectExpr("n", "if(n = 7, 'nowhere', channel) AS channel")
    with pytest.raises(StreamingQueryException, match=r"row 7 of partition 0 .*'nowhere'"):
        run(lost, url, tmp_path / "b")

    assert published_numbers(client) == [[], []]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    with Mortal(tmp_path / "realm") as realm:
        yield realm


@pytest.mark.process
@pytest.mark.parametrize("carries", [True, False], ids=["small tasks", "large tasks"])
def test_a_realm_killed_between_the_tasks_and_the_commit_loses_nothing(
    spark: SparkSession, mortal: Mortal, tmp_path: Path, carries: bool
) -> None:
    """A query goes on whose tasks were small enough to hand their rows to the driver; another one
    ends, and does that micro-batch again when it is started again."""
    reached, go = tmp_path / "reached", tmp_path / "go"

    # Made in here, the classes travel to Spark's processes by value.
    class Waiting(ChannelStreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            from dataclasses import replace
            from threading import Event

            if batchId == 1:
                reached.touch()
                while not go.exists():
                    Event().wait(0.01)
            if not carries:
                messages = [
                    replace(
                        message, parts=tuple(part._replace(rows=None) for part in message.parts)
                    )
                    for message in messages
                ]
            super().commit(messages, batchId)

    class WaitingSource(PenstockSource):
        @classmethod
        def name(cls) -> str:
            return "waiting"

        def streamWriter(self, schema: Any, overwrite: bool) -> ChannelStreamWriter:  # noqa: N802
            return Waiting(self._sink(schema, overwrite=overwrite))

    spark.dataSource.register(WaitingSource)
    with penstock.connect(mortal.url) as session:
        publish(create(session), 0, 250)
        query = (
            routed(spark, mortal.url, 100)
            .writeStream.format("waiting")
            .options(url=mortal.url, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        while not reached.exists():
            assert query.isActive, query.exception()
        mortal.kill()
        go.touch()

        if carries:
            assert query.awaitTermination(QUERY_TIMEOUT_S)
        else:
            with pytest.raises(StreamingQueryException, match="start the query again"):
                query.awaitTermination(QUERY_TIMEOUT_S)
            assert published_numbers(session) == halves(100)
            run(routed(spark, mortal.url, 100), mortal.url, tmp_path / "checkpoint")
        assert published_numbers(session) == halves(250)


@pytest.mark.process
def test_a_realm_that_is_killed_again_and_again_loses_and_doubles_nothing(
    spark: SparkSession, mortal: Mortal, tmp_path: Path
) -> None:
    random = Random(9667)
    with penstock.connect(mortal.url) as session:
        publish(create(session), 0, 1_200)
    mortal.doom([(random.randint(2, 5), random.randrange(1 << 30)) for _ in range(REALM_KILLS)])
    starts = 0
    while True:
        starts += 1
        assert starts < STARTS_MAX, "the query does not get on"
        try:
            run(routed(spark, mortal.url, 150), mortal.url, tmp_path / "checkpoint")
            break
        except PySparkException:  # it is started again, as whoever runs it would
            continue

    mortal.doom([])
    assert mortal.killed >= REALM_KILLS
    with penstock.connect(mortal.url) as session:
        counts = Counter(n for half in published_numbers(session) for n in half)
    assert counts == Counter(range(1_200))
