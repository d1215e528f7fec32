"""Pauses between attempts."""

from hypothesis import given
from hypothesis import strategies as st

from penstock_core.backoff import backoff_s


def test_a_pause_doubles_up_to_the_longest() -> None:
    longest = [
        max(backoff_s(attempt, first_s=0.5, longest_s=4.0, seed=str(seed)) for seed in range(500))
        for attempt in range(6)
    ]
    for pause_s, bound_s in zip(longest, [0.5, 1.0, 2.0, 4.0, 4.0, 4.0], strict=True):
        assert 0.95 * bound_s < pause_s <= bound_s


def test_programs_with_different_seeds_pause_for_different_times() -> None:
    pauses_s = {
        backoff_s(3, first_s=0.05, longest_s=2.0, seed=f"program {number}")
        for number in range(1_000)
    }
    assert len(pauses_s) == 1_000


@given(st.integers(0, 1 << 62), st.text())
def test_a_pause_lasts_at_least_half_of_its_bound_and_is_the_same_each_time(
    attempt: int, seed: str
) -> None:
    pause_s = backoff_s(attempt, first_s=0.01, longest_s=5.0, seed=seed)
    assert 0.005 <= pause_s <= 5.0
    assert pause_s == backoff_s(attempt, first_s=0.01, longest_s=5.0, seed=seed)
