"""The demonstration on a terminal: keys kill, cut and heal, and the screen says what happens."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_server.cli.program import app

pytestmark = [pytest.mark.process, pytest.mark.slow]

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|[\r\x0f]")
END_S = 180.0
READS = 3_000
"""Pieces of output within which what is waited for is shown: four screens come each second."""


class Terminal:
    """A program at a terminal, and what its screen shows."""

    def __init__(self, folder: Path) -> None:
        self._own, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "cluster", "demo"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={
                **os.environ,
                "TERM": "xterm",
                "COLUMNS": "300",
                "LINES": "40",
                "TMPDIR": str(folder),
                "PENSTOCK_CLUSTER_LEASE_S": "2",
            },
            start_new_session=True,
        )
        os.close(theirs)
        self.output = ""

    def press(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until something new is shown that matches."""
        shown = ""
        for _ in range(READS):
            shown += self._read()
            match_ = re.search(pattern, shown)
            if match_ is not None:
                return match_
        raise AssertionError(f"{pattern} is not shown: {self.output[-2_000:]}")

    def _read(self) -> str:
        ready, _, _ = select.select([self._own], [], [], END_S)
        assert ready, f"nothing more is shown: {self.output[-2_000:]}"
        try:
            read = os.read(self._own, 1 << 16)
        except OSError:  # Linux says so when the other side is closed
            read = b""
        assert read, f"it has ended: {self.output[-2_000:]}"
        text = CONTROL.sub("", read.decode(errors="replace"))
        self.output += text
        return text

    def end(self) -> int:
        """Read on to its end; gives its exit status."""
        try:
            while True:
                self._read()
        except AssertionError:
            return self._process.wait(END_S)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(END_S)
        os.close(self._own)


def test_keys_kill_and_cut_and_the_screen_shows_it_with_nothing_lost(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    try:
        terminal.until(r"owner n\d +epoch 1 +[1-9]")
        settings = terminal.until(r"penstock cluster status --settings (\S+\.toml)")[1]
        shown_status = CliRunner().invoke(app, ["cluster", "status", "--settings", settings])
        assert shown_status.exit_code == 0, shown_status.output
        assert re.search(r"^owner +n\d, epoch 1, lease ", shown_status.stdout, re.MULTILINE)

        terminal.press("k")
        terminal.until(r"kill node \d \(owner\): \d")
        terminal.until(r"epoch 2 +[1-9]\d* acknowledgements/s")
        terminal.press("oc")
        terminal.until(r"cut node \d \(owner\): \d")
        terminal.until(r"epoch 3 +[1-9]\d* acknowledgements/s")
        terminal.press("h")
        terminal.until(r"n\d +stands by")
        terminal.press("lc")
        terminal.until(r"cut engine \d \(leader\): \d")
        terminal.until(r"engine \d +cut off")
        terminal.until(r" [1-9]\d* acknowledgements/s +0\.\d s without one")
        terminal.press("q")

        assert terminal.end() == 0, terminal.output[-2_000:]
    finally:
        terminal.close()
    last = terminal.output.split()
    assert last[-4:] == ["lost", "0,", "twice", "0"]
    assert not list(tmp_path.iterdir())
