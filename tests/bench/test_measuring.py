"""Processor time of a process and what it has started."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.measuring import cpu_s_below, cpu_s_of

BUSY = "import time\nwhile time.process_time() < 0.2: pass\n"


def test_what_a_process_has_started_counts_after_its_end_too() -> None:
    before_s = cpu_s_below(os.getpid())

    subprocess.run([sys.executable, "-c", BUSY], check=True)

    assert cpu_s_below(os.getpid()) - before_s >= 0.15


def test_what_runs_counts_while_it_runs() -> None:
    endless = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()\n"
    with subprocess.Popen(
        [sys.executable, "-c", endless],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None, "it is a pipe"
        child.stdout.readline()

        both_s, own_s = cpu_s_below(os.getpid()), cpu_s_of(os.getpid())

        assert cpu_s_below(child.pid) >= 0.15
        assert both_s >= own_s + 0.15
        child.communicate(b"\n")
