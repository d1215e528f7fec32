"""The nodes of a cluster, each a process of ``penstock serve --cluster`` with a folder and a port
of its own through all its lives."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock_testing.ports import free_ports
from penstock_testing.process import ServerDidNotStart, ServerProcess
from penstock_tools.demo.links import DemoLinks
from tests.faults import amqp
from tests.faults.clocked import set_offset
from tests.faults.cluster.engine import SHARD
from tests.faults.cluster.engines import FaultyEngine, server_named
from tests.faults.cluster.node_machine import NodeMachine
from tests.faults.processes import SETTINGS, environment

NODES: Final = 3
SETTINGS_OF_NODES: Final = {
    **SETTINGS,
    "PENSTOCK_STORAGE_JOURNAL_BYTES": str(24 << 20),
}
"""The journal takes some files of the engine, 8 MiB each, so that an older one can be damaged."""
PROGRAM: Final = "tests.faults.cluster.node_machine"
"""Runs a node on a machine that is played."""
HALTED_S: Final = 20.0
"""How long an owner may take until its next append; publishers are at work all the time."""
SAID_S: Final = 60.0
"""How long a node may take until it says what is wrong with it."""
OWNED_S: Final = 90.0
UNREADABLE: Final = f"stream {SHARD} is damaged"
"""What a node says of a journal of which no server has a whole copy."""
_ENDS_OWNING: Final = frozenset({"shard.lost", "shard.given_up", "shard.not_served"})


class Node:
    """One node: the process that is it now, and what those before have logged."""

    def __init__(
        self,
        number: int,
        folder: Path,
        ports: Sequence[int],
        engine: FaultyEngine,
        lease_s: float,
        *,
        links: DemoLinks | None = None,
        program: str = PROGRAM,
        settings: Mapping[str, str] = SETTINGS_OF_NODES,
    ) -> None:
        """``ports``: its native one and that of MQTT. It finds the engine over ``links``, where
        there are any, under its name. ``program`` is the module that is run, which is given the
        file of its clock first."""
        self.number = number
        self.name = f"n{number}"
        self.address, self.mqtt_at = (f"127.0.0.1:{port}" for port in ports)
        self._folder = folder / self.name
        self._folder.mkdir(parents=True)
        self.machine = NodeMachine(self._folder)
        self._clock = self._folder / "clock"
        set_offset(self._clock, 0)
        self._program = ("-m", program, str(self._clock))
        self.for_clients = f"{self.name} for clients"
        """What it is called on the network of links, where clients look for it."""
        servers = engine.ports
        if links is not None:
            servers = [
                links.open(self.name, server_named(at), behind) for at, behind in enumerate(servers)
            ]
        native, mqtt = map(str, ports)
        self._arguments = (
            "--port",
            native,
            "--mqtt-port",
            mqtt,
            "--node",
            self.name,
            "--cluster",
            engine.named(servers),
            *amqp.OPTIONS,
        )
        self._settings = {
            **environment(),
            **settings,
            **engine.settings,
            "PENSTOCK_CLUSTER_LEASE_S": f"{lease_s:g}",
        }
        self.lives = 0
        self._ended: list[list[dict[str, Any]]] = []
        self.is_frozen = False
        self.process: ServerProcess | None = None

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start the next life and wait until the node serves or stands by. ``settings`` are for
        this life. Raises ``ServerDidNotStart`` when it does neither."""
        process = self._next_life(settings or {})
        try:
            self.process = process.start()
        except ServerDidNotStart:
            self._write_down(process)
            raise

    def begin(self) -> None:
        """Start the next life, and wait for nothing."""
        self.process = self._next_life({}).begin()

    def _next_life(self, settings: Mapping[str, str]) -> ServerProcess:
        assert self.process is None, "the life before has ended"
        self.lives += 1
        return ServerProcess(
            self._folder / "data",
            *self._arguments,
            environment={**self._settings, **settings},
            program=self._program,
        )

    @property
    def running(self) -> ServerProcess:
        assert self.process is not None, "it was started"
        return self.process

    def kill(self) -> None:
        self.running.kill()
        self._end()

    def freeze(self) -> None:
        self.running.signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        self.running.signal(signal.SIGCONT)
        self.is_frozen = False

    def halt(self) -> None:
        """Freeze it with a block in its hands, just before it sends the block to the engine."""
        self.machine.order_halt()
        self.is_frozen = True
        pause = threading.Event()
        for _ in range(int(HALTED_S / 0.02)):
            if _is_stopped(self.running.pid):
                return
            pause.wait(0.02)
        raise AssertionError(f"{HALTED_S:g} s after it was told to halt, {self.name} runs")

    def set_clock(self, offset_s: float) -> None:
        """Have its clock show so many seconds more than the machine's."""
        set_offset(self._clock, int(offset_s * 1e9))

    def stop(self) -> int:
        """Ask it to end; gives the exit status, or -9 where it had to be killed."""
        try:
            status = self.running.terminate()
        except subprocess.TimeoutExpired:
            status = self.running.kill()
        self._end()
        return status

    def look(self) -> str:
        """What it said last, if it has ended by itself."""
        if self.process is None or self.process.is_running:
            return ""
        status, log = self.process.wait(), self.process.log[-3_000:]
        self._end()
        return f"node {self.name} ended by itself, status {status}:\n{log}"

    @property
    def entries(self) -> list[list[dict[str, Any]]]:
        """What it has logged, life by life."""
        now = [_entries(self.process)] if self.process is not None else []
        return [*self._ended, *now]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Entries of one event in the log of this life."""
        return [] if self.process is None else self.process.logged(event)

    def is_ready(self, *, s: float = SAID_S) -> bool:
        """Whether a life that was begun serves or stands by within ``s`` seconds."""
        pause = threading.Event()
        for _ in range(int(s / 0.05)):
            if self.running.url or not self.running.is_running:
                break
            pause.wait(0.05)
        return bool(self.running.url)

    def waits_for(self, event: str, naming: str = "", *, s: float = SAID_S) -> bool:
        """Whether this life logs ``event`` with ``naming`` in its reason, within ``s`` seconds."""
        pause = threading.Event()
        for _ in range(int(s / 0.05)):
            if any(naming in str(entry.get("reason", "")) for entry in self.logged(event)):
                return True
            if not self.running.is_running:
                return False
            pause.wait(0.05)
        return False

    @property
    def epoch_served(self) -> int:
        """The epoch it serves the shard in, as far as it knows; 0: it does not."""
        return 0 if self.process is None else self.process.epoch_served

    def serves(self) -> bool:
        """Whether it serves the shard, as soon as it does or has ended."""
        pause = threading.Event()
        for _ in range(int(OWNED_S / 0.05)):
            if self.epoch_served:
                return True
            if not self.running.is_running:
                self.running.wait()
                return False
            pause.wait(0.05)
        return False

    def close(self) -> None:
        """However it is."""
        if self.process is None:
            return
        if self.is_frozen and self.process.is_running:
            self.thaw()
        if self.process.is_running:
            self.process.kill()
        self._end()

    def _end(self) -> None:
        process, self.process = self.running, None
        self.is_frozen = False
        process.__exit__(None, None, None)
        self._ended.append(_entries(process))
        self._write_down(process)

    def _write_down(self, process: ServerProcess) -> None:
        (self._folder / f"life-{self.lives}.log").write_text(process.log)


class Nodes:
    """All of them, and who is the owner."""

    def __init__(
        self,
        folder: Path,
        engine: FaultyEngine,
        lease_s: float,
        *,
        links: DemoLinks | None = None,
        program: str = PROGRAM,
        settings: Mapping[str, str] = SETTINGS_OF_NODES,
        owned_s: float = OWNED_S,
        blobs: Path | None = None,
    ) -> None:
        """See :class:`Node`. ``owned_s`` is how long they may take until one of them is the owner
        and serves. ``blobs``: a folder that all have mounted for segments and snapshots; None: they
        are on the engine."""
        self.lease_s = lease_s
        self._owned_s = owned_s
        self.blobs = blobs
        self._folder = folder
        self._rivals = 0
        if blobs is not None:
            settings = {**settings, "PENSTOCK_CLUSTER_BLOBS": blobs.as_uri()}
        self._make = partial(
            Node,
            engine=engine,
            lease_s=lease_s,
            links=links,
            program=program,
            settings=settings,
        )
        ports = free_ports(2 * NODES)
        self.all = [
            self._make(number, folder, own)
            for number, own in enumerate(zip(ports[:NODES], ports[NODES:], strict=True), 1)
        ]
        for node in self.all:
            self.mount(node)
        self.url = "penstock://" + ",".join(node.address for node in self.all)
        self.mqtt_at = ",".join(node.mqtt_at for node in self.all)

    def mount(self, node: Node) -> None:
        """Have a node find the files of the realm, if they are in a folder."""
        if self.blobs is not None:
            node.machine.mount(self.blobs)

    def unmount(self, node: Node) -> None:
        """Have a node find an empty folder where the files of the realm should be."""
        bare = self._folder / "bare"
        bare.mkdir(exist_ok=True)
        node.machine.mount(bare)

    def rival(self, node: Node) -> Node:
        """Another process with the name of a node: other ports, another directory. It is not
        started, and none of :attr:`all`."""
        self._rivals += 1
        rival = self._make(node.number, self._folder / f"rival-{self._rivals}", free_ports(2))
        self.mount(rival)
        return rival

    def start(self) -> None:
        """All at once: the first one waits for nobody."""
        for node in self.all:
            node.start()

    def owner(self, *, after: Node | None = None) -> Node:
        """The node that serves, as soon as there is one that runs and is not ``after``, whose own
        log says that it serves as long as it is frozen."""
        pause = threading.Event()
        for _ in range(int(self._owned_s / 0.05)):
            newest = max(self.all, key=lambda node: node.epoch_served)
            claimed = max(self.newest_claim(node) for node in self.all)
            if newest.epoch_served == claimed > 0 and newest is not after:
                return newest
            if said := self._said_unreadable():
                raise AssertionError(f"no node can recover what is stored: {said}")
            pause.wait(0.05)
        raise AssertionError(f"after {self._owned_s:g} s no node serves")

    def _said_unreadable(self) -> str:
        """What two nodes say of a journal that is damaged at every server: no later takeover can
        recover it. Empty if they do not."""
        reasons = {
            node.name: str(entry["reason"])
            for node in self.all
            for entry in (node.entries[-1] if node.lives else ())
            if entry["event"] == "shard.not_served" and UNREADABLE in str(entry["reason"])
        }
        return next(iter(reasons.values())) if len(reasons) > 1 else ""

    def newest_claim(self, node: Node) -> int:
        """The newest epoch a node has claimed in all its lives."""
        epochs = [
            int(entry["epoch"])
            for life in node.entries
            for entry in life
            if entry["event"] == "shard.claimed"
        ]
        return max(epochs, default=0)

    @property
    def logs(self) -> Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]:
        return {node.name: node.entries for node in self.all}

    def told(self, event: str, **values: object) -> int:
        """How often nodes have logged this, in all their lives."""
        return sum(
            entry["event"] == event and entry.items() >= values.items()
            for lives in self.logs.values()
            for life in lives
            for entry in life
        )

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for node in self.all:
                stack.callback(node.close)


def _is_stopped(pid: int) -> bool:
    """Whether a process of Linux is stopped by a signal."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


_EVENTS: Final = ("shard.claimed", "realm.listening", "engine.copy_damaged", *sorted(_ENDS_OWNING))
"""What matters here of a log."""


def _entries(process: ServerProcess) -> list[dict[str, Any]]:
    lines = process.log.splitlines()
    found = [msgspec.json.decode(line) for line in lines if any(f'"{e}"' in line for e in _EVENTS)]
    return [entry for entry in found if entry["event"] in _EVENTS]
