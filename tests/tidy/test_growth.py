"""Packages grow by more than 2 % only with a reason in `scripts/weight/recorded.toml`."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import convert

from scripts.weight import __main__ as weight
from scripts.weight import growth
from scripts.weight.growth import Recorded, faults, lowered, raised, read_record, render
from scripts.weight.sizes import Size, size_of, size_table, statements_by_package
from scripts.weight.source import Source
from tests.tidy.parsing import sources

HUNDRED = {"core": Recorded(first=100, statements=100)}


def module(name: str, text: str) -> Source:
    return Source(Path(f"{name}.py"), name, text, tree=ast.parse(text))


def of_statements(count: int) -> dict[str, int]:
    """Statements of a made-up core with that many."""
    text = '"""A module."""\n\n' + "# A comment.\nvalue = 1\n" * count
    return {"core": statements_by_package([module("penstock_core.made_up", text)])["core"]}


def test_packages_have_the_size_of_their_record() -> None:
    assert list(faults(statements_by_package(sources()), read_record())) == []


def test_growth_of_more_than_two_percent_is_a_fault() -> None:
    assert list(faults(of_statements(102), HUNDRED)) == []

    [fault] = faults(of_statements(103), HUNDRED)

    assert fault.startswith("core has 103 statements, 3.0% over its record of 100 (allowed: 2%)")
    assert fault.endswith("python -m scripts.weight --record core --reason '...'")


def test_growth_in_small_steps_is_a_fault() -> None:
    record: Mapping[str, Recorded] = HUNDRED
    for count in (101, 102):
        record = lowered(of_statements(count), record)
        assert list(faults(of_statements(count), record)) == []

    assert len(list(faults(of_statements(103), record))) == 1


def test_a_reason_raises_the_record() -> None:
    record = raised(of_statements(120), HUNDRED, ["core"], "Channels have schemas")

    assert list(faults(of_statements(120), record)) == []
    assert record["core"].first == 100
    assert [entry.reason for entry in record["core"].growth] == ["Channels have schemas"]


def test_a_record_cannot_be_raised_without_a_reason() -> None:
    edited = {"core": Recorded(first=100, statements=120)}

    [fault] = faults(of_statements(120), edited)

    assert fault.startswith("the record of core is 120, but its last reason allows 100;")
    [fault] = faults(of_statements(120), raised(of_statements(120), HUNDRED, ["core"], " "))
    assert fault.startswith("core has a growth without a reason")


def test_a_package_that_became_smaller_cannot_grow_back_unnoticed() -> None:
    assert len(list(faults(of_statements(90), HUNDRED))) == 1

    record = lowered(of_statements(90), HUNDRED)

    assert list(faults(of_statements(90), record)) == []
    assert len(list(faults(of_statements(100), record))) == 1


def test_packages_of_the_table_and_of_the_record_are_the_same() -> None:
    [added] = faults({"core": 100, "mqtt": 5}, HUNDRED)
    [removed] = faults({}, HUNDRED)

    assert added.startswith("mqtt has no record")
    assert removed.startswith("core is recorded but is not a package")
    assert lowered({}, HUNDRED) == {}
    assert raised({"mqtt": 5}, HUNDRED, ["mqtt"], "new") == {"mqtt": Recorded(5, 5)}


def test_a_record_is_read_as_it_was_written() -> None:
    record = raised({"core": 120}, HUNDRED, ["core"], 'A "quoted" word, a \\ and a line\nbreak')

    assert convert(tomllib.loads(render(record)), dict[str, Recorded]) == record
    assert growth.RECORD.read_text(encoding="utf-8") == render(read_record())


def test_the_command_renews_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "packages/core/src/penstock_core/module.py"
    path.parent.mkdir(parents=True)
    path.write_text("value = 1\n" * 10)
    record = tmp_path / "recorded.toml"
    entries = {package: Recorded(0, 0) for package in read_record()}
    record.write_text(render(entries | {"core": Recorded(5, 5)}))
    root = ["--root", f"{tmp_path}", "--record-file", f"{record}"]

    assert weight.main([*root, "--record"]) == 1
    assert "core has 10 statements" in capsys.readouterr().out
    assert weight.main([*root, "--record", "core", "--reason", "more rules"]) == 0
    assert capsys.readouterr().out == "core: 5 -> 10 statements\n"
    with pytest.raises(SystemExit):
        weight.main([*root, "--record", "core"])
    assert read_record(record)["core"].growth[0].reason == "more rules"


TEXT = '''"""A module.

It has two statements.
"""

LIMIT = 1  # of what it is
"""A limit."""
# A comment
# of two lines.
TEXT = "# not a comment"
'''


def test_a_package_has_statements_docstrings_comments_and_lines() -> None:
    size = size_of([module("penstock_core.one", TEXT), module("penstock_core.two", TEXT)])

    assert size == Size(
        modules=2, statements=4, docstrings=4, docstring_lines=10, comments=6, lines=20
    )


def test_the_table_has_a_row_for_each_package_and_a_sum() -> None:
    rows = list(size_table([module("penstock_core.one", TEXT), module("penstock_mqtt.wire.x", "")]))

    assert [row.split()[0] for row in rows] == ["package", *read_record(), "all"]
    assert rows[1].split() == ["core", "1", "2", "2", "5", "3", "10"]
    assert rows[-1].split() == ["all", "packages", "2", "2", "2", "5", "3", "10"]
