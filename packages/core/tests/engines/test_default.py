"""The default engine delivers stored events again."""

from __future__ import annotations

import pytest

from penstock_core.engines.default import ENGINE


@pytest.mark.spec("J1")
@pytest.mark.parametrize("first_id", [0, 7, 99])
def test_a_subscription_starts_where_it_asks_to(first_id: int) -> None:
    assert ENGINE.first_id(first_id, next_id=50) == first_id
