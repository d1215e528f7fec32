"""A pipeline that must recover by itself from kills of its realm at every stage of a micro-batch.

``python -m packages.spark.tests.pipelines.realm_kills --minutes 10`` runs ``penstock pipeline run``
once, kills the realm again and again, restarts it after a moment, and finally compares all targets
with what was published. Most kills wait until the checkpoint of a random step shows that a
micro-batch was planned (then at once, or while its tasks run) or was finished."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Final

from msgspec import Struct, field

import penstock
from penstock.tables import Table
from penstock_core.vocabulary.errors import PenstockError
from penstock_testing.process import ServerProcess

STAGES: Final = ("planned", "in tasks", "finished", "any time")
DATA: Final = "x" * 300
"""A text so long that tasks write a micro-batch of some thousand rows to files, instead of handing
its rows to the driver."""
DRAIN_TIMEOUT_S: Final = 300.0

DEFINITION: Final = """
name = "shop"
master = "local[2]"
restarts = 1000

[spark]
driver.memory = "1g"

[[source]]
name = "orders"
channel = "orders"
starting = "earliest"
max_events = 3000

[[step]]
name = "copy"
sql = "SELECT n, customer, text FROM orders"
channel = "copies"

[[step]]
name = "even"
sql = "SELECT n, customer FROM orders WHERE n % 2 = 0"
channel = "evens"
table = "lake/evens"

[[step]]
name = "lake"
kind = "archive"
source = "orders"
table = "lake/orders"

[[step]]
name = "newest"
kind = "latest"
source = "orders"
key = "customer"
channel = "newest"
table = "lake/newest"
"""


class Outcome(Struct):
    """The result of a run of the loop."""

    seconds: float = 0.0
    published: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """Number of kills of the realm, by the stage of the micro-batch (see ``STAGES``)."""
    restarts: int = 0
    status: int | None = None
    """Exit status of the pipeline after SIGINT; None: it had ended before that."""
    output: str = ""
    wrong: dict[str, str] = field(default_factory=dict)
    """The targets that differ from the published events, and how."""

    @property
    def is_right(self) -> bool:
        return self.status == 0 and not self.wrong

    def __str__(self) -> str:
        kills = ", ".join(f"{stage} {count}" for stage, count in sorted(self.kills.items()))
        return (
            f"{self.seconds:.0f} s, {sum(self.kills.values())} kills ({kills}), {self.restarts} "
            f"restarts of steps, {self.published} events; status {self.status}, "
            f"{self.wrong or 'all targets right'}"
        )


class Loop:
    """One run of the pipeline, with kills."""

    def __init__(self, folder: Path, seed: int, *, down_s: float) -> None:
        self._folder = folder
        self._random = Random(seed)
        self._down_s = down_s
        self._server = ServerProcess(folder / "realm").start()
        self._port = self._server.port
        self.outcome = Outcome()
        self._stopping = threading.Event()

    def run(self, seconds: float, kills: int | None = None) -> Outcome:
        outcome, begun = self.outcome, perf_counter()
        definition = self._folder / "shop.toml"
        definition.write_text(DEFINITION)
        with penstock.connect(self._server.url, reconnect_timeout=120) as session:
            for name in ("orders", "copies", "evens"):
                session.channels.create(name, type="persistent")
            keys = {"customer": 1}
            session.channels.create("newest", type="persistent", keys=keys)
        publishing = threading.Thread(target=self._publish)
        publishing.start()
        log = (self._folder / "log").open("w+")
        command = [sys.executable, "-m", "penstock", "pipeline", "run", str(definition)]
        environment = {**os.environ, "PENSTOCK_URL": f"penstock://127.0.0.1:{self._port}"}
        pipeline = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            while perf_counter() - begun < seconds and pipeline.poll() is None:
                if kills is not None and sum(outcome.kills.values()) >= kills:
                    break
                self._kill_at(self._random.choice(STAGES), pipeline)
            self._stopping.set()
            publishing.join()
            self._drain(pipeline)
            if pipeline.poll() is None:
                pipeline.send_signal(signal.SIGINT)
                outcome.status = pipeline.wait(60)
            self._compare()
        finally:
            self._stopping.set()
            if pipeline.poll() is None:
                pipeline.kill()
                pipeline.wait()
            self._kill_realm()
            publishing.join()
            log.seek(0)
            outcome.output = log.read()
            log.close()
        outcome.restarts = outcome.output.count("starts again")
        outcome.seconds = perf_counter() - begun
        return outcome

    def _kill_at(self, stage: str, pipeline: subprocess.Popen[bytes]) -> None:
        step = self._random.choice(("copy", "even", "lake", "newest"))
        folder = {"planned": "offsets", "in tasks": "offsets", "finished": "commits"}.get(stage)
        if folder is not None:
            entries = self._folder / "checkpoints" / step / "query" / folder
            before, until = _entries(entries), perf_counter() + 20
            while _entries(entries) == before and perf_counter() < until:
                if pipeline.poll() is not None:
                    return
                self._stopping.wait(0.002)
        if stage in ("in tasks", "any time"):
            self._stopping.wait(self._random.uniform(0, 0.5 if folder else 3))
        self._kill_realm()
        self.outcome.kills[stage] += 1
        self._stopping.wait(self._random.choice((0.0, self._random.uniform(0, self._down_s))))
        port = str(self._port)
        self._server = ServerProcess(self._folder / "realm", "--port", port).start()
        self._stopping.wait(self._random.uniform(0, 3))

    def _kill_realm(self) -> None:
        self._server.kill()
        self._server.__exit__(None, None, None)

    def _publish(self) -> None:
        n, url = 0, f"penstock://127.0.0.1:{self._port}"
        with penstock.connect(url, reconnect_timeout=300) as session:
            orders = session.channels.get("orders")
            while not self._stopping.is_set():
                count = 3_000 if n % 4_000 < 100 else 100
                properties = [
                    {"n": item, "customer": item % 97, "text": DATA} for item in range(n, n + count)
                ]
                orders.publish_many([penstock.Event(properties=item) for item in properties])
                n += count
                self.outcome.published = n
                self._stopping.wait(0.3)

    def _drain(self, pipeline: subprocess.Popen[bytes]) -> None:
        """Wait until the steps have brought all targets up to date."""
        until = perf_counter() + DRAIN_TIMEOUT_S
        while perf_counter() < until and pipeline.poll() is None:
            try:
                if not self._differences():
                    return
            except (PenstockError, OSError, KeyError):
                pass  # a target does not exist yet
            threading.Event().wait(1)

    def _compare(self) -> None:
        try:
            self.outcome.wrong = self._differences()
        except (PenstockError, OSError, KeyError) as error:
            self.outcome.wrong = {"all": repr(error)}

    def _differences(self) -> dict[str, str]:
        published = list(range(self.outcome.published))
        evens = published[::2]
        newest = sorted({n % 97: n for n in published}.values())
        with penstock.connect(f"penstock://127.0.0.1:{self._port}") as session:
            stored = {
                "channel copies": (_numbers(session, "copies"), published),
                "channel evens": (_numbers(session, "evens"), evens),
                "channel newest": (sorted(_numbers(session, "newest")), newest),
            }
        lake = self._folder / "lake"
        for name, wanted in (("evens", evens), ("orders", published), ("newest", newest)):
            rows = Table.found(str(lake / name)).to_arrow(["n"]).column("n").to_pylist()
            stored[f"table {name}"] = (sorted(rows), wanted)
        return {
            name: f"{len(result)} rows, {len(set(wanted) - set(result))} missing, "
            f"{len(result) - len(set(result))} twice"
            for name, (result, wanted) in stored.items()
            if result != wanted
        }


def _numbers(session: penstock.Session, channel: str) -> list[int]:
    table = session.channels.get(channel).read(columns=["n"])
    return [int(n) for n in table.column("n").to_pylist()]


def _entries(folder: Path) -> int:
    try:
        return sum(path.name.isdecimal() for path in folder.iterdir())
    except OSError:
        return 0


def run_loop(folder: Path, seed: int, seconds: float, kills: int | None = None) -> Outcome:
    """Run the loop for ``seconds``, or until it has killed the realm ``kills`` times."""
    return Loop(folder, seed, down_s=8.0 if kills is None else 1.0).run(seconds, kills)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="realm-kills-"))
    outcome = run_loop(folder, arguments.seed, arguments.minutes * 60)
    sys.stdout.write(f"seed {arguments.seed}: {outcome}\n")
    if not outcome.is_right:
        sys.stdout.write(f"files: {folder}; the pipeline printed\n{outcome.output[-4_000:]}\n")
    return 0 if outcome.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
