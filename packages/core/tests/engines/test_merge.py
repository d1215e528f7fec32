"""The merge engine needs a key, and a type that stores events."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import dying, outstanding, play_of, removals
from penstock_core.engines.merge import ENGINE
from penstock_core.ids.ids import IdSet
from penstock_core.messages.durables import AddDurable, RemoveDurable
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.bootstrap import rules
from penstock_testing.play import publish, span


@pytest.mark.spec("C4")
@pytest.mark.parametrize("keys", [{}, {"k": 2}, {"k": 1, "l": 1}])
def test_without_exactly_one_key_of_depth_one_it_is_refused(keys: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="exactly one publish key with depth 1"):
        Directory(rules()).decide_create("rates", Definition(engine="merge", keys=keys))


@pytest.mark.spec("C4")
def test_a_type_that_stores_nothing_is_refused() -> None:
    definition = Definition(type="transient", engine="merge", keys={"k": 1})

    with pytest.raises(InvalidArgument, match="stores no events, so there is no state"):
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


@pytest.mark.spec("D6", "T8")
def test_a_state_stays_whatever_durables_acknowledge() -> None:
    """A later delta is merged into the state, so the state must not leave."""
    play = play_of(engine="merge", keys={"k": 1}, events=3)
    play.do(AddDurable("d", "exclusive"))
    play.do(TakeSeat("d", 1, "s1"))
    play.do(Ack(1, (span(2),)))
    play.do(publish(1, superseded=(span(1),)))
    play.do(Ack(1, (span(3),)))
    play.do(AddDurable("late", "shared", 0))
    play.do(RemoveDurable("late"))

    assert list(play.channel.state.stored) == [0, 2, 3]
    assert removals(play) == [(Cause.REPLACED, [1], [])]
    counters = play.channel.state.counters
    assert (counters.published, counters.departed_count) == (4, 1)
    play.restart_from_snapshot()
    assert list(play.channel.state.stored) == [0, 2, 3]


@pytest.mark.spec("D6", "T1", "T6", "T9")
def test_time_and_purges_take_a_state_that_was_acknowledged_and_it_is_not_dead() -> None:
    play = dying(engine="merge", keys={"k": 1}, ttl=1_000)
    play.do(publish(3))
    play.do(AddDurable("d", "exclusive"))
    play.do(TakeSeat("d", 1, "s1"))
    play.do(Ack(1, (span(1),)))
    play.do(PurgeEvents((span(0),)))
    play.wait(1_000)
    play.sweep()

    assert removals(play) == [(Cause.PURGED, [0], []), (Cause.EXPIRED, [1, 2], [2])]


@pytest.mark.spec("D6", "T10")
def test_a_state_that_is_dead_for_a_durable_stays_for_everybody_else() -> None:
    play = dying(engine="merge", keys={"k": 1})
    play.do(AddDurable("d", "shared", max_deliveries=1))
    play.do(TakeSeat("d", 1, "s1", window=10))
    play.do(publish(2))
    play.do(RollBack(1, (span(0),)))

    assert (list(play.channel.state.stored), outstanding(play)) == ([0, 1], [1])
    assert play.channel.state.counters.dead == 0
    play.do(Detach(1))
    assert play.channel.state.stored == IdSet((span(0, 1),))
