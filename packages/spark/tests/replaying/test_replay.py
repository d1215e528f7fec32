"""Tests for penstock_spark.replaying.replay."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from packages.spark.tests.replaying.histories import (
    Killed,
    KillPoint,
    PassingTime,
    PlaceInMemory,
    RecordingOutlet,
    archive,
    events,
    mortal,
    stored,
)
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_spark.replaying.archived import Archived, Bounds
from penstock_spark.replaying.pace import FLAT_OUT, ReplayPace
from penstock_spark.replaying.replay import ReplayProgress, ReplayRoute, ReplayRun

S = 1_000_000


def two_channels(folder: Path, **options: Any) -> list[Archived]:
    """Channel a at seconds 0, 2, 4, 6 and b at 1, 2, 5, 6."""
    a = archive(folder / "a", events([1, 2, 3, 4], [0, 2 * S, 4 * S, 6 * S]))
    b = archive(folder / "b", events([11, 12, 13, 14], [1 * S, 2 * S, 5 * S, 6 * S]))
    return [Archived("a", a, Bounds(), **options), Archived("b", b, Bounds(), **options)]


def replay(
    histories: list[Archived],
    outlet: Any,
    place: Any,
    *,
    to: dict[str, str] | None = None,
    speed: float = FLAT_OUT,
    timer: PassingTime | None = None,
    **options: Any,
) -> ReplayRun:
    targets = to or {history.channel: history.channel for history in histories}
    route = ReplayRoute(targets, options.pop("marks", False))
    timer = timer or PassingTime()
    return ReplayRun(
        histories, route, outlet, place=place, pace=ReplayPace(speed), timer=timer, **options
    )


def test_several_channels_come_into_one_in_the_order_of_time_then_channel(
    client: Session, tmp_path: Path
) -> None:
    client.channels.create("all", type="persistent")
    to = {"a": "all", "b": "all"}
    done = replay(two_channels(tmp_path), RecordingOutlet(client), PlaceInMemory(), to=to).run()

    assert (done.events, done.is_complete) == (8, True)
    wanted = [1, 11, 2, 12, 3, 13, 4, 14]
    assert list(stored(client, "all")) == [f"e{event}".encode() for event in wanted]


def test_each_channel_gets_its_own_by_default(client: Session, tmp_path: Path) -> None:
    for name in "ab":
        client.channels.create(name, type="persistent")
    replay(two_channels(tmp_path), RecordingOutlet(client), PlaceInMemory()).run()

    assert list(stored(client, "a")) == [b"e1", b"e2", b"e3", b"e4"]
    assert list(stored(client, "b")) == [b"e11", b"e12", b"e13", b"e14"]


@pytest.mark.slow
@pytest.mark.parametrize("speed", [1.0, 2.0, 0.5, 100.0])
def test_events_come_at_their_pace(client: Session, tmp_path: Path, speed: float) -> None:
    client.channels.create("all", type="persistent")
    timer = PassingTime()
    outlet = RecordingOutlet(client, timer)
    begun = timer.now
    to = {"a": "all", "b": "all"}
    done = replay(
        two_channels(tmp_path), outlet, PlaceInMemory(), to=to, speed=speed, timer=timer
    ).run()

    due = [time for time, _, count in outlet.published for _ in range(count)]
    tick = 20_000
    wanted = [begun + int(time * S / speed) for time in (0, 1, 2, 2, 4, 5, 6, 6)]
    assert all(0 <= time - when <= tick for time, when in zip(due, wanted, strict=True))
    assert done.late_max_us <= tick


def test_a_slow_realm_makes_it_late_and_it_catches_up_in_larger_portions(
    client: Session, tmp_path: Path
) -> None:
    client.channels.create("a", type="persistent")
    table = events(range(1, 101), [time * 10_000 for time in range(100)])
    history = Archived("a", archive(tmp_path / "a", table), Bounds())
    timer = PassingTime()
    outlet = RecordingOutlet(client, timer)

    class Slow:
        def publish(self, *arguments: Any, **options: Any) -> None:
            outlet.publish(*arguments, **options)
            timer.now += 100_000

    seen: list[ReplayProgress] = []
    done = replay(
        [history], Slow(), PlaceInMemory(), speed=1, timer=timer, report=seen.append
    ).run()

    counts = [count for _, _, count in outlet.published]
    assert sum(counts) == 100
    assert max(counts) >= 10
    assert 100_000 <= done.late_max_us <= 300_000
    assert seen[-1].events == 100


@pytest.mark.slow
def test_a_stop_leaves_a_position_from_which_it_goes_on(client: Session, tmp_path: Path) -> None:
    client.channels.create("all", type="persistent")
    to, place = {"a": "all", "b": "all"}, PlaceInMemory()
    histories = two_channels(tmp_path)
    timer = PassingTime(stop_us=3 * S)
    first = replay(histories, RecordingOutlet(client), place, to=to, speed=1, timer=timer).run()
    timer = PassingTime()
    second = replay(histories, RecordingOutlet(client), place, to=to, speed=1, timer=timer).run()

    assert (first.events, first.is_complete) == (4, False)
    assert (second.events, second.total, second.is_complete) == (4, 8, True)
    assert sum(timer.waits) <= 2.1 * S, "the time it was stopped for is not waited for"
    wanted = [1, 11, 2, 12, 3, 13, 4, 14]
    assert list(stored(client, "all")) == [f"e{event}".encode() for event in wanted]


@pytest.mark.slow
def test_a_replay_that_is_done_publishes_nothing_again_but_what_has_come_since(
    client: Session, tmp_path: Path
) -> None:
    client.channels.create("a", type="persistent")
    place = PlaceInMemory()
    first = archive(tmp_path / "a", events([1, 2], [0, 1]))
    replay([Archived("a", first, Bounds())], RecordingOutlet(client), place).run()
    more = archive(tmp_path / "a", events([1, 2], [0, 1]), events([3], [2]))
    done = replay([Archived("a", more, Bounds())], RecordingOutlet(client), place).run()

    assert (done.events, done.total) == (1, 3)
    assert list(stored(client, "a")) == [b"e1", b"e2", b"e3"]


@pytest.mark.parametrize("speed", [FLAT_OUT, pytest.param(1.0, marks=pytest.mark.slow)])
def test_killed_at_any_point_it_publishes_each_event_once(
    client: Session, tmp_path: Path, speed: float
) -> None:
    histories = two_channels(tmp_path, rows=2)
    survived = False
    kill_point = 0
    while not survived:
        kill_point += 1
        to = {"a": f"a{kill_point}", "b": f"b{kill_point}"}
        for name in to.values():
            client.channels.create(name, type="persistent")
        memory = PlaceInMemory()
        place, outlet = mortal(memory, RecordingOutlet(client), KillPoint(kill_point))
        try:
            replay(histories, outlet, place, to=to, speed=speed, rows=3).run()
            survived = True
        except Killed:
            done = replay(
                histories, RecordingOutlet(client), memory, to=to, speed=speed, rows=3
            ).run()
            assert done.total == 8

        assert list(stored(client, to["a"])) == [b"e1", b"e2", b"e3", b"e4"]
        assert list(stored(client, to["b"])) == [b"e11", b"e12", b"e13", b"e14"]
    assert kill_point > 15


@pytest.mark.slow
def test_killed_again_and_again_a_random_archive_arrives_once_and_in_order(
    client: Session, tmp_path: Path
) -> None:
    chance = random.Random(4711)
    histories, keys = [], []
    for name in ("x", "y", "z"):
        time_us, event, rows = 0, 0, []
        for _ in range(200):
            time_us += chance.choice((0, 0, 1, 7, 50_000))
            event += chance.choice((1, 1, 1, 5))
            rows.append((event, time_us))
        keys += [(when, name, event) for event, when in rows]
        tables = [
            events([event for event, _ in part], [when for _, when in part])
            for part in (rows[:70], rows[70:71], rows[71:])
        ]
        dataset = archive(tmp_path / name, *tables, row_group_size=chance.choice((9, 50)))
        histories.append(Archived(name, dataset, Bounds(), rows=chance.choice((5, 16, 64))))
    client.channels.create("all", type="persistent")
    to = dict.fromkeys("xyz", "all")
    memory = PlaceInMemory()
    lives = 0
    while True:
        place, outlet = mortal(memory, RecordingOutlet(client), KillPoint(chance.randrange(1, 12)))
        lives += 1
        try:
            done = replay(histories, outlet, place, to=to, rows=chance.randrange(1, 60)).run()
        except Killed:
            continue
        break

    assert lives > 3
    assert done.total == 600
    wanted = [f"e{event}".encode() for _, _, event in sorted(keys)]
    assert list(stored(client, "all")) == wanted


def test_events_can_say_which_ones_they_were(client: Session, tmp_path: Path) -> None:
    client.channels.create("all", type="persistent")
    to = {"a": "all", "b": "all"}
    replay(
        two_channels(tmp_path), RecordingOutlet(client), PlaceInMemory(), to=to, marks=True
    ).run()
    result = list(client.channels.get("all").browse(selector="replay_of.channel = 'b'"))

    assert [event.properties["replay_of"]["event_id"] for event in result] == [11, 12, 13, 14]
    assert result[0].properties["replay_of"]["published"].year == 2013


@pytest.mark.slow
def test_types_that_differ_between_channels_keep_their_values(
    client: Session, tmp_path: Path
) -> None:
    client.channels.create("all", type="persistent")
    a = archive(tmp_path / "a", events([1, 2], [0, 2], price=pa.array([1.5, None]), only_a=[7, 8]))
    b = archive(tmp_path / "b", events([1, 2], [1, 3], price=pa.array(["dear", None])))
    histories = [Archived("a", a, Bounds()), Archived("b", b, Bounds())]
    replay(histories, RecordingOutlet(client), PlaceInMemory(), to={"a": "all", "b": "all"}).run()
    result = [dict(event.properties) for event in client.channels.get("all").browse()]

    assert result == [{"price": 1.5, "only_a": 7}, {"price": "dear"}, {"only_a": 8}, {}]


def test_a_full_realm_is_waited_for(client: Session, tmp_path: Path) -> None:
    client.channels.create("a", type="persistent", capacity=2, storage={"honour_capacity": True})
    history = Archived("a", archive(tmp_path / "a", events([1, 2, 3], [0, 1, 2])), Bounds(), rows=1)
    seen: list[ReplayProgress] = []

    def on_progress(reached: ReplayProgress) -> None:
        seen.append(reached)
        if reached.refusal:
            client.channels.get("a").purge(end=0)

    done = replay(
        [history], RecordingOutlet(client), PlaceInMemory(), rows=1, report=on_progress
    ).run()

    assert done.is_complete
    assert [bool(progress.refusal) for progress in seen] == [False, False, True, False]
    assert list(stored(client, "a")) == [b"e2", b"e3"]


@pytest.mark.slow
def test_told_to_stop_while_the_realm_is_full_it_goes_on_later(
    client: Session, tmp_path: Path
) -> None:
    client.channels.create("a", type="persistent", capacity=1, storage={"honour_capacity": True})
    history = Archived("a", archive(tmp_path / "a", events([1, 2], [0, 1])), Bounds(), rows=1)
    place = PlaceInMemory()
    first = replay(
        [history], RecordingOutlet(client), place, rows=1, timer=PassingTime(stop_us=3 * S)
    ).run()
    client.channels.get("a").purge()
    second = replay([history], RecordingOutlet(client), place, rows=1).run()

    assert (first.is_complete, first.total) == (False, 1)
    assert (second.is_complete, second.total) == (True, 2)
    assert list(stored(client, "a")) == [b"e2"]


def test_a_position_belongs_to_what_it_was_begun_with(client: Session, tmp_path: Path) -> None:
    client.channels.create("a", type="persistent")
    place = PlaceInMemory()
    history = Archived("a", archive(tmp_path / "a", events([1, 2], [0, 1])), Bounds())
    replay([history], RecordingOutlet(client), place, replays={"selector": "x = 1"}).run()

    with pytest.raises(InvalidArgument, match=r"selector is 'x = 2'; .* started with 'x = 1'"):
        replay([history], RecordingOutlet(client), place, replays={"selector": "x = 2"})


def test_an_archive_that_lost_a_begun_portion_is_told(client: Session, tmp_path: Path) -> None:
    client.channels.create("a", type="persistent")
    place = PlaceInMemory()
    history = Archived("a", archive(tmp_path / "a", events([1, 2], [0, 1])), Bounds())
    _, outlet = mortal(place, RecordingOutlet(client), KillPoint(1))
    with pytest.raises(Killed):
        replay([history], outlet, place).run()
    less = Archived("a", archive(tmp_path / "a", events([2], [1])), Bounds())

    with pytest.raises(IllegalState, match="has 1 of the 2 events"):
        replay([less], RecordingOutlet(client), place).run()
