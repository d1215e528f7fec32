"""A streaming query from a channel to a channel of a cluster whose owner is killed in every
micro-batch, while it is read and while it is written.

The driver here imitates Spark's, as in ``kills``: it writes the offset log, runs tasks, commits and
writes the commit log, and repeats the last micro-batch if that is not in the commit log. Reader and
writer are ours, the nodes and the servers of their engine are processes, and the sealed files are
in a folder that tasks can read. ``python -m packages.spark.tests.takeovers 30`` runs 30
micro-batches and kills the owner once in each.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StructType

import penstock
from packages.spark.tests.tasks import written
from penstock_core.vocabulary.errors import PenstockError
from penstock_spark.connections import disconnect
from penstock_spark.reading.plan import EventRange, FileRows
from penstock_spark.source import PenstockSource
from penstock_testing.nats_servers import NatsServers
from penstock_testing.ports import free_ports
from penstock_testing.process import ServerProcess
from tests.patience import PATIENCE_S, until

NODES: Final = 3
NAME: Final = "takeovers"
LEASE_S: Final = "10"
PER_BATCH: Final = 700
PER_FILE: Final = 500
DRIVERS_MAX: Final = 60
ROW: Final = StructType().add("n", LongType())

Moment = Literal["planning", "tasks", "commit", "replay"]
MOMENTS: Final[tuple[Moment, ...]] = ("planning", "tasks", "commit", "replay")
"""When the owner is killed: before the partitions are planned; between two tasks that write;
between the tasks and the commit; or after the commit and before the entry in the commit log."""


class TakeoverReport(Struct):
    """The result of a run. ``lost`` and ``doubled`` must be 0."""

    batches: int = 0
    killed: int = 0
    replayed: int = 0
    drivers: int = 0
    """Drivers that were started; each ends with the first error."""
    from_files: int = 0
    """Events that the plan reads directly from the sealed files of the cluster."""
    lost: int = 0
    doubled: int = 0


class MortalCluster:
    """Three nodes with three NATS servers as their engine, and a folder for the sealed files. All
    processes are stopped when the ``with`` block ends."""

    def __init__(self, folder: Path) -> None:
        for part in ("engine", "files"):
            (folder / part).mkdir()
        self._folder = folder
        self._stack = ExitStack()
        self._servers = NatsServers(folder / "engine")
        self._ports = free_ports(NODES)
        self._nodes: dict[int, ServerProcess] = {}
        self.killed = 0

    @property
    def url(self) -> str:
        return "penstock://" + ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def kill_owner(self) -> None:
        """Kill the node that serves the realm, and start it again."""
        until(lambda: self._owner() is not None)
        number = self._owner()
        assert number is not None, "no node serves the realm"
        self._nodes[number].kill()
        self.killed += 1
        self._start_node(number)

    def _owner(self) -> int | None:
        epochs = {number: node.epoch_served for number, node in self._nodes.items()}
        number = max(epochs, key=lambda node_number: epochs[node_number])
        return number if epochs[number] else None

    def _start_node(self, number: int) -> None:
        node = ServerProcess(
            self._folder / f"n{number}",
            "--cluster",
            self._servers.engine,
            "--node",
            f"n{number}",
            "--port",
            str(self._ports[number]),
            environment={
                "PENSTOCK_CLUSTER_NAME": NAME,
                "PENSTOCK_CLUSTER_LEASE_S": LEASE_S,
                "PENSTOCK_CLUSTER_MONITORS": ",".join(self._servers.monitors),
                "PENSTOCK_CLUSTER_BLOBS": f"file://{self._folder / 'files'}",
            },
        )
        node.begin()
        self._stack.callback(node.__exit__, None, None, None)
        self._nodes[number] = node

    def __enter__(self) -> MortalCluster:
        self._stack.enter_context(self._servers)
        for number in range(NODES):
            self._start_node(number)
        until(lambda: self._owner() is not None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


class TakeoverQuery:
    """One streaming query: the content of its checkpoint, and its drivers, one after the other."""

    def __init__(self, cluster: MortalCluster, batches: int) -> None:
        self._cluster = cluster
        self._batches = batches
        self._offsets: dict[int, tuple[Any, Any]] = {}
        self._committed = 0
        """Micro-batches in the commit log."""
        self._waiting = {batch: MOMENTS[batch % len(MOMENTS)] for batch in range(batches)}
        """The moment of the kill in each micro-batch that has not had one."""
        self.report = TakeoverReport(batches=batches)

    def run(self) -> TakeoverReport:
        """Run all micro-batches, despite the kills."""
        while self._committed < self._batches:
            self.report.drivers += 1
            assert self.report.drivers < DRIVERS_MAX, "the query makes no progress"
            try:
                self._run_driver()
            except PenstockError:
                disconnect()  # the query is started again, as Spark does
        self.report.killed = self._cluster.killed
        return self.report

    def _run_driver(self) -> None:
        all_options = {"url": self._cluster.url, "channel": "orders", "startingOffsets": "earliest"}
        reader = PenstockSource(all_options).streamReader(ROW)
        while self._committed < self._batches:
            self._micro_batch(reader, self._committed)

    def _micro_batch(self, reader: Any, batch: int) -> None:
        if batch not in self._offsets:
            start = self._offsets[batch - 1][1] if batch else reader.initialOffset()
            self._offsets[batch] = start, reader.latestOffset(start, ReadMaxRows(PER_BATCH))
        start, end = self._offsets[batch]
        self._perhaps_kill(batch, "planning")
        partitions = [
            partition
            for partition in reader.partitions(start, end)
            if isinstance(partition, EventRange)
        ]
        self._count_files(partitions)
        rows = [row for partition in partitions for row in self._read(reader, partition)]
        half = len(rows) // 2
        writer = self._writer()
        messages = [written(writer, rows[:half], 0, query="q", batch=batch)]
        self._perhaps_kill(batch, "tasks")
        messages.append(written(writer, rows[half:], 1, query="q", batch=batch))
        self._perhaps_kill(batch, "commit")
        self._writer().commit(messages, batch)
        reader.commit(end)
        if self._perhaps_kill(batch, "replay"):
            self.report.replayed += 1
            return  # without an entry in the commit log, so the micro-batch is repeated
        self._committed += 1

    def _read(self, reader: Any, partition: EventRange) -> Iterator[pa.RecordBatch]:
        """Read a partition as a task does, which receives reader and partition pickled."""
        reader, partition = pickle.loads(pickle.dumps((reader, partition)))
        yield from reader.read(partition)

    def _writer(self) -> Any:
        options = {"url": self._cluster.url, "channel": "out"}
        return PenstockSource(options).streamWriter(ROW, overwrite=False)

    def _count_files(self, partitions: list[EventRange]) -> None:
        for partition in partitions:
            for part in partition.parts:
                if isinstance(part, FileRows) and partition.files.startswith("file://"):
                    self.report.from_files += sum(span.size for span in part.spans)

    def _perhaps_kill(self, batch: int, moment: Moment) -> bool:
        if self._waiting.get(batch) != moment:
            return False
        del self._waiting[batch]
        self._cluster.kill_owner()
        return True


def run(batches: int, folder: Path) -> TakeoverReport:
    """Run micro-batches, and kill the owner in each."""
    with MortalCluster(folder) as cluster:
        with penstock.connect(cluster.url, reconnect_timeout=PATIENCE_S) as session:
            storage: Any = {"events_per_spindle": PER_FILE}
            orders = session.channels.create("orders", type="persistent", storage=storage)
            session.channels.create("out", type="persistent")
            count = batches * PER_BATCH
            orders.publish_many([penstock.Event(properties={"n": n}) for n in range(count)])
            until(lambda: orders.info().storage.sealed_files >= count // PER_FILE)
        report = TakeoverQuery(cluster, batches).run()
        disconnect()
        with penstock.connect(cluster.url, reconnect_timeout=PATIENCE_S) as session:
            result = session.channels.get("out").read().column("n").to_pylist()
    report.lost = len(set(range(count)) - set(result))
    report.doubled = len(result) - len(set(result))
    return report


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        sys.stdout.write(f"{run(int(sys.argv[1]), Path(directory))}\n")
