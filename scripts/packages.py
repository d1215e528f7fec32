"""The packages of the workspace: what each may import, from `scripts/packages.toml`, and what it
requires, from its pyproject.toml.

``python -m scripts.packages PART ...`` prints what parts require of other projects: ``base``, an
extra of ``penstock-realm``, ``all``, or ``group:NAME`` of the checkout.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, convert
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[1]
TABLE: Final = Path(__file__).with_name("packages.toml")
WHOLE: Final = "penstock-realm"
"""The distribution that installs the packages that most users want, and the others by extras."""


class Package(Struct, forbid_unknown_fields=True):
    """A package, as `scripts/packages.toml` has it."""

    may_import: list[str]
    imported_as: list[str]
    facades: list[str] = []
    stand_ins: list[str] = []
    commands: list[str] = []


@cache
def packages() -> Mapping[str, Package]:
    """Return the packages by name, in the order of the table: dependencies first."""
    return convert(tomllib.loads(TABLE.read_text(encoding="utf-8")), dict[str, Package])


@cache
def package_of(module: str) -> str:
    """Return the package that has a module."""
    top = module.partition(".")[0]
    for package, entry in packages().items():
        if top in entry.imported_as:
            return package
    raise LookupError(f"{module} has no package; name it in scripts/packages.toml")


def members(root: Path = ROOT) -> Sequence[Path]:
    """Return the folders of the workspace's distributions."""
    workspace = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return [root / member for member in workspace["tool"]["uv"]["workspace"]["members"]]


def projects(root: Path = ROOT) -> Mapping[str, Mapping[str, Any]]:
    """Return the table `project` of each distribution's pyproject.toml, by name."""
    texts = [(member / "pyproject.toml").read_text(encoding="utf-8") for member in members(root)]
    tables = [tomllib.loads(text)["project"] for text in texts]
    return {table["name"]: table for table in tables}


def requirements_of(name: str, extra: str = "") -> Sequence[Requirement]:
    """Return what a distribution of the workspace requires of others, itself or through packages of
    the workspace: without an extra, or what an extra adds. Sorted by name."""
    known = projects()
    wanted: dict[str, Requirement] = {}
    waiting = list(_own(known[name], extra))
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        if requirement.name not in known:
            wanted[f"{requirement.name}{sorted(requirement.extras)}"] = requirement
        elif str(requirement) not in seen:
            seen.add(str(requirement))
            for inner in ("", *requirement.extras):
                waiting += _own(known[requirement.name], inner)
    if extra:
        base = {str(requirement) for requirement in requirements_of(name)}
        wanted = {key: each for key, each in wanted.items() if str(each) not in base}
    return [wanted[key] for key in sorted(wanted)]


def _own(project: Mapping[str, Any], extra: str) -> Sequence[Requirement]:
    texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(text) for text in texts]


def extras_of(name: str) -> Sequence[str]:
    """Return the extras of a distribution of the workspace."""
    return tuple(projects()[name].get("optional-dependencies", ()))


def dependency_group(name: str) -> Sequence[Requirement]:
    """Return a dependency group of the checkout."""
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [Requirement(text) for text in workspace["dependency-groups"][name]]


def requirements_of_part(part: str) -> Sequence[Requirement]:
    """Return what a part that this program is given requires of other projects."""
    kind, _, name = part.rpartition(":")
    if kind == "group":
        return dependency_group(name)
    if part == "all":
        extras = extras_of(WHOLE)
        return [each for name in ("base", *extras) for each in requirements_of_part(name)]
    return requirements_of(WHOLE, "" if part == "base" else part)


if __name__ == "__main__":
    lines = {str(each): None for part in sys.argv[1:] for each in requirements_of_part(part)}
    print(*lines, sep="\n")
