"""Links between the pages lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name_of, prose

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("README.md")]
)

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def links(page: Path) -> Iterator[str]:
    for link in _LINK.finditer(prose(page)):
        if "://" not in link[1]:
            yield link[1]


def anchors(page: Path) -> set[str]:
    """Headings as a renderer turns them into anchors."""
    headings = _HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path) if path else page
    if not target.exists():
        return True
    return bool(anchor) and anchor not in anchors(target)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [link for link in links(page) if is_broken(page, link)] == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `word`\n[a](#one-word) [b](#two) [c](gone.md) [d](page.md#one-word)\n")

    assert [link for link in links(page) if is_broken(page, link)] == ["#two", "gone.md"]


def test_every_test_a_page_names_is_there() -> None:
    text = (ROOT / "docs/guide/threats.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", text))

    assert len(named) > 20
    assert {name for name in named if not (ROOT / name).is_file()} == set()
