"""The table of limits says what the code does."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Final

import pytest

from penstock.settings.loading import described
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/reference/limits.md"
_UNITS: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1}
_BOUND = re.compile(r"([\d,.]+) ?(KiB|MiB|GiB|B|s)?\b")


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


ROWS = rows()


def value_of(where: str) -> object:
    """The constant or the setting's default that a row names."""
    if where.startswith("penstock."):
        module, name = where.rsplit(".", 1)
        return getattr(import_module(module), name)
    return next(default for path, default, _ in described() if path == where)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_bound_on_the_page_is_the_one_in_the_code(row: list[str]) -> None:
    _, bound, _, _, where = row

    number = _BOUND.match(bound)

    assert number is not None
    assert float(number[1].replace(",", "")) * _UNITS[number[2] or ""] == value_of(where.strip("`"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_for_what_a_bound_holds_and_what_happens_beyond_it(row: list[str]) -> None:
    assert len(row) == 5
    assert all(row)
