"""An engine server as a child of this process. It is restarted when it dies, and killed when this
process ends in any way."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

from penstock_cluster.bootstrap.orphans import OrphanGuard
from penstock_core.loggers import logger
from penstock_server.runtime.writer.clock import SystemClock

RESTART_PAUSE_S: Final = (0.5, 30.0)
"""First and longest pause before a restart; the pause doubles each time."""
STEADY_S: Final = 60.0
"""Uptime after which the shortest pause applies again."""
END_S: Final = 30.0
"""Seconds for an orderly shutdown."""
_TAIL_LINES: Final = 3

_log = logger("penstock.cluster")


class EngineProcess:
    """A running engine server, until the block ends."""

    def __init__(self, program: Path, configuration: Path, log: Path) -> None:
        self._command = [str(program), "-c", str(configuration)]
        self._log = log
        self._guard = OrphanGuard()
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, name="engine-server", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        """Id of the newest process."""
        return self._process.pid

    def close(self) -> None:
        """Terminate the server, and kill it if that takes too long."""
        # The lock is held, so that the watcher starts no server after this.
        with self._lock:
            self._stopping.set()
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        # The watcher ends once the process has ended.
        self._watcher.join()
        self._guard.close()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C on a terminal ends the node, which then ends the server
            )
        self._guard.set_pids([process.pid])
        _log.info("engine.started", pid=process.pid, log=str(self._log))
        return process

    def _watch(self) -> None:
        """Restart the server whenever it ends, until `close` is called."""
        pause_s, pause_s_max = RESTART_PAUSE_S
        while True:
            began_us = self._clock.steady_us()
            status = self._process.wait()
            if self._stopping.is_set():
                return
            if self._clock.steady_us() - began_us > STEADY_S * 1e6:
                pause_s = RESTART_PAUSE_S[0]
            _log.error(
                "engine.ended",
                status=status,
                said=self._last_lines(),
                log=str(self._log),
                again_s=pause_s,
            )
            if self._stopping.wait(pause_s):
                return
            pause_s = min(2 * pause_s, pause_s_max)
            with self._lock:
                if self._stopping.is_set():
                    return
                self._process = self._start()

    def _last_lines(self) -> str:
        """Return the last lines of the server's log, for the log of the node."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-_TAIL_LINES:])

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
