"""Does to a cluster what was drawn, and waits then until everybody is at work again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

import penstock
from penstock_core.vocabulary.errors import StorageFailed
from penstock_tools.demo.links import DemoLinks, LostDirection
from tests.faults.cluster.commands import ClusterCommands
from tests.faults.cluster.crowd import wait_for_connections
from tests.faults.cluster.differing import DifferingNodes
from tests.faults.cluster.engine import SHARD, EngineServers
from tests.faults.cluster.engines import FaultyEngine, server_named
from tests.faults.cluster.nodes import Nodes
from tests.faults.cluster.oracles import CutOff, Filled, Spoilt
from tests.faults.cluster.pauses import Played
from tests.faults.cluster.postgres import PostgresFaults
from tests.faults.cluster.schedule import Fault
from tests.faults.cluster.slowing import slowed
from tests.faults.journals import last_acknowledged
from tests.faults.phases import RECONNECT_S
from tests.faults.processes import Clients

WELL_S: Final = 120.0
BALLAST: Final = "ballast"
"""A channel whose events fill files of the engine, and are purged then."""
BALLAST_BYTES: Final = 256 << 10
BALLAST_EVENTS: Final = 48
"""12 MiB: a file takes 8, and so does a server's log of its last steps."""
LITTLE_ROOM_BYTES: Final = 40 << 20
"""Less than what is kept for segments and snapshots, and more than is published meanwhile."""
NO_ROOM_BYTES: Final = 4 << 20
"""Less than what is published meanwhile."""
REFUSED_S: Final = 30.0
"""Nodes ask servers for their room from time to time."""
ROOM_CHECK: Final = "engine room"
_DIES_FROZEN: Final = 0.2
_MOVES: Final = 0.3
"""How often somebody moves an owner that clients do not reach."""
_ON_ITS_WAY_S: Final = 2.0
"""What is acknowledged so soon after a cut was on its way before."""
_DAMAGES_MAX: Final = 3
JUMPS_S: Final = (-90.0, -4.0, 4.0, 90.0)
"""How far a clock jumps: an owner that is a minute off hands over, one that is seconds off need
not. What is written in the future keeps later owners' time waiting, so it is not far."""
_LOOK_EVERY_S: Final = 0.05


class ClusterNemesis:
    """All that happens happens to processes that were started here, each by its own number."""

    def __init__(
        self,
        nodes: Nodes,
        engine: FaultyEngine,
        links: DemoLinks | None,
        clients: Sequence[Clients],
        diaries: Mapping[str, Path],
        random: Random,
        told: Path,
        patience_s: float = WELL_S,
        *,
        connections: int = 0,
    ) -> None:
        """``diaries``: those of all publishers, by name. ``told``: a file for all that is done, as
        it is done; its folder is on the disk that is made slow. ``links``: the network between
        nodes and servers, where something is to be cut. ``patience_s`` is how long publishers may
        wait for an acknowledgement once nothing is wrong any more. ``connections`` of clients are
        back as well before a fault is over, if that is given."""
        self._nodes = nodes
        self._engine = engine
        self._commands = ClusterCommands(engine, nodes.lease_s)
        self._links = links
        self._clients = clients
        self._diaries = diaries
        self._random = random
        self._pause = threading.Event()
        self._told = told
        self._patience_s = patience_s
        self._connections = connections
        self.played: list[Played] = []
        self.spoilt: list[Spoilt] = []
        self.cut_off: list[CutOff] = []
        self.filled: list[Filled] = []
        self.differing = DifferingNodes(nodes, self._commands)
        self.failures: list[str] = []
        """What no fault is an excuse for."""
        self._acts: Mapping[str, Callable[[Fault], str]] = {
            "owner-killed": self._kill_owner,
            "owner-frozen": self._freeze_owner,
            "owner-halted": self._halt_owner,
            "owner-cut": self._cut_owner,
            "owner-unheard": self._mute_owner,
            "owner-deaf": self._deafen_owner,
            "clients-cut": self._cut_clients,
            "owner-stopped": self._stop_owner,
            "owner-drained": self._drain_owner,
            "clock-jumped": self._set_clock,
            "server-killed": self._kill_server,
            "server-frozen": self._freeze_server,
            "server-cut": self._cut_server,
            "postmaster-killed": self._kill_postmaster,
            "leader-moved": self._move_leader,
            "two-servers-gone": self._take_two,
            "disk-slow": self._slow_disk,
            "copy-damaged": self._damage_copy,
            "engine-full": self._fill_engine,
            "started-early": self._start_early,
            **self.differing.acts,
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
            if self._connections:
                self._wait_for_connections()
            ended_ns = time.monotonic_ns()
            self.played.append(Played(fault.what, began_ns, ended_ns, detail=detail))
            self._tell(f"{(ended_ns - began_ns) / 1e9:6.1f} s  {fault.what}: {detail}")
            if self.failures:
                return

    def _recover(self) -> None:
        """Wait until all nodes run, every copy is whole and every publisher is acknowledged
        again."""
        since_ns = time.monotonic_ns()
        self._engine.wait_until_whole()
        self._nodes.owner()
        if late := self._until_acknowledged(since_ns):
            self.failures.append(
                f"{self._patience_s:g} s after a fault nothing is acknowledged to {', '.join(late)}"
            )

    def _until_acknowledged(self, since_ns: int) -> list[str]:
        """Wait until every publisher is acknowledged something after ``since_ns`` of the steady
        clock; gives those who are not, when that takes too long."""
        self.look()
        late = list(self._diaries)
        for _ in range(int(self._patience_s / _LOOK_EVERY_S)):
            late = [name for name in late if last_acknowledged(self._diaries[name]) <= since_ns]
            if not late or self.failures:
                return []
            self._pause.wait(_LOOK_EVERY_S)
            self.look()
        return late

    def _wait_for_connections(self) -> None:
        try:
            wait_for_connections(self._nodes.url, self._connections, self._patience_s)
        except AssertionError as error:
            self.failures.append(f"{error}")

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

    def _halt_owner(self, fault: Fault) -> str:
        """It is frozen with a block in its hands, and wakes once another node has served for a
        while: what it sends then is refused."""
        owner = self._nodes.owner()
        owner.halt()
        next_owner = self._nodes.owner(after=owner)
        self._until_acknowledged(time.monotonic_ns())
        self._pause.wait(fault.for_s)
        owner.thaw()
        return f"{owner.name}, with a block in its hands, until {next_owner.name} had served"

    def _cut_owner(self, fault: Fault) -> str:
        """It reaches clients and other nodes, and no server of the engine."""
        owner = self._nodes.owner()
        self._cut(owner.name, fault.for_s)
        return f"{owner.name} from the engine for {fault.for_s:.1f} s"

    def _mute_owner(self, fault: Fault) -> str:
        """It hears the servers of the engine, and they do not hear it."""
        owner = self._nodes.owner()
        self._cut(owner.name, fault.for_s, "from")
        return f"{owner.name}, which hears the engine, for {fault.for_s:.1f} s"

    def _deafen_owner(self, fault: Fault) -> str:
        """The servers of the engine hear it, and it does not hear them."""
        owner = self._nodes.owner()
        self._cut(owner.name, fault.for_s, "to")
        return f"{owner.name}, which the engine hears, for {fault.for_s:.1f} s"

    def _cut_clients(self, fault: Fault) -> str:
        """It reaches the engine and other nodes, and no client. One of them relays then, or becomes
        the owner where somebody moves it; the cut ends once everybody is at work around it."""
        assert self._links is not None, "whoever cuts has links"
        owner = self._nodes.owner()
        began_ns = time.monotonic_ns()
        self._links.cut(owner.for_clients)
        self._pause.wait(fault.for_s)
        is_moved = fault.choice < _MOVES
        if is_moved:
            others = [node for node in self._nodes.all if node is not owner]
            self._commands.run("move", others[int(fault.choice / _MOVES * len(others))].name)
        late = self._until_acknowledged(began_ns + int(_ON_ITS_WAY_S * 1e9))
        self._links.heal(owner.for_clients)
        waited_s = (time.monotonic_ns() - began_ns) / 1e9
        self.cut_off.append(CutOff(owner.name, waited_s, tuple(late)))
        return f"{owner.name} for {waited_s:.1f} s{', and moved' if is_moved else ''}"

    def _stop_owner(self, fault: Fault) -> str:
        """It is asked to end, and hands over."""
        owner = self._nodes.owner()
        if status := owner.stop():
            self.failures.append(f"after SIGTERM the exit status of {owner.name} is {status}")
        self._pause.wait(fault.for_s)
        owner.start()
        return owner.name

    def _drain_owner(self, _: Fault) -> str:
        """It hands over to another node, and may own again afterwards."""
        owner = self._nodes.owner()
        self._commands.run("drain", owner.name)
        self._commands.run("drain", owner.name, "--end")
        return owner.name

    def _set_clock(self, fault: Fault) -> str:
        owner = self._nodes.owner()
        jump_s = JUMPS_S[int(fault.choice * len(JUMPS_S))]
        owner.set_clock(jump_s)
        self._pause.wait(fault.for_s)
        owner.set_clock(0.0)
        return f"{owner.name} by {jump_s:+g} s for {fault.for_s:.1f} s"

    def _start_early(self, fault: Fault) -> str:
        """A node is started while the engine has no majority: it waits, and serves then or stands
        by."""
        node = self._nodes.all[int(fault.choice * len(self._nodes.all))]
        gone = (len(self._engine.numbers) - 1) // 2 + 1
        taken = self._random.sample(list(self._engine.numbers), gone)
        for number in taken:
            self._engine.kill(number)
        node.kill()
        node.begin()
        if not node.waits_for("engine.waiting"):
            self.failures.append(f"{node.name} does not say that it waits for the engine")
        self._pause.wait(fault.for_s)
        for number in taken:
            self._engine.start(number)
        if not node.is_ready():
            self.failures.append(f"{node.name} waits though the engine has a majority again")
        return f"{node.name}, without servers {', '.join(map(str, taken))}"

    def _cut(self, name: str, for_s: float, lost: LostDirection = "all") -> None:
        assert self._links is not None, "whoever cuts has links"
        self._links.cut(name, lost)
        self._pause.wait(for_s)
        self._links.heal(name)

    # --- servers of the engine -----------------------------------------------------------

    def _kill_server(self, fault: Fault) -> str:
        victim, role = self._victim(fault)
        self._engine.kill(victim)
        self._pause.wait(fault.for_s)
        self._engine.start(victim)
        return f"server {victim}, {role}"

    def _freeze_server(self, fault: Fault) -> str:
        victim, role = self._victim(fault)
        self._engine.freeze(victim)
        self._pause.wait(fault.for_s)
        self._engine.thaw(victim)
        return f"server {victim}, {role}, for {fault.for_s:.1f} s"

    def _cut_server(self, fault: Fault) -> str:
        """It reaches neither nodes nor the other servers."""
        victim, role = self._victim(fault)
        self._cut(server_named(victim), fault.for_s)
        return f"server {victim}, {role}, for {fault.for_s:.1f} s"

    def _kill_postmaster(self, fault: Fault) -> str:
        """The primary's other processes go on for a moment, and end by themselves."""
        assert isinstance(self._engine, PostgresFaults), "other engines have no postmaster"
        victim = self._engine.kill_postmaster()
        self._pause.wait(fault.for_s)
        self._engine.start(victim)
        return f"server {victim} for {fault.for_s:.1f} s"

    def _move_leader(self, _: Fault) -> str:
        return self._engine.move_leader(self._random)

    def _slow_disk(self, fault: Fault) -> str:
        with slowed(self._told.parent):
            self._pause.wait(fault.for_s)
        return f"for {fault.for_s:.1f} s"

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
        kills = fault.choice * 10 % 1 < 0.5
        for number in taken:
            (self._engine.kill if kills else self._engine.freeze)(number)
        self._pause.wait(fault.for_s)
        for number in taken:
            (self._engine.start if kills else self._engine.thaw)(number)
        return f"{'killed' if kills else 'frozen'} for {fault.for_s:.1f} s"

    def _fill_engine(self, fault: Fault) -> str:
        """One server is full, and others go on without it; or so many have little room that events
        are refused until there is more."""
        numbers = list(self._engine.numbers)
        is_majority = fault.choice < 0.5
        full = self._random.sample(numbers, len(numbers) // 2 + 1 if is_majority else 1)
        for number in full:
            self._engine.fill(number, LITTLE_ROOM_BYTES if is_majority else NO_ROOM_BYTES)
        refused = self._until_refused() if is_majority else self._add_ballast()
        room = [
            line for line in self._commands.complaints().splitlines() if line.startswith(ROOM_CHECK)
        ]
        self._pause.wait(fault.for_s)
        for number in full:
            self._engine.make_room(number)
        self._purge_ballast()
        names = tuple(f"n{number}" for number in full)
        is_examined = any(all(name in line for name in names) for line in room)
        self.filled.append(Filled(names, is_majority, is_examined, refused=refused))
        return f"{', '.join(names)}: {refused or 'nothing refused'}"

    def _until_refused(self) -> str:
        """Publish until an event is refused; returns why, or nothing when none was."""
        with penstock.connect(self._nodes.url, reconnect_timeout=RECONNECT_S) as session:
            channel = session.channels.get(BALLAST)
            for _ in range(int(REFUSED_S / _LOOK_EVERY_S)):
                try:
                    channel.publish(b"one more")
                except StorageFailed as error:
                    return str(error)
                self._pause.wait(_LOOK_EVERY_S)
        return ""

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
        engine = self._engine
        assert isinstance(engine, EngineServers), "nobody damages the copies of other engines"
        victim = (engine.leader() + 1) % len(engine.numbers)
        server = f"n{victim}"
        before = self._nodes.told("engine.copy_damaged", server=server, stream=SHARD)
        self._add_ballast()
        engine.kill(victim)
        path = engine.spoil(victim, self._random)
        spoilt = path.read_bytes()
        engine.start(victim)
        engine.lead(victim)
        is_gone = _is_replaced(path, spoilt) and engine.has_all(victim)
        owner = self._nodes.owner()
        owner.kill()
        owner.start()
        self._nodes.owner()
        told = self._nodes.told("engine.copy_damaged", server=server, stream=SHARD) > before
        self.spoilt.append(Spoilt(server, SHARD, path.name, told=told, is_gone=is_gone))
        engine.replace_copy(victim)
        self._purge_ballast()
        return f"{path.name} on {server}, {'told' if told else 'gone' if is_gone else 'UNTOLD'}"

    def _add_ballast(self) -> str:
        """Publish so much that servers forget how the oldest of it came about; returns why an event
        was refused, if one was."""
        with penstock.connect(self._nodes.url, reconnect_timeout=RECONNECT_S) as session:
            channel = session.channels.get(BALLAST)
            for _ in range(BALLAST_EVENTS):
                try:
                    channel.publish(self._random.randbytes(BALLAST_BYTES))
                except StorageFailed as error:
                    return str(error)
        return ""

    def _purge_ballast(self) -> None:
        with penstock.connect(self._nodes.url, reconnect_timeout=RECONNECT_S) as session:
            session.channels.get(BALLAST).purge()


def _is_replaced(path: Path, spoilt: bytes) -> bool:
    """Whether a file has other bytes than the damaged ones, or was removed: a server that starts
    writes blocks anew, and removes those whose messages are gone."""
    try:
        return path.read_bytes() != spoilt
    except FileNotFoundError:
        return True
