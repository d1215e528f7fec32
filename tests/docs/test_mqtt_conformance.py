"""The page of MQTT's normative statements says what is there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "mqtt-conformance.md"
PACKAGE = ROOT / "packages/mqtt/src/penstock_mqtt"
STATEMENTS = 251
"""Number of normative statements in appendix B of MQTT 5."""

_ROW = re.compile(r"^\| MQTT-([\d.]+-\d+) \|[^|]+\|([^|]+)\|([^|]+)\|$", re.MULTILINE)
_SECTION = re.compile(r"^\| (\d[\d.]+) \| ([\d, to]+) \|", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")


def listed() -> Iterator[str]:
    """Every statement on the page, those that are only counted by section, too."""
    text = PAGE.read_text(encoding="utf-8")
    yield from (row[0] for row in _ROW.findall(text))
    for section, numbers in _SECTION.findall(text):
        for part in numbers.split(", "):
            first, _, last = part.strip().partition(" to ")
            yield from (f"{section}-{n}" for n in range(int(first), int(last or first) + 1))


def test_each_statement_stands_there_once() -> None:
    count_by_statement = Counter(listed())

    assert {statement: count for statement, count in count_by_statement.items() if count > 1} == {}
    assert len(count_by_statement) == STATEMENTS


def test_what_is_named_there_exists() -> None:
    rows = _ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert rows
    for statement, where, tests in rows:
        file = ""
        for place in _CODE.findall(where):
            test_path, _, name = place.rpartition(": ")
            file = test_path or file
            if "/" in file:
                (path,) = ROOT.glob(f"packages/*/src/{file}")
            else:
                path = PACKAGE / "wire" / file
            text = path.read_text(encoding="utf-8")
            assert re.search(rf"(def|class) {name.rpartition('.')[2]}\b", text), statement
        for place in _CODE.findall(tests):
            file, _, name = place.partition("::")
            path = ROOT / file if "/" in file else ROOT / "packages/mqtt/tests/wire" / file
            assert f"def {name}(" in path.read_text(encoding="utf-8"), statement


def test_the_counts_are_those_of_the_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    built = len(_ROW.findall(text))

    assert f"{built} of {STATEMENTS} statements" in text
