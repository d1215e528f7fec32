"""A server of the engine as a child of this process: it is started again when it dies, and gone
when this process is, however that has ended."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

from penstock_cluster.bootstrap.orphans import OrphanGuard
from penstock_core.loggers import logger
from penstock_server.runtime.writer.clock import SystemClock

AGAIN_S: Final = (0.5, 30.0)
"""The pause before it is started again: the first one, and the longest, which is twice as long each
time."""
STEADY_S: Final = 60.0
"""A server that has lived so long begins with the shortest pause again."""
END_S: Final = 30.0
"""How long it may take to end in order."""
_TAIL_LINES: Final = 3

_log = logger("penstock.cluster")


class EngineProcess:
    """Runs while the block does."""

    def __init__(self, program: Path, configuration: Path, log: Path) -> None:
        self._command = [str(program), "-c", str(configuration)]
        self._log = log
        self._guard = OrphanGuard()
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._process = self._begin()
        self._watcher = threading.Thread(target=self._watch, name="engine-server", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        """The process that was started last."""
        return self._process.pid

    def close(self) -> None:
        """End it in order, and by force where that takes too long."""
        with self._lock:
            self._stopping.set()
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._watcher.join()
        self._guard.close()

    def _begin(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C on a terminal is for the node, which ends it then
            )
        self._guard.keep([process.pid])
        _log.info("engine.started", pid=process.pid, log=str(self._log))
        return process

    def _watch(self) -> None:
        pause_s, pause_s_max = AGAIN_S
        while True:
            began_us = self._clock.steady_us()
            status = self._process.wait()
            if self._stopping.is_set():
                return
            if self._clock.steady_us() - began_us > STEADY_S * 1e6:
                pause_s = AGAIN_S[0]
            _log.error(
                "engine.ended",
                status=status,
                said=self._said(),
                log=str(self._log),
                again_s=pause_s,
            )
            if self._stopping.wait(pause_s):
                return
            pause_s = min(2 * pause_s, pause_s_max)
            with self._lock:
                if self._stopping.is_set():
                    return
                self._process = self._begin()

    def _said(self) -> str:
        """The last it has said."""
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
