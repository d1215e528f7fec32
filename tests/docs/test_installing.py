"""The page of what an installation takes says what pyproject.toml says."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement

from scripts.dependencies import HEADING, OWN, PAGE, needed, part_of, renewed, wanted

TEXT = PAGE.read_text(encoding="utf-8")
_ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| ([\d.]*) ?\| ([^|]+) \|$", re.MULTILINE)


def rows_by_part() -> dict[str, list[tuple[str, str, str, str]]]:
    """The rows of each part: package, versions, size, reason."""
    begins = [*HEADING.finditer(TEXT)]
    ends = [*(heading.start() for heading in begins[1:]), len(TEXT)]
    return {
        part_of(heading): _ROW.findall(TEXT[heading.end() : end])
        for heading, end in zip(begins, ends, strict=True)
    }


def shown(requirement: Requirement) -> tuple[str, str]:
    """A requirement as the page writes it."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    versions = str(requirement).partition(f"{requirement.name}{extras}")[2]
    bounds, semicolon, marker = versions.partition(";")
    ordered = ",".join(sorted(bounds.strip().split(","), key=lambda bound: bound.startswith("<")))
    marker = marker.strip().replace('"', "'")
    return f"{requirement.name}{extras}", (f"{ordered}{semicolon} {marker}").strip() or "any"


def test_it_has_the_base_and_each_extra_once() -> None:
    parts = [part_of(heading) for heading in HEADING.finditer(TEXT)]

    assert sorted(parts) == sorted(wanted())


@pytest.mark.parametrize("part", wanted())
def test_each_dependency_has_its_range_and_its_reason(part: str) -> None:
    rows = rows_by_part()[part]

    assert sorted((name, versions) for name, versions, _, _ in rows) == sorted(
        shown(requirement) for requirement in wanted()[part]
    )
    for name, _, size, reason in rows:
        assert len(reason) > 10, name
        assert bool(size) != name.startswith(OWN), name


def test_each_part_has_its_total() -> None:
    totals = re.findall(r"^\*\*(\d+) (?:more )?packages?, ([\d.]+) MB\*\*$", TEXT, re.MULTILINE)

    assert len(totals) == len(wanted())
    assert all(int(count) > 0 and float(size) > 0 for count, size in totals)


def test_what_is_needed_is_followed_to_the_end() -> None:
    """typer needs rich, which needs markdown-it-py, which needs mdurl."""
    assert {"typer", "rich", "markdown-it-py", "mdurl"} <= needed([Requirement("typer")])
    assert "pyspark" in needed([Requirement("penstock-realm[spark]")])
    assert "pyspark" not in needed([Requirement("penstock-realm")])


def test_the_figures_are_written_into_the_page_and_nothing_else_is_changed() -> None:
    page = TEXT.split("## Spark:")[0]
    again = renewed(re.sub(r"\| [\d.]+ \|", "| 0 |", page))

    hidden = re.compile(r"\d+(?:\.\d+)? MB|\| [\d.]+ \||\d+ packages|\d{4}-\d{2}-\d{2}")
    assert hidden.sub("", again) == hidden.sub("", page)
    assert re.search(r"\| `pyarrow` \| `[^`]+` \| \d{2,} \|", again)
