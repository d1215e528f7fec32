"""Archivers without Spark: each event once in the table, with everything about it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event as Flag

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import penstock
from packages.client.tests.archiver_runs import (
    LAKE,
    NAME,
    URI,
    FailingLake,
    FailingOnce,
    Run,
    ids_in,
    publish,
    run_archiver,
)
from packages.client.tests.catalogs import configured
from packages.client.tests.failing_disk import FailingDisk
from packages.client.tests.patience import eventually
from packages.client.tests.rest_catalog import serving
from penstock.client.archiving import archiver as archiving
from penstock.client.archiving.archiver import (
    ArchiveProgress,
    ArchiveSettings,
    ChannelArchiver,
)
from penstock.client.archiving.lake import Lake
from penstock.client.archiving.losses import ReadIds, lost_before_reading, lost_ids
from penstock.client.sync.sync import Channel, Session
from penstock.tables import Table
from penstock_core.api.channels import Missing
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import (
    DataLost,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
    Unavailable,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    return configured(tmp_path, monkeypatch)


@pytest.fixture
def session(direct_session: Session) -> Session:
    return direct_session


@pytest.mark.parametrize("format", ["iceberg", "delta", "parquet"])
def test_events_are_copied_once_and_read_back(
    catalog: Catalog, session: Session, orders: Channel, tmp_path: Path, format: str
) -> None:
    lake = Lake(URI if format == "iceberg" else str(tmp_path / "lake"), format)  # type: ignore[arg-type]
    publish(orders, 0, 30)
    assert Run(session, lake=lake).once() == [ArchiveProgress("orders", 30, 30)]
    publish(orders, 30, 35, gate={"name": "B4"}, sku="a")
    before = orders.read()
    events = list(orders.browse())

    assert Run(session, lake=lake).once() == [ArchiveProgress("orders", 5, 35)]
    assert Run(session, lake=lake).once() == []
    assert orders.info().definition.archive == lake.uri
    orders.purge()
    assert orders.read().equals(before)
    archived = list(orders.browse(archive=None))
    assert [event.properties for event in archived] == [event.properties for event in events]
    assert [event.headers for event in archived] == [event.headers for event in events]


def test_every_shape_of_properties_is_judged_by_other_programs(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    moment = datetime(2026, 5, 4, 12, tzinfo=UTC)
    shapes: list[dict[str, object]] = [
        {"n": 1, "price": 1, "flag": True, "text": "ß", "raw": b"\x00", "Text": "mixed"},
        {"n": 2, "price": 1.5, "at": moment, "local": moment.replace(tzinfo=None)},
        {"n": 3, "gone": None, "empty": {}, "nulls": [None], "mixed": [1, "a"]},
        {"n": 4, "inner": {"a": {"b": [1, 2]}}, "lines": [{"sku": "a"}, {"qty": 2}]},
        {"n": 5, "price": "dear", "inner": {"A": 1}, "n::int": 1, "tag": "property"},
        {"n": 6, "big": 1 << 62, "small": -1},
    ]
    orders.publish_many([penstock.Event(properties=shape) for shape in shapes])
    before = orders.read()
    Run(session).once()
    theirs = catalog.load_table(NAME).scan().to_arrow().sort_by("event_id")
    files = Table.found(URI).locations()
    by_duckdb = duckdb.sql(
        f'SELECT n, price, "price::float", "price::string", flag, text, "properties.Text", '
        f'"at" AT TIME ZONE \'UTC\', "local", "inner".a.b, lines[1].sku, big '
        f"FROM read_parquet({files}, union_by_name=true) ORDER BY event_id"
    ).fetchall()
    orders.purge()

    assert orders.read().equals(before)
    assert [event.properties for event in orders.browse(archive=None)] == shapes
    assert theirs.column("n").to_pylist() == [1, 2, 3, 4, 5, 6]
    assert theirs.column("price::float").to_pylist() == [None, 1.5, None, None, None, None]
    assert theirs.column("local").to_pylist()[1] == moment.replace(tzinfo=None)
    assert theirs.column("at").to_pylist()[1] == moment
    assert [row[0] for row in by_duckdb] == [1, 2, 3, 4, 5, 6]
    assert by_duckdb[0][1:7] == (1, None, None, True, "ß", "mixed")
    assert by_duckdb[1][7:9] == (moment.replace(tzinfo=None), moment.replace(tzinfo=None))
    assert by_duckdb[3][9:11] == ([1, 2], "a")
    assert (by_duckdb[4][3], by_duckdb[5][11]) == ("dear", 1 << 62)


def test_a_durable_keeps_events_until_they_are_in_the_table(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    lake = orders.durables.create("lake", type="serial")
    publish(orders, 0, 10)
    assert Run(session, durable="lake").once() == [ArchiveProgress("orders", 10, 10)]

    assert len(lake.outstanding().id_set) == 0
    assert orders.info().events == 0
    assert orders.read().column("n").to_pylist() == list(range(10))


def test_events_that_were_acknowledged_at_the_durable_are_not_copied(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    lake = orders.durables.create("lake", type="serial", selector="n <> 4")
    publish(orders, 0, 10)
    with lake.hold() as hold:
        hold.ack(2)
    Run(session, durable="lake", register=False).once()

    assert ids_in(catalog) == [3, 5, 6, 7, 8, 9]


def test_expired_events_that_a_selector_may_have_left_out_do_not_end_the_copy(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    """After they have left, the realm does not know which of them the selector would choose."""
    orders.durables.create("lake", type="serial", selector="n > 3")
    publish(orders, 0, 5)
    Run(session, durable="lake", register=False).once()
    orders.publish_many([penstock.Event(properties={"n": n}, ttl=1) for n in (1, 9)])
    publish(orders, 7, 10)
    eventually(lambda: orders.info().events == 7)

    (commit,) = Run(session, durable="lake", register=False).once()

    assert (commit.events, commit.next_id) == (3, 10)
    assert commit.lost == (Missing("expired", 2, (Span(5, 7),)),)
    assert commit.may_be_unwanted
    assert ids_in(catalog) == [4, 7, 8, 9]


def test_an_acknowledgement_that_was_lost_after_the_commit_is_repeated(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    lake = orders.durables.create("lake", type="serial")
    publish(orders, 0, 10)
    killed = ChannelArchiver(orders, LAKE, ArchiveSettings(durable="lake"))
    killed.open()
    acknowledge = killed._hold
    assert acknowledge is not None
    acknowledge.ack = lambda event_id: None  # type: ignore[method-assign]
    killed.copy(10)
    killed.close()
    assert len(lake.outstanding().id_set) == 10

    assert Run(session, durable="lake").once() == []
    assert len(lake.outstanding().id_set) == 0
    assert ids_in(catalog) == list(range(10))


def test_events_are_acknowledged_only_when_their_commit_is_on_disk(
    catalog: Catalog, session: Session, orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = orders.durables.create("lake", type="serial")
    publish(orders, 0, 10)
    disk = FailingDisk(monkeypatch, "/metadata")
    for _ in range(2):
        with pytest.raises(Unavailable, match="may have this commit all the same"):
            Run(session, durable="lake").once()
        assert len(lake.outstanding().id_set) == 10
    disk.fails = False

    assert Run(session, durable="lake").once() == []
    assert len(lake.outstanding().id_set) == 0
    assert disk.synced
    assert ids_in(catalog) == list(range(10))


def test_of_two_archivers_the_overtaken_one_continues_after_the_other(
    catalog: Catalog, orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(orders, 0, 10)
    zombie = ChannelArchiver(orders, LAKE, ArchiveSettings())
    successor = ChannelArchiver(orders, LAKE, ArchiveSettings())
    zombie.open()
    successor.open()
    successor.copy(6)

    assert zombie.copy(10) == ArchiveProgress("orders", 0, 6)
    assert zombie.copy(10) == ArchiveProgress("orders", 4, 10)
    publish(orders, 10, 12)
    assert successor.copy(12) == ArchiveProgress("orders", 0, 10)
    assert successor.copy(12) == ArchiveProgress("orders", 2, 12)
    assert ids_in(catalog) == list(range(12))


def test_an_overtaken_archiver_with_a_durable_continues_after_the_other(
    catalog: Catalog, orders: Channel
) -> None:
    """The table has a later version, and does not have the version of the slower archiver."""
    publish(orders, 0, 10)
    zombie = ChannelArchiver(orders, LAKE, ArchiveSettings(durable="slow"))
    successor = ChannelArchiver(orders, LAKE, ArchiveSettings(durable="fast"))
    for name, archiver in (("slow", zombie), ("fast", successor)):
        orders.durables.create(name, type="serial")
        archiver.open()
    successor.copy(10)

    assert zombie.copy(6) == ArchiveProgress("orders", 0, 10)
    assert ids_in(catalog) == list(range(10))


def test_a_table_that_was_dropped_in_between_is_an_error_not_a_gap(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 5)

    def drop(copied: ArchiveProgress) -> None:
        publish(orders, 5, 8)
        catalog.drop_table(NAME)

    with pytest.raises(IllegalState, match=r"was removed, or set back.*event 4 was in it"):
        run_archiver(session, drop)
    assert not catalog.table_exists(NAME)


def test_a_foreign_compaction_in_between_changes_nothing(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    running = Run(session)
    for first in (0, 5, 10):
        publish(orders, first, first + 5)
        running.once()
        theirs = catalog.load_table(NAME)
        theirs.overwrite(theirs.scan().to_arrow())
    orders.purge()

    assert ids_in(catalog) == list(range(15))
    assert orders.read().column("n").to_pylist() == list(range(15))


def test_a_table_is_the_archive_of_one_channel(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 5)
    Run(session).once()
    session.channels.delete("orders")
    publish(session.channels.create("orders"), 0, 5)

    with pytest.raises(IllegalState, match="of an earlier time or another realm"):
        Run(session).once()
    Table.open("iceberg://prod/lake/t", "iceberg").append(pa.table({"a": [1]}), "app", 0)
    with pytest.raises(InvalidArgument, match=r"not an archive of a channel: .*; choose another"):
        Run(session, lake=Lake("iceberg://prod/lake/t", "iceberg", by_day=False)).once()


def test_events_that_left_before_the_copy_are_an_error(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 5)
    orders.purge(end=1)
    Run(session).once()
    publish(orders, 5, 10)
    orders.purge(end=6)

    with pytest.raises(
        DataLost, match=r"orders: before they were archived, events 5-6 were purged"
    ):
        Run(session).once()
    (commit,) = Run(session, allows_losses=True).once()
    assert commit == ArchiveProgress("orders", 3, 10, (Missing("purged", 2, (Span(5, 7),)),))
    assert ids_in(catalog) == [2, 3, 4, 7, 8, 9]


def expire(orders: Channel) -> None:
    publish(orders, 5, 8)
    orders.publish_many([penstock.Event(ttl=1) for _ in range(2)])
    publish(orders, 10, 13)
    eventually(lambda: orders.info().events == 11)


def purge(orders: Channel) -> None:
    publish(orders, 5, 13)
    orders.purge(start=8, end=9)


def consume(orders: Channel) -> None:
    first = orders.durables.create("first", type="serial")
    orders.durables.create("second", selector="n < 8 or n > 9")
    publish(orders, 5, 13)
    with first.hold() as hold:
        hold.ack(12)


@pytest.mark.parametrize(
    ("remove", "text"),
    [
        (expire, "expired"),
        (purge, "were purged"),
        (consume, "were acknowledged by all durables"),
    ],
)
def test_events_that_left_between_copied_ones_are_an_error(
    catalog: Catalog,
    session: Session,
    orders: Channel,
    remove: Callable[[Channel], None],
    text: str,
) -> None:
    publish(orders, 0, 5)
    Run(session).once()
    remove(orders)

    with pytest.raises(DataLost, match=f"before they were archived, events 8-9 {text}; pass"):
        Run(session).once()
    assert ids_in(catalog) == list(range(5))
    (commit,) = Run(session, allows_losses=True).once()
    assert (commit.events, commit.next_id, commit.lost_events) == (6, 13, 2)
    assert ids_in(catalog) == [*range(8), *range(10, 13)]


def test_each_of_many_scattered_losses_is_counted(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 1)
    Run(session).once()
    publish(orders, 1, 1_000)
    orders.purge(selector="tag = 'late'")
    orders.purge(start=500)

    (commit,) = Run(session, allows_losses=True).once()

    assert commit.lost_events == 250 + 500
    assert ids_in(catalog) == list(range(0, 500, 2))


def test_the_realm_searches_ids_for_scattered_losses_a_few_times(
    orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer has few of the losses, but the realm has to find all in the range of a request."""
    publish(orders, 0, 10_000)
    orders.purge(selector="tag = 'late'")
    searched_ids = list[int]()
    missing = type(orders).missing

    def count_searched(channel: Channel, first: int, end: int) -> tuple[Missing, ...]:
        searched_ids.append(end - first)
        return missing(channel, first, end)

    monkeypatch.setattr(type(orders), "missing", count_searched)

    (ids,) = lost_ids(orders, Span(0, 10_000)).values()

    assert list(ids) == list(range(1, 10_000, 2))
    assert sum(searched_ids) <= 4 * 10_000


def test_events_that_leave_after_they_were_read_are_no_losses(orders: Channel) -> None:
    publish(orders, 0, 1_000)
    read = ReadIds()
    read.add(np.arange(0, 300))
    read.add(np.arange(310, 900))
    orders.purge(selector="tag = 'late'")

    losses = lost_before_reading(orders, Span(0, 900), read, IdSet([Span(300, 304)]))

    assert losses == [Missing("purged", 3, (Span(305, 306), Span(307, 308), Span(309, 310)))]


def test_replaced_events_are_no_losses(catalog: Catalog, session: Session) -> None:
    orders = session.channels.create("orders", keys={"n": 1})
    publish(orders, 0, 5)
    Run(session).once()
    publish(orders, 3, 9)
    publish(orders, 5, 6)

    assert Run(session).once() == [ArchiveProgress("orders", 6, 12)]
    assert ids_in(catalog) == [*range(7), *range(8, 12)]


def test_events_that_had_left_before_the_table_existed_are_no_losses(
    catalog: Catalog, session: Session, orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not after the table was unavailable for a while."""
    monkeypatch.setattr(archiving, "COMMIT_ROWS_MAX", 5_000)
    monkeypatch.setattr(archiving, "RETRY_S", 0.01)
    monkeypatch.setattr(FailingOnce, "failures", 1)
    orders.publish_table(pa.table({"n": range(40_000)}))
    orders.purge(start=38_000, end=38_004)
    stopping, failures = Flag(), list[str]()

    def stop_at_the_end(copied: ArchiveProgress) -> None:
        if copied.next_id == 40_000:
            stopping.set()

    run_archiver(
        session,
        stop_at_the_end,
        lake=FailingLake(URI, "iceberg"),
        stopping=stopping,
        on_retry=lambda channel, error: failures.append(str(error)),
        compact_every=1,
    )

    assert failures == ["the catalog is down"]
    assert ids_in(catalog) == [*range(38_000), *range(38_005, 40_000)]


@pytest.mark.parametrize("fails", [False, True])
def test_events_that_leave_while_the_first_copy_begins_are_no_losses(
    catalog: Catalog, session: Session, orders: Channel, *, fails: bool
) -> None:
    """A channel with a TTL or a full capacity loses its oldest events all the time."""
    publish(orders, 0, 10)
    orders.purge(start=5, end=5)
    archiver = ChannelArchiver(orders, LAKE, ArchiveSettings())
    archiver.open()
    orders.purge(end=1)
    if fails:
        archiver.close()
        archiver.open()
        orders.purge(end=2)

    copied = archiver.copy(10)

    assert copied.lost == ()
    assert ids_in(catalog) == [*range(3 if fails else 2, 5), *range(6, 10)]
    publish(orders, 10, 13)
    orders.purge(start=10, end=10)
    with pytest.raises(DataLost, match="before they were archived, events 10 were purged"):
        archiver.copy(13)


def test_events_that_were_published_after_the_start_may_be_lost(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 5)
    archiver = ChannelArchiver(orders, LAKE, ArchiveSettings())
    archiver.open()
    publish(orders, 5, 10)
    orders.purge(start=4, end=6)

    with pytest.raises(DataLost, match="before they were archived, events 5-6 were purged"):
        archiver.copy(10)


def test_each_channel_of_a_pattern_has_a_table(catalog: Catalog, session: Session) -> None:
    running = Run(session, "eu/*", Lake("iceberg://prod/lake", "iceberg", several=True))
    publish(session.channels.create("eu/orders"), 0, 3)
    running.once()
    publish(session.channels.create("eu/new"), 0, 2)
    running.once()

    assert catalog.list_tables("lake") == [("lake", "eu~2Fnew"), ("lake", "eu~2Forders")]
    assert ids_in(catalog, ("lake", "eu~2Forders")) == [0, 1, 2]


def test_a_table_that_a_pipeline_has_filled_is_continued(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 5)
    Run(session).once()
    table = Table.found(URI)
    publish(orders, 5, 8)
    rows = table.to_arrow()
    ids = pa.array(range(5, 10), pa.int64())
    table.append(rows.set_column(0, table.schema.field(0), ids).slice(0, 3), "pipeline", 0)
    publish(orders, 8, 10)

    assert Run(session).once() == [ArchiveProgress("orders", 2, 10)]
    assert ids_in(catalog) == list(range(10))


def test_commits_are_bounded_and_small_files_are_merged(
    catalog: Catalog, session: Session, orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "COMMIT_ROWS_MAX", 5_000)
    orders.publish_table(pa.table({"n": range(40_000)}))
    commits = Run(session, compact_every=1, keep_hours=0).once()

    assert len(commits) > 1
    assert [commit.next_id for commit in commits][-1] == 40_000
    assert len(Table.found(URI).files()) == 1
    assert ids_in(catalog) == list(range(40_000))


def test_a_running_archiver_copies_new_events_and_waits_for_its_catalog(
    catalog: Catalog, session: Session, orders: Channel, tmp_path: Path
) -> None:
    (tmp_path / "catalog.db").rename(tmp_path / "away")
    (tmp_path / "catalog.db").mkdir()
    stopping, failures = Flag(), list[str]()

    def repair(channel: str, error: Exception) -> None:
        failures.append(str(error))
        (tmp_path / "catalog.db").rmdir()
        (tmp_path / "away").rename(tmp_path / "catalog.db")

    def publish_more(copied: ArchiveProgress) -> None:
        if copied.next_id == 5:
            publish(orders, 5, 8)
        else:
            stopping.set()

    publish(orders, 0, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archiving, "RETRY_S", 0.01)
        run_archiver(session, publish_more, stopping=stopping, on_retry=repair)

    assert len(failures) == 1
    assert "the catalog of iceberg://prod/lake/orders did not answer" in failures[0]
    assert ids_in(catalog) == list(range(8))


@pytest.mark.parametrize(
    ("create", "error", "message"),
    [
        (lambda session: None, NameDoesNotExist, "there is no channel orders; create it first"),
        (
            lambda session: session.channels.create("orders"),
            NameDoesNotExist,
            "no durable 'lake'; create it first, for example: penstock durable create orders lake",
        ),
    ],
)
def test_what_does_not_exist_is_named(
    catalog: Catalog,
    direct_session: Session,
    create: Callable[[Session], object],
    error: type[Exception],
    message: str,
) -> None:
    create(direct_session)

    with pytest.raises(error, match=message):
        Run(direct_session, durable="lake").once()


def test_a_failure_after_a_commit_copies_no_event_again(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 5)
    stopping, failures = Flag(), list[str]()

    def publish_more(channel: str, error: Exception) -> None:
        failures.append(str(error))
        publish(orders, 5, 8)

    def stop_at_the_end(copied: ArchiveProgress) -> None:
        if copied.next_id == 8:
            stopping.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archiving, "RETRY_S", 0.01)
        run_archiver(
            session,
            stop_at_the_end,
            lake=FailingLake(URI, "iceberg"),
            stopping=stopping,
            on_retry=publish_more,
            compact_every=1,
        )

    assert failures == ["the catalog is down"]
    assert ids_in(catalog) == list(range(8))


def test_events_and_losses_of_a_commit_are_reported_before_a_failure_that_follows(
    catalog: Catalog, session: Session, orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(orders, 0, 5)
    Run(session).once()
    publish(orders, 5, 10)
    orders.purge(start=5, end=6)
    monkeypatch.setattr(archiving, "RETRY_S", 0.01)
    monkeypatch.setattr(FailingOnce, "failures", 1)
    stopping, commits = Flag(), list[ArchiveProgress]()

    run_archiver(
        session,
        commits.append,
        lake=FailingLake(URI, "iceberg"),
        stopping=stopping,
        on_retry=lambda channel, error: stopping.set(),
        compact_every=1,
        allows_losses=True,
    )

    assert commits == [ArchiveProgress("orders", 3, 10, (Missing("purged", 2, (Span(5, 7),)),))]


def test_an_archiver_that_should_end_does_not_repeat_its_commit(
    session: Session, orders: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(orders, 0, 5)
    stopping, failures, commits = Flag(), list[str](), list[ArchiveProgress]()
    with serving(tmp_path) as server:
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__URI", server.url)
        server.moment = "before"
        server.statuses = [503] * 6
        server.on_commit = lambda: stopping.set() if server.commits == 3 else None
        run_archiver(
            session,
            commits.append,
            lake=Lake("iceberg://far/lake/orders", "iceberg"),
            stopping=stopping,
            on_retry=lambda channel, error: failures.append(str(error)),
        )

    assert commits == []
    assert server.commits == 3
    assert "has confirmed none of 3 attempts" in failures[0]


def test_a_channel_that_begins_again_is_not_copied_into_the_table_of_the_former_one(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 5)

    def begin_again(copied: ArchiveProgress) -> None:
        session.channels.delete("orders")
        publish(session.channels.create("orders"), 0, 9)

    with pytest.raises(IllegalState, match="has other events under the same ids"):
        run_archiver(session, begin_again)

    assert ids_in(catalog) == list(range(5))


def test_a_durable_is_not_acknowledged_for_events_that_others_may_have_copied(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    durable = orders.durables.create("lake")
    publish(orders, 0, 5)
    Run(session, register=False).once()
    publish(orders, 5, 8)

    with pytest.raises(IllegalState, match="has events before event 5, where the table"):
        Run(session, durable="lake", register=False).once()

    assert durable.info().outstanding == 8


def test_a_durable_with_a_selector_does_not_fill_the_archive_of_the_channel(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    orders.durables.create("odd", selector="n > 3")

    with pytest.raises(InvalidArgument, match="the table will not have all events"):
        Run(session, durable="odd").once()
