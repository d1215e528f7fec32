"""Streaming queries whose driver, tasks and realm are killed at moments drawn from a seed.

The driver here imitates Spark's: it writes the offset log, runs each task in one or more attempts,
commits, and writes the commit log. After a restart it repeats the last micro-batch unless that is
in the commit log. The writers are ours, and the realm is a process that is killed.
``python -m packages.spark.tests.kills SEED COUNT`` runs more seeds than the tests do."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.types import LongType, StringType, StructType

import penstock
from packages.spark.tests.mortal import Mortal
from packages.spark.tests.tasks import written
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import CannotConnect, PenstockError
from penstock_spark.connections import disconnect
from penstock_spark.source import PenstockSource
from penstock_spark.writing.writing import ChannelStreamWriter, Staged

ROW: Final = (
    StructType()
    .add("channel", StringType())
    .add("query", StringType())
    .add("n", LongType())
    .add("batch", LongType())
)
CHANNELS: Final = 3
CONNECTS_MAX: Final = 20
DRIVERS_MAX: Final = 60
"""Most drivers that the queries of one seed may need; more mean that they make no progress."""


class Killed(Exception):
    """The driver was killed."""


class Failed(Exception):
    """An attempt of a task failed."""


class Report(Struct):
    """The result of a run. ``lost``, ``doubled`` and ``torn`` must be 0."""

    seeds: int = 0
    expected: int = 0
    published: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    """Micro-batches whose rows were not all published at the same time."""
    drivers_killed: int = 0
    realms_killed: int = 0
    attempts: int = 0
    """Micro-batches begun, including repeated ones."""
    batches: int = 0


class Query:
    """One streaming query: the content of its checkpoint, and its drivers, one after the other."""

    def __init__(self, seed: int, name: str, world: World, *, batches: int, routed: bool) -> None:
        self.id = f"{seed}-{name}"
        self._world = world
        self._random = world.random
        self._batches = batches
        self._routed = routed
        """Whether rows name their channel; otherwise all go to the first channel."""
        self._offsets: dict[int, tuple[int, int]] = {}
        self._commits: set[int] = set()
        self._zombies: list[tuple[list[Staged | None], int]] = []
        """Arguments of commits that killed drivers had sent and that may still arrive."""

    @property
    def is_done(self) -> bool:
        return len(self._commits) == self._batches

    @property
    def numbers(self) -> range:
        """Numbers of all rows."""
        return range(self._offsets[self._batches - 1][1])

    def run_driver(self) -> None:
        """Start a driver from the checkpoint. Raises ``Killed``, or the query's error."""
        if self._commits and self._chance(0.1):
            self._commits.discard(max(self._commits))
        while not self.is_done:
            self._micro_batch(max(self._commits, default=-1) + 1)

    def _micro_batch(self, batch: int) -> None:
        report = self._world.report
        report.attempts += 1
        first = self._offsets.get(batch - 1, (0, 0))[1]
        self._offsets.setdefault(batch, (first, first + self._random.choice((0, 1, 7, 40))))
        self._perhaps_kill()
        writer = self._writer()
        messages: list[Staged | None] = []
        try:
            for partition in range(2):
                messages.append(self._task(writer, batch, partition))
                self._perhaps_kill(messages, batch)
            self._perhaps_commit_late()
            self._writer().commit(messages, batch)
        except PenstockError:
            self._writer().abort(messages, batch)
            raise
        self._perhaps_kill(messages, batch)
        self._commits.add(batch)
        self._perhaps_kill()

    def _task(self, writer: ChannelStreamWriter, batch: int, partition: int) -> Staged:
        """Run attempts of a task, some of which fail; return the message of one that succeeded."""
        attempts: list[Staged] = []
        wanted = 2 if self._chance(0.15) else 1
        while len(attempts) < wanted:
            with suppress(Failed):
                rows = self._rows(batch, partition, fails=self._chance(0.15))
                task_files = written(writer, rows, partition, query=self.id, batch=batch)
                attempts.append(task_files)
        return self._random.choice(attempts)

    def _rows(self, batch: int, partition: int, *, fails: bool) -> Iterator[pa.RecordBatch]:
        first, end = self._offsets[batch]
        half = (first + end) // 2
        numbers = range(first, half) if partition == 0 else range(half, end)
        for part in (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]):
            names = [self._world.channels[n % CHANNELS if self._routed else 0] for n in part]
            columns = [
                pa.array(names, pa.string()),
                pa.array([self.id] * len(part), pa.string()),
                pa.array(part, pa.int64()),
                pa.array([batch] * len(part), pa.int64()),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=ROW.names)
            if fails:
                raise Failed

    def _writer(self) -> ChannelStreamWriter:
        options = {"url": self._world.url}
        return PenstockSource(options).streamWriter(ROW, overwrite=False)

    def _perhaps_commit_late(self) -> None:
        """Perhaps deliver the commit that a killed driver had sent."""
        if self._zombies and self._chance(0.5):
            messages, batch = self._zombies.pop()
            with suppress(PenstockError):
                self._writer().commit(messages, batch)

    def _perhaps_kill(self, messages: Sequence[Staged | None] = (), batch: int = 0) -> None:
        if self._chance(0.06):
            self._world.realm.kill()
        if self._chance(0.08):
            if len(messages) == 2:
                self._zombies.append((list(messages), batch))
            self._world.report.drivers_killed += 1
            raise Killed

    def _chance(self, share: float) -> bool:
        return self._random.random() < share


class World:
    """A realm with separate channels for each seed, and one or two queries that write to them."""

    def __init__(self, seed: int, realm: Mortal, report: Report) -> None:
        self.random = Random(seed)
        self.realm = realm
        self.url = realm.url
        self.report = report
        self.channels = [f"seed-{seed}-{n}" for n in range(CHANNELS)]
        self._queries = [
            Query(seed, name, self, batches=self.random.randint(2, 4), routed=routed)
            for name, routed in (("a", True), ("b", False))[: self.random.randint(1, 2)]
        ]

    def _session(self) -> Session:
        """Connect; try again while the realm process that answers is just being killed."""
        for _ in range(CONNECTS_MAX - 1):
            with suppress(CannotConnect):
                return penstock.connect(self.url)
        return penstock.connect(self.url)

    def run(self) -> None:
        """Run all queries until they have finished, despite the kills; then check their rows."""
        with self._session() as session:
            for name in self.channels:
                session.channels.create(name, type="persistent")
        chance = self.random
        self.realm.doom([(chance.randint(1, 30), chance.randrange(1 << 30)) for _ in range(2)])
        drivers = 0
        while unfinished := [query for query in self._queries if not query.is_done]:
            drivers += 1
            assert drivers < DRIVERS_MAX, "the queries make no progress"
            with suppress(Killed, PenstockError):
                chance.choice(unfinished).run_driver()
            disconnect()
        self.realm.doom([])
        self._check()

    def _check(self) -> None:
        """Count lost and doubled rows, and micro-batches that were not published at once."""
        report, rows = self.report, Counter[tuple[str, int]]()
        times: dict[tuple[str, int], set[datetime]] = {}
        with self._session() as session:
            for name in self.channels:
                for row in session.channels.get(name).read().to_pylist():
                    rows[row["query"], row["n"]] += 1
                    times.setdefault((row["query"], row["batch"]), set()).add(row["published"])
                session.channels.delete(name)
        expected = {(query.id, n) for query in self._queries for n in query.numbers}
        report.seeds += 1
        report.batches += len(times)
        report.expected += len(expected)
        report.published += sum(rows.values())
        report.lost += len(expected - set(rows))
        report.doubled += sum(count - 1 for count in rows.values())
        report.torn += sum(len(times_of_batch) > 1 for times_of_batch in times.values())


def run(seeds: range, directory: Path) -> Report:
    """Run all seeds on one realm."""
    report = Report()
    with Mortal(directory) as realm:
        for seed in seeds:
            World(seed, realm, report).run()
    report.realms_killed = realm.killed
    return report


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(f"{run(range(first, first + count), Path(folder))}\n")
