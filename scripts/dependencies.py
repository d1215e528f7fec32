"""What an installation takes: packages and megabytes of the base and of each extra.

``python -m scripts.dependencies`` measures this environment, and ``--write`` puts the figures into
docs/guide/installing.md; names, ranges and reasons there are written by hand, and a test holds them
to pyproject.toml. A package has the size of its files on disk, with what Python compiles of them.
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
"""What stands for the installation without an extra."""

HEADING: Final = re.compile(
    r"^## .*`pip install (?:\"?penstock-realm(?:\[(\w+)\])?\"?|(penstock-client)|--group (\w+))`$",
    re.MULTILINE,
)
_ROW: Final = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|[^|]*\|", re.MULTILINE)
_TOTAL: Final = re.compile(r"^\*\*.* packages?, .* MB\*\*", re.MULTILINE)
_DATE: Final = re.compile(r"measured on \d{4}-\d{2}-\d{2}")


def wanted() -> dict[str, list[Requirement]]:
    """What the client alone, the base and each extra require of other projects."""
    found = {CLIENT: list(requirements_of(CLIENT)), BASE: list(requirements_of(OWN))}
    found |= {extra: list(requirements_of(OWN, extra)) for extra in extras_of(OWN)}
    return found | {CHECKOUT: list(dependency_group(CHECKOUT))}


def part_of(heading: re.Match[str]) -> str:
    """The part that a heading of the page is for."""
    return next(filter(None, heading.groups()), BASE)


def size_of(name: str) -> int:
    """Bytes of an installed package. Raises ``PackageNotFoundError``."""
    files = importlib.metadata.distribution(name).files or []
    paths = [Path(str(each.locate())) for each in files]
    return sum(path.stat().st_size for path in paths if path.is_file())


def needed(requirements: list[Requirement]) -> set[str]:
    """The names of all packages that these bring along here, with themselves."""
    own = wanted()
    found: set[tuple[str, str]] = set()
    waiting = list(requirements)
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        for extra in ("", *each.extras):
            if (name, extra) in found:
                continue
            found.add((name, extra))
            if name == OWN:
                waiting += own[extra] if extra else []
                continue
            texts = importlib.metadata.requires(name) or []
            waiting += [
                inner
                for inner in map(Requirement, texts)
                if inner.marker is None or inner.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in found if name != OWN}


def megabytes(size: int) -> str:
    """A size as the page tells it: no more digits than it is worth."""
    found = size / 1_000_000
    return f"{found:.0f}" if found >= 10 else f"{max(found, 0.1):.1f}"


def totals() -> Iterator[tuple[str, str]]:
    """What the base brings, and what each extra adds to it."""
    base: set[str] = set()
    for part, requirements in wanted().items():
        applies = [each for each in requirements if each.marker is None or each.marker.evaluate()]
        added = needed(applies) - base
        if part == BASE:
            base = added
        noun = "package" if len(added) == 1 else "packages"
        more = "" if part in (BASE, CLIENT) else " more"
        yield part, f"**{len(added)}{more} {noun}, {megabytes(sum(map(size_of, added)))} MB**"


def renewed(page: str) -> str:
    """The page with the figures of this environment."""
    told = dict(totals())
    lines, part = [], ""
    for line in page.splitlines():
        if (heading := HEADING.match(line)) is not None:
            part = part_of(heading)
        if (row := _ROW.match(line)) is not None:
            name = Requirement(row[1]).name
            size = "" if name == OWN else f" {megabytes(size_of(name))}"
            lines.append(f"| `{row[1]}` | `{row[2]}` |{size} |{line[row.end() :]}")
        else:
            lines.append(_TOTAL.sub(told.get(part, ""), line))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return _DATE.sub(f"measured on {today}", "\n".join(lines) + "\n")


def main() -> None:
    try:
        if sys.argv[1:] == ["--write"]:
            PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        for part, total in totals():
            print(f"{part:12} {total.strip('*')}")
    except importlib.metadata.PackageNotFoundError as error:
        sys.exit(f"{error.name} is not installed here: make setup, with a C compiler for amqp")


if __name__ == "__main__":
    main()
