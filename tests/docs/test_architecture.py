"""ARCHITECTURE.md leads to places that exist, and to all it takes to add an attribute."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCES = tuple(sorted(ROOT.glob("packages/*/src")))

WITHOUT_A_FIELD = frozenset({"penstock_core/api/subscriptions.py"})
"""Modules that say what follows from the pattern's attribute, and do not carry it."""

OF_NEWER_ONES = frozenset({"penstock_server/runtime/store/newer_facts.py"})
"""Modules with attributes that the first format does not have; the patterns are older."""

_CODE = re.compile(r"`([^`\n]+)`")


def rows(section: str) -> list[list[str]]:
    """The cells of the table in a section, without its head."""
    text = TEXT.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[1:]]


def paths_in(cell: str) -> list[str]:
    """Pattern of a file or a folder in code spans."""
    named = _CODE.findall(cell)
    return [name for name in named if name.endswith((".py", "/"))]


def places_of(path: str) -> list[Path]:
    """Where a path of the page is: below the sources of a package, or the root."""
    return [folder / path for folder in (*SOURCES, ROOT) if (folder / path).exists()]


def exists(path: str) -> bool:
    return bool(places_of(path))


@pytest.mark.parametrize("row", rows("Where to add what"), ids=lambda row: row[0])
def test_every_file_to_change_is_there(row: list[str]) -> None:
    _, files, held_by = row

    assert paths_in(files)
    assert [path for path in paths_in(files + held_by) if not exists(path)] == []


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("an attribute of a durable", "strict_order"),
        ("an attribute of a channel", "retain_consumed"),
    ],
)
def test_the_pattern_of_an_attribute_is_found_in_every_file_of_its_row(
    subject: str, name: str
) -> None:
    (row,) = (row for row in rows("Where to add what") if row[0].startswith(subject))
    wrong = [
        path
        for path in paths_in(row[1])
        if path not in OF_NEWER_ONES and name not in places_of(path)[0].read_text(encoding="utf-8")
    ]

    assert f"`{name}`" in row[0]
    assert wrong == []


def test_whoever_adds_an_attribute_of_a_durable_is_led_to_every_file_that_has_it_as_a_field() -> (
    None
):
    (row,) = (row for row in rows("Where to add what") if row[0].startswith("an attribute of a d"))
    declaring = {
        path.relative_to(folder).as_posix()
        for folder in SOURCES
        for path in folder.rglob("*.py")
        if re.search(r"^ +strict_order: ", path.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert declaring - WITHOUT_A_FIELD - set(paths_in(row[1])) == set()


def test_every_room_is_on_the_map() -> None:
    folders = {
        name.strip("/")
        for row in rows("Packages and rooms")
        for cell in row
        for name in _CODE.findall(cell)
    }
    packages = {path.parent.name for folder in SOURCES for path in folder.glob("*/__init__.py")}
    rooms = {
        path.parent.name
        for folder in SOURCES
        for path in folder.glob("*/*/__init__.py")
        if folder.parent.name not in ("amqp", "mqtt")
    }

    assert packages - folders == set()
    assert rooms - folders == set()


def test_files_beside_the_way_in_are_there() -> None:
    for name in ("dead_events.py", "join_copies.py", "schedules.py", "transactions.py"):
        assert f"`{name}`" in TEXT
        assert exists(f"penstock_server/runtime/writer/{name}")
    for path in re.findall(r"`(penstock\w*/[\w/]+\.py)`", TEXT):
        assert exists(path), path
