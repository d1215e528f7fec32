"""The nodes of a cluster, each a process of ``penstock serve --cluster`` with the same folder and
port over all its restarts."""

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
"""The journal takes several files of the engine, 8 MiB each, so that an older one can be
damaged."""
PROGRAM: Final = "tests.faults.cluster.node_machine"
"""Runs a node on a simulated machine."""
HALTED_S: Final = 20.0
"""The longest time until the next append of an owner; publishers work all the time."""
REPORTED_S: Final = 60.0
"""The longest time until a node reports a problem."""
OWNED_S: Final = 90.0
UNREADABLE: Final = f"stream {SHARD} is damaged"
"""Error of a node whose journal has no complete copy on any server."""
_ENDS_OWNING: Final = frozenset({"shard.lost", "shard.given_up", "shard.not_served"})


class Node:
    """A node: its current process, and the logs of earlier ones."""

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
        """``ports``: its native port and that of MQTT. If ``links`` are given, it reaches the
        engine over them under its name. ``program`` is the module to run; its first argument is the
        file of the clock."""
        self.number = number
        self.name = f"n{number}"
        self.address, self.mqtt_at = (f"127.0.0.1:{port}" for port in ports)
        self._folder = folder / self.name
        self._folder.mkdir(parents=True)
        self.machine = NodeMachine(self._folder)
        self._clock = self._folder / "clock"
        set_offset(self._clock, 0)
        self._program = ("-m", program, str(self._clock))
        self.client_link = f"{self.name} for clients"
        """Its name on the network of links towards clients."""
        servers = engine.ports
        if links is not None:
            servers = [
                links.open(self.name, server_named(server), behind)
                for server, behind in enumerate(servers)
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
            engine.url_of(servers),
            *amqp.OPTIONS,
        )
        self._settings = {
            **environment(),
            **settings,
            **engine.settings,
            "PENSTOCK_CLUSTER_LEASE_S": f"{lease_s:g}",
        }
        self.starts = 0
        self._ended: list[list[dict[str, Any]]] = []
        self.is_frozen = False
        self.process: ServerProcess | None = None

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start the node and wait until it serves or stands by. ``settings`` apply to this start
        only. Raises ``ServerDidNotStart`` if it does neither."""
        process = self._next_process(settings or {})
        try:
            self.process = process.start()
        except ServerDidNotStart:
            self._write_log(process)
            raise

    def begin(self) -> None:
        """Start the node without waiting."""
        self.process = self._next_process({}).begin()

    def _next_process(self, settings: Mapping[str, str]) -> ServerProcess:
        assert self.process is None, "the node is already running"
        self.starts += 1
        return ServerProcess(
            self._folder / "data",
            *self._arguments,
            environment={**self._settings, **settings},
            program=self._program,
        )

    @property
    def running(self) -> ServerProcess:
        assert self.process is not None, "the node is not running"
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
        """Freeze the node just before it sends a block to the engine."""
        self.machine.order_halt()
        self.is_frozen = True
        pause = threading.Event()
        for _ in range(int(HALTED_S / 0.02)):
            if _is_stopped(self.running.pid):
                return
            pause.wait(0.02)
        raise AssertionError(f"{HALTED_S:g} s after it was told to halt, {self.name} runs")

    def set_clock(self, offset_s: float) -> None:
        """Set its clock this many seconds ahead of the machine's."""
        set_offset(self._clock, int(offset_s * 1e9))

    def stop(self) -> int:
        """End the node with SIGTERM. Return the exit status, or -9 if it had to be killed."""
        try:
            status = self.running.terminate()
        except subprocess.TimeoutExpired:
            status = self.running.kill()
        self._end()
        return status

    def end_report(self) -> str:
        """Return a report if the node has ended by itself, otherwise ""."""
        if self.process is None or self.process.is_running:
            return ""
        status, log = self.process.wait(), self.process.log[-3_000:]
        self._end()
        return f"node {self.name} ended by itself, status {status}:\n{log}"

    @property
    def entries(self) -> list[list[dict[str, Any]]]:
        """Its log entries, by start."""
        current = [_entries(self.process)] if self.process is not None else []
        return [*self._ended, *current]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log entries of one event since the last start."""
        return [] if self.process is None else self.process.logged(event)

    def is_ready(self, *, s: float = REPORTED_S) -> bool:
        """Return whether the node serves or stands by within ``s`` seconds after ``begin``."""
        pause = threading.Event()
        for _ in range(int(s / 0.05)):
            if self.running.url or not self.running.is_running:
                break
            pause.wait(0.05)
        return bool(self.running.url)

    def has_logged_within(
        self, event: str, reason_part: str = "", *, s: float = REPORTED_S
    ) -> bool:
        """Return whether the node logs ``event`` since its last start, with ``reason_part``
        in the reason, within ``s`` seconds."""
        pause = threading.Event()
        for _ in range(int(s / 0.05)):
            if any(reason_part in str(entry.get("reason", "")) for entry in self.logged(event)):
                return True
            if not self.running.is_running:
                return False
            pause.wait(0.05)
        return False

    @property
    def epoch_served(self) -> int:
        """The epoch that it serves, as far as it knows; 0 if it does not serve."""
        return 0 if self.process is None else self.process.epoch_served

    def serves(self) -> bool:
        """Wait until the node serves the shard or has ended. Return whether it serves."""
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
        """End the node in any state."""
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
        self._write_log(process)

    def _write_log(self, process: ServerProcess) -> None:
        (self._folder / f"life-{self.starts}.log").write_text(process.log)


class Nodes:
    """All nodes of a cluster."""

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
        """See :class:`Node`. ``owned_s``: the longest wait until a node owns the shard and serves.
        ``blobs``: a folder that all nodes mount for segments and snapshots; None: the engine has
        them."""
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
            self._make(number, folder, own_ports)
            for number, own_ports in enumerate(zip(ports[:NODES], ports[NODES:], strict=True), 1)
        ]
        for node in self.all:
            self.mount(node)
        self.url = "penstock://" + ",".join(node.address for node in self.all)
        self.mqtt_at = ",".join(node.mqtt_at for node in self.all)

    def mount(self, node: Node) -> None:
        """Mount the folder of the realm's files, if it exists, on a node's machine."""
        if self.blobs is not None:
            node.machine.mount(self.blobs)

    def unmount(self, node: Node) -> None:
        """Mount an empty folder on a node's machine instead of the realm's files."""
        bare = self._folder / "bare"
        bare.mkdir(exist_ok=True)
        node.machine.mount(bare)

    def rival(self, node: Node) -> Node:
        """Return another, not started process with the name of a node, other ports and another
        folder. It is not in :attr:`all`."""
        self._rivals += 1
        rival = self._make(node.number, self._folder / f"rival-{self._rivals}", free_ports(2))
        self.mount(rival)
        return rival

    def start(self) -> None:
        """Start all nodes; none waits for another."""
        for node in self.all:
            node.start()

    def owner(self, *, after: Node | None = None) -> Node:
        """Wait for the node that serves the newest epoch and is not ``after``, and return it. (A
        frozen owner is excluded, because its log says that it serves.)"""
        pause = threading.Event()
        for _ in range(int(self._owned_s / 0.05)):
            newest = max(self.all, key=lambda node: node.epoch_served)
            claimed = max(self.newest_claim(node) for node in self.all)
            if newest.epoch_served == claimed > 0 and newest is not after:
                return newest
            if reason := self._unreadable_reason():
                raise AssertionError(f"no node can recover what is stored: {reason}")
            pause.wait(0.05)
        raise AssertionError(f"after {self._owned_s:g} s no node serves")

    def _unreadable_reason(self) -> str:
        """Return what two nodes report about a journal that is damaged on every server, because no
        later takeover can recover it; otherwise ""."""
        reasons = {
            node.name: str(entry["reason"])
            for node in self.all
            for entry in (node.entries[-1] if node.starts else ())
            if entry["event"] == "shard.not_served" and UNREADABLE in str(entry["reason"])
        }
        return next(iter(reasons.values())) if len(reasons) > 1 else ""

    def newest_claim(self, node: Node) -> int:
        """Return the newest epoch that a node has claimed since its first start."""
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

    def count_logged(self, event: str, **values: object) -> int:
        """Return how often nodes have logged an event with these values, over all their starts."""
        return sum(
            entry["event"] == event and entry.items() >= values.items()
            for starts in self.logs.values()
            for life in starts
            for entry in life
        )

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for node in self.all:
                stack.callback(node.close)


def _is_stopped(pid: int) -> bool:
    """Return whether a Linux process is stopped by a signal."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


_EVENTS: Final = ("shard.claimed", "realm.listening", "engine.copy_damaged", *sorted(_ENDS_OWNING))
"""The log events that the tests need."""


def _entries(process: ServerProcess) -> list[dict[str, Any]]:
    lines = process.log.splitlines()
    entries = [
        msgspec.json.decode(line) for line in lines if any(f'"{e}"' in line for e in _EVENTS)
    ]
    return [entry for entry in entries if entry["event"] in _EVENTS]
