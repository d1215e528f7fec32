"""An archiver that is killed at any of its steps: no event is lost, none is in the table twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import penstock
from packages.client.tests.catalogs import catalog_in, configured, variables
from packages.client.tests.patience import eventually
from penstock.client.sync.sync import Channel
from penstock.tables import Table
from penstock_testing.process import ServerProcess, search_path

pytestmark = [pytest.mark.slow, pytest.mark.process]

EVENTS = 40
BATCHES = 8
KILLS = 8
ROWS = 10_000
"""Events of a sealed file that is large enough to be shared."""
REALM_KILLS = 4


@pytest.mark.spec("B8")
@pytest.mark.parametrize("by", ["value", "auto"])
def test_an_archiver_that_is_killed_at_any_step_keeps_each_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    configured(tmp_path, monkeypatch)
    table = "iceberg://prod/lake/orders"
    environment = {**os.environ, **variables(tmp_path), "PYTHONPATH": search_path()}
    program = [sys.executable, "-m", "packages.client.tests.archiver_kills"]
    with ServerProcess(tmp_path / "realm") as server, penstock.connect(server.url) as session:
        orders = session.channels.create(
            "orders", type="persistent", storage={"events_per_spindle": EVENTS}
        )
        orders.durables.create("lake", type="serial")

        def publish() -> None:
            for batch in range(BATCHES):
                events = [{"n": n} for n in range(batch * EVENTS, (batch + 1) * EVENTS)]
                orders.publish_many([penstock.Event(properties=event) for event in events])
                threading.Event().wait(0.1)

        publisher = threading.Thread(target=publish)
        publisher.start()
        arguments = [server.url, "orders", table, "iceberg", str(KILLS), "7", by]
        killed = subprocess.run(
            [*program, *arguments], env=environment, capture_output=True, text=True, check=True
        )
        publisher.join()
        arguments = [server.url, "orders", table, "iceberg", "0", "0", by]
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
    linked = [path for path in (tmp_path / "warehouse").rglob("*.parquet") if is_linked(path)]
    assert bool(linked) == (by == "auto")


def has_sealed_files(channel: Channel, count: int) -> bool:
    return channel.info().storage.sealed_files >= count


def is_linked(path: Path) -> bool:
    return path.stat().st_nlink > 1


@pytest.mark.spec("B8")
def test_a_realm_that_is_killed_during_archives_by_reference_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(tmp_path, monkeypatch)
    table = "iceberg://prod/lake/orders"
    environment = {**os.environ, **variables(tmp_path), "PYTHONPATH": search_path()}
    command = [sys.executable, "-m", "penstock", "archive", "run", "orders"]
    command += ["--table", table, "--durable", "lake", "--every", "0s"]
    shared = 0
    for run in range(REALM_KILLS):
        with ServerProcess(tmp_path / "realm") as server:
            with penstock.connect(server.url) as session:
                if not run:
                    session.channels.create(
                        "orders", type="persistent", storage={"events_per_spindle": ROWS}
                    ).durables.create("lake", type="serial")
                orders = session.channels.get("orders")
                orders.publish_table({"n": range(run * 3 * ROWS, (run + 1) * 3 * ROWS)})
                eventually(partial(has_sealed_files, orders, 2))
            with subprocess.Popen(
                [*command, "--url", server.url], env=environment, stderr=subprocess.PIPE, text=True
            ) as archiver:
                assert archiver.stderr is not None
                # Half of the realms are killed after a commit, before its acknowledgement or after.
                shown = archiver.stderr.readline() if run % 2 else ""
                server.kill()
                archiver.kill()
                shown += archiver.stderr.read()
            shared += shown.count("by reference")
    with ServerProcess(tmp_path / "realm") as server, penstock.connect(server.url) as session:
        subprocess.run([*command, "--once", "--url", server.url], env=environment, check=True)
        remaining = session.channels.get("orders").info().events

    expected = list(range(REALM_KILLS * 3 * ROWS))
    theirs = catalog_in(tmp_path).load_table(("lake", "orders")).scan().to_arrow()
    assert remaining == 0
    assert shared
    assert sorted(theirs.column("n").to_pylist()) == expected
    assert sorted(theirs.column("event_id").to_pylist()) == expected
