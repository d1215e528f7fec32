"""Modules, and names in them, that texts import: a program in a string, a page, a comment.

None of them moves or gets another name without the texts.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(ROOT.glob("packages/*/src"))
IMPORTED = re.compile(r"\b(?:from|import)\s+(penstock(?:_[a-z]+)?(?:\.[a-z_][a-z0-9_]*)+)")
"""An import, wherever it stands: linters see only those of the file itself."""
NAMES = re.compile(
    r"^[ \t>]*from\s+(penstock(?:_[a-z]+)?(?:\.[a-z_][a-z0-9_]*)*)\s+import\s+"
    r"(?:\(([^)]*)\)|([^\n(]*))",
    re.MULTILINE,
)
"""The names that an import takes from a module: in brackets, or in the rest of
    the line."""
INVENTED = {"tests/tidy/test_weight.py"}
"""Files with trees of their own making."""


def _is_there(module: str) -> bool:
    """Whether it is a module or package; the last word may be a name in one."""
    places = [source.joinpath(*module.split(".")) for source in SOURCES]
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)


def _texts() -> Iterator[tuple[str, str]]:
    """The files with Python in them, as names and texts."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in listed:
        if name not in INVENTED:
            yield name, (ROOT / name).read_text(encoding="utf-8")


def _place_of(module: str) -> Path:
    """The folder of a package, or the path of a module without its suffix."""
    places = [source.joinpath(*module.split(".")) for source in SOURCES]
    return next(place for place in places if place.is_dir() or place.with_suffix(".py").is_file())


@cache
def _names_in(module: str) -> frozenset[str]:
    """Return the names that can be imported from a module: all that it binds, those that it names
    in a string because it loads them on first use, and the modules of a package."""
    place = _place_of(module)
    inside = {path.stem for path in place.glob("*")} if place.is_dir() else set()
    alone = place.with_suffix(".py")  # may stand beside a folder of files that are no modules
    file = alone if alone.is_file() else place / "__init__.py"
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                inside.add(node.name)
            case ast.alias():
                inside.add(node.asname or node.name)
            case ast.Name(ctx=ast.Store()):
                inside.add(node.id)
            case ast.Constant(value=str() as text):
                inside.add(text)
            case _:
                pass
    return frozenset(inside)


def _imported(text: str) -> Iterator[tuple[str, str]]:
    """Each name that the text imports, with its module."""
    for module, in_brackets, in_line in NAMES.findall(text):
        imported_names = re.sub(r"#[^\n]*", "", in_brackets or in_line)
        for imported_name in imported_names.split(","):
            name = re.match(r"\s*([A-Za-z_]\w*)", imported_name)
            if name:
                yield module, name[1]


def test_every_module_that_is_imported_in_a_text_is_there() -> None:
    named = {(name, module) for name, text in _texts() for module in IMPORTED.findall(text)}

    assert len(named) > 1000, "the pattern finds none any more"
    assert sorted(entry for entry in named if not _is_there(entry[1])) == []


def test_every_name_that_is_imported_in_a_text_is_in_its_module() -> None:
    named = {(name, *imported) for name, text in _texts() for imported in _imported(text)}

    assert len(named) > 5000, "the pattern finds none any more"
    assert [entry for entry in sorted(named) if entry[2] not in _names_in(entry[1])] == []
