"""The commit, machine and versions of a run, and the wait for an idle machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from bench import mqtt_peers
from bench.measuring import TICKS_PER_S
from bench.processes import ROOT
from bench.report import IDLE
from bench.shape import peers
from bench.store import Environment

MEASURED: Final = ("packages", "bench")
"""Folders whose code a run measures; changes of other folders do not matter."""
CHANGED: Final = " with changes"
"""Follows the commit if the measured code differs from it."""
LIBRARIES: Final = ("pyarrow", "numpy", "msgspec", "uvloop", "pyspark", "python-qpid-proton")
LOOK_S: Final = 0.5
IDLE_TIMEOUT_S: Final = 30.0
"""Longest wait for an idle machine before a case."""


def environment() -> Environment:
    """Return the environment of this process."""
    return Environment(
        commit=commit_of(ROOT),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        processor=processor(),
        cores=os.cpu_count() or 1,
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        python=platform.python_version(),
        libraries=_libraries(),
        peers=_peers(),
    )


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, with :data:`CHANGED` if its measured code differs from it;
    empty if it is not a checkout of Git."""
    head = _git(checkout, "rev-parse", "HEAD")
    changes = _git(checkout, "status", "--porcelain", "--", *MEASURED)
    return f"{head}{CHANGED}" if head and changes else head


def processor() -> str:
    """Return the model of the processor."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def wait_until_idle(
    timeout_s: float = IDLE_TIMEOUT_S, busy_share: Callable[[], float] | None = None
) -> float:
    """Wait until the machine is idle, at most some seconds. Return the share of its processors that
    was busy at last.

    The load average of the system would not do: it stays high for minutes after a case.
    """
    measure = busy_share or _busy_share
    deadline = time.perf_counter() + timeout_s
    while (share := measure()) >= IDLE and time.perf_counter() < deadline:
        pass
    return share


def _busy_share() -> float:
    """Return the share of all processors that is busy during half a second; without ``/proc`` the
    load average per processor."""
    before = _busy_s()
    started_s = time.perf_counter()
    time.sleep(LOOK_S)
    cores = os.cpu_count() or 1
    if before is None:
        return os.getloadavg()[0] / cores
    busy_s = (_busy_s() or 0.0) - before
    return max(0.0, busy_s / (time.perf_counter() - started_s) / cores)


def _busy_s() -> float | None:
    """Return the seconds for which processors were busy since the start of the system."""
    statistics = Path("/proc/stat")
    if not statistics.exists():
        return None
    user, nice, system, _, _, *interrupts = map(int, statistics.read_text().split()[1:8])
    return (user + nice + system + sum(interrupts)) / TICKS_PER_S


def _libraries() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    if java := shutil.which("java"):
        text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        match = re.search(r'version "([^"]+)"', text.stderr)
        versions["java"] = "" if match is None else match[1]
    return versions


def _peers() -> dict[str, str]:
    installed = {name: peer.version() for name, peer in peers().items() if not peer.missing()}
    return installed | dict(mqtt_peers.versions_of(mqtt_peers.CONTENDERS))


def _git(checkout: Path, *arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run(
        [git, "-C", str(checkout), *arguments], capture_output=True, text=True, check=False
    )
    return "" if done.returncode else done.stdout.strip()
