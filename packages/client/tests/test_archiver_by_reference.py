"""Archives by reference: the table gets the files that the realm has made of its sealed events, and
the events of other ranges by value; each event once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

import penstock
from packages.client.tests.archiver_runs import (
    LAKE,
    NAME,
    URI,
    Run,
    ids_in,
    publish,
)
from packages.client.tests.catalogs import configured
from packages.client.tests.failing_disk import FailingDisk
from packages.client.tests.patience import eventually
from penstock.client.archiving import archiver as archiving
from penstock.client.archiving import shared_files
from penstock.client.archiving.archiver import (
    ArchiveProgress,
    ArchiveSettings,
    ChannelArchiver,
)
from penstock.client.archiving.lake import Lake
from penstock.client.sync.sync import Channel, Session
from penstock.tables import Table, disk
from penstock_core.api.tables import SealedTableFile, SealedTableFiles
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import DataLost, IllegalState, StorageFailed

pytestmark = [pytest.mark.spec("B8"), pytest.mark.slow]

FILE = 20
"""Events in a sealed file."""


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setattr(shared_files, "ROWS_MIN", 1)
    monkeypatch.setattr(archiving, "ROWS_ENOUGH", 1)
    return configured(tmp_path, monkeypatch)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with penstock.Realm(tmp_path / "realm") as realm, realm.connect() as session:
        yield session


@pytest.fixture
def orders(session: Session) -> Channel:
    return session.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": FILE}, retain_consumed=True
    )


def seal(channel: Channel, files: int) -> None:
    """Wait until the channel has a number of sealed files."""
    eventually(lambda: channel.info().storage.sealed_files >= files)


def by_reference(events: int, next_id: int) -> ArchiveProgress:
    return ArchiveProgress("orders", events, next_id, is_by_reference=True)


def by_value(copied: ArchiveProgress) -> tuple[int, int, str]:
    assert not copied.is_by_reference
    return copied.events, copied.next_id, copied.reason


def rows_of(catalog: Catalog) -> Any:
    return catalog.load_table(NAME).scan().to_arrow().sort_by("event_id")


def data_paths(catalog: Catalog) -> list[Path]:
    paths = catalog.load_table(NAME).inspect.files().column("file_path").to_pylist()
    return sorted(Path(path.removeprefix("file://")) for path in paths)


def test_sealed_events_are_in_files_of_the_realm_and_the_others_are_copied(
    catalog: Catalog, session: Session, orders: Channel, tmp_path: Path
) -> None:
    publish(orders, 0, 50, gate={"name": "B4"}, sku="a")
    seal(orders, 2)
    before, events = orders.read(), list(orders.browse())

    first, second = Run(session, by="auto").once()

    assert first == by_reference(40, 40)
    assert by_value(second) == (10, 50, "the events are not in sealed files")
    linked = [path for path in data_paths(catalog) if path.stat().st_nlink > 1]
    made = {path.stat().st_ino for path in (tmp_path / "realm/tables").rglob("*.parquet")}
    assert {path.stat().st_ino for path in linked} == made
    assert len(linked) == 2
    assert Run(session, by="auto").once() == []
    orders.purge()
    assert orders.read().equals(before)
    archived = list(orders.browse(archive=None))
    assert [event.properties for event in archived] == [event.properties for event in events]
    assert [event.headers for event in archived] == [event.headers for event in events]
    assert [event.published for event in archived] == [event.published for event in events]


def test_a_table_is_the_same_by_reference_and_by_value(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    shapes: list[dict[str, Any]] = [
        {"n": 1, "flag": True, "text": "ß", "raw": b"\x00", "Text": "mixed", "small": 3},
        {"n": 2, "price": 1.5, "gone": None, "empty": {}, "nulls": [None], "mixed": [1, "a"]},
        {"n": 3, "inner": {"a": {"b": [1, 2]}, "A": 1}, "lines": [{"sku": "a"}, {"qty": 2}]},
        {"n": 4, "tag": "property", "big": 1 << 62, "price": float("nan")},
    ]
    for first in range(0, 2 * FILE, len(shapes)):
        orders.publish_many(
            [
                penstock.Event(b"d%d" % first, tag="t", ttl=3_600_000, priority=3, properties=shape)
                for shape in shapes
            ]
        )
    seal(orders, 2)
    copy = Lake("iceberg://prod/lake/copy", "iceberg")
    assert Run(session, by="reference").once() == [by_reference(40, 40)]
    Run(session, lake=copy, register=False).once()
    theirs = rows_of(catalog)
    copied = catalog.load_table(("lake", "copy")).scan().to_arrow().sort_by("event_id")

    assert {*theirs.column_names} == {*copied.column_names}
    for name in copied.column_names:
        assert repr(theirs.column(name).to_pylist()) == repr(copied.column(name).to_pylist()), name
    types = {field.name: field.type for field in copied.schema}
    assert {field.name: field.type for field in theirs.schema} == types
    ours = Table.found(URI).to_arrow().sort_by("event_id")
    assert repr(ours.to_pylist()) == repr(
        Table.found(copy.uri).to_arrow().sort_by("event_id").select(ours.column_names).to_pylist()
    )


def test_every_client_takes_the_day_from_the_partition(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 30)
    seal(orders, 1)
    Run(session, by="auto").once()
    table = catalog.load_table(NAME)
    day = orders.published_at(0).date()  # type: ignore[union-attr]

    assert {*rows_of(catalog).column("published_day").to_pylist()} == {day}
    assert table.scan(row_filter=f"published_day = '{day}'").to_arrow().num_rows == 30
    frame = pl.scan_iceberg(table).collect()
    assert (frame["published_day"].unique().to_list(), len(frame)) == ([day], 30)
    assert {row["published_day"] for row in Table.found(URI).to_arrow().to_pylist()} == {day}
    connection = duckdb.connect()
    connection.register("files", Table.found(URI).dataset())
    by_duckdb = connection.sql("SELECT count(*), min(published_day) FROM files").fetchone()
    assert by_duckdb == (30, day)
    lower = table.inspect.files().column("lower_bounds").to_pylist()
    assert all(len(dict(bounds)) >= 5 for bounds in lower), "files are skipped by their bounds"


def test_removed_events_are_in_no_file(catalog: Catalog, session: Session, orders: Channel) -> None:
    publish(orders, 0, 60)
    seal(orders, 3)
    orders.purge(start=5, end=6)
    orders.purge(start=20, end=39)

    assert Run(session, by="reference").once() == [by_reference(38, 60)]
    assert ids_in(catalog) == [n for n in range(60) if n not in (5, 6) and not 20 <= n < 40]


def test_events_that_were_purged_after_the_start_are_lost(
    catalog: Catalog, orders: Channel
) -> None:
    archiver = ChannelArchiver(orders, LAKE, ArchiveSettings(by="reference"))
    archiver.open()
    publish(orders, 0, 40)
    seal(orders, 2)
    orders.purge(start=5, end=6)
    orders.purge(start=20, end=20)

    with pytest.raises(DataLost, match="events 5-6, 20 were purged"):
        archiver.copy(40)
    assert not catalog.table_exists(NAME)


@pytest.mark.parametrize("by", ["auto", "reference"])
def test_lost_events_between_two_runs_are_noticed(
    catalog: Catalog, session: Session, orders: Channel, by: str
) -> None:
    publish(orders, 0, 20)
    seal(orders, 1)
    Run(session, by=by).once()
    publish(orders, 20, 60)
    seal(orders, 3)
    orders.purge(start=30, end=31)

    with pytest.raises(DataLost, match="events 30-31 were purged"):
        Run(session, by=by).once()
    (copied,) = Run(session, by=by, allows_losses=True).once()
    assert (copied.events, copied.lost_events, copied.is_by_reference) == (38, 2, True)
    assert ids_in(catalog) == [n for n in range(60) if n not in (30, 31)]


def test_expired_events_are_in_no_file(catalog: Catalog, session: Session) -> None:
    orders = session.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": FILE}, event_ttl=True
    )
    orders.publish_many([penstock.Event(b"x", ttl=1 if n % 2 else 0) for n in range(FILE)])
    eventually(lambda: orders.info().events == FILE // 2)
    publish(orders, FILE, 4 * FILE)
    seal(orders, 2)

    first, *_ = Run(session, by="reference").once()
    assert first.is_by_reference
    assert ids_in(catalog) == [*range(0, FILE, 2), *range(FILE, 4 * FILE)]


def test_an_archive_continues_by_reference_after_a_part_of_a_file(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 10)
    Run(session, by="auto").once()
    publish(orders, 10, 60)
    seal(orders, 3)

    first, second = Run(session, by="auto").once()

    assert by_value(first) == (10, 20, "the events are not alone in sealed files")
    assert second == by_reference(40, 60)
    assert ids_in(catalog) == list(range(60))


def test_events_in_memory_between_sealed_ones_are_copied_in_their_place(
    catalog: Catalog, session: Session
) -> None:
    orders = session.channels.create("orders", type="mixed", storage={"events_per_spindle": FILE})
    for n in range(3 * FILE):
        orders.publish(b"x", persistent=not FILE <= n < FILE + 3, properties={"n": n})
    seal(orders, 2)

    commits = Run(session, by="auto").once()

    assert any(copied.is_by_reference for copied in commits)
    assert ids_in(catalog) == list(range(3 * FILE))


def test_a_durable_keeps_events_until_the_table_has_their_file(
    catalog: Catalog, session: Session
) -> None:
    orders = session.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": FILE}
    )
    lake = orders.durables.create("lake", type="serial")
    publish(orders, 0, 40)
    seal(orders, 2)

    assert Run(session, by="reference", durable="lake").once() == [by_reference(40, 40)]
    assert len(lake.outstanding().id_set) == 0
    eventually(lambda: orders.info().events == 0)
    assert orders.read(start=0).column("n").to_pylist() == list(range(40))


def test_a_durable_without_some_events_of_a_file_gets_the_others_by_value(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    lake = orders.durables.create("lake", type="serial", selector="n <> 4")
    publish(orders, 0, 40)
    seal(orders, 2)

    first, second = Run(session, by="auto", durable="lake", register=False).once()

    reason = "the durable does not have all events of a sealed file"
    assert by_value(first) == (19, 20, reason)
    assert (second.events, second.next_id, second.is_by_reference) == (20, 40, True)
    assert len(lake.outstanding().id_set) == 0
    assert ids_in(catalog) == [n for n in range(40) if n != 4]


def test_files_of_several_days_are_copied(
    catalog: Catalog, session: Session, orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(orders, 0, 20)
    seal(orders, 1)
    bounds = shared_files._bounds

    def two_days(footer: pq.FileMetaData, name: str) -> tuple[Any, Any]:
        first, last = bounds(footer, name)
        return (first - timedelta(days=1), last) if name == "published" else (first, last)

    monkeypatch.setattr(shared_files, "_bounds", two_days)
    (copied,) = Run(session, by="reference").once()
    assert by_value(copied) == (20, 20, "a sealed file has events of several days")


def test_numbers_of_two_types_are_copied(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 20, price=1)
    publish(orders, 20, 40, price=1.5)
    seal(orders, 2)
    reason = "property 'price' has integers and floats, which archives have in two columns"

    with pytest.raises(IllegalState, match=reason):
        Run(session, by="reference").once()
    commits = Run(session, by="auto").once()

    assert [by_value(copied) for copied in commits] == [(20, 20, reason), (20, 40, reason)]
    orders.purge()
    assert orders.read().column("price").to_pylist() == [1.0] * 20 + [1.5] * 20


@pytest.mark.parametrize(
    ("lake", "reason"),
    [
        (Lake(URI, "iceberg", by_day=False), "is not partitioned by published_day"),
        (Lake("delta", "delta"), "has the format delta, not iceberg"),
    ],
)
def test_other_tables_get_their_events_by_value(
    catalog: Catalog, session: Session, orders: Channel, tmp_path: Path, lake: Lake, reason: str
) -> None:
    if lake.format == "delta":
        lake = Lake(str(tmp_path / "delta"), "delta")
    publish(orders, 0, 20)
    seal(orders, 1)

    with pytest.raises(IllegalState, match=rf"{reason}; pass --by auto to copy"):
        Run(session, lake=lake, by="reference").once()
    (copied,) = Run(session, lake=lake, by="auto").once()
    assert by_value(copied) == (20, 20, f"the table {reason}")


def test_a_realm_in_memory_has_no_files(
    catalog: Catalog, direct_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = direct_session.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": FILE}
    )
    publish(orders, 0, 20)
    seal(orders, 1)

    with pytest.raises(IllegalState, match="cannot read the files of the realm"):
        Run(direct_session, by="reference").once()
    (copied,) = Run(direct_session, by="auto").once()
    assert copied.events == 20
    assert not copied.is_by_reference


@pytest.mark.parametrize("unreadable", ["segments", "tables"])
def test_files_that_the_archiver_must_not_read_are_copied(
    catalog: Catalog,
    session: Session,
    orders: Channel,
    monkeypatch: pytest.MonkeyPatch,
    unreadable: str,
) -> None:
    publish(orders, 0, 20)
    seal(orders, 1)
    access, opened = os.access, open

    def refused(path: Any, mode: int) -> bool:
        return f"/{unreadable}/" not in str(path) and access(path, mode)

    def refuse(path: Any, *rest: Any, **options: Any) -> Any:
        if f"/{unreadable}/" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "access", refused)
    monkeypatch.setattr(disk, "open", refuse, raising=False)

    with pytest.raises(IllegalState, match="no right to read"):
        Run(session, by="reference").once()
    (copied,) = Run(session, by="auto").once()
    assert copied.events == 20
    assert not copied.is_by_reference
    assert ids_in(catalog) == list(range(20))


@pytest.mark.parametrize("obstacle", ["another user", "another disk"])
def test_a_file_that_cannot_be_linked_is_copied(
    catalog: Catalog,
    session: Session,
    orders: Channel,
    monkeypatch: pytest.MonkeyPatch,
    obstacle: str,
) -> None:
    publish(orders, 0, 20)
    seal(orders, 1)

    def refuse(source: Any, target: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    if obstacle == "another user":
        monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    else:
        monkeypatch.setattr(os, "link", refuse)

    assert Run(session, by="reference").once() == [by_reference(20, 20)]
    (path,) = data_paths(catalog)
    assert path.stat().st_nlink == 1
    assert ids_in(catalog) == list(range(20))


def test_users_of_the_warehouse_can_read_linked_files(
    catalog: Catalog, session: Session, orders: Channel, tmp_path: Path
) -> None:
    publish(orders, 0, 20)
    seal(orders, 1)
    Run(session, by="reference").once()

    (path,) = data_paths(catalog)
    readers = path.parent.stat().st_mode & 0o444
    assert path.stat().st_mode & 0o777 == 0o640 | readers
    (made,) = (tmp_path / "realm/tables").rglob("*.parquet")
    assert made.parent.stat().st_mode & 0o007 == 0, "its folder is closed to others"


def test_a_file_of_the_table_stays_as_it_is_when_the_realm_rewrites_its_own(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 20)
    seal(orders, 1)
    Run(session, by="reference").once()
    (path,) = data_paths(catalog)
    content = path.read_bytes()
    orders.purge(start=3, end=3)
    orders.locate_table()

    assert path.read_bytes() == content
    assert ids_in(catalog) == list(range(20))
    session.channels.delete("orders")
    assert path.read_bytes() == content


def test_a_file_is_on_disk_before_its_commit(
    catalog: Catalog, session: Session, orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(orders, 0, 20)
    seal(orders, 1)
    failing = FailingDisk(monkeypatch, "/data/")
    with pytest.raises(StorageFailed):
        Run(session, by="reference").once()
    assert not catalog.table_exists(NAME)
    failing.fails = False

    assert Run(session, by="reference").once() == [by_reference(20, 20)]
    (path,) = data_paths(catalog)
    assert str(path) in {str(synced) for synced in failing.synced}


def test_of_two_archivers_the_overtaken_one_adds_no_file(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    publish(orders, 0, 60)
    seal(orders, 3)
    zombie = ChannelArchiver(orders, LAKE, ArchiveSettings(by="reference"))
    successor = ChannelArchiver(orders, LAKE, ArchiveSettings(by="reference"))
    zombie.open()
    successor.open()
    assert successor.copy(20) == by_reference(20, 20)

    assert zombie.copy(60) == ArchiveProgress("orders", 0, 20)
    assert zombie.copy(60) == by_reference(40, 60)
    assert successor.copy(60).events in (0, 40)
    assert ids_in(catalog) == list(range(60))
    table = Table.found(URI)
    assert sum(file.rows for file in table.files()) == 60


def test_a_foreign_compaction_in_between_changes_nothing(
    catalog: Catalog, session: Session, orders: Channel
) -> None:
    running = Run(session, by="reference")
    for files in range(1, 4):
        publish(orders, (files - 1) * FILE, files * FILE)
        seal(orders, files)
        assert running.once() == [by_reference(FILE, files * FILE)]
        theirs = catalog.load_table(NAME)
        theirs.overwrite(theirs.scan().to_arrow())
    orders.purge()

    assert ids_in(catalog) == list(range(60))
    assert orders.read(start=0).column("n").to_pylist() == list(range(60))


def test_compaction_joins_small_files_and_leaves_large_ones(
    catalog: Catalog, session: Session, orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(orders, 0, 40)
    seal(orders, 2)
    Run(session, by="reference", compact_every=1).once()
    assert len(data_paths(catalog)) == 2
    monkeypatch.setattr(archiving, "ROWS_ENOUGH", FILE + 1)
    publish(orders, 40, 60)
    seal(orders, 3)
    Run(session, by="reference", compact_every=1, keep_hours=0).once()

    assert len(data_paths(catalog)) == 1
    assert ids_in(catalog) == list(range(60))
    assert {*rows_of(catalog).column("published_day").to_pylist()} != {None}


def test_an_old_file_that_waits_for_its_commit_is_not_removed(
    catalog: Catalog, session: Session, orders: Channel, tmp_path: Path
) -> None:
    """The time of a linked file is that of the link: the realm may have made it long ago."""
    publish(orders, 0, 40)
    seal(orders, 2)
    orders.locate_table()
    for path in (tmp_path / "realm/tables").rglob("*.parquet"):
        os.utime(path, (0, 0))
    archiver = ChannelArchiver(orders, LAKE, ArchiveSettings(by="reference"))
    archiver.open()
    archiver.copy(20)
    other = Table.open(URI, "iceberg")
    commit = archiver._table.commit

    def clean_and_commit(*arguments: Any, **options: Any) -> bool:
        other.compact(keep_hours=0)
        return commit(*arguments, **options)

    archiver._table.commit = clean_and_commit  # type: ignore[method-assign]
    assert archiver.copy(40) == by_reference(20, 40)
    assert ids_in(catalog) == list(range(40))


@pytest.mark.parametrize(
    "lie",
    [
        lambda file, path: SealedTableFile(str(path), path.stat().st_size, 2, file.span),
        lambda file, path: SealedTableFile(file.path, file.size, file.rows, Span(0, 19)),
        lambda file, path: SealedTableFile(file.path, file.size + 1, file.rows, file.span),
        lambda file, path: SealedTableFile("/no/such", file.size, file.rows, file.span),
        lambda file, path: SealedTableFile("", file.size, file.rows, file.span),
    ],
)
def test_a_realm_cannot_have_other_files_added(
    catalog: Catalog,
    session: Session,
    orders: Channel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: Callable[[SealedTableFile, Path], SealedTableFile],
) -> None:
    publish(orders, 0, 20)
    seal(orders, 1)
    secret = tmp_path / "secret.parquet"
    pq.write_table(pa.table({"event_id": [0, 1], "secret": ["a", "b"]}), secret)
    locate = type(orders).locate_sealed_table

    def lying(self: Channel, *span: int, rows_min: int) -> SealedTableFiles:
        answer = locate(self, *span, rows_min=rows_min)
        files = tuple(lie(file, secret) for file in answer.files)
        return SealedTableFiles(files, answer.columns, answer.until_us)

    monkeypatch.setattr(type(orders), "locate_sealed_table", lying)

    with pytest.raises(IllegalState, match="cannot be archived by reference"):
        Run(session, by="reference").once()
    assert not list((tmp_path / "warehouse").rglob("*.parquet"))
    assert not any(copied.is_by_reference for copied in Run(session, by="auto").once())
    assert ids_in(catalog) == list(range(20))
