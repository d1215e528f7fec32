"""A reader who follows a page from top to bottom: runs its Python and its commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import penstock
from tests.docs.pages import SERVER_URL, Block, Command, blocks, name_of

Run = Callable[[Command], None]


class Reader:
    """Follows pages in one namespace; close it to end the sessions the pages have opened."""

    def __init__(self, url: str, run: Run) -> None:
        self._url = url
        self._run = run
        self.names: dict[str, Any] = {"__name__": "__page__"}

    def follow(self, page: Path, *, spark: bool = False) -> int:
        """Run what is on a page, Spark's blocks only when ``spark``; gives how many blocks ran."""
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
        done = [self._run(command) for command in _here(block.commands())]
        return bool(done)

    def _execute(self, block: Block) -> None:
        text = block.text.replace(SERVER_URL, self._url)
        # Empty lines before it, so that a traceback names the line of the page.
        code = compile("\n" * (block.line - 1) + text, name_of(block.page), "exec")
        exec(code, self.names)

    def close(self) -> None:
        opened = [name for name in self.names.values() if isinstance(name, penstock.Session)]
        for session in opened:
            session.close()


def _here(commands: Iterable[Command]) -> Iterable[Command]:
    """Those that end by themselves, need no shell, and talk to the realm of the page."""
    return (command for command in commands if command.is_plain and command.arguments[0] != "serve")


def environment(url: str) -> dict[str, str]:
    """What commands are run with; those that look for a realm on this machine find that of the
    page."""
    where = {"PENSTOCK_LISTEN_PORT": url.rpartition(":")[2], "PENSTOCK_HTTP_ENABLED": "false"}
    return {**os.environ, **where, "PENSTOCK_URL": url, "COLUMNS": "120"}
