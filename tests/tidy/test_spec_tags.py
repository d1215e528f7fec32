"""Each rule of the semantics that is called built has a test that names it, and only real rules
are named. ``tests/semantics/rules.toml`` is the list; the tag is ``@pytest.mark.spec("D7")``.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests.tidy.parsing import tree_of

TESTS = Path(__file__).resolve().parents[1]
RULES_FILE = TESTS / "semantics" / "rules.toml"
STATES = frozenset({"built", "part", "planned"})


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule as the list has it."""

    title: str
    status: str
    missing: str = ""


def rules() -> dict[str, Rule]:
    return msgspec.convert(tomllib.loads(RULES_FILE.read_text()), dict[str, Rule])


def tags_in(source: str) -> Iterator[str]:
    """The rule ids of every ``pytest.mark.spec(...)`` in a test file."""
    for node in ast.walk(tree_of(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "spec" and ast.unparse(node.func) == "pytest.mark.spec":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"line {node.lineno}: not a rule id"
                assert isinstance(argument.value, str), f"line {node.lineno}: not a rule id"
                yield argument.value


@cache
def tagged() -> dict[str, set[str]]:
    """The test files that name each rule."""
    found = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        source = path.read_text()
        for rule in tags_in(source) if "mark.spec" in source else ():
            found[rule].add(path.relative_to(TESTS).as_posix())
    return found


def test_every_rule_called_built_has_a_test() -> None:
    known = tagged()
    untested = [
        f"{rule_id}: {rule.title}"
        for rule_id, rule in rules().items()
        if rule.status != "planned" and rule_id not in known
    ]

    assert untested == []


def test_a_tag_names_a_rule_that_exists() -> None:
    unknown = {rule: files for rule, files in tagged().items() if rule not in rules()}

    assert unknown == {}


def test_a_rule_with_tests_is_not_called_planned() -> None:
    known = tagged()

    assert [
        rule_id
        for rule_id, rule in rules().items()
        if rule.status == "planned" and rule_id in known
    ] == []


def test_the_list_says_what_is_missing_of_a_rule_built_in_part() -> None:
    for rule_id, rule in rules().items():
        assert rule.status in STATES, rule_id
        assert bool(rule.missing) == (rule.status == "part"), rule_id


def test_tags_are_read_off_functions_modules_and_parameters() -> None:
    source = """
pytestmark = pytest.mark.spec("E1")
@pytest.mark.spec("D7", "D8")
def test_one(): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.spec("T1"))])
def test_two(x): ...
"""

    assert sorted(tags_in(source)) == ["D7", "D8", "E1", "T1"]


def test_a_tag_that_is_not_written_out_is_refused() -> None:
    with pytest.raises(AssertionError, match="line 1: not a rule id"):
        list(tags_in("pytest.mark.spec(RULE)"))
