"""Every task has an owner that hears of its failure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.parsing import SOURCE_FOLDERS, parsed, tree_of

ROOT = Path(__file__).resolve().parents[2]

STARTS_TASKS = "packages/core/src/penstock_core/tasks.py"
"""The one place that starts a task which no TaskGroup has."""


def orphans(tree: ast.Module) -> Iterator[int]:
    """Lines that start a task by something that is no TaskGroup."""
    groups = {name for node in ast.walk(tree) for name in _groups(node)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "create_task"
            and ast.unparse(node.func.value) not in groups
        ):
            yield node.lineno


def _groups(node: ast.AST) -> Iterator[str]:
    """Names that a statement or a parameter binds to a TaskGroup."""
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _named(node.optional_vars, node.context_expr)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _named(target, node.value)
    elif isinstance(node, ast.AnnAssign):
        yield from _named(node.target, node.annotation)
    elif isinstance(node, ast.arg) and node.annotation is not None:
        yield from _named(ast.Name(node.arg), node.annotation)


def _named(target: ast.expr, kind: ast.expr) -> Iterator[str]:
    if re.search(r"\bTaskGroup\b", ast.unparse(kind)):
        yield ast.unparse(target)


def test_no_task_is_an_orphan() -> None:
    """A failure of a task that no one awaits would be reported nowhere."""
    places = [
        f"{path.relative_to(ROOT).as_posix()}:{line}"
        for path in started_in(*SOURCE_FOLDERS, "bench", "examples", "scripts")
        for line in orphans(parsed(path))
    ]

    assert places == [], f"start it in a TaskGroup, or with start_task of {STARTS_TASKS}"


def started_in(*folders: str) -> list[Path]:
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "create_task" in path.read_text(encoding="utf-8")
        and path.relative_to(ROOT).as_posix() != STARTS_TASKS
    ]


def test_each_way_to_start_an_orphan_would_be_found() -> None:
    text = """
async def work(given: asyncio.TaskGroup, loop):
    given.create_task(life())
    async with asyncio.TaskGroup() as group:
        group.create_task(life())
    loop.create_task(life())
    asyncio.get_running_loop().create_task(life())
    self.loop.create_task(life())
"""

    assert sorted(orphans(tree_of(text))) == [6, 7, 8]
