"""The benchmark's ledger finds work that was not done, or done twice, or out of order."""

from __future__ import annotations

import asyncio

import pytest

from bench.ledger import NO_FLAW, Ledger
from tests.loops import on_a_loop


def test_it_is_complete_once_all_that_is_wanted_is_acknowledged() -> None:
    ledger = Ledger(3)
    ledger.add(2, 1.5, 1)
    assert not ledger.is_complete.is_set()

    ledger.add(1, 2.0)

    assert ledger.is_complete.is_set()
    ledger.check(3.5, 1)


def test_it_waits_again_for_what_is_expected_later() -> None:
    ledger = Ledger(1)
    ledger.add(3, 1.0)

    ledger.expect(2)
    assert ledger.is_complete.is_set()

    ledger.expect(1)
    assert not ledger.is_complete.is_set()


@pytest.mark.parametrize(("price", "flawed"), [(3.0, 1), (3.5, 2)])
def test_another_sum_or_another_number_of_rollbacks_fails(price: float, flawed: int) -> None:
    ledger = Ledger(2)
    ledger.add(2, 3.5, 1)

    with pytest.raises(AssertionError):
        ledger.check(price, flawed)


@pytest.mark.parametrize("second", [[b"3", b"4"], [b"2"], [b"5", b"5"]])
def test_what_does_not_grow_from_one_client_to_the_next_fails(second: list[bytes]) -> None:
    ledger = Ledger(10, "first")
    ledger.record_in_order([b"1", b"3"])

    with pytest.raises(AssertionError, match="out of order"):
        ledger.record_in_order(second)


def test_what_grows_is_in_order() -> None:
    ledger = Ledger(10, "first")

    ledger.record_in_order([1, 2])
    ledger.record_in_order([])
    ledger.record_in_order([7])


@on_a_loop
async def test_whoever_waits_for_a_count_goes_on_when_it_is_reached() -> None:
    ledger = Ledger(10, flaw=NO_FLAW)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.reached(3))
        ledger.add(2, 1.0)
        await asyncio.sleep(0)
        assert not waiting.done()
        ledger.add(1, 1.0)
    assert ledger.acked == 3
