"""Iceberg tables: rows stored once, and changes that other programs make in between."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriter,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from packages.client.tests.catalogs import configured
from packages.client.tests.failing_disk import FailingDisk
from penstock.tables import Table, disk, iceberg
from penstock.tables.table import NO_VERSION
from penstock_core.vocabulary.errors import (
    DifferentContent,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
    StorageFailed,
    Unavailable,
)

pytestmark = pytest.mark.slow

URI = "iceberg://prod/lake/orders"
NAME = ("lake", "orders")
DAY = date(2026, 5, 4)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    return configured(tmp_path, monkeypatch)


def rows(first: int, end: int, **more: Any) -> pa.Table:
    ids = list(range(first, end))
    names = pa.array([f"s{number}" for number in ids], pa.string())
    return pa.table({"event_id": pa.array(ids, pa.int64()), "sku": names, **more})


def stored(first: int, end: int) -> Table:
    table = Table.open(URI, "iceberg")
    table.append(rows(first, end), "app", 0)
    return table


def ids(table: Table) -> list[int]:
    table.refresh()
    return sorted(table.to_arrow(["event_id"]).column(0).to_pylist())


def ids_for_others(catalog: Catalog) -> list[int]:
    scan = catalog.load_table(NAME).scan(selected_fields=("event_id",))
    return sorted(scan.to_arrow().column(0).to_pylist())


def test_a_version_is_stored_once(catalog: Catalog) -> None:
    table = Table.open(URI, "iceberg")

    assert table.append(rows(0, 3), "app", 0)
    assert not table.append(rows(0, 3), "app", 0)
    assert Table.open(URI, "iceberg").append(rows(3, 4), "app", 1, content="b")
    assert table.append(rows(4, 5), "another app", 0)
    with pytest.raises(DifferentContent):
        table.append(rows(9, 10), "app", 1, content="c")

    assert ids(table) == [0, 1, 2, 3, 4] == ids_for_others(catalog)
    assert (table.last_of("app"), table.last_of("nobody")) == (1, None)
    assert Table.found(URI).format == "iceberg"


def test_a_writer_that_was_overtaken_stores_nothing(catalog: Catalog) -> None:
    table, zombie = stored(0, 3), Table.open(URI, "iceberg")
    late = zombie.writer()
    late.add(rows(3, 9).to_batches()[0])
    table.append(rows(3, 5), "app", 4)

    with pytest.raises(IllegalState, match="has version 4 of app as the last one, not 0"):
        zombie.commit(late.schema, late.close(), app="app", version=8, after=0)
    first = zombie.writer()
    first.add(rows(5, 6).to_batches()[0])
    with pytest.raises(IllegalState, match="not -1"):
        zombie.commit(first.schema, first.close(), app="app", version=8, after=NO_VERSION)
    assert ids(table) == [0, 1, 2, 3, 4] == ids_for_others(catalog)


def test_a_commit_that_may_not_be_on_disk_is_not_reported_as_stored(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = stored(0, 3)
    failing_disk = FailingDisk(monkeypatch, "/metadata")
    for writer in (table, Table.open(URI, "iceberg")):
        with pytest.raises(Unavailable, match="may have this commit all the same") as raised:
            writer.append(rows(3, 5), "app", 1)
        assert not isinstance(raised.value, StorageFailed), "which says that nothing is stored"
    failing_disk.fails = False

    assert not table.append(rows(3, 5), "app", 1)
    snapshot = catalog.load_table(NAME).current_snapshot()
    assert snapshot is not None
    assert any(str(path) in snapshot.manifest_list for path in failing_disk.synced)
    assert ids(table) == [0, 1, 2, 3, 4]


def test_files_of_a_commit_that_are_not_on_this_machine_are_reported(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = stored(0, 3)

    def local_path(uri: str) -> Path:
        return Path("/nowhere") / uri if "/metadata" in uri else disk.local_path(uri)

    monkeypatch.setattr(iceberg, "local_path", local_path)

    with pytest.raises(Unavailable, match="may have this commit all the same"):
        table.merge(rows(2, 5), "event_id", "app", 1)


def test_every_type_is_read_by_other_programs_as_it_was_written(catalog: Catalog) -> None:
    moment = datetime(2026, 5, 4, 12, tzinfo=UTC)
    plain = pa.table(
        {
            "event_id": pa.array([1, 2], pa.int64()),
            "small": pa.array([1, None], pa.int8()),
            "number": pa.array([1 << 31, None], pa.uint32()),
            "half": pa.array([0.5, float("nan")], pa.float32()),
            "price": pa.array([-0.0, 1e300], pa.float64()),
            "text": pa.array(["ß", ""], pa.large_string()),
            "bytes": pa.array([b"\x00", None], pa.binary()),
            "flag": pa.array([True, None]),
            "day": pa.array([DAY, None], pa.date32()),
            "at": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
            "local": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
            "exact": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "lines": pa.array([[{"sku": "a", "n": [1, 2]}], []]),
            "inner": pa.array([{"a": {"b": 1}}, None]),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        }
    )
    table = Table.open(URI, "iceberg", ["day"])
    table.append(plain, "app", 0)

    mine = table.to_arrow().sort_by("event_id")
    theirs = catalog.load_table(NAME).scan().to_arrow().sort_by("event_id")
    assert str(mine.to_pylist()) == str(plain.to_pylist()) == str(theirs.to_pylist())
    files = table.locations()
    counted = duckdb.sql(f"SELECT count(*), sum(number), max(price) FROM read_parquet({files})")
    assert counted.fetchall() == [(2, 1 << 31, 1e300)]
    assert table.dataset().count_rows() == 2
    assert Table.found(URI).refresh().partition_by == ("day",)


def test_columns_and_fields_that_turn_up_later_are_added_in_the_same_commit(
    catalog: Catalog,
) -> None:
    table = stored(0, 1)
    table.append(rows(1, 2, gate=pa.array([{"name": "B4"}])), "app", 1)
    table.append(rows(2, 3, gate=pa.array([{"name": "B5", "level": 2}])), "app", 2)

    theirs = catalog.load_table(NAME).scan().to_arrow().sort_by("event_id")
    assert theirs.column("gate").to_pylist() == [
        None,
        {"name": "B4", "level": None},
        {"name": "B5", "level": 2},
    ]
    assert ids(table) == [0, 1, 2]
    assert len(catalog.load_table(NAME).snapshots()) == 3


def test_a_foreign_compaction_leaves_rows_and_versions(catalog: Catalog) -> None:
    table = stored(0, 3)
    table.append(rows(3, 5), "app", 1)
    theirs = catalog.load_table(NAME)
    theirs.overwrite(theirs.scan().to_arrow())
    before = Table.open(URI, "iceberg").refresh().files

    assert not table.append(rows(3, 5), "app", 1)
    assert table.append(rows(5, 6), "app", 2)
    assert ids(table) == list(range(6)) == ids_for_others(catalog)
    assert not any("penstock-" in file.path for file in before)


def test_a_merge_during_a_foreign_compaction_starts_over(catalog: Catalog) -> None:
    table = stored(0, 3)
    log: Any = table._log
    commit = log.commit

    def commit_after_another(*arguments: Any) -> None:
        theirs = catalog.load_table(NAME)
        theirs.overwrite(theirs.scan().to_arrow())
        log.commit = commit
        commit(*arguments)

    log.commit = commit_after_another
    changed = pa.table({"event_id": pa.array([1], pa.int64()), "sku": ["new"]})
    assert table.merge(changed, "event_id", "app", 1)

    assert ids(table) == [0, 1, 2] == ids_for_others(catalog)
    assert table.to_arrow().sort_by("event_id").column("sku").to_pylist() == ["s0", "new", "s2"]


def test_columns_that_another_program_adds_stay_and_renamed_ones_are_refused(
    catalog: Catalog,
) -> None:
    table = stored(0, 1)
    theirs = catalog.load_table(NAME)
    with theirs.update_schema() as change:
        change.add_column("note", StringType())
    table.append(rows(1, 2), "app", 1)
    assert table.refresh().schema is not None
    assert table.schema.names == ["event_id", "sku", "note"]
    with theirs.refresh().update_schema() as change:
        change.rename_column("sku", "article")

    with pytest.raises(InvalidArgument, match=r"renamed the column 'sku' to 'article'.*rename it"):
        table.append(rows(2, 3), "app", 2)


def test_rows_that_another_program_deleted_are_never_shown(catalog: Catalog) -> None:
    table = stored(0, 4)
    catalog.load_table(NAME).delete("event_id = 2")

    assert ids(table) == [0, 1, 3]


def delete_by_position(catalog: Catalog, position: int) -> None:
    """Delete a row of the only data file of the table with a file of deletes."""
    theirs = catalog.load_table(NAME)
    (task,) = theirs.scan().plan_files()
    path = f"{theirs.location()}/data/deletes.parquet"
    with theirs.io.new_output(path).create() as sink:
        deletes = pa.table({"file_path": [task.file.file_path], "pos": pa.array([position])})
        pq.write_table(deletes, sink)
    entry = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=len(theirs.io.new_input(path)),
    )
    entry.spec_id = theirs.spec().spec_id
    transaction = theirs.transaction()
    update = transaction.update_snapshot().fast_append()
    new_writer = update.new_manifest_writer

    def writer_of_deletes(spec: PartitionSpec) -> ManifestWriter:
        writer = new_writer(spec)
        writer.content = lambda: ManifestContent.DELETES  # type: ignore[method-assign]
        return writer

    update.new_manifest_writer = writer_of_deletes  # type: ignore[method-assign]
    update.append_data_file(entry).commit()
    transaction.commit_transaction()


def test_files_that_delete_single_rows_are_refused_by_readers_not_by_writers(
    catalog: Catalog,
) -> None:
    table = stored(0, 4)
    delete_by_position(catalog, 2)
    assert ids_for_others(catalog) == [0, 1, 3]

    assert table.append(rows(4, 5), "app", 1)
    for read in (table.to_arrow, table.dataset, table.locations):
        with pytest.raises(InvalidArgument, match=r"files that delete single rows.*compact it"):
            read()
    assert ids_for_others(catalog) == [0, 1, 3, 4]


def test_snapshots_that_were_only_extended_are_kept_for_an_hour(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = stored(0, 2)
    for n in range(2, 5):
        table.append(rows(n, n + 1), "app", n)
    replaced = [file.path.removeprefix("file://") for file in table.files()]
    in_two_hours_ns = time.time_ns() + 2 * 3_600 * 10**9
    monkeypatch.setattr(iceberg, "time", SimpleNamespace(time_ns=lambda: in_two_hours_ns))

    assert table.compact(keep_hours=168).cleaned == 0
    assert len(catalog.load_table(NAME).snapshots()) == 2
    assert all(Path(path).exists() for path in replaced)
    assert ids(table) == [0, 1, 2, 3, 4] == ids_for_others(catalog)


def test_snapshots_beyond_a_number_are_kept_for_an_hour(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merges replace files, so that each snapshot keeps files and is wanted for longer."""
    monkeypatch.setattr(iceberg, "SNAPSHOTS_MAX", 2)
    table = stored(0, 2)
    for n in range(1, 5):
        table.merge(pa.table({"event_id": [0], "sku": [f"new {n}"]}), "event_id", "app", n)
    assert table.compact(keep_hours=168).cleaned == 0
    in_two_hours_ns = time.time_ns() + 2 * 3_600 * 10**9
    monkeypatch.setattr(iceberg, "time", SimpleNamespace(time_ns=lambda: in_two_hours_ns))

    assert table.compact(keep_hours=168).cleaned == 3
    assert len(catalog.load_table(NAME).snapshots()) == 2
    assert table.compact(keep_hours=1).cleaned == 1
    assert ids(table) == [0, 1] == ids_for_others(catalog)


def test_merges_leave_no_manifests_without_files(catalog: Catalog) -> None:
    """Otherwise each commit would read and list one more of them than the commit before."""
    table = stored(0, 2)
    table.append(rows(2, 4), "app", 1)
    for n in range(2, 6):
        table.merge(pa.table({"event_id": [0], "sku": [f"new {n}"]}), "event_id", "app", n)

    theirs = catalog.load_table(NAME)
    snapshot = theirs.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(theirs.io)
    assert sum(manifest.added_snapshot_id != snapshot.snapshot_id for manifest in manifests) == 1
    assert ids(table) == [0, 1, 2, 3] == ids_for_others(catalog)


def test_a_dropped_table_begins_again_only_with_a_first_version(catalog: Catalog) -> None:
    table = stored(0, 3)
    writer = table.writer()
    writer.add(rows(3, 4).to_batches()[0])
    catalog.drop_table(NAME)

    with pytest.raises(IllegalState, match="or the table was replaced"):
        table.commit(writer.schema, writer.close(), app="app", version=3, after=0)
    with pytest.raises(NameDoesNotExist, match=r"iceberg://prod/lake/orders has no such table"):
        Table.found(URI)
    assert table.append(rows(0, 1), "app", 0)
    assert ids(table) == [0]


def test_partitions_by_transforms_are_refused(catalog: Catalog) -> None:
    catalog.create_namespace("lake")
    theirs = catalog.create_table(NAME, pa.schema([("at", pa.timestamp("us"))]))
    with theirs.update_spec() as spec:
        spec.add_field("at", DayTransform(), "at_day")

    with pytest.raises(InvalidArgument, match=r"partitioned by day\(at\), and only"):
        Table.found(URI)


def test_names_that_iceberg_takes_for_one_column_are_refused(catalog: Catalog) -> None:
    ambiguous_rows = rows(0, 1, a=pa.array([{"b": 1}]), **{"a.b": [2]})

    with pytest.raises(InvalidArgument, match=r"column 'a.b' exists twice.*or use a Delta table"):
        Table.open(URI, "iceberg").append(ambiguous_rows, "app", 0)


def test_compaction_removes_replaced_files_and_old_uncommitted_ones(
    catalog: Catalog, tmp_path: Path
) -> None:
    table = stored(0, 2)
    table.append(rows(2, 4), "app", 1)
    lost = table.writer()
    lost.add(rows(9, 10).to_batches()[0])
    (uncommitted,) = lost.close()
    new = table.writer()
    new.add(rows(9, 10).to_batches()[0])
    (kept,) = new.close()
    two_days_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp()
    os.utime(uncommitted.path.removeprefix("file://"), (two_days_ago, two_days_ago))

    compacted = table.compact(keep_hours=0)
    assert (compacted.removed, compacted.added, compacted.cleaned) == (2, 1, 3)
    on_disk = {path.name for path in tmp_path.rglob("*.parquet")}
    assert on_disk == {Path(file.path).name for file in (*table.files(), kept)}
    assert len(catalog.load_table(NAME).snapshots()) == 1
    assert not table.append(rows(2, 4), "app", 1)
    assert ids(table) == [0, 1, 2, 3] == ids_for_others(catalog)
    assert table.compact() == type(compacted)(0, 0, 0)


def test_readers_have_replaced_files_for_the_hours_they_are_kept(catalog: Catalog) -> None:
    table = stored(0, 2)
    table.append(rows(2, 4), "app", 1)
    (first, second) = table.files()

    assert table.compact(keep_hours=1).cleaned == 0
    assert pq.read_table(first.path.removeprefix("file://")).num_rows == 2
    assert len(catalog.load_table(NAME).snapshots()) == 3
    assert second.path not in {file.path for file in table.refresh().files}


@pytest.mark.parametrize(
    "uri", ["iceberg://", "iceberg://prod", "iceberg://prod/orders", "iceberg://prod//t"]
)
def test_a_uri_without_all_parts_is_refused(catalog: Catalog, uri: str) -> None:
    with pytest.raises(InvalidArgument, match="write iceberg://CATALOG/NAMESPACE/TABLE"):
        Table.open(uri, "iceberg")


def test_a_format_that_contradicts_the_uri_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="format is 'delta' and the table is 'iceberg://"):
        Table.open(URI)
    with pytest.raises(InvalidArgument, match="format is 'iceberg' and the table is"):
        Table.open(str(tmp_path / "t"), "iceberg")


def test_a_catalog_that_nobody_described_is_named(catalog: Catalog) -> None:
    with pytest.raises(InvalidArgument, match=r"'nowhere'.*set PYICEBERG_CATALOG__NOWHERE__URI"):
        Table.found("iceberg://nowhere/lake/orders")


def test_a_catalog_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__URI", "http://127.0.0.1:1")

    with pytest.raises(Unavailable, match="the catalog of iceberg://away/lake/orders did not"):
        Table.found("iceberg://away/lake/orders")


def test_without_pyiceberg_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "penstock.tables.iceberg", raising=False)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)

    with pytest.raises(Unavailable, match=r'pip install "penstock-realm\[iceberg\]"'):
        Table.open(URI, "iceberg")
