"""Processor time of a process and what it has started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.measuring import cpu_s_below, cpu_s_since, memory_kb_of, peak_memory_kb_of

BUSY = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()\n"


@pytest.mark.slow
def test_what_a_process_has_started_counts_while_it_runs() -> None:
    before = cpu_s_below(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None, "it is a pipe"
        child.stdout.readline()

        assert cpu_s_below(os.getpid()).keys() >= {os.getpid(), child.pid}
        assert cpu_s_since(before, os.getpid()) >= 0.15
        child.communicate(b"\n")

    assert child.pid not in cpu_s_below(os.getpid())
    assert cpu_s_since(before, os.getpid()) >= 0


GREEDY = "import sys\nx = bytearray(200_000_000)\ndel x\nprint(flush=True)\ninput()\n"


def test_memory_that_a_process_has_given_back_counts_in_its_peak() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GREEDY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None, "it is a pipe"
        child.stdout.readline()

        assert peak_memory_kb_of(child.pid) > 190_000
        assert memory_kb_of(child.pid) < 100_000
        child.communicate(b"\n")

    assert peak_memory_kb_of(child.pid) == 0
