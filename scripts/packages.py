"""The packages of the workspace: the packages that each may import, from `scripts/packages.toml`,
and the requirements of each, from its pyproject.toml.

``python -m scripts.packages PART ...`` prints the requirements of parts on other projects. A part
is ``base``, an extra of ``penstock-realm``, ``all``, another distribution of the workspace such as
``penstock-airflow``, or ``group:NAME`` of the checkout.
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
"""The distribution that installs the packages that most users need; its extras install the
others."""


class Package(Struct, forbid_unknown_fields=True):
    """The entry of a package in `scripts/packages.toml`."""

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
    """Return the package that contains a module. Raises ``LookupError`` if none does."""
    top = module.partition(".")[0]
    for package, entry in packages().items():
        if top in entry.imported_as:
            return package
    raise LookupError(f"{module} has no package; name it in scripts/packages.toml")


def members(root: Path = ROOT) -> Sequence[Path]:
    """Return the folders of the workspace's distributions."""
    workspace = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return [root / member for member in workspace["tool"]["uv"]["workspace"]["members"]]


@cache
def projects(root: Path = ROOT) -> Mapping[str, Mapping[str, Any]]:
    """Return the table `project` of each distribution's pyproject.toml, by name."""
    texts = [(member / "pyproject.toml").read_text(encoding="utf-8") for member in members(root)]
    tables = [tomllib.loads(text)["project"] for text in texts]
    return {table["name"]: table for table in tables}


def requirements_of(name: str, extra: str = "") -> Sequence[Requirement]:
    """Return the requirements of a distribution of the workspace on other projects, sorted by name.
    These are its own and those of the packages of the workspace that it requires. With an extra,
    the result has only the requirements that the extra adds."""
    projects_ = projects()
    wanted: dict[str, Requirement] = {}
    waiting = list(_requirements_in(projects_[name], extra))
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        if requirement.name not in projects_:
            wanted[f"{requirement.name}{sorted(requirement.extras)}"] = requirement
        elif str(requirement) not in seen:
            seen.add(str(requirement))
            for inner in ("", *requirement.extras):
                waiting += _requirements_in(projects_[requirement.name], inner)
    if extra:
        base = {str(requirement) for requirement in requirements_of(name)}
        wanted = {
            key: requirement for key, requirement in wanted.items() if str(requirement) not in base
        }
    return [wanted[key] for key in sorted(wanted)]


def _requirements_in(project: Mapping[str, Any], extra: str) -> Sequence[Requirement]:
    """Return the requirements in a table `project`, or those of one of its extras."""
    texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(text) for text in texts]


def extras_of(name: str) -> Sequence[str]:
    """Return the extras of a distribution of the workspace."""
    return tuple(projects()[name].get("optional-dependencies", ()))


def dependency_group(name: str) -> Sequence[Requirement]:
    """Return the requirements in a dependency group of the checkout."""
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [Requirement(text) for text in workspace["dependency-groups"][name]]


def requirements_of_part(part: str) -> Sequence[Requirement]:
    """Return the requirements of a part, named as on the command line, on other projects."""
    kind, _, name = part.rpartition(":")
    if kind == "group":
        return dependency_group(name)
    if part == "all":
        extras = extras_of(WHOLE)
        return [
            requirement for name in ("base", *extras) for requirement in requirements_of_part(name)
        ]
    if part in projects():
        return requirements_of(part)
    return requirements_of(WHOLE, "" if part == "base" else part)


if __name__ == "__main__":
    lines = {
        str(requirement): None
        for part in sys.argv[1:]
        for requirement in requirements_of_part(part)
    }
    print(*lines, sep="\n")
