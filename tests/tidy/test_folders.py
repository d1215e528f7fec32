"""The page of the tests names every folder of `tests`."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS / "README.md"


def named_folders() -> list[str]:
    """The folders in the first column of the table, and those of the lines below it."""
    text = PAGE.read_text(encoding="utf-8")
    table, _, rest = text.partition("|---|---|\n")[2].partition("\n\n")
    first_column = "".join(row.split("|")[1] for row in table.splitlines())
    return re.findall(r"`(\w+)`", first_column) + re.findall(r"^`(\w+)`", rest, re.MULTILINE)


def test_every_folder_of_the_tests_answers_a_question() -> None:
    folders = [
        path.name
        for path in TESTS.iterdir()
        if any(file.is_file() and file.suffix != ".pyc" for file in path.rglob("*"))
    ]

    assert sorted(named_folders()) == sorted(folders)
