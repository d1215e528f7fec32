"""Modules import along the direction in which the packages of `scripts/packages.toml` depend on
each other, and what they import is what their pyproject.toml requires."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from penstock_core.version import __version__
from scripts.packages import ROOT, members, package_of, packages, projects
from scripts.weight.source import importers
from tests.tidy.parsing import sources


def may_import(importer: str, module: str) -> bool:
    """Whether a module may import another one, by their packages."""
    package, imported = package_of(importer), package_of(module)
    entry = packages()[package]
    if imported == package or imported in entry.may_import:
        return True
    if importer in (*entry.facades, *entry.stand_ins):
        return True
    return importer in entry.commands and imported in ("server", *packages()["server"].may_import)


def wrong_imports() -> Iterator[str]:
    """Every import against the direction, as a line of the list."""
    for module, importers_of_module in importers(sources()).items():
        for importer in importers_of_module:
            if not may_import(importer, module):
                package, imported = package_of(importer), package_of(module)
                yield f"{package} -> {imported}: {importer} -> {module}"


def test_imports_follow_the_direction_of_the_packages() -> None:
    assert sorted(wrong_imports()) == [], "these point the wrong way"


def test_every_name_of_the_table_is_a_module() -> None:
    modules = {source.module for source in sources()}
    named = [
        name
        for entry in packages().values()
        for name in (*entry.imported_as, *entry.facades, *entry.stand_ins, *entry.commands)
    ]

    assert [name for name in named if name not in modules] == []


def test_packages_depend_on_each_other_without_a_circle() -> None:
    """Their order in the file is that of the dependencies."""
    before: list[str] = []
    for name, entry in packages().items():
        assert set(entry.may_import) <= set(before), name
        before.append(name)


def imports_at_start(tree: ast.Module) -> Iterator[str]:
    """Modules that a module cannot do without: functions may import others."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize(
    "facade", [name for entry in packages().values() for name in entry.facades]
)
def test_a_facade_loads_other_packages_only_when_they_are_used(facade: str) -> None:
    source = next(s for s in sources() if s.module == facade)
    package = package_of(facade)
    allowed = {package, *packages()[package].may_import}

    imported = [name for name in imports_at_start(source.tree) if name.startswith("penstock")]

    assert [name for name in imported if package_of(name) not in allowed] == []


def test_only_programs_import_a_stand_in() -> None:
    stand_ins = {name for entry in packages().values() for name in entry.stand_ins}
    users = {
        importer
        for module, importers_of_module in importers(sources()).items()
        for importer in importers_of_module - stand_ins
        if module in stand_ins
    }

    assert users == set()


def test_the_table_names_the_packages_of_the_workspace() -> None:
    folders = [member.name for member in members()]

    assert folders == [*packages(), "realm"], "`realm` has no code"
    assert {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")} == set(folders)


def test_the_packages_have_one_version_and_require_each_other_in_it() -> None:
    projects_ = projects()

    assert {project["version"] for project in projects_.values()} == {__version__}
    for name, project in projects_.items():
        for requirement in required_by(project):
            if requirement.name in projects_:
                assert str(requirement.specifier) == f"=={__version__}", (name, str(requirement))


def required_by(project: Mapping[str, Any]) -> list[Requirement]:
    """Return the requirements of a distribution, its own and those of its extras."""
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]


DISTRIBUTION = {member.name: f"penstock-{member.name}" for member in members()}
BROUGHT_BY = {"google": "protobuf", "h11": "uvicorn", "jwt": "pyjwt", "nats": "nats-py"}
"""Distributions of modules that have another name."""
BROUGHT_BY |= {"cproton_ffi": "python-qpid-proton", "proton": "python-qpid-proton"}
BROUGHT_BY |= {"prometheus_client": "prometheus-client", "py4j": "pyspark"}
BROUGHT_BY |= {"airflow": "apache-airflow-core"}
BROUGHT_BY |= {"fast_depends": "fast-depends", "opentelemetry": "opentelemetry-sdk"}


@pytest.mark.parametrize("package", packages())
def test_a_package_requires_what_it_imports(package: str) -> None:
    """Itself or by an extra; what the packages below it require is installed with them."""
    projects_ = projects()
    waiting, required = [DISTRIBUTION[package]], set[str]()
    while waiting:
        name = waiting.pop()
        required.add(canonicalize_name(name))
        if name in projects_:
            waiting += [
                project.name
                for project in required_by(projects_[name])
                if project.name not in required
            ]
    entry = packages()[package]
    imported = {
        name.partition(".")[0]: source.module
        for source in sources()
        if package_of(source.module) == package
        if source.module not in (*entry.commands, *entry.facades, *entry.stand_ins)
        for name in imports_at_start(source.tree)
    }
    optional = {name for name in ("pytest",) if package == "testing"}  # runs the plugin
    missing = {
        module: importer
        for module, importer in imported.items()
        if module not in (*sys.stdlib_module_names, *entry.imported_as, *optional, "")
        and distribution_of(module) not in required
    }

    assert missing == {}


def distribution_of(module: str) -> str:
    """The distribution that has a module, by its name."""
    if module.startswith("penstock"):
        return DISTRIBUTION[package_of(module)]
    return BROUGHT_BY.get(module, module)
