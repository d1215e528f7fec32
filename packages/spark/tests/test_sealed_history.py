"""A batch of Spark is read while the cluster has no quorum: the plan from a node's sealed history,
the events where the cluster keeps its files."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from packages.spark.tests.reading import rows_of
from penstock_spark.connections import disconnect
from penstock_spark.reading.plan import EventRange, FileRows
from penstock_spark.source import PenstockSource
from penstock_testing.nats_servers import NatsServers
from penstock_testing.process import ServerProcess
from tests.patience import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

EVENTS = 1_000


@pytest.mark.spec("N10")
def test_a_batch_is_read_without_a_quorum(tmp_path: Path) -> None:
    settings = {
        "PENSTOCK_CLUSTER_BLOBS": (tmp_path / "files").as_uri(),
        "PENSTOCK_CLUSTER_LEASE_S": "10",
        "PENSTOCK_CLUSTER_HISTORY_PORT": "0",
        "PENSTOCK_STORAGE_SNAPSHOT_INTERVAL_S": "1",
    }
    with NatsServers(tmp_path) as servers:
        settings["PENSTOCK_CLUSTER_MONITORS"] = ",".join(servers.monitors)
        cluster = ("--cluster", servers.engine, "--node", "n1")
        with ServerProcess(tmp_path / "n1", *cluster, environment=settings) as node:
            with penstock.connect(node.url) as session:
                orders = session.channels.create(
                    "orders", storage={"events_per_spindle": EVENTS // 2}
                )
                orders.publish_many([penstock.Event(properties={"n": n}) for n in range(EVENTS)])
                until(lambda: orders.info().storage.sealed_files == 2)
                snapshots = len(node.logged("realm.snapshot_taken"))
                orders.publish(properties={"n": EVENTS})  # in no file, and in the next snapshot
                until(lambda: len(node.logged("realm.snapshot_taken")) > snapshots)
            for number in (1, 2):
                servers.kill(number)
            until(lambda: bool(node.logged("history.shown")))
            url = str(node.logged("history.shown")[-1]["url"])
            try:
                source = PenstockSource({"url": url, "channel": "orders"})
                reader = source.reader(source.schema())
                partitions = list(reader.partitions())
                rows = rows_of(reader, partitions)
            finally:
                disconnect()

    assert sorted(row["n"] for row in rows) == [*range(EVENTS + 1)]
    planned = [event_range for event_range in partitions if isinstance(event_range, EventRange)]
    assert all(
        event_range.files.startswith(settings["PENSTOCK_CLUSTER_BLOBS"]) for event_range in planned
    )
    files = [
        part for event_range in planned for part in event_range.parts if isinstance(part, FileRows)
    ]
    assert sum(span.size for part in files for span in part.spans) == EVENTS
