"""The page about upgrades: its numbers are those of the code."""

from __future__ import annotations

import re

from penstock_core.columns.files import exports
from penstock_core.wire.native.frames import PREFACE
from penstock_server.storage.embedded.frames import DIRECTORY_FORMAT
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "guide" / "upgrading.md").read_text(encoding="utf-8")


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    versions = dict(re.findall(r"^\| (\w+ \w+) \| (\d+) \|", PAGE, re.MULTILINE))

    assert versions == {
        "storage format": str(DIRECTORY_FORMAT),
        "wire version": str(PREFACE[7]),
        "export format": str(exports.FORMAT),
    }


def test_files_of_every_earlier_format_are_read_by_tests() -> None:
    kept = {path.name for path in (ROOT / "tests" / "golden").glob("format-*")}

    assert kept == {f"format-{number}" for number in range(1, DIRECTORY_FORMAT + 1)}
