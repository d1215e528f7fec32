"""The processes of a run: the server on one port over all its restarts, the network in front of it,
and clients that may be killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from penstock_testing.ports import free_port
from penstock_testing.process import ServerProcess, search_path
from tests.faults import amqp
from tests.faults.clocked import set_offset

ROOT = Path(__file__).resolve().parents[2]
END_S = 120.0
SETTINGS = {
    "PENSTOCK_LISTEN_IDLE_TIMEOUT_S": "15",
    "PENSTOCK_LISTEN_HELLO_TIMEOUT_S": "3",
    "PENSTOCK_STORAGE_SEGMENT_BYTES": "262144",
    "PENSTOCK_STORAGE_JOURNAL_BYTES": "2097152",
    "PENSTOCK_STORAGE_SEAL_INTERVAL_MS": "100",
    "PENSTOCK_STORAGE_SWEEP_INTERVAL_MS": "200",
}
"""Small limits, so that minutes have as much sealing, snapshots and trimming as days otherwise."""


def environment() -> dict[str, str]:
    """Return the environment of a process that imports this repository's tests and the package
    under test."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((search_path(), str(ROOT)))}


class Server:
    """The server process and its successors, with one data directory and one port."""

    def __init__(self, directory: Path, clock: Path | None = None) -> None:
        """``clock``: the file that sets its clock; without it the clock is the machine's."""
        self._directory = directory
        self._clock = clock
        self._program: tuple[str, ...] = ("-m", "penstock")
        if clock is not None:
            set_offset(clock, 0)
            self._program = ("-m", "tests.faults.clocked", str(clock))
        self.lives = 0
        self.mqtt_port = free_port()
        self.process = self._start("0")
        self.port = self.process.port
        self.url = self.process.url

    def _start(self, port: str) -> ServerProcess:
        self.lives += 1
        settings = {**environment(), **SETTINGS}
        process = ServerProcess(
            self._directory,
            "--port",
            port,
            "--mqtt-port",
            str(self.mqtt_port),
            *amqp.OPTIONS,
            environment=settings,
            program=self._program,
        )
        return process.start()

    def start(self) -> None:
        """Restart the server."""
        self.process.__exit__(None, None, None)
        self.process = self._start(str(self.port))

    def set_clock(self, offset_s: float) -> None:
        assert self._clock is not None, "the server was started without a clock file"
        set_offset(self._clock, int(offset_s * 1e9))

    def close(self) -> None:
        self.process.__exit__(None, None, None)


class Network:
    """The relay between all clients and the server."""

    def __init__(self, port: int, mqtt_port: int) -> None:
        self._process = _start_module(
            "tests.faults.relaying", str(port), str(mqtt_port), pipes=True
        )
        native, mqtt = map(int, self._line().split())
        self.url = f"penstock://127.0.0.1:{native}"
        self.mqtt_at = f"127.0.0.1:{mqtt}"

    def set_mode(self, word: str) -> None:
        """Set the mode of all connections: ``slow``, ``stall``, ``half``, ``cut`` or ``flow``. It
        is in effect on return."""
        assert self._process.stdin is not None, "the process has no input pipe"
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._line() == "done\n", "the relay did not confirm the mode"

    def _line(self) -> str:
        assert self._process.stdout is not None, "the process has no output pipe"
        return str(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Clients:
    """One process of publishers and consumers, over its restarts."""

    def __init__(
        self,
        url: str,
        folder: Path,
        roles: Sequence[str],
        program: Sequence[str] = ("tests.faults.clients",),
        mqtt_at: str = "",
    ) -> None:
        """``program``: the module to run, and its first arguments. ``mqtt_at``: host and port of
        each MQTT server, separated by commas."""
        self.roles = tuple(roles)
        self._arguments = (*program, url, mqtt_at, str(folder), *roles)
        self._log = folder / f"{roles[0]}.log"
        self.kills = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("w") as log:
            return _start_module(*self._arguments, log=log)

    def kill(self) -> None:
        """Kill the process and start the next one, which continues with the same files."""
        self.kills += 1
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = END_S) -> str:
        """Wait for the end of the process. Return a description of its failure, or ""."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.close()
            return f"{' '.join(self.roles)}: does not end\n{self._log.read_text()[-1_000:]}"
        if status == 0:
            return ""
        return f"{' '.join(self.roles)}: exit status {status}\n{self._log.read_text()[-1_500:]}"

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        if self.is_running:
            self._process.kill()
        self._process.wait()


def storm(url: str, count: int) -> int:
    """Open this many connections at once; return how many were accepted."""
    process = _start_module("tests.faults.storming", url, str(count), pipes=True)
    answer, _ = process.communicate(timeout=END_S)
    return int(answer)


def _start_module(
    module: str, *arguments: str, pipes: bool = False, log: IO[str] | None = None
) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE if pipes else subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=pipe,
        stdout=pipe,
        stderr=log,
        text=True,
        env=environment(),
        cwd=ROOT,
        preexec_fn=_block_signals,
    )


def _block_signals() -> None:
    """Block SIGTERM while a process starts; it is delivered once :func:`listen_to` unblocks it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))


def listen_to(end: Callable[[], object]) -> None:
    """Call ``end`` on SIGTERM, also if the signal arrived before this call."""
    signal.signal(signal.SIGTERM, lambda *_: end())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
