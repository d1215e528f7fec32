"""Does to a cluster what was drawn, and waits then until everybody is at work again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

import penstock
from tests.faults.cluster.engine import SHARD, EngineServers
from tests.faults.cluster.nodes import Nodes
from tests.faults.cluster.oracles import Spoilt
from tests.faults.cluster.pauses import Played
from tests.faults.cluster.schedule import Fault
from tests.faults.journals import last_acknowledged
from tests.faults.phases import RECONNECT_S
from tests.faults.processes import Clients

WELL_S: Final = 120.0
"""How long publishers may wait for an acknowledgement once nothing is wrong any more."""
BALLAST: Final = "ballast"
"""A channel whose events fill files of the engine, and are purged then."""
BALLAST_BYTES: Final = 256 << 10
BALLAST_EVENTS: Final = 48
"""12 MiB: a file takes 8, and so does a server's log of its last steps."""
_DIES_FROZEN: Final = 0.2
_DAMAGES_MAX: Final = 3
_LOOK_EVERY_S: Final = 0.05


class ClusterNemesis:
    """All that happens happens to processes that were started here, each by its own number."""

    def __init__(
        self,
        nodes: Nodes,
        engine: EngineServers,
        clients: Sequence[Clients],
        diaries: Mapping[str, Path],
        random: Random,
        told: Path,
    ) -> None:
        """``diaries``: those of all publishers, by name. ``told``: a file for all that is done, as
        it is done."""
        self._nodes = nodes
        self._engine = engine
        self._clients = clients
        self._diaries = diaries
        self._random = random
        self._pause = threading.Event()
        self._told = told
        self.played: list[Played] = []
        self.spoilt: list[Spoilt] = []
        self.failures: list[str] = []
        """What no fault is an excuse for."""
        self._acts: Mapping[str, Callable[[Fault], str]] = {
            "owner-killed": self._kill_owner,
            "owner-frozen": self._freeze_owner,
            "server-killed": self._kill_server,
            "server-frozen": self._freeze_server,
            "two-servers-gone": self._take_two,
            "copy-damaged": self._damage_copy,
        }

    def play(self, faults: Iterator[Fault], least: int, until_s: float) -> None:
        """At least so many, one after the other; no further one begins after ``until_s`` of the
        steady clock, or after something that may not be."""
        for number, fault in enumerate(faults):
            if number >= least and time.monotonic_ns() / 1e9 > until_s:
                return
            self._pause.wait(fault.after_s)
            began_ns = time.monotonic_ns()
            detail = self._acts[fault.what](fault)
            self._recover()
            ended_ns = time.monotonic_ns()
            self.played.append(Played(fault.what, began_ns, ended_ns, detail))
            self._tell(f"{(ended_ns - began_ns) / 1e9:6.1f} s  {fault.what}: {detail}")
            if self.failures:
                return

    def _recover(self) -> None:
        """Wait until all nodes run, every copy is whole and every publisher is acknowledged
        again."""
        since_ns = time.monotonic_ns()
        self._engine.wait_until_whole()
        self._nodes.owner()
        self.look()
        late = list(self._diaries)
        for _ in range(int(WELL_S / _LOOK_EVERY_S)):
            late = [name for name in late if last_acknowledged(self._diaries[name]) <= since_ns]
            if not late or self.failures:
                break
            self._pause.wait(_LOOK_EVERY_S)
            self.look()
        else:
            self.failures.append(
                f"{WELL_S:g} s after a fault nothing is acknowledged to {', '.join(late)}"
            )

    def _tell(self, line: str) -> None:
        with self._told.open("a") as file:
            file.write(f"{line}\n")

    def look(self) -> None:
        """Neither nodes nor clients end by themselves."""
        for node in self._nodes.all:
            if said := node.look():
                self.failures.append(said)
        for clients in self._clients:
            if not clients.is_running:
                self.failures.append(f"clients ended by themselves: {clients.wait()}")

    # --- nodes ---------------------------------------------------------------------------

    def _kill_owner(self, fault: Fault) -> str:
        owner = self._nodes.owner()
        owner.kill()
        self._pause.wait(fault.for_s)
        owner.start()
        return owner.name

    def _freeze_owner(self, fault: Fault) -> str:
        """It wakes up as the owner or deposed, as long as the freeze was; or it does not."""
        owner = self._nodes.owner()
        owner.freeze()
        self._pause.wait(fault.for_s)
        if fault.choice < _DIES_FROZEN:
            owner.kill()
            owner.start()
            return f"{owner.name} for {fault.for_s:.1f} s, and killed then"
        owner.thaw()
        return f"{owner.name} for {fault.for_s:.1f} s"

    # --- servers of the engine -----------------------------------------------------------

    def _kill_server(self, fault: Fault) -> str:
        victim, role = self._victim(fault)
        self._engine.processes.kill(victim)
        self._pause.wait(fault.for_s)
        self._engine.processes.start(victim)
        return f"n{victim}, {role}"

    def _freeze_server(self, fault: Fault) -> str:
        victim, role = self._victim(fault)
        self._engine.processes.freeze(victim)
        self._pause.wait(fault.for_s)
        self._engine.processes.thaw(victim)
        return f"n{victim}, {role}, for {fault.for_s:.1f} s"

    def _victim(self, fault: Fault) -> tuple[int, str]:
        leader = self._engine.leader()
        if fault.choice < 0.5:
            return leader, "who led"
        return (leader + (1 if fault.choice < 0.75 else 2)) % len(
            self._engine.numbers
        ), "a follower"

    def _take_two(self, fault: Fault) -> str:
        """One is left, which is no majority."""
        left = int(fault.choice * len(self._engine.numbers))
        taken = [number for number in self._engine.numbers if number != left]
        processes, kills = self._engine.processes, fault.choice * 10 % 1 < 0.5
        for number in taken:
            (processes.kill if kills else processes.freeze)(number)
        self._pause.wait(fault.for_s)
        for number in taken:
            (processes.start if kills else processes.thaw)(number)
        return f"{'killed' if kills else 'frozen'} for {fault.for_s:.1f} s"

    def _damage_copy(self, fault: Fault) -> str:
        """Again where the damage was gone before anybody read it."""
        said = []
        for _ in range(_DAMAGES_MAX):
            said.append(self._damage_once())
            if self.spoilt[-1].told or not self.spoilt[-1].is_gone:
                break
        return "; ".join(said)

    def _damage_once(self) -> str:
        """A server with bits of a file changed leads, and a new owner reads from it. What the
        damage is told by is looked for then, and the copy replaced as the guide says."""
        victim = (self._engine.leader() + 1) % len(self._engine.numbers)
        server = f"n{victim}"
        before = self._nodes.told("engine.copy_damaged", server=server, stream=SHARD)
        self._add_ballast()
        self._engine.processes.kill(victim)
        path = self._engine.spoil(victim, self._random)
        spoilt = path.read_bytes()
        self._engine.processes.start(victim)
        self._engine.lead(victim)
        is_gone = path.read_bytes() != spoilt and self._engine.has_all(victim)
        owner = self._nodes.owner()
        owner.kill()
        owner.start()
        self._nodes.owner()
        told = self._nodes.told("engine.copy_damaged", server=server, stream=SHARD) > before
        self.spoilt.append(Spoilt(server, SHARD, path.name, told, is_gone))
        self._engine.replace_copy(victim)
        with penstock.connect(self._nodes.url, reconnect_timeout=RECONNECT_S) as session:
            session.channels.get(BALLAST).purge()
        return f"{path.name} on {server}, {'told' if told else 'gone' if is_gone else 'UNTOLD'}"

    def _add_ballast(self) -> None:
        """So much that servers forget how the oldest of it came about."""
        with penstock.connect(self._nodes.url, reconnect_timeout=RECONNECT_S) as session:
            channel = session.channels.get(BALLAST)
            for _ in range(BALLAST_EVENTS):
                channel.publish(self._random.randbytes(BALLAST_BYTES))
