"""Each user or channel may have half of the part that the others leave."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.shares import share_left


@pytest.mark.parametrize(
    ("used", "own", "share"),
    [(0, 0, 50), (50, 50, 0), (50, 0, 25), (75, 25, 0), (60, 60, -10), (51, 0, 24), (100, 0, 0)],
)
def test_half_of_what_the_others_leave_may_be_taken(used: int, own: int, share: int) -> None:
    assert share_left(100, used, own) == share


def test_sharers_that_take_all_they_may_never_exceed_the_limit() -> None:
    shares = [0] * 5
    for _ in range(20):
        for sharer in range(5):
            shares[sharer] += max(0, share_left(1_000, sum(shares), shares[sharer]))

    assert sum(shares) <= 1_000
    assert min(shares) > 0
