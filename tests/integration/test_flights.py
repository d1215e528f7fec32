"""The flights job as its users run it: to the end, twice, and interrupted in the middle."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java"), pytest.mark.process]

ROOT = Path(__file__).resolve().parents[2]
ROWS = 5_000
TIMEOUT_S = 480
CLAIMS = {
    "archived = published",
    "read back through the archive = published",
    "sums by carrier and day, channel = CSV",
    "sums by carrier and day, table = CSV",
    "sums by carrier and day, archive = CSV",
    "newest flight of each aircraft = CSV",
}
"""What the report says of the pipeline's steps."""


def command(directory: Path, *arguments: str) -> list[str]:
    program = [sys.executable, "-u", "-m", "examples.flights.run"]
    return [*program, "--dir", str(directory), *arguments]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(directory, *arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str], directory: Path) -> str:
    """Everything a run has said, and its companions in their logs: a message for an assert, since
    what pytest shows of the values in one is cut where the reason stands."""
    logs = [
        f"--- {log.name}\n{log.read_text()}"
        for log in sorted((directory / "flights").glob("*.log"))
    ]
    return "\n".join([f"status {done.returncode}", done.stdout, done.stderr, *logs])


def report(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return found


def assert_reconciled(done: subprocess.CompletedProcess[str], directory: Path) -> None:
    assert done.returncode == 0, told(done, directory)
    assert done.stderr == ""
    found = report(directory)
    assert [check["claim"] for check in found["checks"] if not check["is_true"]] == []
    assert found["flights"] == ROWS
    assert f"published = delivered = acknowledged = archived = {ROWS:,}" in done.stdout
    assert {check["claim"] for check in found["checks"]} >= CLAIMS
    assert (directory / "delays.png").stat().st_size > 10_000


def test_a_run_reconciles_and_the_next_one_takes_its_place(tmp_path: Path) -> None:
    first = run(tmp_path, "--rows", str(ROWS))
    assert_reconciled(first, tmp_path)
    assert "Fresh run: nothing was there before" in first.stdout

    (tmp_path / "mine.txt").write_text("mine")
    second = run(tmp_path, "--rows", str(ROWS))
    assert_reconciled(second, tmp_path)
    assert "Fresh run in place of the one before" in second.stdout
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_run_on_the_nodes_of_a_cluster_gives_the_same_report(tmp_path: Path) -> None:
    done = run(tmp_path, "--rows", str(ROWS), "--cluster")

    assert_reconciled(done, tmp_path / "cluster")
    assert "Cluster of three nodes at penstock://127.0.0.1:" in done.stdout
    assert not list((tmp_path / "cluster").glob("engine-*")), "it is gone with the run"


def test_an_interrupted_run_is_resumed_until_it_reconciles(tmp_path: Path) -> None:
    stopped = interrupted(tmp_path, signal.SIGINT, "published [1-9]")
    assert stopped.returncode == 130, told(stopped, tmp_path)
    assert stopped.stderr == ""
    assert "run again to go on from there" in stopped.stdout

    killed = interrupted(tmp_path, signal.SIGKILL, "Spark delays [1-9]")
    assert killed.returncode == -signal.SIGKILL, told(killed, tmp_path)
    assert 0 < stored_before(killed) < ROWS

    # The last day is about to be closed, or has just been.
    killed_again = interrupted(tmp_path, signal.SIGKILL, "Spark delays 100%")
    assert killed_again.returncode == -signal.SIGKILL, told(killed_again, tmp_path)
    assert stored_before(killed) < stored_before(killed_again)

    resumed = run(tmp_path)
    assert_reconciled(resumed, tmp_path)
    assert stored_before(resumed) == ROWS


def interrupted(
    directory: Path, how: signal.Signals, progress: str
) -> subprocess.CompletedProcess[str]:
    """A run that gets a signal as soon as it prints such ``progress``."""
    # Slowly enough to be in the middle of publishing for nearly a minute.
    arguments = command(directory, "--rows", str(ROWS), "--rate", "100")
    with subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None, "it was asked for"
        seen = ""
        for line in process.stdout:
            seen += line
            if re.search(progress, line):
                process.send_signal(how)
                break
        out, errors = process.communicate(timeout=TIMEOUT_S)
    return subprocess.CompletedProcess(arguments, process.returncode, seen + out, errors)


def stored_before(resumed: subprocess.CompletedProcess[str]) -> int:
    """How many flights a run has found stored."""
    found = re.search(r"Resuming the run that was interrupted: ([\d,]+) flights", resumed.stdout)
    assert found is not None, resumed.stdout
    return int(found[1].replace(",", ""))


def test_files_that_are_not_its_own_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "flights" / "lake").mkdir(parents=True)

    refused = run(tmp_path, "--rows", "10")

    assert refused.returncode == 1
    assert "has not made" in refused.stdout
    assert refused.stderr == ""
    assert (tmp_path / "flights" / "lake").is_dir()
