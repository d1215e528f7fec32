"""What is installed is called ``penstock-realm``: ``penstock`` alone is somebody else's package."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import penstock

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "src",
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
    found = list(ROOT.glob("*"))
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*")
    return [
        path
        for path in found
        if path.is_file()
        and (path.suffix in SUFFIXES or path.name in NAMES)
        and path.name != "CHANGELOG.md"
    ]


def foreign_in(text: str) -> list[str]:
    return [match[0] for pattern in FOREIGN for match in pattern.finditer(text)]


@pytest.mark.slow
def test_no_text_installs_the_package_of_somebody_else() -> None:
    found = {path.relative_to(ROOT).as_posix(): foreign_in(path.read_text()) for path in texts()}

    assert len(found) > 500
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_each_way_to_name_it_would_be_found() -> None:
    name = "pen" + "stock"

    assert foreign_in(f"pip install {name}\n")
    assert foreign_in(f"bin/pip install --upgrade '{name}'")
    assert foreign_in(f'pip install "{name}[spark]"')
    assert foreign_in(f"the extra `{name}[amqp]`")
    assert foreign_in(f'importlib.metadata.version("{name}")')
    assert not foreign_in(f'pip install "{name}-realm[spark]"; {name} serve; pip install .')


def test_the_distribution_has_a_name_of_its_own_and_the_version_of_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)

    assert project["project"]["name"] == "penstock-realm"
    assert project["project"]["dynamic"] == ["version"]
    assert (
        project["tool"]["hatch"]["version"]["path"] == "packages/core/src/penstock_core/version.py"
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", penstock.__version__)
    assert project["project"]["scripts"] == {"penstock": "penstock_server.cli:main"}


def test_an_environment_of_before_loses_the_old_name_before_it_gets_the_new_one() -> None:
    """Two owners of one command: uninstalling the old one later would take it from the new."""
    steps = (ROOT / "scripts" / "setup.sh").read_text()

    gone = steps.index("pip uninstall")
    assert steps[gone:].splitlines()[0].endswith(" --yes penstock")
    assert gone < steps.index("install --no-deps --editable .")


def test_the_wheel_has_the_package_and_not_the_benchmarks() -> None:
    files = {
        file.distribution_path.replace(os.sep, "/")
        for file in WheelBuilder(str(ROOT)).recurse_included_files()
    }

    assert (ROOT / "bench" / "__main__.py").is_file()
    assert {"penstock/__init__.py", "penstock/py.typed", "pyspark_penstock/__init__.py"} <= files
    assert {name.partition("/")[0] for name in files} == {"penstock", "pyspark_penstock"}
    assert [name for name in files if "bench" in name] == []


def test_no_extra_brings_what_only_a_checkout_can_use() -> None:
    """The peers of the benchmarks are a group, which is no part of the wheel's metadata."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)

    assert "bench" in project["dependency-groups"]
    assert "bench" not in project["project"]["optional-dependencies"]
