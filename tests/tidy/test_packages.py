"""Modules import along the direction in which the packages of `scripts/packages.toml` depend on
each other: a part that imports against it could not be moved into a package of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.packages import package_of, packages
from scripts.weight.source import importers, statements
from tests.tidy.parsing import sources

KNOWN = Path(__file__).with_name("package_imports.txt")
"""Imports that still point the wrong way, one a line. The list only gets shorter."""


def may_import(importer: str, module: str) -> bool:
    """Whether a module may import another one, by their packages."""
    own, imported = package_of(importer), package_of(module)
    entry = packages()[own]
    if imported == own or imported in entry.may_import or importer in entry.facades:
        return True
    return importer in entry.commands and imported in ("server", *packages()["server"].may_import)


def wrong_imports() -> Iterator[str]:
    """Every import against the direction, as a line of the list."""
    for module, by in importers(sources()).items():
        for importer in by:
            if not may_import(importer, module):
                own, imported = package_of(importer), package_of(module)
                yield f"{own} -> {imported}: {importer} -> {module}"


def test_imports_follow_the_direction_of_the_packages() -> None:
    found, known = set(wrong_imports()), set(KNOWN.read_text().splitlines())

    assert sorted(found - known) == [], "these point the wrong way"
    assert sorted(known - found) == [], f"these are mended: take them out of {KNOWN.name}"


def test_every_name_of_the_table_is_a_module() -> None:
    modules = {source.module for source in sources()}
    named = [
        name
        for entry in packages().values()
        for name in (*entry.modules, *entry.facades, *entry.commands)
    ]

    assert [name for name in named if name not in modules] == []


def test_packages_depend_on_each_other_without_a_circle() -> None:
    """Their order in the file is that of the dependencies."""
    before: list[str] = []
    for name, entry in packages().items():
        assert set(entry.may_import) <= set(before), name
        before.append(name)


def runtime_imports(tree: ast.Module) -> Iterator[str]:
    """Modules that a module imports when it is loaded; what is for type checkers is left out."""
    for node in tree.body:
        is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in () if is_for_types else statements(node):
            if isinstance(inner, ast.ImportFrom):
                yield inner.module or ""
            elif isinstance(inner, ast.Import):
                yield from (alias.name for alias in inner.names)


@pytest.mark.parametrize(
    "facade", [name for entry in packages().values() for name in entry.facades]
)
def test_a_facade_loads_other_packages_only_when_they_are_used(facade: str) -> None:
    source = next(s for s in sources() if s.module == facade)
    own = package_of(facade)
    allowed = {own, *packages()[own].may_import}

    imported = [name for name in runtime_imports(source.tree) if name.startswith("penstock")]

    assert [name for name in imported if package_of(name) not in allowed] == []
