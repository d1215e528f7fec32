"""The stored form of facts about seats of clients."""

from __future__ import annotations

import msgspec
import pytest

from penstock_core.messages.seats import Left, Seated
from penstock_core.messages.subscribers import Interested, InterestEnded
from penstock_core.messages.unions import AnyPlaceFact, StoredFact


@pytest.mark.parametrize(
    ("fact", "stored"),
    [
        (Seated("d", "u/s/1", "s"), ["Seated", "d", "u/s/1", "s", False, 0]),
        (Seated("d", "u/s/1", "s", sole=True), ["Seated", "d", "u/s/1", "s", True, 0]),
        (Left("d", "u/s/1"), ["Left", "d", "u/s/1"]),
        (Interested("u/s/1", "s", 7), ["Interested", "u/s/1", "s", 7, "", False]),
        (InterestEnded("u/s/1"), ["InterestEnded", "u/s/1"]),
    ],
)
def test_a_place_is_stored_with_the_name_of_its_fact(
    fact: AnyPlaceFact, stored: list[object]
) -> None:
    encoded = msgspec.msgpack.encode(fact)

    assert msgspec.msgpack.decode(encoded) == stored
    assert msgspec.msgpack.decode(encoded, type=StoredFact) == fact
