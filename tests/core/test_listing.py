"""Ids written one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import IdSet, Span
from penstock.core.listing import count_in, ids_in, listed


@given(st.sets(st.integers(0, 1 << 62)))
def test_what_is_listed_is_read_again(ids: set[int]) -> None:
    wanted = IdSet.of(ids)
    written = listed(wanted)

    assert count_in(written) == len(ids)
    assert ids_in(written) == wanted
    assert ids_in(bytes(bytearray(written))) == wanted, "read from a copy, as after a restart"


def test_the_bytes_are_the_same_everywhere() -> None:
    assert listed(IdSet([Span(1, 3), Span(256, 257)])).hex() == (
        "0100000000000000020000000000000000010000000000" + "00"
    )
