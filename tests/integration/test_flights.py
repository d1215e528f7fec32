"""The flights job as its users run it: interrupted in the middle, to the end, and once more."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

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
"""Claims of the report about the pipeline's steps."""


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


def outputs_of(done: subprocess.CompletedProcess[str], directory: Path) -> str:
    """Everything a run has said, and its companions in their logs: a message for an assert, since
    what pytest shows of the values in one is cut where the reason stands."""
    logs = [
        f"--- {log.name}\n{log.read_text()}"
        for log in sorted((directory / "flights").glob("*.log"))
    ]
    return "\n".join([f"status {done.returncode}", done.stdout, done.stderr, *logs])


def report(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return document


def assert_reconciled(done: subprocess.CompletedProcess[str], directory: Path) -> None:
    assert done.returncode == 0, outputs_of(done, directory)
    assert done.stderr == ""
    document = report(directory)
    assert [check["claim"] for check in document["checks"] if not check["is_true"]] == []
    assert document["flights"] == ROWS
    assert f"published = delivered = acknowledged = archived = {ROWS:,}" in done.stdout
    assert {check["claim"] for check in document["checks"]} >= CLAIMS
    assert (directory / "delays.png").stat().st_size > 10_000


def test_a_run_on_the_nodes_of_a_cluster_gives_the_same_report(tmp_path: Path) -> None:
    done = run(tmp_path, "--rows", str(ROWS), "--cluster")

    assert_reconciled(done, tmp_path / "cluster")
    assert "Fresh run: nothing was there before" in done.stdout
    assert "Cluster of three nodes at penstock://127.0.0.1:" in done.stdout
    assert not list((tmp_path / "cluster").glob("engine-*")), "it is gone with the run"


class Story(NamedTuple):
    """The runs in one directory, one after the other."""

    directory: Path
    stopped: subprocess.CompletedProcess[str]
    killed: subprocess.CompletedProcess[str]
    killed_again: subprocess.CompletedProcess[str]
    resumed: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A run that is interrupted in the middle of publishing, killed in the middle of Spark's work
    and killed when the last day is about to be closed, or has just been; then nothing is."""
    directory = tmp_path_factory.mktemp("flights")
    return Story(
        directory,
        # Slowly enough to be in the middle of publishing for nearly a minute.
        interrupted(directory, signal.SIGINT, "published [1-9]", rate=100),
        interrupted(directory, signal.SIGKILL, "Spark delays [1-9]", rate=100),
        killed_again=interrupted(directory, signal.SIGKILL, "Spark delays 100%", rate=1_000),
        resumed=run(directory),
    )


def test_an_interrupted_run_is_resumed_until_it_reconciles(story: Story) -> None:
    directory, stopped, killed, killed_again, resumed = story

    assert stopped.returncode == 130, outputs_of(stopped, directory)
    assert stopped.stderr == ""
    assert "Fresh run: nothing was there before" in stopped.stdout
    assert "run again to continue" in stopped.stdout

    assert killed.returncode == -signal.SIGKILL, outputs_of(killed, directory)
    assert 0 < stored_before(killed) < ROWS

    assert killed_again.returncode == -signal.SIGKILL, outputs_of(killed_again, directory)
    assert stored_before(killed) < stored_before(killed_again)

    assert_reconciled(resumed, directory)
    assert stored_before(resumed) == ROWS


def test_the_next_run_takes_the_place_of_one_that_reconciled(story: Story) -> None:
    (story.directory / "mine.txt").write_text("mine")

    following = run(story.directory, "--rows", str(ROWS))

    assert_reconciled(following, story.directory)
    assert "Fresh run in place of the one before" in following.stdout
    assert (story.directory / "mine.txt").read_text() == "mine"


def interrupted(
    directory: Path, how: signal.Signals, progress: str, *, rate: int
) -> subprocess.CompletedProcess[str]:
    """A run that gets a signal as soon as it prints such ``progress``."""
    arguments = command(directory, "--rows", str(ROWS), "--rate", str(rate))
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
    return subprocess.CompletedProcess(arguments, process.returncode, seen + out, stderr=errors)


def stored_before(resumed: subprocess.CompletedProcess[str]) -> int:
    """Return the number of flights that a resumed run has found stored."""
    resumed_at = re.search(
        r"Resuming the run that was interrupted: ([\d,]+) flights", resumed.stdout
    )
    assert resumed_at is not None, resumed.stdout
    return int(resumed_at[1].replace(",", ""))


def test_files_that_are_not_its_own_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "flights" / "lake").mkdir(parents=True)

    refused = run(tmp_path, "--rows", "10")

    assert refused.returncode == 1
    assert "has not made" in refused.stdout
    assert refused.stderr == ""
    assert (tmp_path / "flights" / "lake").is_dir()
