"""``penstock cluster …`` in a separate process, as users run it."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from tests.faults.cluster.engines import FaultyEngine
from tests.faults.processes import environment


class _Check(msgspec.Struct):
    name: str
    status: str
    found: str = ""


class _Checks(msgspec.Struct):
    checks: list[_Check]


class ClusterCommands:
    """Commands for the cluster on an engine; they connect to the engine's servers directly."""

    def __init__(self, engine: FaultyEngine, lease_s: float) -> None:
        self._engine = engine
        self._lease_s = lease_s

    def run(self, *words: str) -> None:
        """Run a command and require success."""
        self._run(*words).check_returncode()

    def doctor_complaints(self) -> str:
        """Return the failed checks of ``penstock cluster doctor``, one per line."""
        process = self._run("doctor", "--json")
        checks = msgspec.json.decode(process.stdout, type=_Checks).checks
        wrong = [check for check in checks if check.status != "ok"]
        return "\n".join(f"{check.name}: {check.found}" for check in wrong)

    def _run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "penstock",
                "cluster",
                *words,
                "--cluster",
                self._engine.url_of(self._engine.ports),
            ],
            check=False,
            capture_output=True,
            env={
                **environment(),
                **self._engine.settings,
                "PENSTOCK_CLUSTER_LEASE_S": f"{self._lease_s:g}",
            },
        )
