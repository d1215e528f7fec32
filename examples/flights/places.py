"""The realm of a run: in this process, or on three nodes of a cluster on this machine."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console

import penstock
from examples.flights.companion import PartFailed
from examples.flights.run_record import RunRecord
from penstock_tools.demo.processes import DemoProcesses

_ENGINE = "engine-"
_LOOK_INTERVAL_S = 0.1
_RECONNECT_S = 120.0
"""Seconds that the parts wait for a node to take over. The value is large because a machine that
runs everything is busy."""

RealmOfRun = tuple[penstock.Session, str]
"""A session, and the URL at which other processes reach the realm."""


@contextmanager
def alone(record: RunRecord, console: Console) -> Iterator[RealmOfRun]:
    """Open a realm in this process, with its data in the directory of the run."""
    with penstock.Realm(record.realm) as realm, realm.connect() as session:
        url = realm.listen()
        console.print(f"Realm in {record.realm}, open to other processes at {url}.")
        yield session, url


@contextmanager
def in_cluster(record: RunRecord, console: Console) -> Iterator[RealmOfRun]:
    """Start a cluster of three nodes over three NATS servers on this machine. At the end, all
    processes and their data are removed. Sealed files are in a folder that Spark's executors
    read."""
    record.directory.mkdir(parents=True, exist_ok=True)
    # A run that was killed could not remove its folder.
    for stale in record.directory.glob(f"{_ENGINE}*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(prefix=_ENGINE, dir=record.directory) as folder:
        place = Path(folder).absolute()
        (place / "files").mkdir()
        with closing(DemoProcesses(place, blobs=f"file://{place / 'files'}")) as processes:
            processes.start()
            console.print("Starting three NATS servers and three nodes.")
            _wait_for_an_owner(processes)
            console.print(f"Cluster of three nodes at {processes.url}.")
            with penstock.connect(processes.url, reconnect_timeout=_RECONNECT_S) as session:
                yield session, processes.url


def _wait_for_an_owner(processes: DemoProcesses) -> None:
    """Wait until a node serves. Raises ``PartFailed`` if a node has ended by itself."""
    pause = threading.Event()
    while processes.owner is None:
        for node in processes.nodes:
            if failure := node.failure:
                raise PartFailed(f"node {node.name}: {failure}")
        pause.wait(_LOOK_INTERVAL_S)
