"""``penstock load`` as people and programs call it: output, exit status, Ctrl-C, a lost server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock_testing.process import ServerProcess
from penstock_tools.cli.load import line
from penstock_tools.cli.load_run import LoadPicture
from tests.commands import Run

if TYPE_CHECKING:
    from tests.plugin import Serve

QUICK = ("--rate", "200", "--duration", "200ms")


def test_a_run_is_told_as_a_table_and_as_json(
    penstock_command: Run, session: penstock.Session
) -> None:
    shown = penstock_command("load", *QUICK, "--rollback", "0.1")
    loaded = penstock_command("load", *QUICK, "--format", "json")

    assert shown.exit_code == 0, shown.output
    assert "40 planned, 40 safe, 40 delivered" in shown.stdout
    assert "4; 4 redelivered" in shown.stdout
    assert "delivered, 200/s" in shown.stdout
    document = msgspec.json.decode(loaded.stdout)
    assert (document["ended"], document["delivered"], document["lost"]) == ("complete", 40, 0)
    assert document["steps"][0]["publish"]["events"] == 40
    assert session.channels.list() == []


def test_the_channel_stays_if_it_is_to_be_kept(
    penstock_command: Run, session: penstock.Session
) -> None:
    shown = penstock_command("load", *QUICK, "--keep", "--channel", "tried", "--consumers", "0")

    assert shown.exit_code == 0, shown.output
    assert "tried, kept" in shown.stdout
    assert session.channels.get("tried").info().events == 40


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--by-key",), "--by-key needs --keys"),
        (("--rollback", "0.5", "--consumers", "0"), "--rollback needs a consumer"),
        (("--keys", "3", "--by-key", "--rollback", "0.5"), "cannot be combined with --by-key"),
        (("--duration", "0s"), "--duration is 0; it must be longer"),
        (("--duration", "soon"), "is not a duration"),
    ],
)
def test_what_does_not_go_together_is_refused(
    penstock_command: Run, session: penstock.Session, arguments: tuple[str, ...], reason: str
) -> None:
    refused = penstock_command("load", *arguments)

    assert refused.exit_code == 2
    assert reason in " ".join(refused.stderr.split())
    assert session.channels.list() == []


def test_too_many_events_are_refused_with_what_to_change(penstock_command: Run) -> None:
    refused = penstock_command("load", "--rate", "1000000", "--duration", "1h")

    assert refused.exit_code == 1
    assert "use a lower rate or a shorter duration" in refused.stderr


def test_the_live_line_fits_a_terminal() -> None:
    picture = LoadPicture(
        12.3,
        20_000.0,
        19_998.2,
        delivered_per_s=19_870.0,
        behind=412,
        publish_p99_ms=2_801.4,
        delivery_p99_ms=3.234,
        problem="",
    )

    assert line(picture) == (
        "12 s: 20,000/s due, 19,998/s safe, 19,870/s delivered, 412 behind, p99 2,801/3.2 ms"
    )


@contextmanager
def started(server: ServerProcess, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own; gone when the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "load", "--format", "json", *arguments],
        env={**os.environ, "PENSTOCK_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        try:
            yield command
        finally:
            command.kill()


def wait_for_events(server: ServerProcess) -> str:
    """Wait until a run has published; gives the name of its channel."""
    with penstock.connect(server.url) as session:
        used: list[str] = []

        def is_published() -> bool:
            channels = ((name, session.channels.get(name)) for name in session.channels.list())
            used.extend(name for name, channel in channels if channel.info().counters.published)
            return bool(used)

        eventually(is_published)
        return used[0]


@pytest.mark.process
def test_ctrl_c_ends_a_run_with_its_report(serve: Serve) -> None:
    server = serve()
    with started(server, "--rate", "100", "--duration", "1h") as command:
        wait_for_events(server)

        command.send_signal(signal.SIGINT)
        printed, complaints = command.communicate(timeout=60)

    report = msgspec.json.decode(printed)
    assert (command.returncode, complaints) == (130, "")
    assert (report["ended"], report["lost"], report["twice"]) == ("interrupted", 0, 0)
    assert 0 < report["acknowledged"] == report["delivered"]
    with penstock.connect(server.url) as session:
        assert session.channels.list() == []


@pytest.mark.process
def test_a_server_that_is_killed_and_does_not_come_back_is_told(serve: Serve) -> None:
    server = serve()
    with started(server, "--rate", "100", "--duration", "1h", "--reconnect", "1s") as command:
        channel = wait_for_events(server)

        server.kill()
        printed, complaints = command.communicate(timeout=60)

    report = msgspec.json.decode(printed)
    assert command.returncode == 1
    assert (report["ended"], report["is_kept"], report["channel"]) == ("failed", True, channel)
    assert "[cannot-connect]" in complaints
    assert f"penstock channel delete {channel} --yes" in complaints


@pytest.mark.process
def test_a_run_outlives_its_server_and_nothing_is_lost(serve: Serve) -> None:
    server = serve()
    arguments = ("--rate", "100", "--duration", "6s", "--reconnect", "60s")
    with started(server, *arguments) as command:
        wait_for_events(server)

        server.kill()
        successor = serve("--port", str(server.port))
        printed, complaints = command.communicate(timeout=120)

    report = msgspec.json.decode(printed)
    assert (command.returncode, complaints) == (0, ""), printed
    assert (report["ended"], report["delivered"], report["lost"]) == ("complete", 600, 0)
    with penstock.connect(successor.url) as session:
        assert session.channels.list() == []
