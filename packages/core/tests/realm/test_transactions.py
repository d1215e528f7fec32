"""The record of open and ended transactions."""

from __future__ import annotations

import pytest

from penstock_core.access.name_owners import owned
from penstock_core.ids.ids import Span
from penstock_core.messages.transactions import Ended
from penstock_core.realm.transactions import (
    OPEN_MAX_US,
    OPEN_OF_ONE_MAX,
    OPEN_STORES_OF_ONE_MAX,
    REMEMBERED_US,
    TransactionTable,
)
from penstock_core.vocabulary.errors import (
    AlreadyAborted,
    AlreadyCommitted,
    LimitReached,
    NoSuchTransaction,
)

NOW = 1_700_000_000_000_000
HOUR_US = 3_600_000_000
COMMITTED = Ended("t", NOW, committed=True, spans=((1, Span(4, 7)),))
ABORTED = Ended("t", NOW, committed=False)


def ledger(*ended: Ended) -> TransactionTable:
    transactions = TransactionTable()
    for record in ended:
        transactions.apply(record)
    return transactions


@pytest.mark.spec("X1", "T4")
def test_an_open_one_knows_which_stores_had_room_when_it_began() -> None:
    transactions = ledger()
    transactions.begin("t", NOW, [1, 3])

    assert transactions.begun("t").below_capacity == {1, 3}
    assert transactions.ended("t") is None


@pytest.mark.spec("X1")
def test_beginning_again_changes_nothing() -> None:
    """The first answer may have been lost, and the record may be full by now."""
    transactions = ledger()
    transactions.begin("t", NOW, [1])
    transactions.begin("t", NOW + 1, [])

    assert transactions.begun("t").below_capacity == {1}


@pytest.mark.spec("X2")
def test_how_it_ended_is_told_with_the_ids_it_got() -> None:
    transactions = ledger()
    transactions.begin("t", NOW, [])
    transactions.apply(COMMITTED)

    assert transactions.ended("t") == COMMITTED


@pytest.mark.spec("X2")
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ((COMMITTED,), AlreadyCommitted),
        ((ABORTED,), AlreadyAborted),
        ((), NoSuchTransaction),
    ],
)
def test_what_has_ended_or_never_began_is_not_open(
    how: tuple[Ended, ...], error: type[Exception]
) -> None:
    transactions = ledger(*how)

    with pytest.raises(error, match="transaction t"):
        transactions.begun("t")


@pytest.mark.spec("X2")
@pytest.mark.parametrize(
    ("ended", "error"), [(COMMITTED, AlreadyCommitted), (ABORTED, AlreadyAborted)]
)
def test_what_has_ended_does_not_begin_again(ended: Ended, error: type[Exception]) -> None:
    transactions = ledger(ended)

    with pytest.raises(error):
        transactions.begin("t", NOW + HOUR_US, [])


@pytest.mark.spec("X2")
def test_the_end_can_be_asked_for_a_day_and_no_longer() -> None:
    transactions = ledger(COMMITTED)
    transactions.begin("other", NOW + REMEMBERED_US - 1, [])
    assert transactions.ended("t") == COMMITTED
    transactions.begin("another", NOW + REMEMBERED_US, [])

    with pytest.raises(NoSuchTransaction, match="more than a day ago"):
        transactions.ended("t")
    assert REMEMBERED_US == 24 * HOUR_US


@pytest.mark.spec("X2")
def test_after_a_clock_that_was_ahead_an_end_can_be_asked_for_a_day_and_no_longer() -> None:
    ahead = Ended("ahead", NOW + 9 * REMEMBERED_US, committed=True)
    transactions = ledger(ahead)
    transactions.lower(NOW)
    transactions.apply(COMMITTED)
    transactions.begin("other", NOW + REMEMBERED_US - 1, [])
    assert transactions.ended("ahead") == Ended("ahead", NOW, committed=True)
    transactions.begin("another", NOW + REMEMBERED_US, [])

    assert transactions.state() == ()


def test_one_that_nobody_ends_is_forgotten() -> None:
    transactions = ledger()
    transactions.begin("t", NOW, [])
    transactions.begin("other", NOW + OPEN_MAX_US, [])

    with pytest.raises(NoSuchTransaction):
        transactions.begun("t")


@pytest.mark.spec("X2")
def test_ends_survive_a_restart_and_open_ones_do_not() -> None:
    transactions = ledger(COMMITTED)
    transactions.begin("open", NOW, [])
    again = ledger(*transactions.state())

    assert again.ended("t") == COMMITTED
    with pytest.raises(NoSuchTransaction, match="the realm restarted or another node took over"):
        again.begun("open")


def test_one_user_has_only_so_many_open_and_keeps_nobody_out() -> None:
    transactions = TransactionTable()
    for number in range(OPEN_OF_ONE_MAX):
        transactions.begin(owned(f"t{number}", "alice"), NOW, [])

    with pytest.raises(LimitReached, match="10000 transactions are open"):
        transactions.begin(owned("one more", "alice"), NOW, [])
    transactions.begin(owned("t0", "alice"), NOW, [1])  # the same again is no other one
    transactions.begin(owned("t", "bob"), NOW, [])
    transactions.apply(Ended(owned("t0", "alice"), NOW, committed=False))
    transactions.begin(owned("one more", "alice"), NOW, [])


@pytest.mark.spec("X2")
def test_the_oldest_outcomes_of_a_user_are_forgotten_above_the_limit() -> None:
    transactions = TransactionTable(ended_of_one_max=20)
    transactions.apply(Ended(owned("first", "bob"), NOW, committed=True))
    for number in range(25):
        name = owned(f"t{number}", "alice")
        transactions.apply(Ended(name, NOW + number, committed=True, spans=((1, Span(0, 1)),)))

    assert len(transactions.state()) <= 11
    assert transactions.ended(owned("t24", "alice")) is not None
    assert transactions.ended(owned("first", "bob")) is not None, "other users keep theirs"
    with pytest.raises(NoSuchTransaction):
        transactions.ended(owned("t0", "alice"))


@pytest.mark.spec("X1")
def test_the_stores_of_open_transactions_are_limited_and_given_back() -> None:
    transactions = ledger()
    stores = range(OPEN_STORES_OF_ONE_MAX // 10)
    for number in range(10):
        transactions.begin(owned(f"t{number}", "alice"), NOW, stores)
    transactions.begin(owned("t0", "alice"), NOW, stores)
    with pytest.raises(LimitReached, match="would name 100001 channels"):
        transactions.begin(owned("more", "alice"), NOW, [1])
    transactions.begin(owned("more", "bob"), NOW, [1])

    transactions.apply(Ended(owned("t0", "alice"), NOW, committed=False))
    transactions.begin(owned("more", "alice"), NOW, [1])
    transactions.begin(owned("late", "alice"), NOW + OPEN_MAX_US + 1, stores)
