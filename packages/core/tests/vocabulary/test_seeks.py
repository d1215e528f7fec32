"""The stored record of the seeks of a durable."""

from __future__ import annotations

import msgspec
import pytest

from penstock_core.ids.ids import Span
from penstock_core.messages.seeking import Sought
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.seeks import LastSeek

pytestmark = pytest.mark.spec("D20", "D4")


@pytest.mark.parametrize("matched", [(), (Span(3, 5),), b"packed"])
def test_it_is_read_as_it_was_stored(matched: tuple[Span, ...] | bytes) -> None:
    fact = Sought("billing", 7, matched, "key", 1, 2, 3)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fact), type=StoredFact) == fact


def test_its_form_is_fixed() -> None:
    def stored(value: object) -> object:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))

    fact = Sought("d", 7, (Span(3, 5),), "k", 1, 2, 3)
    assert stored(fact) == ["Sought", "d", 7, [[3, 5]], "k", 1, 2, 3]
    assert stored(LastSeek("k", 7, 1, 2, 3)) == ["k", 7, 1, 2, 3, []]
    last = LastSeek("k", 7, 1, 2, 3).followed_by(LastSeek("k", 7, 1, 2, 3))
    assert stored(last) == ["k", 7, 1, 2, 3, [["k", 7, 1, 2, 3, []]]]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(last), type=LastSeek) == last
