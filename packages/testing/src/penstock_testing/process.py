"""A server in a separate process, for tests that kill it.

::

    with ServerProcess(tmp_path / "data") as server:
        session = penstock.connect(server.url)
        server.kill()
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

START_TIMEOUT_S = 60.0
"""Seconds that a server may take until it listens. The value is large because test machines are
busy."""
END_TIMEOUT_S = 60.0
"""Seconds that a server may take to end."""
_READY = ("realm.listening", "realm.standing_by")
"""Log events that have the URL of the server."""
_OWNERSHIP_ENDS = ("shard.lost", "shard.given_up", "shard.not_served")
"""Log events after which a node does not serve its realm."""


class ServerDidNotStart(AssertionError):
    """The server ended before it listened; the text contains its exit status and log."""


class ServerProcess:
    """``python -m penstock serve`` on a free port. The process is ended at the end of the ``with``
    block."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "penstock"),
        command: Sequence[str] = ("serve",),
    ) -> None:
        """``arguments`` follow the default arguments and override them: ``"--port", "9001"``.
        ``program`` is the program that Python runs, with the command line of ``penstock``;
        ``command`` is its subcommand, such as ``cluster node``."""
        self.directory = Path(directory)
        self.url = ""
        """URL at which the server listens, as a single realm or as a node that serves or stands by;
        empty before it listens."""
        self._command = [
            sys.executable,
            *program,
            *command,
            "--data",
            str(directory),
            "--port",
            "0",
            "--no-http",
            "--log-format",
            "json",
            *arguments,
        ]
        self._environment = {**os.environ, "PYTHONPATH": search_path(), **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self.lines: list[str] = []
        """The log so far, in lines."""
        self._started_or_ended = threading.Event()
        """Set when the server listens or has ended."""
        self._reader: threading.Thread | None = None

    def begin(self) -> ServerProcess:
        """Start the process without waiting until it listens."""
        assert self._process is None, "a server process is started once"
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdout=self._output,
            text=True,
            env=self._environment,
        )
        self._reader = threading.Thread(target=self._read, name="server-log", daemon=True)
        self._reader.start()
        return self

    def start(self) -> ServerProcess:
        """Start the process, and wait until it listens. Raises :class:`ServerDidNotStart` if the
        process ends before it listens, or does not listen within ``START_TIMEOUT_S`` seconds."""
        self.begin()
        try:
            has_started = self._started_or_ended.wait(START_TIMEOUT_S)
        except BaseException:
            # For example after Ctrl-C: the caller has no server object with which to end the
            # process.
            self._reap()
            raise
        if not has_started or not self.url:
            self._reap()
            status = self._running.returncode
            raise ServerDidNotStart(f"exit status {status}, log:\n{self.log}")
        return self

    def _read(self) -> None:
        """Read the log until the process ends; runs on a separate thread."""
        assert self._process is not None, "the process is started"
        assert self._process.stderr is not None, "stderr is a pipe"
        for line in self._process.stderr:
            self.lines.append(line)
            if not self.url and any(f'"{event}"' in line for event in _READY):
                self.url = str(_entry(line).get("url", ""))
                self._started_or_ended.set()
        self._started_or_ended.set()

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def http_url(self) -> str:
        """URL of the HTTP port, if the server was started with ``--http`` and ``--http-port 0``."""
        return str(self.logged("http.listening")[0]["url"])

    @property
    def mqtt_url(self) -> str:
        """URL of the MQTT port, if the server was started with ``--mqtt-port 0``."""
        return str(self.logged("mqtt.listening")[0]["url"])

    @property
    def port(self) -> int:
        """The port of the server, for example to start a successor on it."""
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        """The log so far, one JSON object in each line."""
        return "".join(self.lines)

    @property
    def output(self) -> str:
        """The standard output so far. Only available within the block."""
        self._output.seek(0)
        return self._output.read()

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log entries with an event name such as ``realm.recovered``."""
        entries = [_entry(line) for line in self.lines]
        return [entry for entry in entries if entry.get("event") == event]

    @property
    def epoch_served(self) -> int:
        """The epoch in which the node believes that it serves its realm; 0 if it does not
        serve."""
        claimed = served = 0
        events = ("shard.claimed", "realm.listening", *_OWNERSHIP_ENDS)
        for line in list(self.lines):
            # Most lines are about other events, and decoding them would take too long.
            if not any(f'"{event}"' in line for event in events):
                continue
            entry = _entry(line)
            if entry.get("event") == "shard.claimed":
                claimed, served = int(entry["epoch"]), 0
            elif entry.get("event") == "realm.listening":
                served = claimed
            elif entry.get("event") in _OWNERSHIP_ENDS:
                served = 0
        return served

    @property
    def is_running(self) -> bool:
        return self._running.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._running.send_signal(number)

    def terminate(self) -> int:
        """Stop the process with SIGTERM, wait for its end, and return the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> int:
        """Kill the process with SIGKILL, wait for its end, and return the exit status."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Wait until the process has ended and its log is complete, and return the exit status."""
        status = self._running.wait(timeout_s)
        if self._reader is not None:
            self._reader.join(timeout_s)
        return status

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "call start(), or use the server as a context manager"
        return self._process

    def _reap(self) -> None:
        """End the process, and close the pipe and the file of its output."""
        process = self._running
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self.wait()
        assert process.stderr is not None, "stderr is a pipe"
        process.stderr.close()
        self._output.close()

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reap()


def _entry(line: str) -> dict[str, Any]:
    """Return a line of the log as an object; an empty one if the line is not a JSON object."""
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def search_path() -> str:
    """Return a ``PYTHONPATH`` that makes child processes run the packages of this process."""
    return os.pathsep.join(filter(None, sys.path))
