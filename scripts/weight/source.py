"""Python files with their syntax trees, and the imports among them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_WORD: Final = re.compile(r"\w+")


class Source(NamedTuple):
    """A Python file."""

    path: Path
    module: str
    """Its name as it is imported; a package has the name of its folder."""
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def sources_below(
    folder: Path, parse: Callable[[str], ast.Module] = ast.parse
) -> tuple[Source, ...]:
    """Every Python file below a folder from which modules are imported."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Source(path, name, text, parse(text)))
    return tuple(found)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement, and what holds statements; ``ast.walk`` visits ten times as many nodes."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            below = getattr(node, name, ())
            if isinstance(below, list):  # a lambda has a body, too
                left += below


def documentation(tree: ast.AST) -> Iterator[ast.Constant]:
    """Every string that stands alone as a statement: docstrings, also those of attributes."""
    for node in statements(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value


def mentions(source: Source, word: str) -> bool:
    """Whether the code has this word, as a name or in a string; comments and docstrings do not
    count."""
    return word in source.text and word in _words(source.tree)


def _words(tree: ast.Module) -> set[str]:
    skipped = {id(node) for node in documentation(tree)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) not in skipped:
            for _, value in ast.iter_fields(node):
                for text in value if isinstance(value, list) else (value,):
                    if isinstance(text, str):
                        found.update(_WORD.findall(text))
    return found


def importers(sources: Sequence[Source]) -> Mapping[str, set[str]]:
    """Which of the modules import each of them, in functions and for type checkers, too."""
    known = {source.module for source in sources}
    found: dict[str, set[str]] = {name: set() for name in known}
    for source in sources:
        for name in _imported(source.tree, known):
            if name != source.module:
                found[name].add(source.module)
    return found


def _imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module
