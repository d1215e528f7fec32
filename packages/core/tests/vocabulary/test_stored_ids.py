"""The stored form of sets of ids."""

from __future__ import annotations

import pytest

from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.stored_ids import id_set, ranges, stored_form

FEW = IdSet.from_ids(range(0, 20, 2))
MANY = IdSet.from_ids(range(0, 1_000, 2))


@pytest.mark.spec("D4")
def test_few_ranges_stay_ranges_and_scattered_ids_are_packed() -> None:
    assert stored_form(FEW) == FEW.spans
    assert stored_form(MANY) == MANY.packed()
    assert len(MANY.packed()) < 140
    for ids in (FEW, MANY, IdSet()):
        assert id_set(stored_form(ids)) == ids
        assert ranges(stored_form(ids)) == ids.spans


def test_other_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="not a packed set"):
        id_set(b"?")
