"""The size of an installation: number of packages and megabytes of the base and of each extra.

``python -m scripts.dependencies`` measures this environment, and ``--write`` puts the figures into
docs/guide/installing.md. The names, ranges and reasons there are written by hand, and a test
compares them with pyproject.toml. The size of a package is that of its files on disk, including
compiled modules.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.packages import ROOT, WHOLE, dependency_group, extras_of, requirements_of

PAGE: Final = ROOT / "docs" / "guide" / "installing.md"
OWN: Final = WHOLE
CLIENT: Final = "penstock-client"
CHECKOUT: Final = "dev"
"""The dependency group of a checkout."""
BASE: Final = "base"
"""Name of the installation without an extra."""

HEADING: Final = re.compile(
    r"^## .*`pip install (?:\"?penstock-realm(?:\[(\w+)\])?\"?|(penstock-client)|--group (\w+))`$",
    re.MULTILINE,
)
_ROW: Final = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|[^|]*\|", re.MULTILINE)
_TOTAL: Final = re.compile(r"^\*\*.* packages?, .* MB\*\*", re.MULTILINE)
_DATE: Final = re.compile(r"measured on \d{4}-\d{2}-\d{2}")


def wanted() -> dict[str, list[Requirement]]:
    """Return the requirements of each part on other projects. The parts are the client, the base,
    each extra and the checkout."""
    requirements = {CLIENT: list(requirements_of(CLIENT)), BASE: list(requirements_of(OWN))}
    requirements |= {extra: list(requirements_of(OWN, extra)) for extra in extras_of(OWN)}
    return requirements | {CHECKOUT: list(dependency_group(CHECKOUT))}


def part_of(heading: re.Match[str]) -> str:
    """Return the part that a heading of the page is about."""
    return next(filter(None, heading.groups()), BASE)


def size_of(name: str) -> int:
    """Return the size of an installed package in bytes. Raises ``PackageNotFoundError``."""
    files = importlib.metadata.distribution(name).files or []
    paths = [Path(str(file.locate())) for file in files]
    return sum(path.stat().st_size for path in paths if path.is_file())


def needed(requirements: list[Requirement]) -> set[str]:
    """Return the names of all packages that these requirements install in this environment,
    including their own requirements."""
    by_extra = wanted()
    seen: set[tuple[str, str]] = set()
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            if name == OWN:
                # A part may require extras of this distribution itself.
                waiting += by_extra[extra] if extra else []
                continue
            texts = importlib.metadata.requires(name) or []
            waiting += [
                inner
                for inner in map(Requirement, texts)
                if inner.marker is None or inner.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in seen if name != OWN}


def megabytes(size: int) -> str:
    """Return a size in megabytes as the page shows it: below 10 MB with one decimal, at least
    0.1."""
    number = size / 1_000_000
    return f"{number:.0f}" if number >= 10 else f"{max(number, 0.1):.1f}"


def totals() -> Iterator[tuple[str, str]]:
    """Yield each part with the number and size of its packages; an extra without those of the
    base."""
    base: set[str] = set()
    for part, requirements in wanted().items():
        applicable = [
            requirement
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate()
        ]
        added = needed(applicable) - base
        if part == BASE:
            base = added
        noun = "package" if len(added) == 1 else "packages"
        more = "" if part in (BASE, CLIENT) else " more"
        yield part, f"**{len(added)}{more} {noun}, {megabytes(sum(map(size_of, added)))} MB**"


def renewed(page: str) -> str:
    """Return the page with the figures of this environment."""
    total_of = dict(totals())
    lines, part = [], ""
    for line in page.splitlines():
        if (heading := HEADING.match(line)) is not None:
            part = part_of(heading)
        if (row := _ROW.match(line)) is not None:
            name = Requirement(row[1]).name
            size = "" if name == OWN else f" {megabytes(size_of(name))}"
            lines.append(f"| `{row[1]}` | `{row[2]}` |{size} |{line[row.end() :]}")
        else:
            lines.append(_TOTAL.sub(total_of.get(part, ""), line))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return _DATE.sub(f"measured on {today}", "\n".join(lines) + "\n")


def main() -> None:
    """Print the figures, or write them into the page."""
    try:
        if sys.argv[1:] == ["--write"]:
            PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        for part, total in totals():
            print(f"{part:12} {total.strip('*')}")
    except importlib.metadata.PackageNotFoundError as error:
        sys.exit(f"{error.name} is not installed here: make setup, with a C compiler for amqp")


if __name__ == "__main__":
    main()
