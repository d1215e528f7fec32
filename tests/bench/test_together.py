"""Servers that run together under one process."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest

from bench.measuring import cpu_s_below
from bench.together import Part, servers_together
from penstock_testing.ports import free_port

ENDED_S = 30.0
LISTENS = """
import signal, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
signal.pause()
"""


def listening() -> Part:
    port = free_port()
    return Part([sys.executable, "-c", LISTENS, str(port)], port)


@pytest.mark.process
@pytest.mark.slow
def test_all_of_them_are_below_one_process_and_gone_with_it(tmp_path: Path) -> None:
    (tmp_path / "stored").mkdir()
    with servers_together([listening(), listening()], "", tmp_path / "stored") as server:
        below = cpu_s_below(server.pid)
        assert len(below) == 3

    assert not any(Path(f"/proc/{pid}").exists() for pid in below)


@pytest.mark.process
@pytest.mark.slow
def test_what_a_script_has_started_is_gone_with_it(tmp_path: Path) -> None:
    (tmp_path / "stored").mkdir()
    inner = listening()
    script = Part(["sh", "-c", '"$@" & wait', "sh", *inner.command], inner.port)
    with servers_together([script, listening()], "", tmp_path / "stored") as server:
        below = cpu_s_below(server.pid)
        assert len(below) == 4
        ends = [os.pidfd_open(pid) for pid in below]

    for end in ends:  # readable once it has ended
        assert select.select([end], [], [], ENDED_S)[0] == [end]
        os.close(end)


@pytest.mark.process
@pytest.mark.slow
def test_one_that_does_not_start_ends_all_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "stored").mkdir()
    ends = Part([sys.executable, "-c", "raise SystemExit('no room')"], free_port())

    with (
        pytest.raises(RuntimeError, match="no room"),
        servers_together([listening(), ends], "", tmp_path / "stored"),
    ):
        raise AssertionError("it is not given out")
