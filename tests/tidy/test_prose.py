"""The texts and names of packages, benchmarks and test programs are plain English, by the counts
of `scripts/prose.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.prose import (
    BENCHMARKS,
    RULES,
    TEST_PROGRAMS,
    Prose,
    faults,
    hits_in,
    lowered,
    prose_by_package,
    read_record,
    render,
    texts_of,
)
from scripts.sample import places_in, sample
from scripts.weight.source import Source
from tests.tidy.parsing import bench_sources, program_sources, sources

GOALS = {rule.name: rule.goal for rule in RULES}


def module(text: str) -> Source:
    path = Path("packages/core/src/penstock_core/made_up.py")
    return Source(path, "penstock_core.made_up", text, tree=ast.parse(text))


def rules_hit(text: str) -> Iterator[str]:
    source = module(text)
    for hit in hits_in(source, texts_of(source)):
        yield hit.rule


def test_packages_benchmarks_and_test_programs_are_not_above_the_goals_and_their_record() -> None:
    measured = prose_by_package((*sources(), *bench_sources(), *program_sources()))

    assert measured.keys() >= {BENCHMARKS, *(Path(folder).name for folder in TEST_PROGRAMS)}
    assert list(faults(measured, read_record())) == []


def test_the_record_only_has_rates_above_the_goals() -> None:
    assert {
        (package, rule)
        for package, rates in read_record().items()
        for rule, rate in rates.items()
        if rate <= GOALS[rule]
    } == set()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('"""What nobody needs."""', "opening"),
        ('"""The queue of somebody."""', "somebody"),
        ('"""Return the queue that there is."""', "there is"),
        ('"""Return what was found."""', "what is"),
        ('"""Return the queue of which it is a part."""', "of which"),
        ("# it comes to nothing", "comes to"),
        ("# this gives whether it is open", "gives whether"),
        ("# this is no queue", "is no"),
        ("# a queue of its own", "of its own"),
        ("# the queue is made anew", "anew"),
        ("found = 1", "name"),
        ("def _look():\n    return 1", "name"),
        ('raise ValueError("nobody may read it")', "somebody"),
        ('queue = 1\n"""What is waiting."""', "opening"),
    ],
)
def test_each_rule_counts_its_wording_wherever_it_stands(text: str, rule: str) -> None:
    assert rule in set(rules_hit(text))


@pytest.mark.parametrize(
    "text",
    [
        '"""Whether the queue is open."""',
        '"""Return the oldest event. Raises ``NameDoesNotExist``."""',
        "# the lease is no longer held",
        'raise ValueError("a name must have at most 255 characters")',
        "event_ids = [1]",
        'print("nobody")',
    ],
)
def test_plain_english_is_not_counted(text: str) -> None:
    assert list(rules_hit(text)) == []


def test_a_rate_above_the_record_is_a_fault_and_a_lower_one_lowers_it() -> None:
    source = module("found = 1\n" + '"""Return it."""\n' * 100)
    texts = list(texts_of(source))
    measured = {"core": Prose(len(texts), list(hits_in(source, texts)))}

    [fault] = faults(measured, {})
    assert fault.startswith("core: 10.0 of 1,000 texts have 'name', allowed are 5.0;")
    assert list(faults(measured, {"core": {"name": 10.0}})) == []
    assert lowered(measured, {"core": {"name": 50.0, "is no": 9.0}}) == {"core": {"name": 10.0}}
    assert '[core]\n"name" = 10\n' in render({"core": {"name": 10.0}})


def test_a_seed_draws_the_same_sample() -> None:
    first, again, other_seed = (sample(sources()[:50], seed, 20) for seed in (1, 1, 2))

    assert len(first) == 20
    assert first == again != other_seed


def test_a_sampled_docstring_follows_the_whole_code_that_it_belongs_to() -> None:
    source = module(
        '''"""Of the module."""

LIMIT = 1
"""Of the constant."""


class Queue(
    Base,
):
    """Of the class."""

    name: str
    """Of the field."""

    def move(
        self,
        target: str,
    ) -> None:
        """Of the method."""
        self.target = (
            target
        )
        """Of the attribute."""
'''
    )
    texts = {place.text for place in places_in(source)}

    assert {text for text in texts if text.endswith(".") and '"""' not in text} == {
        "module\nOf the module.",
        "LIMIT = 1\nOf the constant.",
        "class Queue(\n    Base,\n):\nOf the class.",
        "class Queue\nname: str\nOf the field.",
        "def move(\n    self,\n    target: str,\n) -> None:\nOf the method.",
        "self.target = (\n    target\n)\nOf the attribute.",
    }
