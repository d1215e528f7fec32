"""Plain Parquet tables: cut at every step that changes the disk, nothing is lost or twice."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.tables.disk import Folder
from penstock.tables.parquet import STATE_EVERY, ParquetLog
from penstock.tables.table import Table
from penstock_core.vocabulary.errors import Damaged, NewerFormat


class PowerCut(BaseException):
    """The machine is off: what would follow does not happen."""


class FailingFolder(Folder):
    """A folder whose machine stops before the ``cut``-th step."""

    def __init__(self, path: Path, cut: int) -> None:
        super().__init__(path)
        self.remaining_steps = cut

    def _step(self) -> None:
        if not self.remaining_steps:
            raise PowerCut
        self.remaining_steps -= 1

    def create(self, name: str) -> BinaryIO:
        self._step()
        return super().create(name)

    def finish(self, file: BinaryIO) -> int:
        with file:  # a process that ends closes it, too
            self._step()
            return super().finish(file)

    def publish(self, name: str, new_name: str) -> bool:
        self._step()
        return super().publish(name, new_name)

    def move(self, name: str, new_name: str) -> None:
        self._step()
        super().move(name, new_name)

    def remove(self, name: str) -> None:
        self._step()
        super().remove(name)


def cutting(path: Path, cut: int) -> tuple[Table, FailingFolder]:
    folder = FailingFolder(path, cut)
    return Table(ParquetLog(str(path), folder), "parquet", ("day",)), folder


def rows(version: int) -> pa.Table:
    ids = [version * 10, version * 10 + 1, version * 10 + 2]
    return pa.table({"event_id": ids, "day": ["a", "b", "a"], "version": [version] * 3})


def ids(path: Path) -> list[int]:
    table = Table.open(str(path), "parquet")
    return sorted(table.to_arrow(["event_id"]).column(0).to_pylist()) if table.exists else []


def numbers_of(*versions: int) -> list[int]:
    return [version * 10 + n for version in versions for n in range(3)]


@pytest.mark.slow
def test_an_append_that_is_cut_is_there_or_not_and_done_once(tmp_path: Path) -> None:
    cut, steps = 0, 0
    while not steps:
        path = tmp_path / str(cut)
        Table.open(str(path), "parquet", ["day"]).append(rows(0), "app", 0)
        table, _ = cutting(path, cut)
        try:
            table.append(rows(1), "app", 1)
            steps = cut
        except PowerCut:
            assert ids(path) in (numbers_of(0), numbers_of(0, 1))
        again = Table.open(str(path), "parquet")
        stored = ids(path) == numbers_of(0, 1)
        assert again.append(rows(1), "app", 1) is not stored
        assert ids(path) == numbers_of(0, 1)
        again.append(rows(2), "app", 2)  # the next writer puts everything in its place
        assert ids(path) == numbers_of(0, 1, 2)
        assert sorted(pq.read_table(path).column("event_id").to_pylist()) == numbers_of(0, 1, 2)
        cut += 1
    assert steps >= 8, "files, commit, moves"


@pytest.mark.slow
def test_a_compaction_that_is_cut_changes_no_row(tmp_path: Path) -> None:
    cut, steps = 0, 0
    while not steps:
        path = tmp_path / str(cut)
        for version in range(3):
            Table.open(str(path), "parquet", ["day"]).append(rows(version), "app", version)
        table, _ = cutting(path, cut)
        try:
            table.compact(keep_hours=0)
            steps = cut
        except PowerCut:
            assert ids(path) == numbers_of(0, 1, 2)
        again = Table.open(str(path), "parquet")
        again.compact(keep_hours=0)
        assert ids(path) == numbers_of(0, 1, 2)
        assert len(again.files()) == 2
        again.append(rows(3), "app", 3)
        assert sorted(pq.read_table(path).column("event_id").to_pylist()) == numbers_of(0, 1, 2, 3)
        cut += 1
    assert steps >= 12


@pytest.mark.slow
def test_a_merge_that_is_cut_is_there_or_not_and_done_once(tmp_path: Path) -> None:
    new = pa.table({"event_id": [1, 99], "day": ["b", "c"], "version": [7, 7]})
    cut, steps = 0, 0
    while not steps:
        path = tmp_path / str(cut)
        Table.open(str(path), "parquet", ["day"]).append(rows(0), "app", 0)
        table, _ = cutting(path, cut)
        try:
            table.merge(new, "event_id", "latest", version=0)
            steps = cut
        except PowerCut:
            assert ids(path) in ([0, 1, 2], [0, 1, 2, 99])
        Table.open(str(path), "parquet").merge(new, "event_id", "latest", version=0)
        stored = Table.open(str(path), "parquet").to_arrow()
        versions = dict(
            zip(stored["event_id"].to_pylist(), stored["version"].to_pylist(), strict=True)
        )
        assert versions == {0: 0, 1: 7, 2: 0, 99: 7}
        assert stored.num_rows == 4
        cut += 1
    assert steps >= 8


@pytest.mark.slow
def test_a_reader_sees_a_commit_whose_files_are_not_in_their_places(tmp_path: Path) -> None:
    Table.open(str(tmp_path), "parquet", ["day"]).append(rows(0), "app", 0)
    seen = set()
    for cut in range(20):
        table, _ = cutting(tmp_path, cut)
        try:
            table.append(rows(1), "app", 1)
        except PowerCut:
            reader = Table.open(str(tmp_path), "parquet")
            seen.add(
                (
                    len(ids(tmp_path)),
                    all("aside" not in location for location in reader.locations()),
                )
            )
            reader.settle()
            reader.refresh()
            assert all("aside" not in place for place in reader.locations())
    assert seen == {(3, True), (6, False)}


@pytest.mark.slow
def test_many_commits_are_summed_up(tmp_path: Path) -> None:
    writer = Table.open(str(tmp_path), "parquet", ["day"])
    slow = Table.open(str(tmp_path), "parquet")
    for version in range(2 * STATE_EVERY + 5):
        writer.append(rows(version), f"app{version % 2}", version)
        if version == 3:
            assert slow.refresh().version == 3

    kept = list((tmp_path / "_penstock" / "commits").iterdir())
    assert len(kept) <= 7
    slow.refresh()
    expected = numbers_of(*range(2 * STATE_EVERY + 5))
    assert sorted(slow.to_arrow(["event_id"]).column(0).to_pylist()) == expected
    assert slow.last_of("app0") == 2 * STATE_EVERY + 4
    assert ids(tmp_path) == expected


def test_a_damaged_or_newer_list_of_commits_is_named(tmp_path: Path) -> None:
    Table.open(str(tmp_path), "parquet").append(rows(0), "app", 0)
    record = tmp_path / "_penstock" / "commits" / f"{0:020}.json"
    content = record.read_text()
    record.write_text(content[:20])
    with pytest.raises(Damaged, match=r"0\.json cannot be read: the document ends too early"):
        ids(tmp_path)
    record.write_text(content.replace('"v":1', '"v":"one"'))
    with pytest.raises(Damaged, match=r"0\.json cannot be read: v must be an integer"):
        ids(tmp_path)
    record.write_text(content.replace('"v":1', '"v":2'))
    with pytest.raises(NewerFormat, match="has format 2 of a newer Penstock"):
        ids(tmp_path)


@pytest.mark.parametrize("part", ['"v":1', '"columns":"'])
def test_a_list_of_commits_with_bytes_that_are_no_text_is_damaged(
    tmp_path: Path, part: str
) -> None:
    """The list has no separate checksum, so any change by the disk must be reported as damage."""
    Table.open(str(tmp_path), "parquet").append(rows(0), "app", 0)
    record = tmp_path / "_penstock" / "commits" / f"{0:020}.json"
    content = record.read_bytes()
    offset = content.index(part.encode()) + len(part)
    for spoilt in (b"\xc1", b"\xc3\xa9", b"!"):
        record.write_bytes(content[:offset] + spoilt + content[offset + len(spoilt) :])
        with pytest.raises(Damaged, match=r"0\.json cannot be read"):
            ids(tmp_path)
