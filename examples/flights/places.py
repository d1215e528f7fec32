"""Where the realm of a run is: in this process, or on three nodes of a cluster on this machine."""

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
"""How long the parts wait for a node that takes over, on a machine that is busy."""

RealmOfRun = tuple[penstock.Session, str]
"""A session, and the URL under which other processes find the realm."""


@contextmanager
def alone(record: RunRecord, console: Console) -> Iterator[RealmOfRun]:
    """A realm in this process, which keeps everything in the directory of the run."""
    with penstock.Realm(record.realm) as realm, realm.connect() as session:
        url = realm.listen()
        console.print(f"Realm in {record.realm}, open to other processes at {url}.")
        yield session, url


@contextmanager
def in_cluster(record: RunRecord, console: Console) -> Iterator[RealmOfRun]:
    """Three nodes over three NATS servers, all processes of this machine, and gone at the end with
    what they have stored. Sealed files are in a folder that Spark's executors read."""
    record.directory.mkdir(parents=True, exist_ok=True)
    for left in record.directory.glob(f"{_ENGINE}*"):  # by a run that was killed
        shutil.rmtree(left)
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
    """Raises ``PartFailed`` when a node has ended by itself."""
    pause = threading.Event()
    while processes.owner is None:
        for node in processes.nodes:
            if failure := node.failure:
                raise PartFailed(f"node {node.name}: {failure}")
        pause.wait(_LOOK_INTERVAL_S)
