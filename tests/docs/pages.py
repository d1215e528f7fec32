"""The pages users read, and the blocks of code on them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
HOWTO = sorted((ROOT / "docs" / "howto").glob("*.md"))
PAGES = [README, *GUIDE, *HOWTO]

SERVER_URL = "penstock://localhost:9000"
"""What the pages call the realm."""
SHELLS = frozenset(("", "console", "sh"))
"""Languages of blocks that hold commands, one a line."""

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OPERATORS = frozenset(("|", ">", ">>", "<", "&", "&&", ";"))


class Block(Struct, frozen=True):
    """A fenced block."""

    page: Path
    line: int
    """Of its first line of text, from 1."""
    language: str
    marks: frozenset[str]
    """Further words behind the language: ``spark``, or the name of the file it is."""
    text: str

    @property
    def is_spark(self) -> bool:
        return "spark" in self.marks

    @property
    def file(self) -> str:
        """The name of the file whose text it is; empty for what is run."""
        return next((mark for mark in self.marks if "." in mark), "")

    def commands(self) -> list[Command]:
        """Its lines that call ``penstock``."""
        if self.language not in SHELLS:
            return []
        lines = self.text.splitlines()
        return [
            Command(self.page, self.line + number, line)
            for number, line in enumerate(lines)
            if line.startswith("penstock ")
        ]


class Command(Struct, frozen=True):
    """A line that calls ``penstock``."""

    page: Path
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)[1:]

    @property
    def arguments(self) -> list[str]:
        """What the program gets: nothing from a pipe or redirection on."""
        return list(_until_operator(self.words))

    @property
    def is_plain(self) -> bool:
        """Whether no shell is needed to run it."""
        return self.arguments == self.words

    @property
    def place(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def _until_operator(words: list[str]) -> Iterator[str]:
    for word in words:
        if word in _OPERATORS:
            return
        yield word


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        language, *marks = fence[1].split() or [""]
        line = text.count("\n", 0, fence.start()) + 2
        found.append(Block(page, line, language, frozenset(marks), fence[2]))
    return found


def prose(page: Path) -> str:
    """The text of a page without its blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[Command]:
    return [command for block in blocks(page) for command in block.commands()]
