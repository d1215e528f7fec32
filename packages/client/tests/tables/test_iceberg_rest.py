"""Iceberg tables in a REST catalog: lost answers, refused commits, missing rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from packages.client.tests.rest_catalog import RestCatalog, serving
from penstock.tables import Table
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


@pytest.mark.parametrize("status", [409, 500, 503])
def test_a_commit_that_was_not_stored_is_tried_again(server: RestCatalog, status: int) -> None:
    server.is_refusing = True
    table = Table.open(URI, "iceberg")
    server.statuses = [status, status]
    assert table.append(rows(0, 3), "app", 0)
    server.statuses = [status]
    assert table.append(rows(3, 5), "app", 1)

    assert ids_in(server) == [0, 1, 2, 3, 4]


def test_a_missing_right_is_reported_at_once(server: RestCatalog) -> None:
    table = Table.open(URI, "iceberg")
    table.append(rows(0, 3), "app", 0)
    server.is_refusing = True
    server.statuses = [403, 200]

    with pytest.raises(Unavailable, match="the catalog of iceberg://far/lake/orders did not"):
        table.append(rows(3, 5), "app", 1)
    assert server.statuses == [200]
    assert ids_in(server) == [0, 1, 2]
