"""Companion processes of the main process: their start, their reports, and their end. This module
has the code of both sides.

A companion reports its progress as one JSON object per line. The main process writes ``finish`` to
its standard input when no more work will come. When that input ends, the main process has ended or
requests the companion to end, so neither a crash nor Ctrl-C leaves processes behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

PROJECT = Path(__file__).resolve().parents[2]
_FINISH = "finish"
_STOP_TIMEOUT_S = 15.0
"""Seconds after which a companion that does not end is killed."""


class PartFailed(Exception):
    """A part of the run has ended with an error."""


class Companion:
    """A companion process, for the main process."""

    def __init__(self, name: str, module: str, arguments: list[str], log: Path) -> None:
        """``log`` is the file for all output of the process except its reports. It is appended to
        the output of earlier processes."""
        self.name = name
        self.reported: dict[str, Any] = {}
        """The newest value of each field that it has reported."""
        self._log = log
        self._command = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self, on_report: Callable[[dict[str, Any]], None]) -> None:
        """Start the process; ``on_report`` is called with each report, on a separate thread."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a") as log:
            log.write(f"--- {self.name} starts, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n")
            log.flush()
            process = subprocess.Popen(
                self._command,
                cwd=PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C must reach only the main process, which then ends the others.
                start_new_session=True,
            )
        assert process.stdout is not None, "stdout is a pipe"
        self._process = process
        self._reader = threading.Thread(
            target=self._receive_reports,
            args=(process.stdout, on_report),
            name=f"reports-{self.name}",
            daemon=True,
        )
        self._reader.start()

    def _receive_reports(self, lines: IO[str], on_report: Callable[[dict[str, Any]], None]) -> None:
        """Receive reports until the process ends."""
        with lines:
            for line in lines:
                report = json.loads(line)
                self.reported.update(report)
                on_report(report)

    def finish(self) -> None:
        """Announce to the process that no more work will come, so that it ends when it has done the
        remaining work."""
        self._send(_FINISH)

    @property
    def is_ready(self) -> bool:
        """Whether the process is ready to begin. Raises ``PartFailed`` if it has failed."""
        return "ready" in self.reported or self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended without an error. Raises ``PartFailed`` if it failed."""
        process, reader = self._process, self._reader
        if process is None or reader is None or process.poll() is None:
            return False
        if process.returncode != 0:
            reader.join()
            why = self.reported.get("failed", f"it was ended by status {process.returncode}")
            raise PartFailed(f"{self.name}: {why} (more in {self._log})")
        return not reader.is_alive()  # its last report has been received, too

    def stop(self) -> None:
        """End the process now, even if its work is not done."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None, "stdin is a pipe"
        with contextlib.suppress(BrokenPipeError):  # the process has ended already
            process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _send(self, word: str) -> None:
        """Write a line to the standard input of the process; do nothing if it has ended."""
        process = self._process
        assert process is not None, "the process was started"
        assert process.stdin is not None, "stdin is a pipe"
        with contextlib.suppress(BrokenPipeError):  # `has_ended` raises the reason
            process.stdin.write(word + "\n")
            process.stdin.flush()


class Instructions:
    """The instructions of the main process, for a companion."""

    def __init__(self) -> None:
        self._finish = threading.Event()
        threading.Thread(target=self._listen, name="instructions", daemon=True).start()

    def _listen(self) -> None:
        """Read instructions until the main process closes the input; then end the companion and all
        processes that it has started."""
        while data := os.read(sys.stdin.fileno(), 1_024):
            if _FINISH.encode() in data:
                self._finish.set()
        # The group includes all processes that the companion has started, such as Spark's JVM.
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    @property
    def finish(self) -> bool:
        """Whether no more work will come."""
        return self._finish.is_set()


def serve(work: Callable[[Instructions], None]) -> None:
    """Run the work of a companion, and report the error if it fails."""
    try:
        work(Instructions())
    except Exception as error:
        report(failed=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
        raise


def report(**values: Any) -> None:
    """Report progress to the main process."""
    print(json.dumps(values), flush=True)
