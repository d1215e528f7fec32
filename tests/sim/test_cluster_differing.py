"""Machines that differ take nothing over in worlds where everything else goes wrong, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from penstock_cluster.owning import claims
from tests.sim.cluster_differing import differing_life_of

SEEDS = (1, 2, 3, 4)
FAULTS = ("with_another_lease", "with_other_settings", "without_blobs")
NOTICED_BY = (4, 5, 6)


def _played(seeds: Iterable[int]) -> Counter[str]:
    faults = Counter[str]()
    for seed in seeds:
        faults += differing_life_of(seed).faults
    return faults


@pytest.mark.slow
@pytest.mark.spec("N3")
def test_nothing_is_lost_and_no_machine_that_differs_takes_over() -> None:
    faults = _played(SEEDS)

    assert all(faults[each] for each in FAULTS)


@pytest.mark.slow
def test_a_machine_with_other_settings_that_takes_over_all_the_same_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "disagreement", lambda *_: "")

    with pytest.raises(AssertionError, match="took the realm over, and differs"):
        _played(NOTICED_BY)
