"""Decisions have a date, a status and one page each, and the index tells them."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest

from scripts.packages import requirements_of_part
from tests.docs.pages import ROOT, name_of

FOLDER = ROOT / "docs" / "adr"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
INDEX = (FOLDER / "README.md").read_text(encoding="utf-8")

LINES_MAX = 60
WORDS_MAX = 900
PARTS = ("Context", "Options", "Decision", "Consequences")

_TITLE = re.compile(r"# (\d+)\. (.+)")
_FIELD = re.compile(r"^- (Date|Status|Revised): (.+)$", re.MULTILINE)
_STATUS = re.compile(r"(accepted|superseded by \[\d+\]\(\d{4}-[\w-]+\.md\))(?:; .+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def fields_of(page: Path) -> dict[str, str]:
    return dict(_FIELD.findall(page.read_text(encoding="utf-8")))


def title_of(page: Path) -> tuple[str, str]:
    title = _TITLE.match(page.read_text(encoding="utf-8"))
    assert title is not None, name_of(page)
    return title[1], title[2]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_decision_has_a_number_a_date_and_a_status(page: Path) -> None:
    fields = fields_of(page)

    assert title_of(page)[0] == page.name[:4].lstrip("0")
    assert date.fromisoformat(fields["Date"]).isoformat() == fields["Date"]
    assert _STATUS.fullmatch(fields["Status"]), fields["Status"]
    revisions = _DATE.findall(fields.get("Revised", ""))
    assert revisions or "Revised" not in fields
    assert sorted([fields["Date"], *revisions]) == [fields["Date"], *revisions]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_decision_is_one_page_with_its_parts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert len(text.splitlines()) <= LINES_MAX
    assert len(text.split()) <= WORDS_MAX
    assert [part for part in PARTS if f"**{part}.**" not in text] == []


def test_the_index_tells_each_with_date_and_status() -> None:
    rows = []
    for page in PAGES:
        number, title = title_of(page)
        fields = fields_of(page)
        status = _STATUS.fullmatch(fields["Status"])
        assert status is not None
        revisions = _DATE.findall(fields.get("Revised", ""))
        revised = f", revised {revisions[-1]}" if revisions else ""
        rows.append(
            f"| {number}. [{title}]({page.name}) | {fields['Date']} | {status[1]}{revised} |"
        )

    assert [line for line in INDEX.splitlines() if line.startswith("| ") and "](" in line] == rows


def test_each_dependency_has_its_reason() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        groups = tomllib.load(file)["dependency-groups"]
    parts = ["all", *(f"group:{group}" for group in groups)]
    names = {requirement.name for part in parts for requirement in requirements_of_part(part)}
    table = (FOLDER / "0007-dependencies.md").read_text(encoding="utf-8")
    listed = {
        name.partition("[")[0]
        for line in table.splitlines()
        if line.startswith("| ")
        for name in re.split(r", | ", line.split(" | ")[0].strip("| "))
    }

    assert names - listed == set()
