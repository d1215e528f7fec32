"""Tests for penstock_spark.replaying.archived."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from packages.spark.tests.replaying.histories import START_US, archive, events
from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.files.archives import DAY
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.replaying.archived import Archived, Bounds


def ids(history: Archived, first: int = 0, end: int | None = None) -> list[int]:
    return [event for batch in history.batches(first, end) for event in ids_of(batch).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_ids_ascend_whatever_the_files_and_row_groups(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    numbers = sorted(chance.sample(range(1_000), 400))
    parts: list[list[int]] = [[] for _ in range(chance.randrange(1, 6))]
    for number in numbers:
        parts[min(len(parts) - 1, max(0, number * len(parts) // 1_000 + chance.choice((0, 0, 1))))]
        chance.choice(parts).append(number)
    if chance.random() < 0.5:
        chance.shuffle(parts[0])  # as a compaction without an order would leave it
    tables = [events(part, part) for part in parts if part]
    dataset = archive(tmp_path / "a", *tables, row_group_size=chance.choice((7, 50, 400)))
    rows = chance.choice((3, 64, 1_000))
    first, end = sorted(chance.sample(range(1_000), 2))

    assert ids(Archived("a", dataset, Bounds(), rows=rows)) == numbers
    wanted = [number for number in numbers if first <= number < end]
    assert ids(Archived("a", dataset, Bounds(), rows=rows), first, end) == wanted
    assert ids(Archived("a", dataset, Bounds(first, end), rows=rows)) == wanted
    assert Archived("a", dataset, Bounds(first, end)).count(0) == len(wanted)


def test_a_range_of_time_has_its_start_and_not_its_end(tmp_path: Path) -> None:
    dataset = archive(tmp_path / "a", events([1, 2, 3], [0, 10, 20]), events([4, 5], [30, 40]))
    bounds = Bounds(from_us=START_US + 10, until_us=START_US + 40)

    assert ids(Archived("a", dataset, bounds)) == [2, 3, 4]
    assert Archived("a", dataset, bounds).count(4) == 1


def test_days_that_are_out_of_range_are_not_read(tmp_path: Path) -> None:
    day_us = 86_400_000_000
    days = [pa.scalar(15_000 + day, pa.date32()) for day in range(3)]
    for day in range(3):
        offset_us = days[day].value * day_us - START_US
        folder = tmp_path / "a" / f"{DAY}={days[day].as_py()}"
        archive(folder, events([day * 2 + 1, day * 2 + 2], [offset_us, offset_us + day_us - 1]))
    (tmp_path / "a" / f"{DAY}={days[0].as_py()}" / "000.parquet").write_bytes(b"damaged")
    partitioning = ds.partitioning(pa.schema([(DAY, pa.date32())]), flavor="hive")
    schema = events([], []).schema.append(pa.field(DAY, pa.date32()))
    dataset = ds.dataset(tmp_path / "a", format="parquet", partitioning=partitioning, schema=schema)
    bounds = Bounds(from_us=days[1].value * day_us, until_us=days[2].value * day_us)

    (batch,) = Archived("a", dataset, bounds).batches(0)

    assert batch.column("event_id").to_pylist() == [3, 4]
    assert "properties" not in batch.schema.names, "the day is the archive's own"


def test_a_selector_chooses(tmp_path: Path) -> None:
    dataset = archive(tmp_path / "a", events([1, 2, 3], [0, 1, 2], price=[1.0, None, 9.0]))

    assert ids(Archived("a", dataset, Bounds(), selector="price > 5 OR event_id = 2")) == [2, 3]
    assert Archived("a", dataset, Bounds(), selector="price > 5").count(0) is None


def test_a_table_without_ids_is_no_archive(tmp_path: Path) -> None:
    dataset = archive(tmp_path / "a", pa.table({"x": [1]}))

    with pytest.raises(
        InvalidArgument, match=r"no column event_id and no published.*its columns are x"
    ):
        ids(Archived("a", dataset, Bounds()))


def test_only_parquet_is_read(tmp_path: Path) -> None:
    ds.write_dataset(events([1], [1]), tmp_path / "a", format="ipc")
    dataset = ds.dataset(tmp_path / "a", format="ipc")

    with pytest.raises(InvalidArgument, match="is not a Parquet file"):
        ids(Archived("a", dataset, Bounds()))
