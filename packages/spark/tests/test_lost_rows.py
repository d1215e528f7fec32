"""Staged rows that the realm has lost are staged again if the driver has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

import penstock
from packages.spark.tests.tasks import written
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import IllegalState, NoSuchStage
from penstock_spark import connections
from penstock_spark.connections import disconnect
from penstock_spark.options import REALM_RESTARTS, sink_options
from penstock_spark.source import PenstockSource
from penstock_spark.writing import writing
from penstock_spark.writing.writing import ChannelStreamWriter, StagingLimits

ROW = StructType().add("channel", StringType()).add("n", LongType())


class Restarting:
    """A realm that is started again at the same address, over the same folder."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        self._directory = directory
        self._realm = penstock.Realm(directory)
        self.url = self._realm.listen(port=port)

    def restart(self) -> None:
        self._realm.close()
        self._realm = penstock.Realm(self._directory)
        self._realm.listen(port=int(self.url.rpartition(":")[2]))

    def connect(self) -> Session:
        return self._realm.connect()

    def close(self) -> None:
        self._realm.close()


@contextmanager
def _restarting(directory: Path, port: int = 0) -> Iterator[Restarting]:
    realm = Restarting(directory, port)
    try:
        with realm.connect() as session:
            for name in ("even", "odd"):
                session.channels.create(name, type="persistent")
        yield realm
    finally:
        disconnect()
        realm.close()


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[Restarting]:
    with _restarting(tmp_path / "realm") as restarting_realm:
        yield restarting_realm


def options_of(realm: Restarting) -> dict[str, str]:
    return {"url": realm.url, "channelColumn": "channel"}


def writer_of(realm: Restarting, **options: str) -> Any:
    return PenstockSource({**options_of(realm), **options}).streamWriter(ROW, overwrite=False)


def task(writer: Any, partition: int, *numbers: int, batch: int = 0) -> writing.Staged:
    names = ["odd" if n % 2 else "even" for n in numbers]
    rows = pa.RecordBatch.from_pydict({"channel": names, "n": pa.array(numbers, pa.int64())})
    return written(writer, [rows], partition, batch=batch)


def stored(realm: Restarting) -> list[list[int]]:
    with realm.connect() as session:
        return [_numbers(session.channels.get(name)) for name in ("even", "odd")]


def _numbers(channel: Channel) -> list[int]:
    table = channel.read()
    return table.column("n").to_pylist() if table.num_rows else []


@pytest.mark.slow
def test_small_micro_batches_are_put_aside_again_in_order_and_published_once(
    realm: Restarting,
) -> None:
    writer = writer_of(realm)
    messages = [task(writer, 1, 5, 6, 7), task(writer, 0, 1, 2, 3, 4)]
    realm.restart()

    writer.commit(messages, 0)
    writer.commit(messages, 0)
    realm.restart()
    writer.commit(messages, 0)

    assert stored(realm) == [[2, 4, 6], [1, 3, 5, 7]]


def test_a_commit_whose_answer_was_lost_with_the_realm_is_not_put_aside_again(
    realm: Restarting, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(realm)
    messages = [task(writer, 0, 1, 2)]
    writer.commit(messages, 0)
    realm.restart()
    monkeypatch.setattr(Session, "stage", _refused)

    writer.commit(messages, 0)

    assert stored(realm) == [[2], [1]]


def test_a_commit_goes_to_the_realm_of_its_tasks_where_another_one_was_at_that_address(
    tmp_path: Path,
) -> None:
    """Seen once on a busy machine: a port was given out again, and the process that commits still
    had its session with the realm before."""
    with _restarting(tmp_path / "before") as before:
        port = int(before.url.rpartition(":")[2])
        old = connections.ask_realm(before.url, lambda session: session.realm_id)
        kept = dict(connections.sessions)
        connections.sessions.clear()  # a task's process has a session of its own
        before.close()
        with _restarting(tmp_path / "after", port) as after:
            writer = writer_of(after)
            messages = [task(writer, 0, 1, 2)]
            disconnect()
            connections.sessions.update(kept)

            writer.commit(messages, 0)

            assert {message.realm for message in messages} != {old}
            assert stored(after) == [[2], [1]]


def _refused(*_: object, **__: object) -> list[str]:
    raise AssertionError("it was published")


@pytest.mark.slow
def test_a_realm_that_restarts_while_rows_are_put_aside_again_is_given_them_once_more(
    realm: Restarting, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(realm)
    messages = [task(writer, 0, 1, 2)]
    realm.restart()
    times = _restarting_after_each(realm, monkeypatch, 2)

    writer.commit(messages, 0)

    assert times() == 3
    assert stored(realm) == [[2], [1]]


@pytest.mark.slow
def test_a_realm_that_never_keeps_the_rows_ends_the_query(
    realm: Restarting, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(realm)
    messages = [task(writer, 0, 1)]
    realm.restart()
    times = _restarting_after_each(realm, monkeypatch, 100)

    with pytest.raises(NoSuchStage, match="start the query again"):
        writer.commit(messages, 0)

    assert times() == REALM_RESTARTS
    assert stored(realm) == [[], []]


def _restarting_after_each(
    realm: Restarting, monkeypatch: pytest.MonkeyPatch, most: int
) -> Callable[[], int]:
    """The realm restarts after rows were put aside, so often; tells how often they were."""
    put_again, calls = writing.stage_again, [0]

    def then_restart(*arguments: Any, **options: Any) -> list[writing.Staged]:
        staged = put_again(*arguments, **options)
        calls[0] += 1
        if calls[0] <= most:
            realm.restart()
        return staged

    monkeypatch.setattr(writing, "stage_again", then_restart)
    return lambda: calls[0]


@pytest.mark.slow
def test_rows_that_are_too_many_to_travel_fail_the_commit_and_the_next_try_succeeds(
    realm: Restarting,
) -> None:
    writer = writer_of(realm)
    writer.commit([task(writer, 0, 1)], 0)
    again = task(writer, 0, 1)
    small = task(writer, 0, 2, batch=1)
    limited = ChannelStreamWriter(
        sink_options(options_of(realm)), StagingLimits(carried_bytes_max=100)
    )
    large = task(limited, 1, *range(3, 103), batch=1)
    assert [part.rows for part in large.parts] == [None, None]
    realm.restart()

    writer.commit([again], 0)  # answered, though its rows are gone, too
    with pytest.raises(NoSuchStage, match="most likely by a restart"):
        writer.commit([small, large], 1)  # all or nothing
    assert stored(realm) == [[], [1]]
    writer.commit([task(writer, 0, 2, batch=1), task(writer, 1, *range(3, 103), batch=1)], 1)

    assert stored(realm) == [list(range(2, 103, 2)), list(range(1, 103, 2))]


@pytest.mark.slow
def test_a_channel_created_again_in_between_is_not_the_one_the_rows_are_for(
    realm: Restarting,
) -> None:
    writer = writer_of(realm)
    messages = [task(writer, 0, 1)]
    realm.restart()
    with realm.connect() as session:
        session.channels.delete("odd")
        session.channels.create("odd", type="persistent")

    with pytest.raises(IllegalState, match="channels odd was deleted"):
        writer.commit(messages, 0)

    assert stored(realm) == [[], []]
