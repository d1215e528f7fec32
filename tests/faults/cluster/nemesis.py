"""Applies the drawn faults to a cluster, and waits after each until all nodes and clients work
again."""

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
from tests.faults.cluster.oracles import CutOff, DamagedCopy, FullServers
from tests.faults.cluster.pauses import Played
from tests.faults.cluster.postgres import PostgresFaults
from tests.faults.cluster.schedule import Fault
from tests.faults.cluster.slowing import slow_down
from tests.faults.journals import last_acknowledged
from tests.faults.phases import RECONNECT_S
from tests.faults.processes import Clients

WELL_S: Final = 120.0
BALLAST: Final = "ballast"
"""A channel whose events fill files of the engine and are then purged."""
BALLAST_BYTES: Final = 256 << 10
BALLAST_EVENTS: Final = 48
"""12 MiB: more than a file of a stream, and than a server's log of its last steps, which take 8."""
LITTLE_ROOM_BYTES: Final = 40 << 20
"""Less than the reserve for segments and snapshots, and more than is published during the fault."""
NO_ROOM_BYTES: Final = 4 << 20
"""Less than is published during the fault."""
REFUSED_S: Final = 30.0
"""Nodes ask the servers only from time to time for their room."""
ROOM_CHECK: Final = "engine room"
_DIES_FROZEN: Final = 0.2
_MOVES: Final = 0.3
"""Probability that an owner that clients cannot reach is moved."""
_ON_ITS_WAY_S: Final = 2.0
"""An acknowledgement that arrives this soon after a cut was under way before it."""
_DAMAGES_MAX: Final = 3
JUMPS_S: Final = (-90.0, -4.0, 4.0, 90.0)
"""Jumps of the clock in seconds. An owner that is a minute off hands over, one that is seconds off
need not. Records from the future delay later owners, so the jumps are short."""
_POLL_S: Final = 0.05


class ClusterNemesis:
    """Applies faults to processes started by this run, each by its process id."""

    def __init__(
        self,
        nodes: Nodes,
        engine: FaultyEngine,
        links: DemoLinks | None,
        clients: Sequence[Clients],
        diaries: Mapping[str, Path],
        random: Random,
        log_path: Path,
        patience_s: float = WELL_S,
        *,
        connections: int = 0,
    ) -> None:
        """``diaries``: the records of all publishers, by name. ``log_path``: a file that logs the
        faults; its folder is on the disk that is made slow. ``links``: the network between nodes
        and servers, if faults cut it. ``patience_s``: how long publishers may wait for an
        acknowledgement after the end of a fault. ``connections``: if not 0, a fault ends only once
        this many clients are connected again."""
        self._nodes = nodes
        self._engine = engine
        self._commands = ClusterCommands(engine, nodes.lease_s)
        self._links = links
        self._clients = clients
        self._diaries = diaries
        self._random = random
        self._pause = threading.Event()
        self._log_path = log_path
        self._patience_s = patience_s
        self._connections = connections
        self.played: list[Played] = []
        self.damaged: list[DamagedCopy] = []
        self.cut_off: list[CutOff] = []
        self.filled: list[FullServers] = []
        self.differing = DifferingNodes(nodes, self._commands)
        self.failures: list[str] = []
        """Violations that no fault explains."""
        self._actions: Mapping[str, Callable[[Fault], str]] = {
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
            **self.differing.actions,
        }

    def play(self, faults: Iterator[Fault], least: int, until_s: float) -> None:
        """Play at least ``least`` faults, one after the other. None begins after ``until_s`` of the
        steady clock, or after a violation."""
        for number, fault in enumerate(faults):
            if number >= least and time.monotonic_ns() / 1e9 > until_s:
                return
            self._pause.wait(fault.after_s)
            began_ns = time.monotonic_ns()
            detail = self._actions[fault.what](fault)
            self._recover()
            if self._connections:
                self._wait_for_connections()
            ended_ns = time.monotonic_ns()
            self.played.append(Played(fault.what, began_ns, ended_ns, detail=detail))
            self._log(f"{(ended_ns - began_ns) / 1e9:6.1f} s  {fault.what}: {detail}")
            if self.failures:
                return

    def _recover(self) -> None:
        """Wait until all nodes run, every copy is complete and every publisher gets
        acknowledgements again."""
        since_ns = time.monotonic_ns()
        self._engine.wait_until_whole()
        self._nodes.owner()
        if late := self._wait_for_acknowledgements(since_ns):
            self.failures.append(
                f"{self._patience_s:g} s after a fault nothing is acknowledged to {', '.join(late)}"
            )

    def _wait_for_acknowledgements(self, since_ns: int) -> list[str]:
        """Wait until every publisher has an acknowledgement after ``since_ns`` of the steady clock.
        Return those without one if that takes too long."""
        self.check_processes()
        late = list(self._diaries)
        for _ in range(int(self._patience_s / _POLL_S)):
            late = [name for name in late if last_acknowledged(self._diaries[name]) <= since_ns]
            if not late or self.failures:
                return []
            self._pause.wait(_POLL_S)
            self.check_processes()
        return late

    def _wait_for_connections(self) -> None:
        try:
            wait_for_connections(self._nodes.url, self._connections, self._patience_s)
        except AssertionError as error:
            self.failures.append(f"{error}")

    def _log(self, line: str) -> None:
        with self._log_path.open("a") as file:
            file.write(f"{line}\n")

    def check_processes(self) -> None:
        """Report nodes and clients that have ended by themselves."""
        for node in self._nodes.all:
            if end_report := node.end_report():
                self.failures.append(end_report)
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
        """Freeze the owner; it wakes as the owner or deposed, depending on the duration, or it is
        killed while frozen."""
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
        """Freeze the owner just before it sends a block, and wake it once another node has served
        for a while: its block must be refused."""
        owner = self._nodes.owner()
        owner.halt()
        next_owner = self._nodes.owner(after=owner)
        self._wait_for_acknowledgements(time.monotonic_ns())
        self._pause.wait(fault.for_s)
        owner.thaw()
        return f"{owner.name}, with a block in its hands, until {next_owner.name} had served"

    def _cut_owner(self, fault: Fault) -> str:
        """Cut the owner off from all servers of the engine, but not from clients and other
        nodes."""
        owner = self._nodes.owner()
        self._cut(owner.name, fault.for_s)
        return f"{owner.name} from the engine for {fault.for_s:.1f} s"

    def _mute_owner(self, fault: Fault) -> str:
        """Lose everything that the owner sends to the engine's servers, but not their data."""
        owner = self._nodes.owner()
        self._cut(owner.name, fault.for_s, "from")
        return f"{owner.name}, which hears the engine, for {fault.for_s:.1f} s"

    def _deafen_owner(self, fault: Fault) -> str:
        """Lose everything that the engine's servers send to the owner, but not its data."""
        owner = self._nodes.owner()
        self._cut(owner.name, fault.for_s, "to")
        return f"{owner.name}, which the engine hears, for {fault.for_s:.1f} s"

    def _cut_clients(self, fault: Fault) -> str:
        """Cut clients off from the owner, which still reaches the engine and the other nodes.
        Another node must relay, or become the owner if the realm is moved. The cut ends once all
        publishers work around it."""
        assert self._links is not None, "faults that cut have links"
        owner = self._nodes.owner()
        began_ns = time.monotonic_ns()
        self._links.cut(owner.client_link)
        self._pause.wait(fault.for_s)
        is_moved = fault.choice < _MOVES
        if is_moved:
            peers = [node for node in self._nodes.all if node is not owner]
            self._commands.run("move", peers[int(fault.choice / _MOVES * len(peers))].name)
        late = self._wait_for_acknowledgements(began_ns + int(_ON_ITS_WAY_S * 1e9))
        self._links.heal(owner.client_link)
        waited_s = (time.monotonic_ns() - began_ns) / 1e9
        self.cut_off.append(CutOff(owner.name, waited_s, tuple(late)))
        return f"{owner.name} for {waited_s:.1f} s{', and moved' if is_moved else ''}"

    def _stop_owner(self, fault: Fault) -> str:
        """End the owner with SIGTERM; it hands over."""
        owner = self._nodes.owner()
        if status := owner.stop():
            self.failures.append(f"after SIGTERM the exit status of {owner.name} is {status}")
        self._pause.wait(fault.for_s)
        owner.start()
        return owner.name

    def _drain_owner(self, _: Fault) -> str:
        """Drain the owner: it hands over to another node, and may own again afterwards."""
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
        """Start a node while the engine has no majority: it must wait, and then serve or stand
        by."""
        node = self._nodes.all[int(fault.choice * len(self._nodes.all))]
        stopped_count = (len(self._engine.numbers) - 1) // 2 + 1
        stopped_servers = self._random.sample(list(self._engine.numbers), stopped_count)
        for number in stopped_servers:
            self._engine.kill(number)
        node.kill()
        node.begin()
        if not node.has_logged_within("engine.waiting"):
            self.failures.append(f"{node.name} does not say that it waits for the engine")
        self._pause.wait(fault.for_s)
        for number in stopped_servers:
            self._engine.start(number)
        if not node.is_ready():
            self.failures.append(f"{node.name} waits though the engine has a majority again")
        return f"{node.name}, without servers {', '.join(map(str, stopped_servers))}"

    def _cut(self, name: str, for_s: float, lost: LostDirection = "all") -> None:
        assert self._links is not None, "faults that cut have links"
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
        """Cut a server off from the nodes and from the other servers."""
        victim, role = self._victim(fault)
        self._cut(server_named(victim), fault.for_s)
        return f"server {victim}, {role}, for {fault.for_s:.1f} s"

    def _kill_postmaster(self, fault: Fault) -> str:
        """Kill only the first process of the primary; its other processes continue for a moment and
        end by themselves."""
        assert isinstance(self._engine, PostgresFaults), "other engines have no postmaster"
        victim = self._engine.kill_postmaster()
        self._pause.wait(fault.for_s)
        self._engine.start(victim)
        return f"server {victim} for {fault.for_s:.1f} s"

    def _move_leader(self, _: Fault) -> str:
        return self._engine.move_leader(self._random)

    def _slow_disk(self, fault: Fault) -> str:
        with slow_down(self._log_path.parent):
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
        """Stop all servers but one, so that the engine has no majority."""
        remaining = int(fault.choice * len(self._engine.numbers))
        stopped = [number for number in self._engine.numbers if number != remaining]
        kills = fault.choice * 10 % 1 < 0.5
        for number in stopped:
            (self._engine.kill if kills else self._engine.freeze)(number)
        self._pause.wait(fault.for_s)
        for number in stopped:
            (self._engine.start if kills else self._engine.thaw)(number)
        return f"{'killed' if kills else 'frozen'} for {fault.for_s:.1f} s"

    def _fill_engine(self, fault: Fault) -> str:
        """Fill one server, so that the others continue without it; or a majority, so that events
        are refused until it has more room."""
        numbers = list(self._engine.numbers)
        is_majority = fault.choice < 0.5
        full = self._random.sample(numbers, len(numbers) // 2 + 1 if is_majority else 1)
        for number in full:
            self._engine.fill(number, LITTLE_ROOM_BYTES if is_majority else NO_ROOM_BYTES)
        refused = self._publish_until_refused() if is_majority else self._add_ballast()
        room = [
            line
            for line in self._commands.doctor_complaints().splitlines()
            if line.startswith(ROOM_CHECK)
        ]
        self._pause.wait(fault.for_s)
        for number in full:
            self._engine.make_room(number)
        self._purge_ballast()
        names = tuple(f"n{number}" for number in full)
        is_diagnosed = any(all(name in line for name in names) for line in room)
        self.filled.append(FullServers(names, is_majority, is_diagnosed, refused=refused))
        return f"{', '.join(names)}: {refused or 'nothing refused'}"

    def _publish_until_refused(self) -> str:
        """Publish until an event is refused. Return the reason, or "" if none was refused."""
        with penstock.connect(self._nodes.url, reconnect_timeout=RECONNECT_S) as session:
            channel = session.channels.get(BALLAST)
            for _ in range(int(REFUSED_S / _POLL_S)):
                try:
                    channel.publish(b"one more")
                except StorageFailed as error:
                    return str(error)
                self._pause.wait(_POLL_S)
        return ""

    def _damage_copy(self, fault: Fault) -> str:
        """Damage a copy, and repeat that if the damage disappeared before a node read it."""
        reports = []
        for _ in range(_DAMAGES_MAX):
            reports.append(self._damage_once())
            if self.damaged[-1].is_reported or not self.damaged[-1].is_gone:
                break
        return "; ".join(reports)

    def _damage_once(self) -> str:
        """Make a server with changed bits in a file the leader, and let a new owner read from it.
        Look for the report of the damage, and replace the copy as the guide describes."""
        engine = self._engine
        assert isinstance(engine, EngineServers), "copies of other engines are not damaged"
        victim = (engine.leader() + 1) % len(engine.numbers)
        server = f"n{victim}"
        reports_before = self._nodes.count_logged(
            "engine.copy_damaged", server=server, stream=SHARD
        )
        self._add_ballast()
        engine.kill(victim)
        path = engine.damage(victim, self._random)
        damagedd_bytes = path.read_bytes()
        engine.start(victim)
        engine.lead(victim)
        is_gone = _is_replaced(path, damagedd_bytes) and engine.has_all(victim)
        owner = self._nodes.owner()
        owner.kill()
        owner.start()
        self._nodes.owner()
        is_reported = (
            self._nodes.count_logged("engine.copy_damaged", server=server, stream=SHARD)
            > reports_before
        )
        self.damaged.append(
            DamagedCopy(server, SHARD, path.name, is_reported=is_reported, is_gone=is_gone)
        )
        engine.replace_copy(victim)
        self._purge_ballast()
        return (
            f"{path.name} on {server}, {'told' if is_reported else 'gone' if is_gone else 'UNTOLD'}"
        )

    def _add_ballast(self) -> str:
        """Publish so much that the servers drop the steps that created their oldest events. Return
        the reason if an event was refused, otherwise ""."""
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


def _is_replaced(path: Path, damagedd_bytes: bytes) -> bool:
    """Return whether a file was rewritten or removed since the damage: a server writes blocks again
    at its start, and removes those whose messages were purged."""
    try:
        return path.read_bytes() != damagedd_bytes
    except FileNotFoundError:
        return True
