"""A cluster of real processes, of which a suite sees one node that never serves; the owner moves
between the other two."""

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
"""Longer than a busy machine delays a process, so that owners move only when they are told to."""
STEP_S: Final = 60.0
LOG_MAX: Final = 6_000
"""Characters from the end of a node's log for an error text."""
MOVES_MIN: Final = 3
RUNS_MAX: Final = 4
"""Number of runs of a test that fails during handovers each time."""


class MovingCluster:
    """A cluster in place of the realm process that a suite usually has. Its URLs are those of the
    node that does not serve."""

    def __init__(self, engine: NatsServers, nodes: Sequence[ServerProcess], http_port: int) -> None:
        self._engine = engine
        self._nodes = dict(zip((*SERVING, DOOR), nodes, strict=True))
        self.url = self._nodes[DOOR].url
        self.amqp = self.url.replace("penstock://", "amqp://")
        self.http_url = f"http://127.0.0.1:{http_port}"
        self.moves = 0
        """Number of completed moves of the owner."""
        self.begun = 0
        """Number of moves of the owner that were requested."""
        self._failure = ""

    def keep_moving(self, every_s: float, over: threading.Event) -> None:
        """Move the owner until ``over`` is set; :meth:`check` raises errors of this."""
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
        """Run ``penstock cluster`` with these arguments; return its output. Raises
        ``CalledProcessError``."""
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
        """Raise errors of the moves, and check that no node has ended by itself and that the
        visible node never serves."""
        for name, node in self._nodes.items():
            assert node.is_running, f"node {name} has ended by itself:\n{node.log[-LOG_MAX:]}"
        assert not self._failure, self._failure
        assert not self._nodes[DOOR].logged("shard.claimed"), "the door only stands by"

    def run(self, run: Run, names: Sequence[str]) -> Outcome:
        """Run a suite until the owner has moved several times meanwhile; return the last
        outcome."""
        began, rounds = self.moves, 0
        again: list[tuple[str, str]] = []
        while True:
            outcome = self._run_once(run, names)
            self.check()
            again += outcome.again
            rounds += 1
            if outcome.failed or self.moves - began >= MOVES_MIN:
                break
        return replace(outcome, again=again, rounds=rounds, moves=self.moves - began)

    def _run_once(self, run: Run, names: Sequence[str]) -> Outcome:
        """Run a suite. Tests that failed while the owner moved, for a reason in ``excused``, are
        run again alone and are named in the outcome."""
        moves = self.moves
        first = outcome = run(names)
        again: list[tuple[str, str]] = []
        for _ in range(RUNS_MAX - 1):
            may_fail = all(excuse_of(*failure) for failure in outcome.failed.items())
            if not (outcome.failed and may_fail) or self.begun == moves:
                break
            moves = self.moves
            again += outcome.failed.items()
            outcome = run(list(outcome.failed))
        return replace(first, failed=outcome.failed, again=again)


@contextmanager
def moving_cluster(folder: Path, every_s: float) -> Iterator[MovingCluster]:
    """Run three servers of an engine and three nodes until the ``with`` block ends."""
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
        is_over = threading.Event()
        moving = threading.Thread(target=cluster.keep_moving, args=(every_s, is_over))
        moving.start()
        try:
            yield cluster
        finally:
            is_over.set()
            moving.join()


def _settings(engine: NatsServers) -> dict[str, str]:
    return {
        "PYTHONFAULTHANDLER": "1",
        "PENSTOCK_CLUSTER_LEASE_S": LEASE_S,
        "PENSTOCK_CLUSTER_MONITORS": ",".join(engine.monitors),
    }
