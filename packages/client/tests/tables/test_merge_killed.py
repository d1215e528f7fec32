"""A driver that is killed while it merges: each micro-batch is in the Iceberg table once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from packages.client.tests.catalogs import configured
from packages.client.tests.merge_kills import BATCHES, merged, states
from packages.client.tests.rest_catalog import serving
from penstock.tables import Table
from penstock_testing.process import search_path

pytestmark = [pytest.mark.slow, pytest.mark.process]

KILLS = 6


class Place(NamedTuple):
    """A table, and its catalog as other programs see it."""

    uri: str
    catalog: Catalog


@pytest.fixture(params=["sql", "rest"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "sql":
        yield Place("iceberg://prod/lake/states", configured(tmp_path, monkeypatch))
        return
    with serving(tmp_path) as server:
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__URI", server.url)
        yield Place("iceberg://far/lake/states", server.catalog)


def test_a_driver_that_is_killed_at_any_step_merges_each_micro_batch_once(
    place: Place, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    program = [sys.executable, "-m", "packages.client.tests.merge_kills"]
    killed = subprocess.run(
        [*program, place.uri, str(checkpoint), str(KILLS), "3"],
        env={**os.environ, "PYTHONPATH": search_path()},
        capture_output=True,
        text=True,
        check=True,
    )
    merged(place.uri, checkpoint)

    assert int(killed.stdout) > KILLS // 3
    expected = {
        row["key"]: (row["batch"], row.get("deleted"))
        for number in range(BATCHES)
        for row in states(number).to_pylist()
    }
    theirs = place.catalog.load_table(("lake", "states"))
    mine = Table.found(place.uri)
    for rows in (mine.to_arrow(), theirs.scan().to_arrow(), read_by_duckdb(mine)):
        assert rows.num_rows == len(expected)
        assert {row["key"]: (row["batch"], row["deleted"]) for row in rows.to_pylist()} == expected
    summaries = [snapshot.summary for snapshot in theirs.snapshots() if snapshot.summary]
    versions = [text for summary in summaries if (text := summary.get("penstock.version"))]
    assert sorted(map(int, versions)) == list(range(BATCHES))


def read_by_duckdb(table: Table) -> pa.Table:
    files = table.locations()
    return duckdb.sql(f"FROM read_parquet({files}, union_by_name = true)").to_arrow_table()
