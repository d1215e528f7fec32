"""Python files as syntax trees, each parsed once."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from penstock_core.garbage import age_all, uncollected
from scripts.prose import BENCHMARKS, TEST_PROGRAMS
from scripts.weight.source import Source, sources_below, workspace_sources

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = tuple(
    sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("packages/*/src"))
)
TEST_FOLDERS = (
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("packages/*/tests")),
    "tests",
)
"""Folders with tests: those of each package, and those of several together."""


def files_below(*folders: str) -> Iterator[Path]:
    """Every file in these folders of the repository."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def files_of_tests() -> list[Path]:
    """Every Python file of the tests."""
    return [path for folder in TEST_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return tree_of(path.read_text())


@cache
def tree_of(source: str) -> ast.Module:
    """The syntax tree of a text.

    CPython 3.11 counts the depth of trees for all threads together: when another one runs in the
    middle of it, or a collection of garbage does, the count is wrong and it gives up.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(10):
            try:
                return ast.parse(source)
            except SystemError:
                continue
        return ast.parse(source)
    finally:
        if was_collecting:
            gc.enable()


@cache
def sources() -> tuple[Source, ...]:
    """Every module of the packages."""
    return _read(lambda: workspace_sources(ROOT, tree_of))


@cache
def bench_sources() -> tuple[Source, ...]:
    """Every module of the benchmarks."""
    return _read(lambda: sources_below(ROOT / BENCHMARKS, tree_of))


@cache
def program_sources() -> tuple[Source, ...]:
    """Every module of the test programs: simulation, faults and fuzzing."""
    folders = [ROOT / folder for folder in TEST_PROGRAMS]
    return _read(
        lambda: tuple(source for folder in folders for source in sources_below(folder, tree_of))
    )


def _read(read: Callable[[], tuple[Source, ...]]) -> tuple[Source, ...]:
    """Return what ``read`` returns. The trees are kept until the process ends, so searches for
    unreachable objects among them free nothing."""
    with uncollected():
        value = read()
    age_all()
    return value
