"""What goes wrong, when and for how long: drawn from a seed, done to processes that run."""

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
    """In 0..1: what else there is to draw."""


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
"""By fault: how long it lasts at least and at most, in seconds, and how often it is drawn."""

SILENCE_S: Final = 35.0
"""A half-open connection that nobody cuts: longer than either side takes to find out."""


def schedule(random: Random, seconds: float, kinds: Sequence[str]) -> list[Fault]:
    """Faults for about so long."""
    weights = [KINDS[kind][2] for kind in kinds]
    found: list[Fault] = []
    left = seconds
    while left > 0:
        (what,) = random.choices(kinds, weights)
        least, most, _ = KINDS[what]
        fault = Fault(
            what, random.uniform(0.5, 3.0), random.uniform(least, most), choice=random.random()
        )
        if what == "half" and fault.choice < 0.2 and left > 2 * SILENCE_S:
            fault = replace(fault, for_s=SILENCE_S)
        found.append(fault)
        left -= fault.after_s + fault.for_s + 1.0
    return found


class Nemesis:
    """Does it, and sees to it that everything is well again afterwards."""

    def __init__(
        self, server: Server, network: Network, clients: Sequence[Clients], disk: Disk
    ) -> None:
        self._server = server
        self._network = network
        self._clients = clients
        self._disk = disk
        self._pause = threading.Event()
        self._offset_s = 0.0
        self.done: Counter[str] = Counter()
        self.welcomed = 0
        """Connections of storms."""
        self.failures: list[str] = []
        """What no fault is an excuse for."""
        self._acts: Mapping[str, Callable[[Fault], None]] = {
            "kill": self._kill,
            "term": self._term,
            "stop": self._stop,
            "full": self._full,
            "clock": self._set_clock,
            "slow": self._hinder,
            "stall": self._hinder,
            "half": self._half,
            "cut": self._cut,
            "storm": self._storm,
            "clients": self._kill_clients,
        }

    def play(self, faults: Sequence[Fault], until_s: float) -> None:
        """One after the other; no new one begins after ``until_s`` of the steady clock."""
        for fault in faults:
            self.wait(fault.after_s)
            if time.monotonic_ns() / 1e9 > until_s:
                return
            self._acts[fault.what](fault)
            self.done[fault.what] += 1
            self.look()

    def wait(self, seconds: float) -> None:
        self._pause.wait(seconds)

    def look(self) -> None:
        """A server that has ended by itself has to have had a reason, and starts again; clients
        do not end by themselves."""
        if not self._server.process.is_running:
            status = self._server.process.wait()
            if not self._server.process.logged("journal.failed"):
                log = self._server.process.log[-3_000:]
                self.failures.append(f"the server ended by itself, status {status}:\n{log}")
            self.done["ended by itself"] += 1
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
        if fault.choice < 0.2:  # it dies without waking up
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
        """Far or near, back or forth; half of them under a server that starts."""
        jumps = (-HOUR_S, -10.0, 10.0, HOUR_S, 30 * 24 * HOUR_S, -self._offset_s)
        self._offset_s += jumps[int(fault.choice * len(jumps))]
        self._server.set_clock(self._offset_s)
        self.wait(fault.for_s)
        if fault.choice * 100 % 2 < 1:
            self._server.process.kill()
            self._server.start()

    def _hinder(self, fault: Fault) -> None:
        self._network.tell(fault.what)
        self.wait(fault.for_s)
        self._network.tell("flow")

    def _half(self, fault: Fault) -> None:
        """What was sent meanwhile is lost, so the connections have to end in the end."""
        self._network.tell("half")
        self.wait(fault.for_s)
        if fault.for_s < SILENCE_S:
            self._network.tell("cut")

    def _cut(self, fault: Fault) -> None:
        self._network.tell("cut")
        self.wait(fault.for_s)

    def _storm(self, fault: Fault) -> None:
        """Strangers and, their connections cut, our own clients come all at once."""
        self._network.tell("cut")
        self.welcomed += storm(self._network.url, 100 + int(fault.choice * 400))

    def _kill_clients(self, fault: Fault) -> None:
        self._clients[int(fault.choice * len(self._clients))].kill()
