"""Measures time, processor time and percentiles."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.shape import Figures

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """Wall time and processor time since its creation, of this process and of the server with its
    running child processes."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._cpu_s = self._used_s()
        self._started_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Wall time since the creation."""
        return time.perf_counter() - self._started_s

    def figures(self, events: int) -> Figures:
        """Return the figures; call this as soon as the work is done."""
        elapsed_s, used_s = self.elapsed_s, self._used_s()
        client_s, server_s = (now - then for now, then in zip(used_s, self._cpu_s, strict=True))
        return {
            "events": events,
            "events_per_s": events / elapsed_s,
            "cpu_s_per_million": (client_s + server_s) / events * 1e6,
            "client_cpu_s_per_million": client_s / events * 1e6,
            "server_cpu_s_per_million": server_s / events * 1e6,
        }

    def _used_s(self) -> tuple[float, float]:
        """Return the processor seconds of this process and of the server so far."""
        own_times = os.times()
        return own_times.user + own_times.system, cpu_s_of_all(self._server_pid)


def cpu_s_of(pid: int) -> float:
    """Return the processor seconds of a process; 0 on a system without ``/proc``."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_PER_S


def memory_kb_of(pid: int) -> float:
    """Return the kilobytes of memory of a process; 0 on a system without ``/proc``."""
    return _memory_kb_of(pid, "VmRSS")


def peak_memory_kb_of(pid: int) -> float:
    """Return the most kilobytes of memory that a process has had since its program was loaded; 0 on
    a system without ``/proc``."""
    return _memory_kb_of(pid, "VmHWM")


def _memory_kb_of(pid: int, name: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith(name)), 0.0)


def cpu_s_below(pid: int) -> dict[int, float]:
    """Return the processor seconds of a process and of each of its running descendants, by process
    id."""
    started: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(file.read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has ended in the meantime
            continue
        started.setdefault(parent, []).append(int(file.parent.name))
    cpu_s_by_pid: dict[int, float] = {}
    pids_left = [pid]
    while pids_left:
        child = pids_left.pop()
        cpu_s_by_pid[child] = cpu_s_of(child)
        pids_left += started.get(child, [])
    return cpu_s_by_pid


def cpu_s_of_all(pid: int) -> float:
    """Return the processor seconds of a process and its running descendants together."""
    return sum(cpu_s_below(pid).values())


def cpu_s_since(before: dict[int, float], pid: int) -> float:
    """Return the processor seconds of these processes since ``before``. Processes that have ended
    are left out: the system does not report the time of Spark's idle workers after their end."""
    now = cpu_s_below(pid)
    return sum(used_s - before.get(one, 0.0) for one, used_s in now.items() if used_s)


def percentiles_us(latencies_s: Sequence[float]) -> Figures:
    """Return the four percentiles of the tables, in microseconds."""
    values = np.percentile(np.asarray(latencies_s) * 1e6, (50, 99, 99.9, 100))
    return dict(zip(("p50_us", "p99_us", "p999_us", "max_us"), map(float, values), strict=True))
