"""Every built rule of the simulated chapters is played, or said to be looked after elsewhere."""

from __future__ import annotations

from itertools import chain

from tests.semantics.page import rules
from tests.sim.coverage import CHAPTERS, ELSEWHERE, ROT, RULES
from tests.sim.scenes import SCENES

PLAYED = {*chain.from_iterable(RULES.values()), *ROT}


def test_every_scene_says_what_it_plays() -> None:
    assert set(RULES) == set(SCENES)


def test_what_is_played_is_built() -> None:
    assert {rule for rule in PLAYED if rules()[rule].status == "planned"} == set()


def test_every_built_rule_is_played_or_looked_after_elsewhere() -> None:
    built = {
        rule_id
        for rule_id, rule in rules().items()
        if rule_id.rstrip("0123456789abcdefg") in CHAPTERS and rule.status != "planned"
    }

    assert built == PLAYED | set(ELSEWHERE)
    assert PLAYED & set(ELSEWHERE) == set()
