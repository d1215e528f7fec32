"""The clocks of a running realm."""

from __future__ import annotations

from penstock_server.runtime.writer.clock import OwnerClock, SystemClock


def test_a_clock_set_back_stands_still_until_it_has_caught_up() -> None:
    shown = iter([5_000, 3_000, 6_000])
    clock = SystemClock(now_ns=lambda: next(shown))

    assert [clock.now_us() for _ in range(3)] == [5, 5, 6]


def test_steady_time_does_not_follow_the_time_of_day() -> None:
    shown = iter([1_000_000, 2_000_000])
    clock = SystemClock(now_ns=lambda: 7_000_000, steady_ns=lambda: next(shown))

    assert (clock.steady_us(), clock.now_us(), clock.steady_us()) == (1_000, 7_000, 2_000)


def test_steady_time_of_the_machine_never_goes_back() -> None:
    clock = SystemClock()

    seen = [clock.steady_us() for _ in range(100)]

    assert seen == sorted(seen)
    assert seen[0] > 0


def test_the_time_of_an_owner_begins_at_that_of_the_previous_owner() -> None:
    shown = iter([5_000, 8_000, 7_000, 9_000])
    machine = SystemClock(now_ns=lambda: next(shown), steady_ns=lambda: 3_000)
    clock = OwnerClock(machine, 7)

    assert [clock.now_us() for _ in range(4)] == [7, 8, 8, 9]
    assert clock.steady_us() == 3
