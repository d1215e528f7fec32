"""Runs the Python code and the commands of a page from top to bottom, as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import penstock
from tests.docs.left_out import reason_not_to_run
from tests.docs.pages import SERVER_URL, Block, Command, Line, blocks, name_of

Run = Callable[[Command], None]
Serve = Callable[[Command], str]
"""Runs ``penstock serve``. Returns the URL that clients use from then on; empty if the page's
present realm is the one it would start."""
OTHERS = frozenset(("curl", "openssl"))
"""Other programs that pages call and that every machine has; a shell runs them."""
TIMEOUT_S = 60
MQTT_ADDRESS = '"localhost", 1883'
"""The address on pages to which devices connect."""


class Reader:
    """Follows pages in one namespace. Closing it ends the sessions that the pages have opened."""

    def __init__(
        self,
        url: str,
        run: Run,
        names: Mapping[str, str] | None = None,
        serve: Serve | None = None,
        mqtt: Callable[[], str] | None = None,
    ) -> None:
        """``names`` maps names on the pages, such as that of a host, to the names to use here.
        ``mqtt`` makes the realm listen for MQTT, for pages that need it, and returns the URL."""
        self._mqtt = mqtt
        self._url = url
        self._run = run
        self._serve = serve
        self._names = dict(names or {})
        self.names: dict[str, Any] = {"__name__": "__page__"}

    def follow(self, page: Path, *, spark: bool = False) -> int:
        """Run the blocks of a page, those for Spark only with ``spark``; return how many were
        run."""
        wanted = [block for block in blocks(page) if spark or not block.is_spark]
        return sum(self._do(block) for block in wanted)

    def _do(self, block: Block) -> bool:
        if block.file:
            text = block.text.replace(SERVER_URL, self._url)
            Path(block.file).write_text(text, encoding="utf-8")
            return False
        if block.language == "python":
            self._execute(block)
            return True
        return any([self._shell(line) for line in block.lines()])

    def _shell(self, line: Line) -> bool:
        """Run a line if it ends by itself; return whether it was run."""
        text = self._meant(line.text)
        command = Command(line.page, line.line, text)
        if reason_not_to_run(command):
            return False
        if command.program == "penstock" and command.arguments[0] == "serve":
            url = self._serve(command) if self._serve is not None else ""
            self._url = url or self._url
            return bool(url)
        if command.program == "penstock" and command.is_plain:
            self._run(command)
            return True
        if command.program in OTHERS:
            _call(command)
            return True
        return False

    def names_here(self, names: Mapping[str, str]) -> None:
        """Add more names, when they are known."""
        self._names |= names

    def _meant(self, text: str) -> str:
        for name, here in self._names.items():
            text = text.replace(name, here)
        return text

    def _execute(self, block: Block) -> None:
        if MQTT_ADDRESS in block.text and self._mqtt is not None:
            host, _, port = self._mqtt().rpartition("//")[2].rpartition(":")
            self.names_here({MQTT_ADDRESS: f'"{host}", {port}'})
        text = self._meant(block.text.replace(SERVER_URL, self._url))
        # After empty lines, so that a traceback has the line number of the page.
        code = compile("\n" * (block.line - 1) + text, name_of(block.page), "exec")
        exec(code, self.names)

    def close(self) -> None:
        opened = [name for name in self.names.values() if isinstance(name, penstock.Session)]
        for session in opened:
            session.close()


def _call(line: Line) -> None:
    """Run a line that is no command of ours in a shell. A command without an end is stopped after a
    moment."""
    Path(".curlrc").write_text("max-time = 2\nsilent\nfail-with-body\n", encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", line.text],
        env={**os.environ, "CURL_HOME": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    is_view = "-N" in shlex.split(line.text)
    assert done.returncode in ((0, 28) if is_view else (0,)), (
        f"{line.place}: {line.text}\n{done.stdout}{done.stderr}"
    )


def environment(url: str) -> dict[str, str]:
    """Return the environment for commands; those that look for a realm on this machine find the one
    at ``url``."""
    port = re.findall(r":(\d+)", url)[-1]
    where = {"PENSTOCK_LISTEN_PORT": port, "PENSTOCK_HTTP_ENABLED": "false"}
    return {**os.environ, **where, "PENSTOCK_URL": url, "COLUMNS": "120"}
