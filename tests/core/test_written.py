"""How sets of ids are stored."""

from __future__ import annotations

import pytest

from penstock.core.ids import IdSet, Span
from penstock.core.messages import (
    Acked,
    Buried,
    Cause,
    Definition,
    Edited,
    PackedIds,
    Removed,
    RolledBack,
    StoredFact,
)
from penstock.core.written import RANGES_MAX, id_set, packed, ranges, unpacked, written

FEW = IdSet.of(range(0, 20, 2))
MANY = IdSet.of(range(0, 1_000, 2))


@pytest.mark.spec("D4")
def test_few_ranges_stay_ranges_and_scattered_ids_are_packed() -> None:
    assert written(FEW) == FEW.spans
    assert written(MANY) == MANY.packed()
    assert len(MANY.packed()) < 140
    for ids in (FEW, MANY, IdSet()):
        assert id_set(written(ids)) == ids
        assert ranges(written(ids)) == ids.spans


@pytest.mark.spec("D4")
@pytest.mark.parametrize(
    "fact",
    [
        Acked("d", MANY.spans),
        RolledBack("d", MANY.spans),
        Buried("d", MANY.spans),
        Removed(MANY.spans, Cause.CONSUMED),
        Removed(MANY.spans, Cause.EXPIRED, FEW.spans),
    ],
)
def test_a_fact_about_scattered_ids_is_packed_and_comes_back(fact: StoredFact) -> None:
    stored = packed(fact)

    assert isinstance(stored, PackedIds)
    assert unpacked(stored) == fact


@pytest.mark.spec("D4")
@pytest.mark.parametrize(
    "fact",
    [
        Acked("d", tuple(Span(i, i + 1) for i in range(0, 2 * RANGES_MAX, 2))),
        Removed((Span(0, 1_000_000),), Cause.PURGED),
        Edited(Definition()),
    ],
)
def test_other_facts_are_stored_as_they_are(fact: StoredFact) -> None:
    assert packed(fact) is fact


def test_other_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="not a packed set"):
        id_set(b"?")
