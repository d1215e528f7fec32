"""Reads the pages for users, and the code blocks on them."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
HOWTO = sorted((ROOT / "docs" / "howto").glob("*.md"))
COMING_FROM = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
PAGES = [README, *GUIDE, *HOWTO, *COMING_FROM]
OTHER_PAGES = sorted(
    {
        *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "adr").glob("*.md"),
        *(ROOT / "docs" / "reference").glob("README.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "tests").rglob("README.md"),
        *ROOT.glob("packages/*/README.md"),
        ROOT / "changelog.d" / "README.md",
    }
)
"""Pages written by hand that are not part of the users' guide."""

SERVER_URL = "penstock://localhost:9000"
"""The URL of the realm on the pages."""
SHELLS = frozenset(("", "console", "sh"))
"""Languages of blocks with commands, one in each line."""

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SUBSTITUTION = re.compile(r"\$\([^()]*\)")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_OPERATORS = frozenset(("|", ">", ">>", "<", "&", "&&", ";"))


class Block(Struct, frozen=True):
    """A fenced code block."""

    page: Path
    line: int
    """Line number of its first line of text, from 1."""
    language: str
    marks: frozenset[str]
    """Further words after the language: ``spark``, or the name of the file whose text the block
    is."""
    text: str

    @property
    def is_spark(self) -> bool:
        return "spark" in self.marks

    @property
    def file(self) -> str:
        """The name of the file whose text this block is; empty for code to run."""
        return next((mark for mark in self.marks if "." in mark), "")

    def commands(self) -> list[Command]:
        """The lines that call ``penstock``."""
        return [
            Command(line.page, line.line, line.text)
            for line in self.lines()
            if line.program == "penstock"
        ]

    def lines(self) -> list[Line]:
        """The lines, joined over backslashes, if the block is for a shell."""
        if self.language not in SHELLS or self.file:
            return []
        return list(_shell_lines(self))


class Line(Struct, frozen=True):
    """A line for a shell, including the lines that continue it after a backslash."""

    page: Path
    line: int
    text: str

    @property
    def parts(self) -> list[str]:
        return shlex.split(_SUBSTITUTION.sub("VALUE", self.text), comments=True)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that are set for this line alone."""
        assignments = itertools.takewhile(_ASSIGNMENT.match, self.parts)
        return dict(part.split("=", 1) for part in assignments)

    @property
    def program(self) -> str:
        """The program that the line calls."""
        return next((part for part in self.parts if not _ASSIGNMENT.match(part)), "")

    @property
    def place(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


class Command(Line, frozen=True):
    """A line that calls ``penstock``."""

    @property
    def words(self) -> list[str]:
        return self.parts[len(self.variables) + 1 :]

    @property
    def arguments(self) -> list[str]:
        """The arguments of the program: everything before a pipe or redirection."""
        return list(_until_operator(self.words))

    @property
    def is_plain(self) -> bool:
        """Whether the line can run without a shell."""
        return self.arguments == self.words


def _shell_lines(block: Block) -> Iterator[Line]:
    begun, text = 0, ""
    for number, line in enumerate(block.text.splitlines(), block.line):
        begun = begun if text else number
        text += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        if text.strip() and not text.lstrip().startswith("#"):
            yield Line(block.page, begun, text)
        text = ""


def _until_operator(words: list[str]) -> Iterator[str]:
    for word in words:
        if word in _OPERATORS:
            return
        yield word


def name_of(page: Path) -> str:
    """Return the path of a page in the repository; for a page elsewhere, the name of its file."""
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks(page: Path) -> list[Block]:
    """Return all fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    page_blocks = []
    for fence in _FENCE.finditer(text):
        language, *marks = fence[1].split() or [""]
        line = text.count("\n", 0, fence.start()) + 2
        page_blocks.append(Block(page, line, language, marks=frozenset(marks), text=fence[2]))
    return page_blocks


def prose(page: Path) -> str:
    """Return the text of a page without its blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[Command]:
    return [command for block in blocks(page) for command in block.commands()]
