"""The faults of a run: drawn from a seed, and applied to running processes."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tests.faults.disks import Disk
from tests.faults.processes import Clients, Network, Server, storm

HOUR_S: Final = 3_600.0


class Fault(Struct, frozen=True):
    what: str
    after_s: float
    """Seconds without faults before it."""
    for_s: float
    choice: float
    """A number in 0..1 for all further choices."""


KINDS: Final[Mapping[str, tuple[float, float, int]]] = {
    "kill": (0.0, 0.5, 4),
    "term": (0.0, 0.5, 2),
    "stop": (0.5, 6.0, 2),
    "full": (1.0, 4.0, 2),
    "clock": (0.5, 3.0, 2),
    "slow": (1.0, 4.0, 1),
    "stall": (0.5, 5.0, 2),
    "half": (1.0, 6.0, 2),
    "cut": (0.0, 0.1, 2),
    "storm": (0.0, 0.1, 1),
    "clients": (0.0, 0.1, 2),
}
"""Shortest and longest duration of each fault in seconds, and its weight."""

SILENCE_S: Final = 35.0
"""Duration of a half-open connection that is not cut: longer than both sides need to notice it."""


def schedule(random: Random, seconds: float, kinds: Sequence[str]) -> list[Fault]:
    """Draw faults for about this many seconds."""
    weights = [KINDS[kind][2] for kind in kinds]
    faults: list[Fault] = []
    remaining_s = seconds
    while remaining_s > 0:
        (what,) = random.choices(kinds, weights)
        least, most, _ = KINDS[what]
        fault = Fault(
            what, random.uniform(0.5, 3.0), random.uniform(least, most), choice=random.random()
        )
        if what == "half" and fault.choice < 0.2 and remaining_s > 2 * SILENCE_S:
            fault = replace(fault, for_s=SILENCE_S)
        faults.append(fault)
        remaining_s -= fault.after_s + fault.for_s + 1.0
    return faults


class Nemesis:
    """Applies faults, and restores everything afterwards."""

    def __init__(
        self, server: Server, network: Network, clients: Sequence[Clients], disk: Disk
    ) -> None:
        self._server = server
        self._network = network
        self._clients = clients
        self._disk = disk
        self._pause = threading.Event()
        self._offset_s = 0.0
        self.counts: Counter[str] = Counter()
        self.welcomed_connections = 0
        """Number of accepted connections in storms."""
        self.failures: list[str] = []
        """Violations that no fault explains."""
        self._acts: Mapping[str, Callable[[Fault], None]] = {
            "kill": self._kill,
            "term": self._term,
            "stop": self._stop,
            "full": self._full,
            "clock": self._set_clock,
            "slow": self._slow_or_stall,
            "stall": self._slow_or_stall,
            "half": self._half_open,
            "cut": self._cut,
            "storm": self._storm,
            "clients": self._kill_clients,
        }

    def play(self, faults: Sequence[Fault], until_s: float) -> None:
        """Apply faults one after the other; none begins after ``until_s`` of the steady clock."""
        for fault in faults:
            self.wait(fault.after_s)
            if time.monotonic_ns() / 1e9 > until_s:
                return
            self._acts[fault.what](fault)
            self.counts[fault.what] += 1
            self.check_processes()

    def wait(self, seconds: float) -> None:
        self._pause.wait(seconds)

    def check_processes(self) -> None:
        """Restart a server that has ended by itself, and report it unless its disk failed. Report
        and restart clients that have ended by themselves."""
        if not self._server.process.is_running:
            status = self._server.process.wait()
            if not self._server.process.logged("journal.failed"):
                log = self._server.process.log[-3_000:]
                self.failures.append(f"the server ended by itself, status {status}:\n{log}")
            self.counts["ended by itself"] += 1
            self._server.start()
        for clients in self._clients:
            if not clients.is_running:
                self.failures.append(f"clients ended by themselves: {clients.wait()}")
                clients.kill()

    def _kill(self, fault: Fault) -> None:
        self._server.process.kill()
        self.wait(fault.for_s)
        self._server.start()

    def _term(self, fault: Fault) -> None:
        status = self._server.process.terminate()
        if status != 0:
            log = self._server.process.log[-3_000:]
            self.failures.append(f"after SIGTERM the exit status is {status}:\n{log}")
        self.wait(fault.for_s)
        self._server.start()

    def _stop(self, fault: Fault) -> None:
        self._server.process.signal(signal.SIGSTOP)
        self.wait(fault.for_s)
        if fault.choice < 0.2:  # it is killed while it is frozen
            self._server.process.kill()
            self._server.start()
        else:
            self._server.process.signal(signal.SIGCONT)

    def _full(self, fault: Fault) -> None:
        pid = self._server.process.pid
        self._disk.fill(pid)
        self.wait(fault.for_s)
        if fault.choice < 0.3:
            self._server.process.kill()
        self._disk.free(pid)
        if fault.choice < 0.3:
            self._server.start()

    def _set_clock(self, fault: Fault) -> None:
        """Set the clock far or near, back or forward; in half of the cases the server is restarted
        under it."""
        jumps = (-HOUR_S, -10.0, 10.0, HOUR_S, 30 * 24 * HOUR_S, -self._offset_s)
        self._offset_s += jumps[int(fault.choice * len(jumps))]
        self._server.set_clock(self._offset_s)
        self.wait(fault.for_s)
        if fault.choice * 100 % 2 < 1:
            self._server.process.kill()
            self._server.start()

    def _slow_or_stall(self, fault: Fault) -> None:
        self._network.set_mode(fault.what)
        self.wait(fault.for_s)
        self._network.set_mode("flow")

    def _half_open(self, fault: Fault) -> None:
        """Lose all data for a while. Short faults end with a cut, because both sides would wait for
        lost data."""
        self._network.set_mode("half")
        self.wait(fault.for_s)
        if fault.for_s < SILENCE_S:
            self._network.set_mode("cut")

    def _cut(self, fault: Fault) -> None:
        self._network.set_mode("cut")
        self.wait(fault.for_s)

    def _storm(self, fault: Fault) -> None:
        """Cut all clients, so that strangers and our own clients connect at the same time."""
        self._network.set_mode("cut")
        self.welcomed_connections += storm(self._network.url, 100 + int(fault.choice * 400))

    def _kill_clients(self, fault: Fault) -> None:
        self._clients[int(fault.choice * len(self._clients))].kill()
