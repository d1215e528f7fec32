"""Writers against a realm, as Spark drives them, without Spark: once, whatever is tried twice."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

import penstock
from packages.spark.tests.tasks import written
from penstock.client.sync.sync import Channel, Session
from penstock_core.channel.producers import LASTING_REMEMBERED_MAX
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    InvalidEvent,
    NameDoesNotExist,
    NoSuchStage,
    SequenceTooOld,
)
from penstock_spark.columns.rows import as_table
from penstock_spark.connections import disconnect
from penstock_spark.options import SinkOptions, Where, sink_options
from penstock_spark.source import PenstockSource
from penstock_spark.writing.writing import ChannelStreamWriter, Staged, StagingLimits

ROW = StructType().add("data", BinaryType()).add("n", LongType())

OUT = SinkOptions(Where("", "out"))


@pytest.fixture
def out(client: Session) -> Channel:
    return client.channels.create("out", type="persistent")


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"data": [b"%d" % n for n in numbers], "n": pa.array(numbers, pa.int64())}
    )


def source(url: str, **options: str) -> PenstockSource:
    return PenstockSource({"url": url, "channel": "out", **options})


def stream_writer(url: str, **options: str) -> ChannelStreamWriter:
    return source(url, **options).streamWriter(ROW, overwrite=False)


def limited_writer(url: str, **limits: int) -> ChannelStreamWriter:
    return ChannelStreamWriter(sink_options(source(url).options), StagingLimits(**limits))


def task(writer: Any, partition: int, *numbers: int, query: str = "q-1") -> Staged:
    return written(writer, [batch(*numbers)] if numbers else [], partition, query=query)


def numbers(channel: Channel) -> list[int]:
    table = channel.read()
    return table.column("n").to_pylist() if table.num_rows else []


def test_a_micro_batch_is_published_in_the_order_of_its_partitions(url: str, out: Channel) -> None:
    writer = stream_writer(url)
    messages = [task(writer, 2, 5, 6), task(writer, 0, 1, 2), task(writer, 1, 3, 4)]

    assert out.info().events == 0
    writer.commit(messages, 0)

    assert numbers(out) == [1, 2, 3, 4, 5, 6]
    assert out.read().column("data").to_pylist()[0] == b"1"


def test_a_micro_batch_written_again_is_stored_once(url: str, out: Channel) -> None:
    writer = stream_writer(url)
    for _ in range(3):  # batch number 0 counts, too
        writer.commit([task(writer, 0, 1, 2)], 0)
    writer.commit([task(writer, 0, 3)], 1)
    writer.commit([task(writer, 0, 3)], 1)
    writer.commit([task(writer, 0, 1, 2)], 0)

    assert numbers(out) == [1, 2, 3]


def test_an_abort_after_a_commit_undoes_nothing(url: str, out: Channel) -> None:
    writer = stream_writer(url)
    messages = [task(writer, 0, 1), task(writer, 1, 2)]
    writer.commit(messages, 7)

    writer.abort([messages[0], None], 7)

    assert numbers(out) == [1, 2]


def test_what_was_aborted_cannot_be_committed_and_is_written_anew(url: str, out: Channel) -> None:
    writer = limited_writer(url, carried_bytes_max=-1)
    messages = [task(writer, 0, 1), None]
    writer.abort(messages, 0)

    with pytest.raises(NoSuchStage, match="start the query again"):
        writer.commit(messages, 0)
    writer.commit([task(writer, 0, 1)], 0)
    assert numbers(out) == [1]


@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_what_a_slower_try_has_staged_goes_with_the_commit(
    url: str, out: Channel, kind: str
) -> None:
    query = "q-1" if kind == "stream" else ""
    writer: Any = (
        limited_writer(url, carried_bytes_max=-1)
        if kind == "stream"
        else source(url).writer(ROW, overwrite=False)
    )
    faster, slower = task(writer, 0, 1, query=query), task(writer, 0, 1, query=query)
    if kind == "stream":
        writer.commit([faster], 0)
    else:
        writer.commit([faster])

    with pytest.raises(NoSuchStage):
        stream_writer(url).commit([slower], 1)
    assert numbers(out) == [1]


def test_two_queries_count_their_micro_batches_apart(url: str, out: Channel) -> None:
    writer = stream_writer(url)
    writer.commit([task(writer, 0, 1, query="one")], 0)
    writer.commit([task(writer, 0, 2, query="two")], 0)
    writer.commit([task(writer, 0, 1, query="one")], 0)

    assert numbers(out) == [1, 2]


def test_a_name_of_its_own_outlives_the_query(url: str, out: Channel) -> None:
    writer = stream_writer(url, txnAppId="flights")
    writer.commit([task(writer, 0, 1, query="one")], 0)
    writer.commit([task(writer, 0, 1, query="after a new checkpoint")], 0)

    assert numbers(out) == [1]


@pytest.mark.slow
def test_an_empty_micro_batch_publishes_nothing(url: str, out: Channel) -> None:
    writer = stream_writer(url)
    writer.commit([task(writer, 0), task(writer, 1)], 0)
    writer.commit([], 1)
    writer.commit([task(writer, 0, 1)], 2)

    assert numbers(out) == [1]


def test_a_task_that_fails_half_way_leaves_nothing_behind(url: str, out: Channel) -> None:
    writer = limited_writer(url, portion_rows_max=1)

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        yield batch(2)
        raise ValueError("the row after the second")

    with pytest.raises(ValueError, match="after the second"):
        written(writer, rows())
    writer.commit([task(writer, 0, 1, 2)], 0)
    assert numbers(out) == [1, 2]


def test_many_portions_are_one_publish(url: str, out: Channel) -> None:
    writer = limited_writer(url, portion_rows_max=3)

    message = written(writer, [batch(1, 2), batch(3), batch(), batch(4, 5), batch(6)])
    assert [len(part.stages) for part in message.parts] == [2]
    writer.commit([message], 0)

    assert numbers(out) == [1, 2, 3, 4, 5, 6]
    assert len(set(out.read().column("published").to_pylist())) == 1


@pytest.mark.slow
def test_a_task_in_a_new_process_waits_for_a_realm_that_is_away(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "away") as realm, realm.connect() as session:
        session.channels.create("out", type="persistent")
        url = realm.listen()
        writer = stream_writer(url)
        disconnect()
    port = int(url.rpartition(":")[2])
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", port)) as nobody:
            message = pool.submit(task, writer, 0, 1, 2)
            nobody.accept()[0].close()  # its first attempt
        with penstock.Realm(tmp_path / "away") as realm, realm.connect() as session:
            realm.listen(port=port)
            writer.commit([message.result(60)], 0)

            assert numbers(session.channels.get("out")) == [1, 2]
    disconnect()


def test_rows_for_a_channel_created_again_meanwhile_are_not_published(
    url: str, client: Session, out: Channel
) -> None:
    writer = stream_writer(url)
    message = task(writer, 0, 1)
    client.channels.delete("out")
    again = client.channels.create("out", type="persistent")

    with pytest.raises(IllegalState, match="perhaps created again, while rows were"):
        writer.commit([message], 0)
    assert again.info().events == 0


@pytest.mark.slow
def test_a_batch_number_long_forgotten_is_refused_not_stored_again(url: str, out: Channel) -> None:
    writer = stream_writer(url)
    for number in range(2 * LASTING_REMEMBERED_MAX):
        writer.commit([task(writer, 0, number)], number)

    with pytest.raises(SequenceTooOld):
        writer.commit([task(writer, 0, 0)], 0)
    assert numbers(out) == list(range(2 * LASTING_REMEMBERED_MAX))


def test_a_batch_write_is_once_for_its_name_and_number(url: str, out: Channel) -> None:
    def write(version: str, *rows: int) -> None:
        writer = source(url, txnAppId="nightly", txnVersion=version).writer(ROW, overwrite=False)
        writer.commit([task(writer, 0, *rows, query="")])

    write("0", 1, 2)
    write("0", 1, 2)
    write("1", 3)

    assert numbers(out) == [1, 2, 3]


def test_a_batch_write_without_a_name_is_a_write_of_its_own(url: str, out: Channel) -> None:
    for _ in range(2):
        writer = source(url).writer(ROW, overwrite=False)
        writer.commit([task(writer, 0, 1, query="")])

    assert numbers(out) == [1, 1]


def test_columns_of_meaning_are_told_from_properties() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "data": ["é", None],
            "tag": ["a", None],
            "ttl": pa.array([5, None], pa.int32()),
            "n": [1, 2],
        }
    )

    table = as_table(batch, OUT)

    assert table.column("data").to_pylist() == ["é".encode(), None]
    with pytest.raises(InvalidEvent, match="two columns have one name"):
        as_table(pa.record_batch([pa.array([1]), pa.array([2])], names=["n", "n"]), OUT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("event_id", LongType(), r"\.drop\('event_id'\)"),
        ("published", TimestampType(), r"\.drop\('published'\)"),
        ("cost", DecimalType(38, 2), "'cost' has type decimal"),
        ("extra", MapType(StringType(), StringType()), "'extra' has type map.*struct"),
        ("tag", LongType(), "'tag' has type int64"),
        ("data", LongType(), "'data' has type int64"),
    ],
)
def test_a_column_no_event_can_have_is_refused_before_any_task(
    url: str, out: Channel, name: str, kind: Any, says: str
) -> None:
    schema = StructType().add("n", LongType()).add(name, kind)

    with pytest.raises(InvalidEvent, match=says):
        source(url).streamWriter(schema, overwrite=False)
    with pytest.raises(InvalidEvent, match=says):
        source(url).writer(schema, overwrite=False)


def test_a_channel_is_never_overwritten(url: str, out: Channel) -> None:
    with pytest.raises(InvalidArgument, match="purge the channel first"):
        source(url).writer(ROW, overwrite=True)


@pytest.mark.slow
def test_a_missing_channel_is_named_before_any_task(url: str) -> None:
    with pytest.raises(NameDoesNotExist, match="no channel 'out'; create it first"):
        source(url).streamWriter(ROW, overwrite=False)


@pytest.mark.slow
def test_half_a_transaction_is_refused(url: str, out: Channel) -> None:
    with pytest.raises(InvalidArgument, match="txnVersion is missing"):
        source(url, txnAppId="nightly").writer(ROW, overwrite=False)
    with pytest.raises(InvalidArgument, match="txnAppId is missing"):
        source(url, txnVersion="1").writer(ROW, overwrite=False)
    with pytest.raises(InvalidArgument, match="txnVersion is only for batch writes"):
        stream_writer(url, txnAppId="nightly", txnVersion="1")


# --- several channels -----------------------------------------------------------------------

ROUTED = StructType().add("channel", StringType()).add("n", LongType())


def routing(url: str, **options: str) -> ChannelStreamWriter:
    return PenstockSource({"url": url, **options}).streamWriter(ROUTED, overwrite=False)


def to(*rows: tuple[str | None, int]) -> pa.RecordBatch:
    channels, n = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {"channel": pa.array(channels, pa.string()), "n": pa.array(n, pa.int64())}
    )


def part(writer: Any, partition: int, *rows: tuple[str | None, int]) -> Staged:
    return written(writer, [to(*rows)], partition)


def test_rows_for_several_channels_are_published_in_one_step(
    url: str, client: Session, out: Channel
) -> None:
    other_channel = client.channels.create("other", type="persistent")
    writer = routing(url)

    messages = [
        part(writer, 1, ("other", 4), ("out", 5)),
        part(writer, 0, ("out", 1), ("other", 2), ("out", 3)),
    ]
    assert out.info().events == other_channel.info().events == 0
    writer.commit(messages, 0)

    assert (numbers(out), numbers(other_channel)) == ([1, 3, 5], [2, 4])
    times = [*out.read().column("published"), *other_channel.read().column("published")]
    assert len(set(times)) == 1


def test_a_repetition_that_names_other_channels_writes_nothing(
    url: str, client: Session, out: Channel
) -> None:
    other_channel = client.channels.create("other", type="persistent")
    writer = routing(url, channelColumn="channel", channel="out")
    writer.commit([part(writer, 0, ("out", 1), (None, 2))], 4)
    writer.commit([part(writer, 0, ("other", 1), ("other", 2))], 4)
    elsewhere = PenstockSource({"url": url, "channel": "other"}).streamWriter(ROW, overwrite=False)
    elsewhere.commit([task(elsewhere, 0, 1)], 4)

    assert (numbers(out), numbers(other_channel)) == ([1, 2], [])


def test_a_name_for_one_channel_each_counts_for_each(
    url: str, client: Session, out: Channel
) -> None:
    client.channels.create("other", type="persistent")
    for channel in ("out", "other", "out"):
        options = {"txnAppId": "nightly", "txnVersion": "1", "url": url, "channel": channel}
        writer = PenstockSource(options).writer(ROW, overwrite=False)
        writer.commit([task(writer, 0, 1)])

    assert [numbers(client.channels.get(name)) for name in ("out", "other")] == [[1], [1]]


@pytest.mark.slow
def test_the_first_row_for_a_channel_that_is_not_there_is_named(url: str, out: Channel) -> None:
    writer = routing(url)

    with pytest.raises(
        NameDoesNotExist, match=r"row 1 of partition 0 is for channel 'nowhere'.*n=2"
    ):
        written(writer, [to(("out", 1), ("nowhere", 2), ("nowhere", 3))])
    assert out.info().events == 0


def test_rows_are_numbered_through_all_batches_of_a_task(url: str, out: Channel) -> None:
    schema = StructType().add("n", LongType()).add("ttl", LongType())
    writer = source(url).streamWriter(schema, overwrite=False)
    fine = pa.RecordBatch.from_pydict({"n": [1] * 10, "ttl": [0] * 10})
    wrong = pa.RecordBatch.from_pydict({"n": [1, 2], "ttl": [0, -2]})

    with pytest.raises(InvalidEvent, match=r"row 21 of partition 0 .*ttl -2 .*ttl=-2"):
        written(writer, [fine, fine, wrong])


@pytest.mark.slow
def test_many_channels_are_affordable(url: str, client: Session) -> None:
    names = [f"many/c{n}" for n in range(50)]
    for name in names:
        client.channels.create(name, type="persistent")
    writer = routing(url)
    rows = [(names[n % 50], n) for n in range(10_000)]

    writer.commit([part(writer, 0, *rows)], 0)

    for n in (0, 49):
        assert numbers(client.channels.get(names[n])) == list(range(n, 10_000, 50))


# --- merge channels and times ---------------------------------------------------------------

RATE = StructType().add("pair", StringType()).add("bid", LongType()).add("ask", LongType())


@pytest.fixture
def rates(client: Session) -> Channel:
    return client.channels.create("out", type="persistent", engine="merge", keys={"pair": 1})


def deltas(*rows: tuple[str | None, int | None, int | None]) -> pa.RecordBatch:
    pairs, bids, asks = zip(*rows, strict=True)
    columns = [pa.array(pairs, pa.string()), pa.array(bids, pa.int64()), pa.array(asks, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["pair", "bid", "ask"])


def test_deltas_change_what_they_name(url: str, rates: Channel) -> None:
    whole_rows_writer = source(url).streamWriter(RATE, overwrite=False)
    whole_rows_writer.commit(
        [written(whole_rows_writer, [deltas(("eur", 1, 2), ("chf", 5, 6))])], 0
    )
    changes = source(url, delta="true", txnAppId="changes").streamWriter(RATE, overwrite=False)
    for _ in range(2):
        changes.commit([written(changes, [deltas(("eur", None, 3), ("usd", 7, None))])], 0)

    states = {row["pair"]: row for row in rates.read().to_pylist()}
    assert [(states[p]["bid"], states[p]["ask"]) for p in ("eur", "chf", "usd")] == [
        (1, 3),
        (5, 6),
        (7, None),
    ]
    assert rates.state("eur").properties == {"pair": "eur", "bid": 1, "ask": 3}


def test_a_delta_without_its_key_is_named(url: str, rates: Channel) -> None:
    writer = source(url, delta="true").streamWriter(RATE, overwrite=False)

    with pytest.raises(
        InvalidEvent, match=r"row 1 of partition 0 is a delta, and pair, the publish"
    ):
        written(writer, [deltas(("eur", 1, 1), (None, 2, 2))])
    keyless = source(url, delta="true").streamWriter(ROW, overwrite=False)
    with pytest.raises(InvalidEvent, match=r"row 0 .* is a delta without pair"):
        written(keyless, [batch(1)])


def test_a_delta_for_a_channel_that_does_not_merge_is_named(url: str, out: Channel) -> None:
    writer = source(url, delta="true").streamWriter(ROW, overwrite=False)

    with pytest.raises(IllegalState, match=r"row 0 .*the engine of out is not merge"):
        written(writer, [batch(1)])


@pytest.mark.slow
def test_rows_with_a_time_are_published_then(url: str, out: Channel) -> None:
    schema = StructType().add("n", LongType()).add("deliver_at", TimestampType())
    writer = source(url).streamWriter(schema, overwrite=False)
    far = datetime(2999, 1, 1, tzinfo=UTC)
    times = pa.array([None, far, None], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), times], names=["n", "deliver_at"])

    for _ in range(2):
        writer.commit([written(writer, [batch])], 0)

    assert numbers(out) == [1, 3]
    assert [waiting.event.properties["n"] for waiting in out.scheduled.list()] == [2]
