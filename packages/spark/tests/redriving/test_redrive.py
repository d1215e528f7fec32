"""Tests for penstock_spark.redriving: what becomes of dead events, and that it does so once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from packages.spark.tests.redriving.graves import buried, data_of
from packages.spark.tests.replaying.histories import Killed, KillPoint, PassingTime
from penstock.client.sync.sync import Session
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.redriving.dead import dead_store, transformation_view
from penstock_spark.redriving.redrive import (
    RealmCommit,
    RedriveCounts,
    RedriveOutcome,
    RedriveRun,
    commit_nothing,
)
from penstock_spark.redriving.verdict import RedriveRules, RedriveVerdict

S = 1_000_000


class Mortal:
    """Lets verdicts happen, in a process that may die before or after."""

    def __init__(self, realm: RealmCommit, dying: KillPoint) -> None:
        self._realm = realm
        self._dying = dying

    def __call__(self, verdict: RedriveVerdict) -> None:
        self._dying.step()
        self._realm(verdict)
        self._dying.step()


def redrive(
    session: Session,
    transform: Callable[[pa.Table], pa.Table] | None = None,
    *,
    store: str = "dead",
    record: str = "record",
    commit: Callable[[RealmCommit], Any] = lambda realm: realm,
    once: bool = True,
    selector: str = "",
    timer: PassingTime | None = None,
    report: Callable[[RedriveCounts], None] = lambda _: None,
    portion: int = 10_000,
    **rules: Any,
) -> RedriveOutcome:
    source = dead_store(session, store, selector)
    realm = RealmCommit(session, source, record)
    return RedriveRun(
        source,
        lambda: RedriveRules("fix", realm.targets(), store, **rules),
        commit(realm),
        timer=timer or PassingTime(),
        transformation=None
        if transform is None
        else lambda dead: transform(transformation_view(dead)),
        report=report,
        portion=portion,
    ).run(once=once)


def records(session: Session) -> list[dict[str, Any]]:
    return [dict(event.properties) for event in session.channels.get("record").browse()]


def numbered(count: int) -> list[Event]:
    return [Event(b"%d" % n, tag=f"t{n}", properties={"n": n}) for n in range(count)]


def test_events_go_back_as_they_were_with_a_record_of_each(client: Session) -> None:
    odd = Event(b"odd", properties={"mixed": [1, "x"], "none": None})
    grave = buried(client, [*numbered(2), odd])
    done = redrive(client)

    assert (done.done.redriven, done.channels, done.is_complete) == (3, {"orders": 3}, True)
    assert data_of(client, "orders") == [b"stays", b"0", b"1", b"odd"]
    assert data_of(client, "dead") == []
    back = list(client.channels.get("orders").browse(start=4))
    assert back[0].tag == "t0"
    assert back[2].properties == {"mixed": [1, "x"], "none": None}
    assert all(event.origin is None for event in back)
    assert grave.info().counters.redriven == 3
    entries = records(client)
    assert [(record["dead_id"], record["origin_id"], record["outcome"]) for record in entries] == [
        (0, 0, "redriven"),
        (1, 1, "redriven"),
        (2, 2, "redriven"),
    ]
    assert {
        (record["step"], record["store"], record["origin"], record["target"]) for record in entries
    } == {("fix", "dead", "orders", "orders")}
    assert {(record["cause"], record["events"]) for record in entries} == {("evicted", 1)}


def test_a_transformation_changes_drops_and_keeps(client: Session) -> None:
    buried(client, numbered(4))

    def fix(dead: pa.Table) -> pa.Table:
        rows = dead.filter(pc.less(dead["n"], 3))
        outcome = pc.if_else(pc.equal(rows["n"], 1), "dropped", "redriven")
        named = rows.set_column(rows.column_names.index("tag"), "tag", pa.array(["a", "b", "c"]))
        return named.append_column("outcome", outcome).append_column("fixed", pa.array([1, 1, 1]))

    done = redrive(client, fix).done

    assert (done.redriven, done.dropped, done.kept) == (2, 1, 1)
    assert data_of(client, "orders") == [b"stays", b"0", b"2"]
    assert data_of(client, "dead") == [b"3"]
    back = list(client.channels.get("orders").browse(start=5))
    assert [(event.tag, event.properties) for event in back] == [
        ("a", {"n": 0, "fixed": 1}),
        ("c", {"n": 2, "fixed": 1}),
    ]
    counters = client.channels.get("dead").info().counters
    assert (counters.redriven, counters.purged) == (2, 1)
    assert Counter(record["outcome"] for record in records(client)) == {"redriven": 2, "dropped": 1}
    assert [record.get("target") for record in records(client)] == ["orders", None, "orders"]


@pytest.mark.slow
def test_events_go_back_in_their_order_whatever_the_order_of_the_rows(client: Session) -> None:
    buried(client, numbered(5))
    redrive(client, lambda dead: dead.take(pa.array([3, 0, 4, 2, 1])))

    assert data_of(client, "orders") == [b"stays", b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.slow
def test_properties_called_as_what_a_row_says_are_none_the_less_kept(client: Session) -> None:
    dead_properties = {"channel": "dead", "outcome": "dropped", "tag": 1, "n": 2}
    buried(client, [Event(b"x", properties=dead_properties)])
    done = redrive(client, lambda dead: dead).done

    assert (done.redriven, done.dropped) == (1, 0)
    (_, back) = client.channels.get("orders").browse()
    assert (back.data, back.properties) == (b"x", dead_properties)


def test_what_no_row_is_made_of_is_dropped_where_the_step_says_so(client: Session) -> None:
    buried(client, numbered(3))
    done = redrive(client, lambda dead: dead.slice(1, 1), unmatched="dropped").done

    assert (done.redriven, done.dropped, done.kept) == (1, 2, 0)
    assert data_of(client, "dead") == []


def test_one_event_may_become_several_and_rows_say_where_they_go(client: Session) -> None:
    buried(client, numbered(2))
    client.channels.create("other", type="persistent")
    client.queues.create("work", type="persistent")

    def fix(dead: pa.Table) -> pa.Table:
        twice = pa.concat_tables([dead, dead]).combine_chunks()
        return twice.append_column("channel", pa.array(["other", None, "work", "other"]))

    done = redrive(client, fix)

    assert done.channels == {"other": 2, "orders": 1, "work": 1}
    assert data_of(client, "other") == [b"0", b"1"]
    assert data_of(client, "orders") == [b"stays", b"1"]
    assert [event.data for event in client.queues.get("work").peek()] == [b"0"]
    assert [record["events"] for record in records(client)] == [2, 2]


def test_an_event_without_a_place_to_go_back_to_stays(client: Session) -> None:
    buried(client, numbered(1))
    buried(client, numbered(2), channel="gone")
    client.channels.get("dead").publish(b"was never elsewhere")
    client.channels.delete("gone")
    done = redrive(client).done

    assert (done.redriven, done.kept, done.homeless) == (1, 3, 3)
    assert len(data_of(client, "dead")) == 3
    redriven = redrive(client, channel="orders").done.redriven
    assert redriven == 3


def test_dead_events_on_a_queue_go_back_too(client: Session) -> None:
    client.queues.create("dead", type="persistent")
    client.channels.create("orders", type="persistent", capacity=1, dead_event_store="dead")
    client.channels.get("orders").publish_many(numbered(4))
    grave = client.queues.get("dead")
    while grave.info().events < 3:
        pass
    client.channels.get("orders").edit(capacity=0)
    done = redrive(client, portion=2, selector="n < 2").done

    assert done.redriven == 2
    assert data_of(client, "orders") == [b"3", b"0", b"1"]
    assert [event.data for event in grave.peek()] == [b"2"]


def test_a_mark_says_which_event_it_was(client: Session) -> None:
    buried(client, numbered(2))
    redrive(client, lambda dead: dead, marks=True)
    back = list(client.channels.get("orders").browse(selector="redrive_of.event_id = 1"))

    assert [event.data for event in back] == [b"1"]
    assert back[0].properties["redrive_of"]["channel"] == "orders"


def test_a_time_to_live_of_its_own_counts_again(client: Session) -> None:
    client.channels.create("dead", type="persistent")
    client.channels.create("orders", type="mixed", dead_event_store="dead")
    buried(client, [Event(b"a", ttl=3_600_000), Event(b"b")])
    redrive(client, lambda dead: dead)

    assert [event.ttl for event in client.channels.get("orders").browse()][1:] == [3_600_000, 0]


def test_a_dry_run_counts_and_changes_nothing(client: Session) -> None:
    buried(client, numbered(3))
    done = redrive(
        client, lambda dead: dead.slice(0, 2), record="", commit=lambda _: commit_nothing
    )

    assert (done.done.redriven, done.done.kept, done.channels) == (2, 1, {"orders": 2})
    assert len(data_of(client, "dead")) == 3
    assert data_of(client, "orders") == [b"stays"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda dead: dead.drop_columns(["event_id"]), "the result has no column event_id"),
        (
            lambda dead: dead.set_column(0, "event_id", pa.array([0, 77])),
            "a row with event_id 77, which is not the id of one of these dead events",
        ),
        (
            lambda dead: dead.set_column(0, "event_id", pa.array([0, None], pa.int64())),
            "rows without event_id",
        ),
        (
            lambda dead: dead.append_column("outcome", pa.array(["redriven", "lost"])),
            "has the outcome 'lost'; it must be redriven, dropped, kept or null",
        ),
        (
            lambda dead: dead.append_column("channel", pa.array(["orders", "nowhere"])),
            "has the channel 'nowhere'",
        ),
        (
            lambda dead: dead.append_column("channel", pa.array(["orders", "dead"])),
            "has the channel 'dead'",
        ),
        (
            lambda dead: (
                pa.concat_tables([dead, dead])
                .combine_chunks()
                .append_column("outcome", pa.array([None, None, "dropped", None]))
            ),
            "rows of event 0 with the outcomes redriven and dropped",
        ),
    ],
)
def test_a_result_that_cannot_be_read_changes_nothing(
    client: Session, change: Callable[[pa.Table], pa.Table], text: str
) -> None:
    buried(client, numbered(2))

    with pytest.raises(InvalidArgument, match=text):
        redrive(client, change)
    assert len(data_of(client, "dead")) == 2


@pytest.mark.slow
def test_killed_at_any_point_each_event_goes_back_once(client: Session) -> None:
    survived = False
    kill_point = 0
    while not survived:
        kill_point += 1
        dead, channel = f"dead{kill_point}", f"orders{kill_point}"
        buried(client, numbered(7), channel=channel, dead=dead)
        dying = KillPoint(kill_point)

        def mortal(realm: RealmCommit, dying: KillPoint = dying) -> Mortal:
            return Mortal(realm, dying)

        try:
            redrive(client, lambda t: t, store=dead, commit=mortal, portion=2)
            survived = True
        except Killed:
            redrive(client, lambda t: t, store=dead, portion=3)
        wanted = [b"stays", *(b"%d" % n for n in range(7))]
        assert data_of(client, channel) == wanted
        assert data_of(client, dead) == []
        client.channels.get("record").purge(selector=f"store <> '{dead}'")
        assert [entry["dead_id"] for entry in records(client)] == list(range(7))
    assert kill_point == 9


class Portions(PassingTime):
    """Says stop after so many portions."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def wait(self, us: int) -> bool:
        super().wait(us)
        self._left -= 0 if us else 1
        return self._left < 0


@pytest.mark.slow
def test_several_that_redrive_one_store_and_are_killed_redrive_each_event_once(
    client: Session,
) -> None:
    chance = random.Random(2013)
    buried(client, numbered(300))
    lives = 0

    def overtaken(realm: RealmCommit) -> Callable[[RedriveVerdict], None]:
        """Commits first, like another process that has read the same events."""

        def commit(verdict: RedriveVerdict) -> None:
            chosen = chance.randrange(3)
            if chosen:
                redrive(client, portion=chance.randrange(1, 9), timer=Portions(1))
            if chosen == 2:
                raise Killed
            realm(verdict)
            if chance.random() < 0.5:
                raise Killed

        return commit

    while data_of(client, "dead"):
        lives += 1
        with suppress(Killed):
            redrive(client, lambda dead: dead, commit=overtaken, portion=chance.randrange(1, 20))

    assert lives > 5
    assert sorted(map(int, data_of(client, "orders")[1:])) == list(range(300))
    assert sorted(record["dead_id"] for record in records(client)) == list(range(300))


@pytest.mark.slow
def test_it_waits_for_more_until_it_is_told_to_stop(client: Session) -> None:
    buried(client, numbered(2))
    seen_counts: list[int] = []

    class Waiting(PassingTime):
        def wait(self, us: int) -> bool:
            if us and len(self.waits) == 2:
                buried(client, numbered(3))
            return super().wait(us)

    done = redrive(
        client,
        once=False,
        timer=Waiting(stop_us=10 * S),
        report=lambda done: seen_counts.append(done.redriven),
    )

    assert (done.done.redriven, done.is_complete) == (8, False)
    assert seen_counts == [2, 8]


@pytest.mark.slow
def test_a_full_channel_is_waited_for(client: Session) -> None:
    buried(client, numbered(2))
    orders = client.channels.get("orders")
    orders.edit(capacity=1, storage={"honour_capacity": True})
    refusals: list[str] = []

    def on_progress(done: RedriveCounts) -> None:
        refusals.append(done.refusal)
        if len(refusals) == 2:
            orders.edit(capacity=10)

    done = redrive(client, report=on_progress)

    assert done.done.redriven == 2
    assert [bool(text) for text in refusals] == [True, True, False, False]


@pytest.mark.slow
def test_however_long_it_waits_for_room_others_may_take_an_event(client: Session) -> None:
    buried(client, numbered(1))
    client.channels.get("orders").edit(capacity=1, storage={"honour_capacity": True})
    refusals: list[str] = []

    def commit(realm: RealmCommit) -> Callable[[RedriveVerdict], None]:
        def tried(verdict: RedriveVerdict) -> None:
            if len(refusals) == 40:
                client.channels.get("orders").purge()
                client.channels.get("dead").purge()
            realm(verdict)

        return tried

    def on_progress(done: RedriveCounts) -> None:
        if done.refusal:
            refusals.append(done.refusal)

    done = redrive(client, commit=commit, report=on_progress)

    assert "no longer on dead" in refusals[-1]
    assert (len(refusals), done.is_complete, done.done.redriven) == (41, True, 0)


def test_nothing_is_evicted_for_what_comes_back(client: Session) -> None:
    buried(client, numbered(5))
    orders = client.channels.get("orders")
    orders.edit(capacity=3)
    refusals: list[str] = []

    def on_progress(done: RedriveCounts) -> None:
        refusals.append(done.refusal)
        if len(refusals) == 5:
            orders.edit(capacity=0)

    done = redrive(client, report=on_progress).done

    assert done.redriven == 5
    assert data_of(client, "dead") == []
    assert data_of(client, "orders") == [b"stays", b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.slow
def test_a_record_among_the_dead_is_refused(client: Session) -> None:
    buried(client, numbered(1))

    with pytest.raises(InvalidArgument, match="record is 'dead', which stores the dead events"):
        redrive(client, record="dead")
