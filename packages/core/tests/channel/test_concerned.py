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
    selectors = SelectorsInUse()
    one, other_durable = durable("one", "n = 1"), durable("other", "n = 1")
    reader = Seat(5, "s", 10, pull=False, selector="n = 1")
    subscriber = Subscriber(6, "s", 0, stop_id=None, credit=10, selector="n = 2")
    for asker in (one, other_durable, reader, subscriber):
        selectors.add(asker)

    assert list(selectors.texts) == ["n = 1", "n = 2"]
    assert list(selectors.holders("n = 1").durables) == ["one", "other"]
    assert list(selectors.holders("n = 1").seats) == [5]
    assert list(selectors.holders("n = 2").subscribers) == [6]
    for user_of_selector in (one, reader, subscriber):
        selectors.remove(user_of_selector)
    assert list(selectors.texts) == ["n = 1"]
    selectors.remove(other_durable)
    assert not selectors.texts


def test_whoever_has_no_selector_asks_nothing() -> None:
    selectors = SelectorsInUse()

    selectors.add(durable("plain", ""))
    selectors.remove(durable("plain", ""))

    assert not selectors.texts
    assert not selectors.has_changed


def test_changes_are_told_once_and_as_few_as_there_are() -> None:
    selectors = SelectorsInUse()
    one = durable("one", "n = 1")
    selectors.add(one)

    assert list(selectors.changes()) == [("n = 1", True)]
    assert not selectors.has_changed
    for _ in range(3):
        selectors.remove(one)
        selectors.add(one)
    assert not selectors.has_changed, "it is as it was"
    selectors.remove(one)
    assert list(selectors.changes()) == [("n = 1", False)]


def test_the_durables_of_what_matched_are_found() -> None:
    selectors = SelectorsInUse()
    one, other_durable = durable("one", "n = 1"), durable("other", "n = 2")
    selectors.add(one)
    selectors.add(other_durable)

    assert list(selectors.durables({"n = 1": (), "n = 3": ()})) == [("n = 1", one)]


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
    touched, one, other_durable = (
        TouchedDurables(),
        seated("one", "n = 1"),
        seated("other", "n = 2"),
    )
    for durable_ in (one, other_durable):
        touched.seat_added(durable_)
    touched.clear()

    touched.add_all()

    assert touched.get() == [one, other_durable]


def test_a_durable_without_clients_is_not_looked_at() -> None:
    touched, closing, deleted = TouchedDurables(), seated("left"), seated("gone")
    for durable_ in (closing, deleted):
        touched.seat_added(durable_)

    closing.detach(1)
    touched.seat_removed(closing)
    touched.forget("gone")

    assert touched.get() == []
    touched.add_all()
    assert touched.get() == []


def test_a_durable_that_others_are_still_at_is_looked_at_when_one_leaves() -> None:
    touched, attached = TouchedDurables(), seated("there", "n = 1")
    attached.attach(Seat(2, "s", 10, pull=False))
    touched.seat_added(attached)
    touched.clear()

    attached.detach(1)
    touched.seat_removed(attached)

    assert touched.get() == [attached]
