"""``penstock pipeline run`` as a process: killed, interrupted, started twice, without its realm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

import penstock
from penstock.client.sync.sync import Channel
from penstock.tables import Table

if TYPE_CHECKING:
    from tests.plugin import Serve

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.slow, pytest.mark.process]

TIMEOUT_S = 600
"""Generous for a busy machine; on an idle one, each test takes some ten seconds."""

DEFINITION = """
name = "copy"
master = "local[2]"

[spark]
driver.memory = "1g"

[[source]]
name = "numbers"
channel = "numbers"
starting = "earliest"
max_events = 100

[[step]]
name = "both"
sql = "SELECT n FROM numbers"
channel = "copies"
table = "lake"
"""


@contextmanager
def started(url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a separate process; kill it at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "pipeline", *arguments],
        env={**os.environ, "PENSTOCK_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        try:
            yield command
        finally:
            command.kill()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    definition = tmp_path / "copy.toml"
    definition.write_text(DEFINITION)
    return definition


def publish(channel: Channel, first: int, end: int) -> None:
    channel.publish_many([penstock.Event(properties={"n": n}) for n in range(first, end)])


def wait_for(channel: Channel, count: int) -> None:
    """Until so many events have come."""
    with channel.subscribe(start="earliest", timeout=TIMEOUT_S) as subscription:
        assert len(list(islice(subscription, count))) == count


def numbers_in(channel: Channel) -> list[int]:
    return [int(n) for n in channel.read().column("n").to_pylist()]


def stored_in(folder: Path) -> list[int]:
    return sorted(Table.found(str(folder)).dataset().to_table().column("n").to_pylist())


def test_a_run_that_is_killed_leaves_nothing_twice_and_nothing_out(
    serve: Serve, file: Path, tmp_path: Path
) -> None:
    server = serve()
    with penstock.connect(server.url) as session:
        source = session.channels.create("numbers", type="persistent")
        copies = session.channels.create("copies", type="persistent")
        publish(source, 0, 2_000)

        with started(server.url, "run", str(file)) as command:
            wait_for(copies, 500)
            command.kill()
        with started(server.url, "run", str(file), "--once", "--format", "json") as command:
            printed, complaints = command.communicate(timeout=TIMEOUT_S)

        assert command.returncode == 0, complaints
        assert msgspec.json.decode(printed)["steps"][0]["state"] == "done"
        assert numbers_in(copies) == list(range(2_000))
        assert stored_in(tmp_path / "lake") == list(range(2_000))


def test_a_run_lives_through_its_realm_and_ends_at_an_interrupt(
    serve: Serve, file: Path, tmp_path: Path
) -> None:
    server = serve()
    with penstock.connect(server.url) as session:
        publish(session.channels.create("numbers", type="persistent"), 0, 300)
        copies = session.channels.create("copies", type="persistent")
        with started(server.url, "run", str(file)) as command:
            wait_for(copies, 300)
            server.kill()
            serve("--port", str(server.port))
            publish(session.channels.get("numbers"), 300, 400)
            wait_for(copies, 400)
            with started(server.url, "run", str(file)) as second:
                _, refused = second.communicate(timeout=TIMEOUT_S)
            command.send_signal(signal.SIGINT)
            printed, complaints = command.communicate(timeout=TIMEOUT_S)

        assert second.returncode == 1
        assert f"pipeline copy is already running (process {command.pid}, since" in refused
        assert command.returncode == 0, complaints
        assert printed.startswith("both  stopped: 400 rows in")
        assert "Traceback" not in complaints
        assert numbers_in(copies) == list(range(400))
        assert stored_in(tmp_path / "lake") == list(range(400))


def test_a_step_that_fails_ends_the_program_with_one_line(serve: Serve, file: Path) -> None:
    server = serve()
    file.write_text(DEFINITION.replace("SELECT n FROM", "SELECT 1 DIV (n - n) AS n FROM"))
    with penstock.connect(server.url) as session:
        publish(session.channels.create("numbers", type="persistent"), 0, 3)
        session.channels.create("copies", type="persistent")

        with started(server.url, "run", str(file)) as command:
            printed, complaints = command.communicate(timeout=TIMEOUT_S)

    assert command.returncode == 1
    assert printed == ""
    last = complaints.splitlines()[-1]
    assert last.startswith(f"error: {file}: step both: Division by zero.")
    assert last.endswith("[step-failed]")
    assert "\tat " not in complaints
    assert "Traceback" not in complaints


def test_a_run_whose_jvm_is_killed_ends_with_one_line_and_goes_on_in_the_next(
    serve: Serve, file: Path, tmp_path: Path
) -> None:
    server = serve()
    with penstock.connect(server.url) as session:
        publish(session.channels.create("numbers", type="persistent"), 0, 300)
        copies = session.channels.create("copies", type="persistent")
        with started(server.url, "run", str(file)) as command:
            wait_for(copies, 300)
            for thread in Path(f"/proc/{command.pid}/task").iterdir():
                for child in (thread / "children").read_text().split():
                    if b"java" in Path(f"/proc/{child}/cmdline").read_bytes():
                        os.kill(int(child), signal.SIGKILL)
            _, complaints = command.communicate(timeout=TIMEOUT_S)
        publish(session.channels.get("numbers"), 300, 400)
        with started(server.url, "run", str(file), "--once") as command:
            command.communicate(timeout=TIMEOUT_S)

        assert numbers_in(copies) == list(range(400))
    errors = [line for line in complaints.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "step both: Spark's JVM has ended with status -9: it was killed, or had" in errors[0]
    assert "Traceback" not in complaints
