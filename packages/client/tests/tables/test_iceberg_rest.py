"""Iceberg tables in a REST catalog: lost answers, refused commits, missing rights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from packages.client.tests.rest_catalog import RestCatalog, serving
from penstock.tables import Table, attempts, iceberg
from penstock.tables.attempts import ATTEMPTS_US_MAX, FAILURE_PAUSE_US_MAX
from penstock.tables.iceberg import IcebergLog
from penstock_core.vocabulary.errors import Unavailable

pytestmark = pytest.mark.slow

URI = "iceberg://far/lake/orders"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestCatalog]:
    with serving(tmp_path) as running:
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__URI", running.url)
        yield running


def rows(first: int, end: int) -> pa.Table:
    return pa.table({"event_id": pa.array(range(first, end), pa.int64())})


class RecordingClock:
    """A clock that moves only by its pauses."""

    is_stopped = False

    def __init__(self) -> None:
        self.pauses_us: list[int] = []

    def steady_us(self) -> int:
        return sum(self.pauses_us)

    def pause(self, us: int) -> None:
        self.pauses_us.append(us)


def table_on(clock: RecordingClock) -> Table:
    return Table(IcebergLog(URI), "iceberg", (), clock=clock)


def ids_in(server: RestCatalog) -> list[int]:
    scan = server.catalog.load_table(("lake", "orders")).scan()
    return sorted(scan.to_arrow().column(0).to_pylist())


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_commit_whose_answer_was_lost_is_not_stored_again(
    server: RestCatalog, status: int
) -> None:
    table = Table.open(URI, "iceberg")
    server.statuses = [status]
    assert not table.append(rows(0, 3), "app", 0), "found to be stored"
    server.statuses = [status]
    assert not table.append(rows(3, 5), "app", 1)

    assert table.append(rows(5, 6), "app", 2)
    assert ids_in(server) == [0, 1, 2, 3, 4, 5]
    assert table.last_of("app") == 2


@pytest.mark.parametrize("status", [500, 503, 504])
def test_a_commit_that_is_stored_later_than_its_answer_is_stored_once(
    server: RestCatalog, status: int
) -> None:
    server.moment = "during"
    table = table_on(RecordingClock())
    server.statuses = [status]
    assert not table.append(rows(0, 3), "app", 0)
    server.statuses = [status]
    assert not table.append(rows(3, 5), "app", 1)

    assert server.commits == 4, "the second attempt of each finds that the first was stored"
    assert ids_in(server) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_catalog_is_asked_less_and_less_often(
    server: RestCatalog, status: int
) -> None:
    clock = RecordingClock()
    table = table_on(clock)
    table.append(rows(0, 3), "app", 0)
    server.moment = "before"
    server.statuses = [status] * 100
    server.commits = 0

    with pytest.raises(Unavailable, match=r"has confirmed none of \d+ attempts") as raised:
        table.append(rows(3, 5), "app", 1)

    assert "failed by the test" in str(raised.value)
    assert "may still store it" in str(raised.value)
    assert 10 < server.commits < 30
    assert ATTEMPTS_US_MAX <= clock.steady_us() <= ATTEMPTS_US_MAX + FAILURE_PAUSE_US_MAX
    assert clock.pauses_us[0] <= 10_000
    assert clock.pauses_us[-1] > FAILURE_PAUSE_US_MAX // 2
    server.statuses = []
    assert table.append(rows(3, 5), "app", 1)
    assert ids_in(server) == [0, 1, 2, 3, 4]


def test_an_attempt_that_may_still_be_stored_is_reported_after_conflicts(
    server: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "ATTEMPTS_MAX", 3)
    server.moment = "before"
    server.statuses = [503, 409, 409]

    with pytest.raises(Unavailable, match="the catalog may still store it"):
        table_on(RecordingClock()).append(rows(0, 3), "app", 0)


def test_a_catalog_that_accepts_a_request_and_does_not_answer_is_given_up(
    server: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.open(URI, "iceberg")
    table.append(rows(0, 3), "app", 0)
    monkeypatch.setattr(iceberg, "ANSWER_S_MAX", 0.05)
    end = threading.Event()
    server.on_commit = lambda: None if end.wait(5) else end.set()
    slow = Table(IcebergLog(URI), "iceberg", (), clock=RecordingClock())
    monkeypatch.setattr(attempts, "ATTEMPTS_MAX", 1)

    with pytest.raises(Unavailable, match="timed out"):
        slow.append(rows(3, 5), "app", 1)

    assert not end.is_set(), "the catalog has not answered"
    end.set()


def test_the_table_is_read_once_more_after_the_last_attempt(
    server: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(RecordingClock):
        """Lets the catalog store the last attempt, but not confirm it."""

        def pause(self, us: int) -> None:
            super().pause(us)
            server.moment = "after" if len(self.pauses_us) == 2 else "before"

    monkeypatch.setattr(attempts, "ATTEMPTS_MAX", 3)
    server.moment = "before"
    server.statuses = [503] * 3

    assert not table_on(Clock()).append(rows(0, 3), "app", 0)
    assert server.commits == 3
    assert ids_in(server) == [0, 1, 2]


def test_a_catalog_that_fails_after_a_commit_is_read_until_it_answers(
    server: RestCatalog,
) -> None:
    """Only the table tells whether the commit was stored."""
    clock = RecordingClock()
    table = table_on(clock)
    table.append(rows(0, 3), "app", 0)
    server.statuses = [504]
    server.failing_reads = 3

    assert not table.append(rows(3, 5), "app", 1)
    assert len(clock.pauses_us) == 4
    assert ids_in(server) == [0, 1, 2, 3, 4]


def test_a_confirmed_commit_is_stored_although_the_table_cannot_be_read_afterwards(
    server: RestCatalog,
) -> None:
    table = Table.open(URI, "iceberg")
    table.append(rows(0, 3), "app", 0)
    writer = table.writer()
    writer.add(rows(3, 5).to_batches()[0])
    files = writer.close()
    server.failing_reads_after_commits = 1

    assert table.commit(writer.schema, files, app="app", version=1)
    assert table.last_of("app") == 1
    assert ids_in(server) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("status", [409, 500, 503])
def test_a_commit_that_was_not_stored_is_tried_again(server: RestCatalog, status: int) -> None:
    server.moment = "before"
    table = Table.open(URI, "iceberg")
    server.statuses = [status, status]
    assert table.append(rows(0, 3), "app", 0)
    server.statuses = [status]
    assert table.append(rows(3, 5), "app", 1)

    assert ids_in(server) == [0, 1, 2, 3, 4]


def test_a_missing_right_is_reported_at_once(server: RestCatalog) -> None:
    table = Table.open(URI, "iceberg")
    table.append(rows(0, 3), "app", 0)
    server.moment = "before"
    server.statuses = [403, 200]

    with pytest.raises(Unavailable, match="the catalog of iceberg://far/lake/orders did not"):
        table.append(rows(3, 5), "app", 1)
    assert server.statuses == [200]
    assert ids_in(server) == [0, 1, 2]
