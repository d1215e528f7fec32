"""Delivery states of events, and the time since which each has its state (SEM D23)."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.plays import durable_play, play_of
from penstock_core.channel import delivery_state
from penstock_core.channel.delivery_state import RUNS_MAX, WINDOW_IDS_MAX, Selected, delivery_runs
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.delivery import HoldEvents
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.vocabulary.delivery_runs import (
    OUTSTANDING,
    STORED_STATES,
    DeliveryPlace,
    DeliveryRun,
    EventState,
)
from penstock_core.vocabulary.errors import InvalidArgument, NameDoesNotExist
from penstock_testing.play import Play, publish, span

START = DeliveryPlace("", 0)
KINDS = ("exclusive", "priority", "shared", "serial", "shared_queued")


def pages(
    play: Play,
    states: tuple[EventState, ...] = OUTSTANDING,
    *,
    durable: str | None = None,
    rows_max: int = 1_000_000,
) -> list[list[DeliveryRun]]:
    selected = Selected(durable, frozenset(states), rows_max)
    place: DeliveryPlace | None = START
    runs_by_page = []
    while place is not None:
        runs, place = delivery_runs(play.channel.state, selected, place, play.now_us)
        runs_by_page.append(runs)
    return runs_by_page


def runs_of(play: Play, *states: EventState, **more: Any) -> list[DeliveryRun]:
    return [run for page in pages(play, states or OUTSTANDING, **more) for run in page]


def shown(runs: list[DeliveryRun]) -> list[tuple[str, int, str, str | None]]:
    return [
        (run.durable, event_id, run.state, run.client)
        for run in runs
        for event_id in range(*run.span)
    ]


@pytest.mark.spec("D23")
@pytest.mark.parametrize("kind", KINDS)
def test_each_outstanding_event_has_one_row(kind: str) -> None:
    windowed = kind not in ("exclusive", "priority")
    play = durable_play(kind, 2 if windowed else None, events=3)
    play.do(Ack(1, (span(0),)))

    held = ("in_flight", "s1")
    assert shown(runs_of(play)) == [("d", 1, *held), ("d", 2, *held)]
    assert shown(runs_of(play, *STORED_STATES)) == [
        ("d", 1, *held),
        ("d", 2, *held),
    ], "event 0 is acknowledged by all durables and gone"


@pytest.mark.spec("D23")
def test_the_times_of_an_event_are_those_of_its_state() -> None:
    play = play_of()
    play.do(AddDurable("d", "shared", ack_timeout=10_000))
    published_us = play.now_us
    play.do(publish(3))
    play.wait(5_000)
    delivered_us = play.now_us
    play.do(TakeSeat("d", 1, "s1", window=2))
    play.wait(1_000)
    play.do(RollBack(1, (span(0),), delay_ms=60_000))

    delayed, held, third = runs_of(play)
    assert (delayed.state, delayed.since_us, delayed.delayed_until_us) == (
        "delayed",
        published_us,
        play.now_us + 60_000_000,
    )
    assert (delayed.deliveries, delayed.client, delayed.lease_end_us) == (1, None, None)
    assert (held.since_us, held.lease_end_us) == (delivered_us, delivered_us + 10_000_000)
    assert (held.deliveries, held.client, held.delayed_until_us) == (1, "s1", None)
    assert (third.since_us, third.client) == (play.now_us, "s1")


@pytest.mark.spec("D23")
def test_events_given_back_are_ready_again_and_their_deliveries_are_counted() -> None:
    play = durable_play("shared", 1, events=1)
    play.wait(1_000)
    play.do(RollBack(1, (span(0),)))
    (again,) = runs_of(play)
    play.do(Detach(1))
    (ready,) = runs_of(play)

    assert (again.deliveries, again.since_us) == (2, play.now_us)
    assert (ready.state, ready.client, ready.deliveries) == ("ready", None, 2)
    assert ready.since_us == play.now_us - 1_000_000, "ready events have their time of publishing"


@pytest.mark.spec("D23")
def test_types_without_counts_have_no_deliveries() -> None:
    play = durable_play("exclusive", None, events=2)
    play.do(RollBack(1, (span(1),)))

    assert [(run.state, run.deliveries) for run in runs_of(play)] == [
        ("in_flight", None),
        ("ready", None),
    ], "a rolled-back event is ready, although it comes with the next subscription only"


@pytest.mark.spec("D23")
def test_acknowledged_events_are_shown_on_request_while_they_are_stored() -> None:
    play = durable_play("shared", 5, events=3)
    play.do(AddDurable("e", "shared"))
    play.do(Ack(1, (span(1),)))
    play.do(AddDurable("late", "shared", 2))

    assert shown(runs_of(play, "acknowledged")) == [
        ("d", 1, "acknowledged", None),
        ("late", 0, "acknowledged", None),
        ("late", 1, "acknowledged", None),
    ]
    assert len(runs_of(play, *STORED_STATES)) >= 5
    assert {name for name, *_ in shown(runs_of(play))} == {"d", "e", "late"}


@pytest.mark.spec("D23")
@pytest.mark.parametrize("state", OUTSTANDING)
def test_rows_are_filtered_by_state_and_durable(state: EventState) -> None:
    play = durable_play("shared", 2, events=5)
    play.do(AddDurable("other", "serial"))
    play.do(RollBack(1, (span(0),), delay_ms=1_000))
    all_rows = shown(runs_of(play))

    assert {row[2] for row in all_rows if row[0] == "d"} == set(OUTSTANDING)
    assert shown(runs_of(play, state, durable="d")) == [
        row for row in all_rows if row[0] == "d" and row[2] == state
    ]
    with pytest.raises(NameDoesNotExist, match="has no durable nobody"):
        runs_of(play, durable="nobody")
    with pytest.raises(InvalidArgument, match="limit is 0; allowed are 1 and more rows"):
        runs_of(play, rows_max=0)


@pytest.mark.spec("D23")
def test_a_queue_has_rows_without_a_durables_name() -> None:
    play = play_of(kind="queue", events=2)
    play.do(TakeSeat("", 1, "s1", window=1, ack_timeout_ms=1_000))

    held, ready = runs_of(play)
    assert shown([held, ready]) == [("", 0, "in_flight", "s1"), ("", 1, "ready", None)]
    assert held.lease_end_us == play.now_us + 1_000_000
    assert runs_of(play, durable="") == [held, ready]


@pytest.mark.spec("D23")
def test_a_client_that_holds_a_durable_has_delayed_events_too() -> None:
    play = durable_play("shared", 1, events=3)
    play.do(RollBack(1, (span(0),), delay_ms=60_000))
    play.do(Detach(1))
    play.wait(500)
    play.do(TakeSeat("d", 2, "holder", window=None, sole=True))
    play.do(HoldEvents(2, Span(0, 2)))

    rows = runs_of(play)
    assert shown(rows) == [
        ("d", 0, "in_flight", "holder"),
        ("d", 1, "in_flight", "holder"),
        ("d", 2, "ready", None),
    ]
    assert {run.since_us for run in rows[:-1]} == {play.now_us}


@pytest.mark.spec("D23")
def test_a_restart_keeps_delays_and_counts_and_forgets_clients() -> None:
    play = durable_play("shared", 2, events=3)
    play.do(RollBack(1, (span(0),), delay_ms=60_000))
    before = runs_of(play, "delayed")
    play.restart_from_snapshot()

    assert runs_of(play, "delayed") == before
    assert shown(runs_of(play, "ready", "in_flight")) == [
        ("d", 1, "ready", None),
        ("d", 2, "ready", None),
    ]


@pytest.mark.spec("D23")
def test_a_page_has_at_most_the_requested_rows_and_leads_to_the_next() -> None:
    play = durable_play("shared", 3, events=10)
    play.do(AddDurable("e", "serial"))
    run_pages = pages(play, rows_max=4)

    sizes = [sum(run.span.size for run in page) for page in run_pages]
    assert max(sizes) == 4
    assert shown([run for page in run_pages for run in page]) == shown(runs_of(play))
    assert sum(sizes) == 20


@pytest.mark.spec("D23")
def test_a_million_ready_events_are_one_run() -> None:
    play = durable_play("shared", events=1_000_000)

    assert [run.span for run in runs_of(play)] == [Span(0, 1_000_000)]


@pytest.mark.slow
@pytest.mark.spec("D23")
@pytest.mark.parametrize("scattered", ["acknowledged", "redelivered", "delayed", "published"])
def test_a_page_of_scattered_events_is_bounded(scattered: str) -> None:
    play = durable_play("shared", 40_000)
    odd = IdSet.from_ids(range(1, 40_000, 2))
    if scattered == "published":
        for _ in range(4_000):
            play.step(publish(10))
            play.wait(100)
    else:
        play.do(publish(40_000))
    if scattered == "acknowledged":
        play.do(Ack(1, odd.spans))
    elif scattered != "published":
        play.do(RollBack(1, odd.spans, delay_ms=60_000 if scattered == "delayed" else None))
    run_pages = pages(play)

    assert max(map(len, run_pages)) <= 3 * RUNS_MAX
    ids = [event_id for page in run_pages for run in page for event_id in range(*run.span)]
    assert ids == sorted(play.channel.state.stored)
    assert len(ids) == (20_000 if scattered == "acknowledged" else 40_000)


@pytest.mark.spec("D23")
def test_acknowledged_and_removed_events_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    play = durable_play("shared", 1)
    play.do(publish(10 * WINDOW_IDS_MAX))
    play.do(PurgeEvents((Span(0, 10 * WINDOW_IDS_MAX - 1),)))
    monkeypatch.setattr(delivery_state, "WINDOWS_MAX", 1)
    first, *rest = pages(play, ("ready", "in_flight"))

    assert shown(first) == [("d", 10 * WINDOW_IDS_MAX - 1, "in_flight", "s1")]
    assert rest == [[]]
