"""An archiver that is killed at any of its steps: no event is lost, none is in the table twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from packages.client.tests.catalogs import catalog_in, configured, variables
from penstock.tables import Table
from penstock_testing.process import ServerProcess, search_path

pytestmark = [pytest.mark.slow, pytest.mark.process]

EVENTS = 40
BATCHES = 8
KILLS = 8


def test_an_archiver_that_is_killed_at_any_step_keeps_each_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(tmp_path, monkeypatch)
    table = "iceberg://prod/lake/orders"
    environment = {**os.environ, **variables(tmp_path), "PYTHONPATH": search_path()}
    program = [sys.executable, "-m", "packages.client.tests.archiver_kills"]
    with ServerProcess(tmp_path / "realm") as server, penstock.connect(server.url) as session:
        orders = session.channels.create("orders", type="persistent")
        orders.durables.create("lake", type="serial")

        def publish() -> None:
            for batch in range(BATCHES):
                events = [{"n": n} for n in range(batch * EVENTS, (batch + 1) * EVENTS)]
                orders.publish_many([penstock.Event(properties=event) for event in events])
                threading.Event().wait(0.1)

        publisher = threading.Thread(target=publish)
        publisher.start()
        arguments = [server.url, "orders", table, "iceberg", str(KILLS), "7"]
        killed = subprocess.run(
            [*program, *arguments], env=environment, capture_output=True, text=True, check=True
        )
        publisher.join()
        arguments = [server.url, "orders", table, "iceberg", "0", "0"]
        last = [sys.executable, "-m", "penstock", "archive", "run", "orders", "--table", table]
        last += ["--durable", "lake", "--once", "--url", server.url]
        subprocess.run(last, env=environment, check=True)
        remaining = orders.info().events
        read = orders.read(start=0)

    assert int(killed.stdout) > KILLS // 3
    assert remaining == 0
    expected = list(range(BATCHES * EVENTS))
    assert read.column("n").to_pylist() == expected
    theirs = catalog_in(tmp_path).load_table(("lake", "orders")).scan().to_arrow()
    assert sorted(theirs.column("event_id").to_pylist()) == expected
    assert sorted(theirs.column("n").to_pylist()) == expected
    assert sum(file.rows for file in Table.found(table).files()) == len(expected)
