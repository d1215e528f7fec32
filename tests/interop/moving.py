"""A cluster of real processes of which a suite sees one node only, which does not serve: the owner
moves to and fro between the other two."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from penstock_testing.nats_servers import NatsServers
from penstock_testing.ports import free_ports
from penstock_testing.process import ServerProcess
from tests.interop.excused import excuse_of
from tests.interop.programs import Outcome, Run

SERVING: Final = ("n1", "n2")
DOOR: Final = "n3"
LEASE_S: Final = "10"
"""Longer than a busy machine keeps a process from its processors: owners move when they are to."""
STEP_S: Final = 60.0
LOG_MAX: Final = 6_000
"""Characters of a node's log that tell how it has ended."""
MOVES_MIN: Final = 3
RUNS_MAX: Final = 4
"""How often a test is run that the owner's moves meet again and again."""


class MovingCluster:
    """Stands where a suite has a realm in a process of its own. Its URLs are those of the node that
    stands by."""

    def __init__(self, engine: NatsServers, nodes: Sequence[ServerProcess], http_port: int) -> None:
        self._engine = engine
        self._nodes = dict(zip((*SERVING, DOOR), nodes, strict=True))
        self.url = self._nodes[DOOR].url
        self.amqp = self.url.replace("penstock://", "amqp://")
        self.http_url = f"http://127.0.0.1:{http_port}"
        self.moves = 0
        """How often the owner has moved so far ..."""
        self.begun = 0
        """... and how often it was told to."""
        self._failure = ""

    def keep_moving(self, every_s: float, over: threading.Event) -> None:
        """Move the owner until it is over; what goes wrong is told by :meth:`check`."""
        try:
            while not over.wait(every_s):
                self.begun += 1
                self.tell("move", SERVING[self.begun % len(SERVING)])
                self.moves += 1
        except subprocess.CalledProcessError as error:
            self._failure = f"{error}: {error.stderr}"
        except subprocess.TimeoutExpired as error:
            self._failure = f"{error}"

    def tell(self, *words: str) -> None:
        """What ``penstock cluster`` does with these words. Raises ``CalledProcessError``."""
        command = (sys.executable, "-m", "penstock", "cluster", *words)
        subprocess.run(
            [*command, "--cluster", self._engine.engine],
            check=True,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            env={**os.environ, **_settings(self._engine)},
        )

    def check(self) -> None:
        """Raise what has gone wrong with the moves; no node ends by itself, and the door never
        serves."""
        for name, node in self._nodes.items():
            assert node.is_running, f"node {name} has ended by itself:\n{node.log[-LOG_MAX:]}"
        assert not self._failure, self._failure
        assert not self._nodes[DOOR].logged("shard.claimed"), "the door only stands by"

    def run(self, run: Run, names: Sequence[str]) -> Outcome:
        """Run a suite as often as it takes until the owner has moved some times meanwhile, and give
        what it has said in the end."""
        began, rounds = self.moves, 0
        again: list[tuple[str, str]] = []
        while True:
            found = self._run_once(run, names)
            self.check()
            again += found.again
            rounds += 1
            if found.failed or self.moves - began >= MOVES_MIN:
                break
        return replace(found, again=again, rounds=rounds, moves=self.moves - began)

    def _run_once(self, run: Run, names: Sequence[str]) -> Outcome:
        """A test that failed while the owner moved, and as it may then (see ``excused``), is run
        again, by itself. The outcome has which were."""
        moves = self.moves
        first = found = run(names)
        again: list[tuple[str, str]] = []
        for _ in range(RUNS_MAX - 1):
            may_fail = all(excuse_of(*each) for each in found.failed.items())
            if not (found.failed and may_fail) or self.begun == moves:
                break
            moves = self.moves
            again += found.failed.items()
            found = run(list(found.failed))
        return replace(first, failed=found.failed, again=again)


@contextmanager
def moving_cluster(folder: Path, every_s: float) -> Iterator[MovingCluster]:
    """Three servers of an engine and three nodes, which have ended when the block has."""
    with ExitStack() as stack:
        (folder / "engine").mkdir()
        engine = stack.enter_context(NatsServers(folder / "engine"))
        ports = free_ports(len(SERVING) + 1)
        nodes = []
        for name, http in zip((*SERVING, DOOR), ports, strict=True):
            process = ServerProcess(
                folder / name,
                "--cluster",
                engine.engine,
                "--node",
                name,
                "--amqp-port",
                "0",
                "--http",
                "--http-port",
                str(http),
                environment=_settings(engine),
            )
            nodes.append(stack.enter_context(process))
        cluster = MovingCluster(engine, nodes, ports[-1])
        cluster.tell("drain", DOOR)
        over = threading.Event()
        moving = threading.Thread(target=cluster.keep_moving, args=(every_s, over))
        moving.start()
        try:
            yield cluster
        finally:
            over.set()
            moving.join()


def _settings(engine: NatsServers) -> dict[str, str]:
    return {
        "PYTHONFAULTHANDLER": "1",
        "PENSTOCK_CLUSTER_LEASE_S": LEASE_S,
        "PENSTOCK_CLUSTER_MONITORS": ",".join(engine.monitors),
    }
