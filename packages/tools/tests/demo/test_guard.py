"""No process of a killed demonstration keeps running."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock_cluster.bootstrap.orphans import OrphanGuard
from tests.patience import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

WAITING = [sys.executable, "-c", "import sys; sys.stdin.read()"]
PARENT = """
import subprocess, sys
from penstock_cluster.bootstrap.orphans import OrphanGuard
guard = OrphanGuard()
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
guard.set_pids([4_194_305])  # no system gives a process this id
guard.set_pids([4_194_305, child.pid])
print(child.pid, flush=True)
sys.stdin.read()
"""


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def test_processes_end_with_a_demonstration_that_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_there(child)
        parent.kill()

    until(lambda: not is_there(child))


def test_a_guard_that_is_closed_kills_nothing() -> None:
    guard = OrphanGuard()
    with subprocess.Popen(WAITING, stdin=subprocess.PIPE) as process:
        guard.set_pids([process.pid])
        guard.close()

        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
