"""The generated parts of ``docs/benchmarks.md`` and of the README."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.plots import draw
from bench.processes import ROOT
from bench.report import Result, between_marks, markdown
from bench.slower import SLOWER, remarks, slower_table
from bench.store import FullRun, Stored, results_of
from bench.summary import SUMMARY, readme_table, summary

DOCS: Final = ROOT / "docs"
PAGE: Final = DOCS / "benchmarks.md"
PICTURES: Final = DOCS / "benchmarks"
README: Final = ROOT / "README.md"
MEASURED: Final = "measured"
"""Name of the marks around the machine and the versions."""
SEVERAL: Final = "several runs"
"""Name of the marks around text that holds only while the tables are of several machines and days;
one run of everything empties it."""
IN_README: Final = "benchmarks"
"""Name of the marks around the table in the README."""
MORE: Final = "<!-- more shapes -->"
"""Sections of shapes that the page does not have yet are inserted before this mark."""


def write_page(stored: Stored) -> None:
    """Write the tables, the pictures and the README."""
    results = results_of(stored)
    pictures = {
        result.shape: picture
        for result in results
        if (picture := draw(result, PICTURES)) is not None
    }
    PAGE.write_text(page_of(PAGE.read_text(), stored, pictures))
    README.write_text(readme_of(README.read_text(), stored))


def page_of(page: str, stored: Stored, pictures: Mapping[str, Path]) -> str:
    """Return the page with its generated parts replaced. ``pictures`` are files by shape."""
    results = results_of(stored)
    parts = {
        MEASURED: measured(stored),
        SUMMARY: summary(results),
        SLOWER: slower_table(results),
        **({SEVERAL: ""} if isinstance(stored, FullRun) else {}),
    }
    for result in results:
        page = _with_section(page, result)
        parts[result.shape] = section(result, pictures.get(result.shape))
    return between_marks(page, parts)


def readme_of(readme: str, stored: Stored) -> str:
    """Return the README with its table replaced."""
    return between_marks(readme, {IN_README: readme_table(results_of(stored))})


def section(result: Result, picture: Path | None) -> str:
    """Return the generated part of a shape: its table, the reasons for ratios below 1, and its
    picture."""
    text = markdown(result) + remarks(result)
    if picture is not None:
        link = picture.relative_to(DOCS).as_posix()
        text += f"\n![{result.shape}: {result.title}]({link})\n"
    return text


def measured(stored: Stored) -> str:
    """Return the commit, the machine, the time and the versions."""
    if not isinstance(stored, FullRun):
        return (
            "The tables are of different days, commits and machines: every table names its date, "
            "machine, load and versions. The commits were not recorded.\n"
        )
    place = stored.environment
    runs = sum(len(cell.runs) for result in stored.results for cell in result.cells)
    most = max((cell.planned for result in stored.results for cell in result.cells), default=0)
    is_reduced = any(cell.planned < most for result in stored.results for cell in result.cells)
    lines = [
        f"All tables are of one run of everything, started {stored.started} (load "
        f"{stored.load:.1f}): {runs:,} runs in {stored.spent_s / 3_600:.1f} hours.",
        "",
        f"- **Code**: commit `{place.commit}`.",
        f"- **Machine**: {place.system}, {place.processor}, {place.cores} cores, "
        f"{place.memory_gb:g} GB of memory, Python {place.python}.",
        f"- **Libraries**: {_listed(place.libraries)}.",
        f"- **Peers**: {_listed(place.peers)}.",
        "- **Load**: before each case the run waited for an idle machine; a table names the cases "
        "where it did not become idle.",
        f"- **Time**: the budget was {stored.hours:g} hours. {stored.rule if is_reduced else ''}",
    ]
    return "\n".join(line.rstrip() for line in [*lines, ""])


def _with_section(page: str, result: Result) -> str:
    """Return the page with a section for a shape. Raises ``ValueError`` if it has neither the
    section nor a place for more."""
    if f"<!-- {result.shape} -->" in page:
        return page
    if MORE not in page:
        raise ValueError(f"the page has no place for {result.shape}: {MORE}")
    title = result.title[:1].upper() + result.title[1:]
    opening, closing = f"<!-- {result.shape} -->", f"<!-- /{result.shape} -->"
    text = f"## {title} ({result.shape})\n\n{opening}\n{closing}\n\n{MORE}"
    return page.replace(MORE, text)


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
