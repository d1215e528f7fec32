"""Lives of local stores beside cluster-wide ones, and mistakes that are noticed in them."""

from __future__ import annotations

import pytest

from tests.sim.local_names import MISTAKES, Mistake, is_noticed, life_of

pytestmark = pytest.mark.slow


@pytest.mark.spec("N8", "N2")
@pytest.mark.parametrize("seed", [1, 7, 9])
def test_a_name_is_there_once_and_local_stores_go_on_without_the_engine(seed: int) -> None:
    lived = life_of(seed)

    assert lived.made > 5
    assert lived.published_alone > 0
    assert len(lived.owners) > 5


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
def test_a_mistake_is_noticed(mistake: Mistake) -> None:
    assert is_noticed(mistake, MISTAKES[mistake])
