"""Every rule of the semantics has a reason and a test, and nothing names a rule there is not.

``docs/reference/semantics.md`` has the rules; tests are tagged ``@pytest.mark.spec("D7")``, and
docstrings cite ``SEM D7``.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.semantics import page
from tests.semantics.page import (
    PAGE,
    ROOT,
    STATES,
    UNTESTED,
    Tagged,
    cited_in,
    renewed,
    rules,
    rules_in,
    sections,
    shown_for,
    tagged,
    tags_in,
)

ADVICE = "run python -m tests.semantics.page"
FOLDERS = ("packages", "tests", "bench", "docs", "examples", "scripts")


def sources() -> list[Path]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [path for path in paths if path.suffix in (".py", ".md") and path != Path(__file__)]


def test_every_rule_called_built_has_a_test() -> None:
    tagged_rules = tagged()
    untested = [
        f"{rule_id}: {rule.title}"
        for rule_id, rule in rules().items()
        if rule.status not in UNTESTED and rule_id not in tagged_rules
    ]

    assert untested == []


def test_a_tag_names_a_rule_that_exists() -> None:
    unknown = {rule_id: tests for rule_id, tests in tagged().items() if rule_id not in rules()}

    assert unknown == {}


def test_a_rule_with_tests_is_neither_planned_nor_withdrawn() -> None:
    tagged_rules = tagged()

    assert [
        rule_id
        for rule_id, rule in rules().items()
        if rule.status in UNTESTED and rule_id in tagged_rules
    ] == []


def test_the_page_says_what_is_missing_of_a_rule_built_in_part() -> None:
    for rule_id, rule in rules().items():
        assert rule.status in STATES, rule_id
        assert bool(rule.missing) == (rule.status == "part"), rule_id


def test_every_rule_has_a_title_and_a_reason() -> None:
    assert len(rules()) > 90
    assert [rule_id for rule_id, rule in rules().items() if not rule.title] == []
    assert [rule_id for rule_id, rule in rules().items() if not rule.has_reason] == []


def test_the_tests_on_the_page_are_there_and_tagged_with_their_rule() -> None:
    for rule_id, rule in rules().items():
        test_ids = {test.test_id for test in tagged().get(rule_id, ())}
        missing = [test_id for test_id in rule.tests if test_id not in test_ids]

        assert missing == [], f"{rule_id}: {ADVICE}"
        assert rule.tests or rule.status in UNTESTED, f"{rule_id}: {ADVICE}"


def test_what_is_cited_anywhere_stands_on_the_page() -> None:
    names = {*rules(), *sections()}
    unknown = {
        path.relative_to(ROOT).as_posix(): sorted(cited)
        for path in sources()
        if (cited := set(cited_in(path.read_text(encoding="utf-8"))) - names)
    }

    assert unknown == {}


def test_every_letter_of_a_rule_has_a_section() -> None:
    assert {rule_id[0] for rule_id in rules()} == set(sections())


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("(SEM D7)", ["D7"]),
        ("(SEM K2, K4)", ["K2", "K4"]),
        ("(SEM J2-J4, J6)", ["J2", "J3", "J4", "J6"]),
        ("(SEM J2, J4, C1c-f)", ["J2", "J4", "C1c", "C1d", "C1e", "C1f"]),
        ("(SEM S, maintenance)", ["S"]),
        ("(SEM S: priority)", ["S"]),
        ("SEM D11 and D13 say so", ["D11", "D13"]),
        ("SEMANTICS", []),
    ],
)
def test_citations_are_read_one_by_one(text: str, cited: list[str]) -> None:
    assert list(cited_in(text)) == cited


def test_tags_are_read_off_functions_modules_classes_and_parameters() -> None:
    source = """
pytestmark = pytest.mark.spec("E1")
@pytest.mark.spec("D7", "D8")
def test_one(): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.spec("T1"))])
@pytest.mark.slow
def test_two(x): ...
@pytest.mark.spec("D9")
class TestThree:
    def test_four(self): ...
TestMachine.TestCase.pytestmark = [pytest.mark.spec("X1")]
"""

    tests = list(page.tests_in(ast.parse(source), "a.py"))

    assert sorted({rule_id for rule_id, _ in tests}) == ["D7", "D8", "D9", "E1", "T1", "X1"]
    assert [test.test_id for rule_id, test in tests if rule_id == "D9"] == [
        "a.py::TestThree::test_four"
    ]
    assert [test.name for rule_id, test in tests if rule_id == "E1"] == [
        "test_one",
        "test_two",
        "TestThree::test_four",
    ]
    assert [test.is_heavy for rule_id, test in tests if rule_id == "T1"] == [True]


def test_what_is_left_out_of_a_module_before_it_is_read_is_no_tag() -> None:
    source = '''
@pytest.mark.spec("D7")
def test_one(
    a: int, b: str
) -> None:
    x = 1

    assert x

text = """
def test_in_a_text():
    pass
"""
def test_two():
    text = """
@pytest.mark.spec("D1")
def test_in_a_text(): ...
"""
@pytest.mark.spec("D9")
async def test_three() -> None:
    assert text
    for each in text: pass
'''

    shorter = page.outline(source)

    assert "assert" not in shorter
    assert shorter.count("\n") == source.count("\n")
    assert list(page.tests_in(ast.parse(shorter), "a.py")) == list(
        page.tests_in(ast.parse(source), "a.py")
    )


def test_a_tag_that_is_not_written_out_is_refused() -> None:
    with pytest.raises(AssertionError, match="line 1: not a rule id"):
        list(tags_in(ast.parse("pytest.mark.spec(RULE)")))


RULES = """# Rules

## D. Durables

### D1

**One.** Text.

*Status: part.* Missing: the rest.

*Why:* Because.

*Tests:*
`tests/core/test_a.py::test_gone`,
`tests/core/test_a.py::test_here`

### D2

**Two.** Text.

*Why:* Because.
"""


def test_a_renamed_test_gives_its_place_to_another_and_the_rest_of_the_page_stays() -> None:
    here, other_test = (
        Tagged(f"tests/core/test_{name}.py", "test_here", is_own=True, others=1, is_heavy=False)
        for name in ("a", "b")
    )

    after = renewed(RULES, {"D1": [here, other_test], "D2": []})

    assert after == RULES.replace("a.py::test_gone", "a.py::test_here").replace(
        "`tests/core/test_a.py::test_here`\n\n", "`tests/core/test_b.py::test_here`\n\n"
    )
    assert renewed(after, {"D1": [here, other_test], "D2": []}) == after
    assert rules_in(after)["D1"].missing == "the rest."
    assert rules_in(after)["D1"].tests == (here.test_id, other_test.test_id)


def test_light_tests_of_the_rule_itself_are_shown_first_and_from_several_files() -> None:
    tests = [
        Tagged("tests/core/test_a.py", "test_heavy", is_own=True, others=1, is_heavy=True),
        Tagged(
            "tests/core/test_a.py", "test_of_the_module", is_own=False, others=0, is_heavy=False
        ),
        Tagged("tests/core/test_a.py", "test_one", is_own=True, others=1, is_heavy=False),
        Tagged("tests/core/test_a.py", "test_two", is_own=True, others=1, is_heavy=False),
        Tagged("tests/client/test_b.py", "test_three", is_own=True, others=2, is_heavy=False),
    ]

    assert shown_for([], tests) == [
        "tests/core/test_a.py::test_one",
        "tests/client/test_b.py::test_three",
        "tests/core/test_a.py::test_two",
    ]


def test_a_rule_that_stands_twice_is_noticed() -> None:
    with pytest.raises(AssertionError, match="D1 stands on the page twice"):
        rules_in(RULES + RULES)


def test_the_page_is_where_the_code_says() -> None:
    assert PAGE.is_file()
