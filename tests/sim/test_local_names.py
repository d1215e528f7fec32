"""Lives of local stores next to cluster-wide ones, and mistakes that they notice."""

from __future__ import annotations

import pytest

from tests.sim.local_names import MISTAKES, Mistake, is_noticed, life_of

pytestmark = pytest.mark.slow


@pytest.mark.spec("N8", "N2")
@pytest.mark.parametrize("seed", [1, 7, 9])
def test_a_name_exists_once_and_local_stores_work_without_the_engine(seed: int) -> None:
    lived = life_of(seed)

    assert lived.created > 5
    assert lived.published_alone > 0
    assert len(lived.owners) > 5


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_noticed(mistake: Mistake) -> None:
    assert is_noticed(mistake, MISTAKES[mistake])
