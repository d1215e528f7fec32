"""Cells of CSV files that programs would change by reading them as numbers."""

from __future__ import annotations

import re

import pytest

from penstock_core.vocabulary.csv_cells import LONG, NOT_PLAIN

pytestmark = pytest.mark.spec("E11")


@pytest.mark.parametrize("cell", ["0815", "+49123", "0x1F", "00E1", "-007", "+0.5"])
def test_numbers_that_are_not_written_plainly(cell: str) -> None:
    assert re.search(NOT_PLAIN, cell)


@pytest.mark.parametrize("cell", ["0", "-0", "0.5", "-0.5", "12", "1e3", "", "x0815"])
def test_plain_numbers_and_texts(cell: str) -> None:
    assert not re.search(NOT_PLAIN, cell)


def test_whole_numbers_that_may_be_rounded_have_sixteen_digits() -> None:
    assert re.search(LONG, "9007199254740993")
    assert re.search(LONG, "-9007199254740993")
    assert not re.search(LONG, "900719925474099")
    assert not re.search(LONG, "9007199254740993.5")
