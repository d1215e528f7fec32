"""Reads and updates the page of rules, ``docs/reference/semantics.md``, with the tests of each
rule.

The page is the only list of rules: each rule has its own heading there. Below each rule are some of
the tests that are tagged with it. ``python -m tests.semantics.page`` replaces tests that were
renamed or removed."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from tests.tidy.parsing import files_of_tests, tree_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "semantics.md"

SHOWN = 3
"""Tests shown with a rule; ``--rule`` runs all of them."""
STATES = ("built", "part", "planned", "withdrawn")
UNTESTED = ("planned", "withdrawn")
"""States in which a rule has no tests."""

_RULE = re.compile(r"^### ([A-Z]\d*[a-z]?)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^## ([A-Z])\. (.+)$", re.MULTILINE)
_STATUS = re.compile(r"^\*Status: (\w+)\.\*(?: Missing: (.+))?$", re.MULTILINE)
_TESTS = re.compile(r"^\*Tests:\*\n((?:`[^`\n]+`,?\n)+)\n?", re.MULTILINE)
_TEST = re.compile(r"`([^`\n]+)`")

_ID = r"[A-Z]\d*[a-z]?(?:-(?:[A-Z]\d+|[a-z]))?"
_CITED = re.compile(rf"\bSEM ({_ID}(?:(?:, and |, | and ){_ID})*)(?![\w])")
_RANGE = re.compile(r"([A-Z])(\d*)([a-z]?)(?:-(?:[A-Z](\d+)|([a-z])))?")

_BODY = re.compile(
    r"^((?:async )?def \w+\((?:[^\n]*|\n(?: [^\n]*\n)*\)[^\n]*):)\n((?:(?: [^\n]*)?\n)+)",
    re.MULTILINE,
)

_FIRST = ("core", "semantics", "server", "integration", "client", "access")
"""Packages and folders whose tests explain a rule best; they are preferred in this order."""
_HEAVY = ("mark.slow", "mark.process", "mark.peer")
_HEAVY_FIXTURES = {"spark", "java"}


class Rule(Struct, frozen=True):
    """One rule of the page."""

    rule_id: str
    text: str
    status: str = "built"
    missing: str = ""
    tests: tuple[str, ...] = ()

    @property
    def has_reason(self) -> bool:
        return "\n*Why:* " in self.text

    @property
    def title(self) -> str:
        return self.text.strip().partition("**")[2].partition("**")[0].rstrip(".")


class Tagged(NamedTuple):
    """A test with the tag of a rule."""

    path: str
    name: str
    is_own: bool
    """Whether the test itself is tagged, and not only its module or class."""
    others: int
    """The other rules with which it is tagged."""
    is_heavy: bool

    @property
    def test_id(self) -> str:
        return f"{self.path}::{self.name}"


# --- the page ------------------------------------------------------------------------------


def rules_in(page: str) -> dict[str, Rule]:
    """Return all rules of a page, by id."""
    rules_by_id = {}
    for match in _RULE.finditer(page):
        rule_id, text = match.groups()
        assert rule_id not in rules_by_id, f"{rule_id} stands on the page twice"
        rules_by_id[rule_id] = _rule(rule_id, text)
    return rules_by_id


def _rule(rule_id: str, text: str) -> Rule:
    status = _STATUS.search(text)
    tests = _TESTS.search(text)
    return Rule(
        rule_id,
        text,
        status=status[1] if status else "built",
        missing=(status[2] or "") if status else "",
        tests=tuple(_TEST.findall(tests[1])) if tests else (),
    )


@cache
def rules() -> dict[str, Rule]:
    return rules_in(PAGE.read_text(encoding="utf-8"))


@cache
def sections() -> dict[str, str]:
    """Return the headings of the sections by their letters; a section may be cited as a whole."""
    return dict(_SECTION.findall(PAGE.read_text(encoding="utf-8")))


def anchor_of(cited: str) -> str:
    """Return the anchor of a rule or section on the page."""
    if cited in rules():
        return cited.lower()
    heading = f"{cited}. {sections()[cited]}"
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def cited_in(text: str) -> Iterator[str]:
    """Return the ids that a text cites: ``SEM D7``, ``SEM J2-J4, J6``, ``SEM C1c-f``, ``SEM D``."""
    for citation in _CITED.finditer(text):
        for part in _RANGE.finditer(citation[1]):
            yield from _spelled_out(*part.groups())


def _spelled_out(letter: str, number: str, part: str, last: str, last_part: str) -> Iterator[str]:
    if last:
        yield from (f"{letter}{n}" for n in range(int(number), int(last) + 1))
    elif last_part:
        yield from (f"{letter}{number}{chr(n)}" for n in range(ord(part), ord(last_part) + 1))
    else:
        yield f"{letter}{number}{part}"


# --- the tests -----------------------------------------------------------------------------


def tags_in(source: ast.AST) -> Iterator[str]:
    """Yield the rule ids of each ``pytest.mark.spec(...)`` below a node."""
    for node in ast.walk(source):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "spec" and ast.unparse(node.func) == "pytest.mark.spec":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"line {node.lineno}: not a rule id"
                assert isinstance(argument.value, str), f"line {node.lineno}: not a rule id"
                yield argument.value


def tests_in(module: ast.Module, path: str) -> Iterator[tuple[str, Tagged]]:
    """Yield each rule with a test of the module that is tagged with it. If a tag is not on a
    function, for example on the class of a state machine, the test is the whole file."""
    outer = [tag for node in module.body if _is_mark(node) for tag in tags_in(node)]
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_function(node, outer, path, name=node.name)
        elif isinstance(node, ast.ClassDef):
            marks = [mark for mark in node.body if _is_mark(mark)]
            inner = outer + [
                tag for mark in [*node.decorator_list, *marks] for tag in tags_in(mark)
            ]
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _of_function(item, inner, path, name=f"{node.name}::{item.name}")
        elif not _is_mark(node):
            yield from (
                (tag, Tagged(path, "", is_own=False, others=0, is_heavy=True))
                for tag in tags_in(node)
            )


def outline(source: str) -> str:
    """Parse a module without the bodies of its functions, which take most of the time. Line numbers
    stay the same."""
    return _BODY.sub(_without_body, source)


def _without_body(function: re.Match[str]) -> str:
    signature, body = function.groups()
    if body.count('"""') % 2 or body.count("'''") % 2:  # it ends, or begins, within a text
        return function[0]
    return f"{signature} ...\n" + "\n" * body.count("\n")


def _is_mark(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    target = node.targets[0]
    return isinstance(target, ast.Name) and target.id == "pytestmark"


def _of_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, outer: Sequence[str], path: str, name: str
) -> Iterator[tuple[str, Tagged]]:
    if not node.name.startswith("test"):
        return
    tags = list(chain.from_iterable(map(tags_in, node.decorator_list)))
    if not tags and not outer:
        return
    marks = " ".join(map(ast.unparse, node.decorator_list))
    uses = {argument.arg for argument in node.args.args}
    is_heavy = any(mark in marks for mark in _HEAVY) or not _HEAVY_FIXTURES.isdisjoint(uses)
    for tag in dict.fromkeys((*tags, *outer)):
        yield tag, Tagged(path, name, tag in tags, others=len(tags), is_heavy=is_heavy)


@cache
def tagged() -> dict[str, list[Tagged]]:
    """Return all rules in the tags of tests, with these tests."""
    tests_by_tag = defaultdict(list)
    for path in (path for path in files_of_tests() if path.name.startswith("test_")):
        source = path.read_text(encoding="utf-8")
        if "mark.spec" in source:
            for tag, test in tests_in(tree_of(outline(source)), path.relative_to(ROOT).as_posix()):
                tests_by_tag[tag].append(test)
    return tests_by_tag


# --- both ----------------------------------------------------------------------------------


def shown_for(shown: Iterable[str], tests: Iterable[Tagged]) -> list[str]:
    """Return the tests to show with a rule: those shown now, if they are still tagged with it, and
    then the plainest of the others, from as many files as possible."""
    tests_by_id = {test.test_id: test for test in tests if test.name}
    kept = [test_id for test_id in shown if test_id in tests_by_id]
    rest = sorted(
        (test for test in tests_by_id.values() if test.test_id not in kept), key=_plainness
    )
    while rest and len(kept) < SHOWN:
        files = [test_id.partition("::")[0] for test_id in kept]
        best = min(rest, key=lambda test: (files.count(test.path), _plainness(test)))
        rest.remove(best)
        kept.append(best.test_id)
    return kept


def _plainness(test: Tagged) -> tuple[object, ...]:
    folder = test.path.split("/")[1]
    rank = _FIRST.index(folder) if folder in _FIRST else len(_FIRST)
    return (not test.is_own, test.is_heavy, test.others, rank, test.path, test.name)


def renewed(page: str, tests: dict[str, list[Tagged]]) -> str:
    """Return the page with existing tests; those that are on it and still tagged keep their
    place."""

    def rule(match: re.Match[str]) -> str:
        rule_id, text = match.groups()
        shown = shown_for(_rule(rule_id, text).tests, tests.get(rule_id, ()))
        text = _TESTS.sub("", text).rstrip("\n") + "\n"
        if shown:
            text += "\n*Tests:*\n" + ",\n".join(f"`{test_id}`" for test_id in shown) + "\n"
        return f"### {rule_id}\n{text}\n"

    return _RULE.sub(rule, page).rstrip("\n") + "\n"


def renew() -> None:
    """Replace tests on the page that do not exist any more."""
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), tagged()), encoding="utf-8")


if __name__ == "__main__":
    renew()
