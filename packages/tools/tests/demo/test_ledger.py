"""The ledger finds lost and duplicate events, and does not count redeliveries as either."""

from __future__ import annotations

from penstock_tools.demo.ledger import Acknowledgements, Ledger


def published(count: int) -> Ledger:
    """Events whose ids are ten more than their numbers."""
    ledger = Ledger()
    for _ in range(count):
        number = ledger.next_number()
        ledger.record_acknowledgement(number, number + 10)
    return ledger


def test_what_came_in_order_is_neither_lost_nor_twice() -> None:
    ledger = published(3)
    for number in range(3):
        ledger.record_delivery(number, number + 10)
    ledger.record_confirmation(range(3))

    assert (ledger.published, ledger.delivered, ledger.outstanding) == (3, 3, 0)
    assert (ledger.lost, ledger.twice) == (0, 0)


def test_what_was_acknowledged_and_left_out_is_lost() -> None:
    ledger = published(5)
    for number in (0, 1, 4):
        ledger.record_delivery(number, number + 10)

    assert ledger.lost == 2
    assert ledger.outstanding == 2

    ledger.record_delivery(2, 12)
    ledger.record_delivery(3, 13)
    assert ledger.lost == 0


def test_what_is_still_to_come_is_not_lost() -> None:
    ledger = published(5)
    ledger.record_delivery(0, 10)

    assert (ledger.lost, ledger.outstanding) == (0, 4)


def test_what_nobody_acknowledged_may_be_missing() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.next_number()
    ledger.record_acknowledgement(2, 12)
    ledger.record_delivery(2, 12)

    assert (ledger.lost, ledger.published, ledger.delivered) == (0, 1, 1)


def test_what_comes_before_its_acknowledgement_is_counted_once() -> None:
    ledger = Ledger()
    number = ledger.next_number()
    ledger.record_delivery(number, 10)
    ledger.record_acknowledgement(number, 10)

    assert (ledger.published, ledger.delivered, ledger.outstanding) == (1, 1, 0)
    assert ledger.twice == 0


def test_what_is_delivered_again_before_it_is_confirmed_is_not_there_twice() -> None:
    ledger = published(1)
    ledger.record_delivery(0, 10)
    ledger.record_delivery(0, 10)

    assert (ledger.delivered, ledger.twice) == (1, 0)


def test_what_comes_again_after_it_was_confirmed_is_there_twice() -> None:
    ledger = published(1)
    ledger.record_delivery(0, 10)
    ledger.record_confirmation([0])
    ledger.record_delivery(0, 10)

    assert ledger.twice == 1


def test_what_is_stored_under_two_ids_is_there_twice() -> None:
    ledger = published(1)
    ledger.record_delivery(0, 10)
    ledger.record_delivery(0, 11)
    redelivered = published(1)
    redelivered.record_delivery(0, 11)
    late = Ledger()
    late.record_delivery(late.next_number(), 11)
    late.record_acknowledgement(0, 10)

    assert (ledger.twice, redelivered.twice, late.twice) == (1, 1, 1)


def test_acknowledgements_of_the_last_second_are_counted() -> None:
    acknowledgements = Acknowledgements()
    for time_us in (0, 400_000, 900_000, 1_100_000):
        acknowledgements.record(time_us)

    assert acknowledgements.count_last_second(1_100_000) == 3
    assert acknowledgements.count_last_second(5_000_000) == 0


def test_the_longest_time_without_one_counts_from_what_was_done() -> None:
    acknowledgements = Acknowledgements()
    assert acknowledgements.longest_us(7) == acknowledgements.waiting_us(7) == 0

    for time_us in (1_000, 9_000, 10_000):
        acknowledgements.record(time_us)
    assert acknowledgements.longest_us(11_000) == 8_000

    acknowledgements.restart(11_000)
    assert acknowledgements.longest_us(13_000) == 2_000
    acknowledgements.record(15_000)
    acknowledgements.record(16_000)

    assert acknowledgements.longest_us(16_500) == 4_000
    assert acknowledgements.waiting_us(16_500) == 500
