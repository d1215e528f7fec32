"""Workers in processes of their own, over a realm in a process of its own, with both killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import penstock
from penstock_testing.process import ServerProcess, search_path
from tests.patience import until

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parent
COUNT = 60


@contextmanager
def worker(url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``faststream run`` in a process; killed at the end of the block if it still runs."""
    path = os.pathsep.join((search_path(), str(FOLDER)))
    environment = {**os.environ, "PYTHONPATH": path, "REALM": url, "NOTES": str(folder)}
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "faststream", "run", "worker_app:app"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def noted(folder: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in folder.iterdir()}


@pytest.mark.parametrize("store", ["durable", "queue"])
def test_events_of_a_killed_worker_go_to_the_next_one(tmp_path: Path, store: str) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    with ServerProcess(tmp_path / "realm") as server, penstock.connect(server.url) as session:
        publish = _publisher(session, store)
        publish([f"{store}-hang"])
        with worker(server.url, notes) as first:
            until(lambda: f"{store}-hang" in noted(notes))
            publish([f"{store}-{number}" for number in range(COUNT)])
            first.kill()
        with worker(server.url, notes):
            until(lambda: _outstanding(session, store) == 0)

    expected = {f"{store}-hang"} | {f"{store}-{number}" for number in range(COUNT)}
    assert noted(notes) == expected


def test_a_killed_realm_loses_no_acknowledged_event_and_the_worker_goes_on(tmp_path: Path) -> None:
    notes, folder = tmp_path / "notes", tmp_path / "realm"
    notes.mkdir()
    with ServerProcess(folder) as server:
        port = urlsplit(server.url).port
        with penstock.connect(server.url) as session, worker(server.url, notes):
            publish = _publisher(session, "durable")
            publish([f"durable-{number}" for number in range(COUNT)])
            until(lambda: noted(notes))
            server.kill()
            with ServerProcess(folder, "--port", str(port)):
                publish([f"durable-{COUNT}"])
                until(lambda: _outstanding(session, "durable") == 0)

    assert noted(notes) == {f"durable-{number}" for number in range(COUNT + 1)}


def test_a_terminated_worker_ends_its_handlers_and_acknowledges(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    with ServerProcess(tmp_path / "realm") as server, penstock.connect(server.url) as session:
        _publisher(session, "durable")(["durable-slow"])
        with worker(server.url, notes) as process:
            until(lambda: "durable-slow" in noted(notes))
            # Before, FastStream could stop and start at the same time.
            until(lambda: "started successfully" in (tmp_path / "notes.log").read_text())
            process.terminate()
            (notes / "go").touch()
            assert process.wait(timeout=60) == 0

        assert _outstanding(session, "durable") == 0


def _publisher(session: penstock.Session, store: str) -> Callable[[list[str]], None]:
    if store == "queue":
        put: Callable[[list[penstock.Event]], range] = session.queues.create(
            "work", if_missing=True
        ).push_many
    else:
        channel = session.channels.create("orders", if_missing=True)
        channel.durables.create("billing", if_missing=True)
        put = channel.publish_many

    def publish(orders: list[str]) -> None:
        put([penstock.Event(order.encode()) for order in orders])

    return publish


def _outstanding(session: penstock.Session, store: str) -> int:
    if store == "queue":
        return session.queues.get("work").info().events
    return session.channels.get("orders").durables.get("billing").info().outstanding
