"""The common behaviour of all kinds of tables: rows stored once, growing columns, replaced keys,
few files."""

from __future__ import annotations

import resource
import signal
import warnings
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packages.client.tests.failing_disk import FailingDisk
from penstock.tables import DataFile, Format, Table, files
from penstock.tables.log import CONTENTS_MAX
from penstock.tables.parquet import ParquetLog
from penstock_core.vocabulary.errors import (
    DifferentContent,
    InvalidArgument,
    NameDoesNotExist,
    StorageFailed,
    Unavailable,
)

DAY = date(2026, 5, 4)


@pytest.fixture(params=["delta", "parquet", pytest.param("iceberg", marks=pytest.mark.slow)])
def format(request: pytest.FixtureRequest) -> Format:
    table_format: Format = request.param
    return table_format


@pytest.fixture
def uri(format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path or URI of a table that does not exist yet."""
    if format != "iceberg":
        return str(tmp_path / "t")
    # pyiceberg is not among the packages of `make lowest`.
    from packages.client.tests.catalogs import configured

    configured(tmp_path, monkeypatch)
    return "iceberg://prod/lake/t"


def rows(first: int, end: int, **more: Any) -> pa.Table:
    ids = list(range(first, end))
    names = pa.array([f"s{number}" for number in ids], pa.string())
    return pa.table({"event_id": pa.array(ids, pa.int64()), "sku": names, **more})


def ids(table: Table) -> list[int]:
    table.refresh()
    return sorted(table.to_arrow(["event_id"]).column(0).to_pylist())


def test_a_version_is_stored_once(uri: str, format: Format) -> None:
    table = Table.open(uri, format)

    assert table.append(rows(0, 3), "app", 0)
    assert not table.append(rows(0, 3), "app", 0)
    assert Table.open(uri, format).append(rows(3, 4), "app", 1)
    assert not table.append(rows(9, 10), "app", 0), "an earlier one, either"
    assert table.append(rows(4, 5), "another app", 0)

    assert ids(table) == [0, 1, 2, 3, 4]
    assert (table.last_of("app"), table.last_of("nobody")) == (1, None)


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_version_with_other_content_is_refused(uri: str, format: Format) -> None:
    table = Table.open(uri, format)
    table.append(rows(0, 1), "app", 0)  # by a version that kept no contents
    assert not table.append(rows(0, 1), "app", 0, content="0-1")
    for n in range(1, 60):
        assert table.append(rows(n, n + 1), "app", n, content=f"{n}-{n + 1}")
    assert table.append(rows(60, 61), "another app", 7, content="60-61")

    again = Table.open(uri, format)
    assert not again.append(rows(0, 1), "app", 57, content="57-58")
    assert not again.append(rows(0, 1), "app", 58)
    for version, content in ((59, "59-90"), (40, "40-90"), (0, "0-1")):
        with pytest.raises(DifferentContent, match=f"has version {version} of app with the"):
            again.append(rows(59, 90), "app", version, content=content)
    assert ids(again) == list(range(61))


def test_contents_are_remembered_of_the_last_versions_only(tmp_path: Path) -> None:
    log = ParquetLog(str(tmp_path / "t"))
    table = Table(log, "parquet", ())
    for n in range(2 * CONTENTS_MAX):
        table.append(rows(n, n + 1), "app", n, content=str(n))

    assert list(log.contents("app")) == list(range(CONTENTS_MAX, 2 * CONTENTS_MAX))
    with pytest.raises(DifferentContent, match="of an earlier time"):
        table.append(rows(3, 4), "app", 3, content="3")


def test_a_batch_of_no_rows_is_stored_too(uri: str, format: Format) -> None:
    table = Table.open(uri, format)

    assert table.append(rows(0, 0), "app", 0)
    assert not table.append(rows(0, 1), "app", 0)
    assert ids(table) == []
    assert table.schema.names == ["event_id", "sku"]


def test_new_columns_are_added_at_any_depth(uri: str, format: Format) -> None:
    table = Table.open(uri, format)
    table.append(rows(0, 1, box=[{"w": 1}], list=[[{"a": 1}]]), "app", 0)
    table.append(
        rows(1, 2, box=[{"w": 2, "h": "x"}], list=[[{"a": 2, "b": 0.5}]], c=[True]), "a", 1
    )
    table.append(rows(2, 3), "app", 2)

    rows_by_id = {row["event_id"]: row for row in table.to_arrow().to_pylist()}
    assert rows_by_id[0]["box"] == {"w": 1, "h": None}
    assert rows_by_id[0]["c"] is None
    assert rows_by_id[1]["box"] == {"w": 2, "h": "x"}
    assert rows_by_id[1]["list"] == [{"a": 2, "b": 0.5}]
    assert rows_by_id[2] == {"event_id": 2, "sku": "s2", "box": None, "list": None, "c": None}


def test_values_are_cast_where_nothing_is_lost(uri: str, format: Format) -> None:
    table = Table.open(uri, format)
    table.append(rows(0, 1, n=pa.array([1], pa.int32())), "app", 0)
    table.append(rows(1, 2, n=pa.array([2], pa.int64())), "app", 1)
    table.append(rows(2, 3, n=pa.array(["3"], pa.string()).dictionary_encode()), "app", 2)
    table.append(rows(3, 4, text=pa.array(["x"])), "app", 3)
    table.append(rows(4, 5, text=pa.array([4_000])), "app", 4)

    assert table.schema.field("n").type == pa.int32()
    assert sorted(table.to_arrow(["n"]).column(0).drop_null().to_pylist()) == [1, 2, 3]
    assert set(table.to_arrow(["text"]).column(0).to_pylist()) == {None, "x", "4000"}
    with pytest.raises(InvalidArgument, match="'n' has type int32 in the table"):
        table.append(rows(5, 6, n=pa.array([1 << 40], pa.int64())), "app", 5)
    assert ids(table) == [0, 1, 2, 3, 4]


def test_columns_of_no_type_yet_wait_for_one(uri: str, format: Format) -> None:
    table = Table.open(uri, format)
    table.append(rows(0, 1, later=pa.nulls(1)), "app", 0)
    assert "later" not in table.schema.names
    table.append(rows(1, 2, later=["x"]), "app", 1)

    assert sorted(table.to_arrow(["later"]).column(0).to_pylist(), key=str) == [None, "x"]


def test_what_no_table_holds_is_refused_by_name(uri: str, format: Format) -> None:
    table = Table.open(uri, format)

    with pytest.raises(InvalidArgument, match="column 'at' has type time64"):
        table.append(rows(0, 1, at=pa.array([1], pa.time64("us"))), "app", 0)
    with pytest.raises(InvalidArgument, match="'sku' and 'SKU' differ only in case"):
        table.append(rows(0, 1, SKU=["x"]), "app", 0)
    with pytest.raises(InvalidArgument, match="app is ''"):
        table.append(rows(0, 1), "", 0)
    with pytest.raises(InvalidArgument, match="version is -1"):
        table.append(rows(0, 1), "app", -1)
    with pytest.raises(InvalidArgument, match="rows has type int"):
        table.append(7, "app", 0)
    with pytest.raises(InvalidArgument, match="partition_by names 'day'"):
        Table.open(f"{uri}p", format, ["day"]).append(rows(0, 1), "app", 0)
    with pytest.raises(InvalidArgument, match="which has type double"):
        Table.open(f"{uri}p", format, ["p"]).append(rows(0, 1, p=[1.5]), "app", 0)
    assert not table.exists


@pytest.mark.slow
def test_an_empty_text_is_no_partition_of_a_delta_table(tmp_path: Path) -> None:
    """A reader would see null, so a merge by this column would match no row and add another."""
    table_without_kind = pa.table({"kind": ["", "a"], "n": [1, 2]})
    table = Table.open(str(tmp_path / "delta"), "delta", ["kind"])
    with pytest.raises(InvalidArgument, match="'kind', which is an empty text in 1 rows"):
        table.append(table_without_kind, "app", 0)
    assert not table.exists

    kept = Table.open(str(tmp_path / "parquet"), "parquet", ["kind"])
    kept.append(table_without_kind, "app", 0)
    assert kept.merge(pa.table({"kind": [""], "n": [3]}), "kind", "app", version=1)
    assert sorted(kept.to_arrow(["kind", "n"]).to_pylist(), key=str) == [
        {"kind": "", "n": 3},
        {"kind": "a", "n": 2},
    ]


@pytest.mark.slow
def test_partitions_are_folders_and_columns_again(uri: str, format: Format) -> None:
    table = Table.open(uri, format, ["day", "kind"])
    table.append(
        rows(0, 4, day=[DAY, None, DAY, DAY], kind=["a b/c", "é", None, "a b/c"]), "app", 0
    )

    rows_by_id = Table.found(uri)
    assert (rows_by_id.format, rows_by_id.partition_by) == (format, ("day", "kind"))
    table_rows = {row["event_id"]: row for row in rows_by_id.to_arrow().to_pylist()}
    assert [table_rows[i]["day"] for i in range(4)] == [DAY, None, DAY, DAY]
    assert [table_rows[i]["kind"] for i in range(4)] == ["a b/c", "é", None, "a b/c"]
    assert len(rows_by_id.files()) == 3
    assert rows_by_id.dataset().to_table().num_rows == 4
    import pyarrow.dataset as ds

    assert rows_by_id.dataset().to_table(filter=ds.field("kind") == "é").num_rows == 1
    new = pa.table({"event_id": [1], "day": [None], "kind": ["é"], "sku": ["new"]})
    assert rows_by_id.merge(new, "event_id", "latest", version=0)
    assert rows_by_id.to_arrow().num_rows == 4
    with pytest.raises(InvalidArgument, match="partitioned by day, kind, not by sku"):
        Table.open(uri, format, ["sku"]).append(rows(9, 10), "app", 9)


@pytest.mark.slow
def test_rows_take_the_place_of_those_with_their_key(uri: str, format: Format) -> None:
    table = Table.open(uri, format)
    table.append(rows(0, 3), "app", 0)
    table.append(rows(3, 6), "app", 1)
    new = pa.table({"event_id": [1, 7], "sku": ["new", "seven"]})

    assert table.merge(new, "event_id", "latest", version=0)
    assert not table.merge(new, "event_id", "latest", version=0)

    rows_by_id = {row["event_id"]: row["sku"] for row in table.to_arrow().to_pylist()}
    assert rows_by_id == {0: "s0", 1: "new", 2: "s2", 3: "s3", 4: "s4", 5: "s5", 7: "seven"}
    assert table.to_arrow().num_rows == len(rows_by_id)
    assert table.merge(
        pa.table({"event_id": [0], "sku": ["s4"]}), ["event_id", "sku"], "two", version=0
    )
    assert table.to_arrow().num_rows == len(rows_by_id) + 1


def test_a_key_is_of_one_row_and_not_null(uri: str, format: Format) -> None:
    table = Table.open(uri, format)
    with pytest.raises(InvalidArgument, match=r"the first is \{'k': 'a'\}"):
        table.merge(pa.table({"k": ["a", "b", "a"]}), "k", "app", version=0)
    with pytest.raises(InvalidArgument, match="'k' is null in 1 rows"):
        table.merge(pa.table({"k": ["a", None]}), "k", "app", version=0)
    with pytest.raises(InvalidArgument, match="key names x"):
        table.merge(pa.table({"k": ["a"]}), "x", "app", version=0)


@pytest.mark.slow
def test_compaction_keeps_rows_and_what_writers_have_stored(
    tmp_path: Path, uri: str, format: Format
) -> None:
    table = Table.open(uri, format, ["day"])
    days = [DAY, date(2026, 5, 5)]
    for version in reversed(range(6)):
        table.append(rows(version, version + 1, day=[days[version % 2]]), f"app{version}", version)
    reader = Table.open(uri, format)
    before = reader.files()

    done = table.compact()

    assert (done.removed, done.added) == (6, 2)
    assert ids(table) == list(range(6))
    assert [table.last_of(f"app{version}") for version in range(6)] == list(range(6))
    kept = table.to_arrow().column("event_id").to_pylist()
    assert sorted(kept[:3]) == kept[:3], "by id within a partition"
    assert sum(reader.rows_of(file).num_rows for file in before) == 6, "who reads goes on"
    assert table.compact(keep_hours=0).cleaned == 6
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    with pytest.raises(FileNotFoundError):
        reader.rows_of(before[0])


@pytest.mark.slow
def test_writers_of_one_table_do_not_undo_each_other(uri: str, format: Format) -> None:
    one = Table.open(uri, format)
    second_table = Table.open(uri, format)
    one.append(rows(0, 1), "one", 0)
    assert one.exists
    for version in range(1, 5):
        assert second_table.append(rows(version, version + 1), "other", version)
        writer = one.writer()  # after the newest commit that it has read
        writer.add(rows(10 + version, 11 + version).to_batches()[0])
        assert one.commit(writer.schema, writer.close(), app="one", version=version)

    assert ids(second_table) == [0, 1, 2, 3, 4, 11, 12, 13, 14]


def test_two_drivers_with_one_name_store_a_version_once(uri: str, format: Format) -> None:
    Table.open(uri, format).append(rows(0, 1), "app", 0)
    one, second_table = Table.open(uri, format), Table.open(uri, format)
    writers = []
    for table in (one, second_table):
        assert table.last_of("app") == 0
        writer = table.writer()
        writer.add(rows(1, 2).to_batches()[0])
        writers.append(writer)
    stored = [
        table.commit(writer.schema, writer.close(), app="app", version=1)
        for table, writer in zip((one, second_table), writers, strict=True)
    ]

    assert stored == [True, False]
    assert ids(one) == [0, 1]


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_table_is_found_whatever_it_is(tmp_path: Path, format: Format) -> None:
    uri = str(tmp_path / "t")
    with pytest.raises(NameDoesNotExist, match="is not a table, neither Delta nor Parquet"):
        Table.found(uri)
    Table.open(uri, format).append(rows(0, 1), "app", 0)

    assert Table.found(uri).format == format
    assert Table.found(f"file://{uri}").to_arrow().num_rows == 1
    second_table: Format = "parquet" if format == "delta" else "delta"
    with pytest.raises(InvalidArgument, match=r"table of (plain )?Parquet files"):
        Table.open(uri, second_table).append(rows(1, 2), "app", 1)


def test_the_files_a_table_names_are_its_rows(uri: str, format: Format) -> None:
    table = Table.open(uri, format)
    table.append(rows(0, 3), "app", 0)
    table.append(rows(3, 5), "app", 1)

    assert sum(pq.read_table(place).num_rows for place in table.locations()) == 5
    assert sorted(file.ids or () for file in table.files()) == [(0, 2), (3, 4)]


@pytest.mark.slow
def test_delta_tables_are_read_by_delta_itself(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = Table.open(str(tmp_path / "t"), "delta", ["day"])
    table.append(rows(0, 3, day=[DAY, None, DAY]), "app", 0)
    table.append(rows(3, 4, day=[DAY], extra=[1.5]), "app", 1)
    table.compact()

    rows_by_id = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert sorted(rows_by_id.column("event_id").to_pylist()) == [0, 1, 2, 3]
    assert rows_by_id.column("extra").null_count == 3


@pytest.mark.slow
def test_parquet_tables_are_read_by_programs_that_only_list_the_folder(tmp_path: Path) -> None:
    table = Table.open(str(tmp_path / "t"), "parquet", ["day"])
    table.append(rows(0, 3, day=[DAY, DAY, DAY]), "app", 0)
    table.append(rows(3, 4, day=[DAY]), "app", 1)
    table.compact()

    rows_by_id = pq.read_table(tmp_path / "t")
    assert sorted(rows_by_id.column("event_id").to_pylist()) == [0, 1, 2, 3]


def test_columns_whose_values_repeat_have_dictionaries_in_files(tmp_path: Path) -> None:
    table = Table.open(str(tmp_path / "t"))
    repeated = {
        "code": pa.array([n % 5 for n in range(100)]),
        "price": pa.array([n % 3 / 7 for n in range(100)]),
        "payload": pa.array([b"%d" % (n % 4) * 50 for n in range(100)], pa.binary()),
        "at": pa.array([n % 2 for n in range(100)], pa.timestamp("us", tz="UTC")),
        "never": pa.nulls(100, pa.int64()),
    }
    inside = [{"text": "a", "number": n, "texts": ["b"]} for n in range(100)]
    unique = {
        "n": range(100),
        "random": [1 / (n + 1) for n in range(100)],
        "key": pa.array([b"%d" % n for n in range(100)], pa.binary()),
        "inside": inside,
    }
    table.append(pa.table({"text": ["c"] * 100} | unique | repeated), "app", 0)

    (path,) = table.locations()
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if column.has_dictionary_page} == {
        "text",
        "inside.text",
        "inside.texts.list.element",
        *repeated,
    }
    assert table.to_arrow(["code", "price"]).equals(
        pa.table({name: repeated[name] for name in ("code", "price")})
    )


def test_plain_parquet_is_deprecated_for_writers_not_for_readers(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="write a table of the format delta") as warned:
        table = Table.open(str(tmp_path / "t"), "parquet")
    table.append(rows(0, 3), "app", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old = Table.found(str(tmp_path / "t"))
        new = Table.open(str(tmp_path / "new"))
        new.append(old.to_arrow(), "move", 0)

    assert warned[0].filename == __file__
    assert new.to_arrow().equals(old.to_arrow())


def test_plain_parquet_is_for_disks(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="use a Delta table"):
        Table.open("s3://bucket/t", "parquet")
    with pytest.raises(InvalidArgument, match="cannot hold a table"):
        Table.open("nowhere://t", "delta")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match="choose an empty folder"):
        Table.open(str(tmp_path), "parquet").append(rows(0, 1), "app", 0)
    with pytest.raises(InvalidArgument, match="format is 'csv'"):
        Table.open(str(tmp_path), "csv")  # type: ignore[arg-type]  # that is the point


def test_delta_tables_say_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(Unavailable, match="pip install deltalake"):
        Table.open(str(tmp_path), "delta")


def test_what_a_writer_has_yet_to_commit_is_not_cleaned_away(uri: str, format: Format) -> None:
    table = Table.open(uri, format)
    table.append(rows(0, 5), "app", 0)
    writer = table.writer()
    writer.add(rows(5, 9).to_batches()[0])
    files = writer.close()
    Table.open(uri, format).compact(keep_hours=0)

    assert table.commit(writer.schema, files, app="app", version=1)
    assert ids(table) == list(range(9))


@pytest.mark.slow
def test_a_delta_path_that_others_would_misread_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"contains %2F, which .* take for '/'"):
        Table.open(str(tmp_path / "a%2Fb"), "delta")
    for name in ("a b", "100%", "\u00fc~2F", "a%2Fb"):
        format: Format = "parquet" if "%2" in name else "delta"
        table = Table.open(str(tmp_path / name), format)
        table.append(pa.table({"n": [1]}), "test", 0)
        assert Table.found(table.uri).to_arrow().num_rows == 1


def test_an_error_about_a_full_disk_names_the_table(uri: str, format: Format) -> None:
    table = Table.open(uri, format)
    table.append(rows(0, 1), "app", 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(StorageFailed, match=r"/t cannot be written: File too large") as raised:
            table.append(rows(1, 2), "app", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)

    assert raised.value.retryable
    assert table.append(rows(1, 2), "app", 1)
    assert ids(table) == [0, 1]


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_commit_that_may_not_be_on_disk_is_not_reported_as_stored(
    tmp_path: Path, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.open(str(tmp_path / "t"), format)
    table.append(rows(0, 1), "app", 0)
    log = {"delta": "_delta_log", "parquet": "_penstock/commits"}[format]
    disk = FailingDisk(monkeypatch, log)
    for writer in (table, Table.open(table.uri, format)):
        with pytest.raises(Unavailable, match="may have this commit all the same") as raised:
            writer.append(rows(1, 2), "app", 1)
        assert not isinstance(raised.value, StorageFailed), "which says that nothing is stored"
    disk.fails = False

    assert not table.append(rows(1, 2), "app", 1)
    assert disk.synced
    assert ids(table) == [0, 1]


def test_a_write_has_a_bounded_number_of_open_files(
    uri: str, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "OPEN_FILES_MAX", 2)
    table = Table.open(uri, format, ["day"])
    days = [DAY + timedelta(days=n % 3) for n in range(6)]
    writer = table.writer()
    for batch in rows(0, 6, day=pa.array(days)).to_batches(max_chunksize=1):
        writer.add(batch)
        assert len(writer._open) <= 2
    table.commit(writer.schema, writer.close(), app="app", version=0)

    assert ids(table) == list(range(6))
    assert len(table.files()) == 6


class Overtaken(Table):
    """A table that another program changes after this one has chosen files."""

    meanwhile: Callable[[], object] | None = None

    def rows_of(self, file: DataFile) -> pa.Table:
        meanwhile, type(self).meanwhile = type(self).meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().rows_of(file)


def test_a_compaction_leaves_out_files_that_another_one_has_replaced(
    uri: str, format: Format
) -> None:
    table = Table.open(uri, format, ["day"])
    for version in range(3):
        rows = {"day": ["a", "b", "c"], "event_id": [3 * version + n for n in range(3)]}
        table.append(pa.table(rows), app="test", version=version)
    Overtaken.meanwhile = Table.open(uri, format, ["day"]).compact

    Overtaken.open(uri, format, ["day"]).compact()

    assert ids(table) == list(range(9))


def test_two_drivers_with_one_name_merge_a_version_once(uri: str, format: Format) -> None:
    table = Table.open(uri, format)
    table.append(rows(0, 3), "app", 0)
    changed = pa.table({"event_id": [1], "sku": ["new"], "gone": [True]})
    Overtaken.meanwhile = lambda: table.merge(changed, "event_id", "app", 1, content="1-2")

    zombie = Overtaken.open(uri, format)
    assert not zombie.merge(changed, "event_id", "app", 1, content="1-2")
    assert zombie.merge(rows(0, 0), "event_id", "app", 2), "a micro-batch without changes"
    with pytest.raises(DifferentContent):
        table.merge(rows(1, 2), "event_id", "app", 1, content="1-3")

    assert Overtaken.meanwhile is None
    assert sorted(Table.found(uri).to_arrow().to_pylist(), key=lambda row: row["event_id"]) == [
        {"event_id": 0, "sku": "s0", "gone": None},
        {"event_id": 1, "sku": "new", "gone": True},
        {"event_id": 2, "sku": "s2", "gone": None},
    ]
