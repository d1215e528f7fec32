"""Machines with a difference never take over, even when everything else fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from penstock_cluster.owning import claims
from tests.sim.cluster_differing import differing_life_of

SEEDS = (1, 2, 3, 4)
FAULTS = ("with_another_lease", "with_other_settings", "without_blobs")
NOTICED_BY = (4, 5, 6)


def _faults_of(seeds: Iterable[int]) -> Counter[str]:
    faults = Counter[str]()
    for seed in seeds:
        faults += differing_life_of(seed).faults
    return faults


@pytest.mark.slow
@pytest.mark.spec("N3")
def test_nothing_is_lost_and_no_machine_that_differs_takes_over() -> None:
    faults = _faults_of(SEEDS)

    assert all(faults[fault] for fault in FAULTS)


@pytest.mark.slow
def test_a_machine_with_other_settings_that_takes_over_all_the_same_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "disagreement", lambda *_: "")

    with pytest.raises(AssertionError, match="took the realm over, and differs"):
        _faults_of(NOTICED_BY)
