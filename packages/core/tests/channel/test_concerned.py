"""The indexes of affected durables and subscribers stay correct while clients and durables come and
go."""

from __future__ import annotations

from penstock_core.channel.concerned import SelectorsInUse, TouchedDurables
from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import Seat
from penstock_core.durable.subscriber import Subscriber
from penstock_core.durables.shared import KIND


def durable(name: str, selector: str) -> Durable:
    return Durable(name, KIND, 0, selector=selector)


def test_a_selector_is_in_use_as_long_as_anybody_asks_it() -> None:
    asked = SelectorsInUse()
    one, other = durable("one", "n = 1"), durable("other", "n = 1")
    reader = Seat(5, "s", 10, pull=False, selector="n = 1")
    subscriber = Subscriber(6, "s", 0, stop_id=None, credit=10, selector="n = 2")
    for asker in (one, other, reader, subscriber):
        asked.add(asker)

    assert list(asked.texts) == ["n = 1", "n = 2"]
    assert list(asked.holders("n = 1").durables) == ["one", "other"]
    assert list(asked.holders("n = 1").seats) == [5]
    assert list(asked.holders("n = 2").subscribers) == [6]
    for gone in (one, reader, subscriber):
        asked.remove(gone)
    assert list(asked.texts) == ["n = 1"]
    asked.remove(other)
    assert not asked.texts


def test_whoever_has_no_selector_asks_nothing() -> None:
    asked = SelectorsInUse()

    asked.add(durable("plain", ""))
    asked.remove(durable("plain", ""))

    assert not asked.texts
    assert not asked.has_changed


def test_changes_are_told_once_and_as_few_as_there_are() -> None:
    asked = SelectorsInUse()
    one = durable("one", "n = 1")
    asked.add(one)

    assert list(asked.changes()) == [("n = 1", True)]
    assert not asked.has_changed
    for _ in range(3):
        asked.remove(one)
        asked.add(one)
    assert not asked.has_changed, "it is as it was"
    asked.remove(one)
    assert list(asked.changes()) == [("n = 1", False)]


def test_the_durables_of_what_matched_are_found() -> None:
    asked = SelectorsInUse()
    one, other = durable("one", "n = 1"), durable("other", "n = 2")
    asked.add(one)
    asked.add(other)

    assert list(asked.durables({"n = 1": (), "n = 3": ()})) == [("n = 1", one)]


def seated(name: str, selector: str = "") -> Durable:
    made = Durable(name, KIND, 0, selector=selector)
    made.attach(Seat(1, "s", 10, pull=False))
    return made


def test_what_is_published_is_for_durables_without_a_selector() -> None:
    touched, plain, chooses = TouchedDurables(), seated("plain"), seated("chooses", "n = 1")
    touched.seat_added(plain)
    touched.seat_added(chooses)

    assert touched.get() == [plain, chooses]
    touched.clear()
    assert touched.get() == [plain]
    touched.add(chooses)
    assert touched.get() == [plain, chooses]


def test_a_change_for_all_is_for_all_with_clients() -> None:
    touched, one, other = TouchedDurables(), seated("one", "n = 1"), seated("other", "n = 2")
    for each in (one, other):
        touched.seat_added(each)
    touched.clear()

    touched.add_all()

    assert touched.get() == [one, other]


def test_a_durable_without_clients_is_not_looked_at() -> None:
    touched, left, gone = TouchedDurables(), seated("left"), seated("gone")
    for each in (left, gone):
        touched.seat_added(each)

    left.detach(1)
    touched.seat_removed(left)
    touched.forget("gone")

    assert touched.get() == []
    touched.add_all()
    assert touched.get() == []


def test_a_durable_that_others_are_still_at_is_looked_at_when_one_leaves() -> None:
    touched, there = TouchedDurables(), seated("there", "n = 1")
    there.attach(Seat(2, "s", 10, pull=False))
    touched.seat_added(there)
    touched.clear()

    there.detach(1)
    touched.seat_removed(there)

    assert touched.get() == [there]
