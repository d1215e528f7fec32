"""The merge engine needs a key to merge by, and something that is kept."""

from __future__ import annotations

import pytest

from penstock.bootstrap import rules
from penstock.core.directory import Directory
from penstock.core.engines.merge import ENGINE
from penstock.core.errors import InvalidArgument
from penstock.core.messages import Definition
from tests.core.plays import play_of


@pytest.mark.spec("C4")
@pytest.mark.parametrize("keys", [{}, {"k": 2}, {"k": 1, "l": 1}])
def test_without_exactly_one_key_of_depth_one_it_is_refused(keys: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="exactly one publish key, of depth 1"):
        Directory(rules()).decide_create("rates", Definition(engine="merge", keys=keys))


@pytest.mark.spec("C4")
def test_a_type_that_stores_nothing_is_refused() -> None:
    definition = Definition(type="transient", engine="merge", keys={"k": 1})

    with pytest.raises(InvalidArgument, match="keeps no event, so there is no state"):
        Directory(rules()).decide_create("rates", definition)


@pytest.mark.spec("C4")
@pytest.mark.parametrize("kind", ["persistent", "mixed", "reliable", "simple", "off_heap", "paged"])
def test_every_other_type_takes_it(kind: str) -> None:
    definition = Definition(type=kind, engine="merge", keys={"k": 1})

    assert Directory(rules()).decide_create("rates", definition).definition.engine == "merge"


@pytest.mark.spec("K2")
def test_events_stay_as_on_the_default_engine_and_may_be_deltas() -> None:
    play = play_of(engine="merge", keys={"k": 1}, events=3)

    assert ENGINE.merges
    assert not ENGINE.needs_interest
    assert ENGINE.first_id(7, 100) == 7
    assert list(play.channel.state.stored) == [0, 1, 2]
