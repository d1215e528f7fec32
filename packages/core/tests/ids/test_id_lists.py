"""Ids written one by one."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from penstock_core.ids.id_lists import count_in, ids_in, listed
from penstock_core.ids.ids import IdSet, Span


@given(
    st.sets(st.integers(0, 1 << 62))
    | st.lists(st.integers(1, 300)).map(lambda gaps: set(accumulate(gaps)))
)
def test_what_is_listed_is_read_again(ids: set[int]) -> None:
    wanted = IdSet.from_ids(ids)
    written = listed(wanted)

    assert count_in(written) == len(ids)
    assert ids_in(written) == wanted
    assert ids_in(bytes(bytearray(written))) == wanted, "read from a copy, as after a restart"


def test_the_bytes_are_the_same_everywhere() -> None:
    assert listed(IdSet([Span(1, 3), Span(256, 257)])).hex() == (
        "02" + "0100000000000000" + "0100" + "fe00"
    )
    assert listed(IdSet([Span(1, 2), Span(1 << 20, (1 << 20) + 1)])).hex() == (
        "04" + "0100000000000000" + "ffff0f00"
    )
    close = [*range(0, 40, 4), 1000]
    assert listed(IdSet.from_ids(close)).hex() == (
        "01" + "0000000000000000" + "0a000000" + "04" * 9 + "ffc403"
    )
    assert listed(IdSet.from_ids(close[:-1])).hex() == (
        "01" + "0000000000000000" + "09000000" + "04" * 9 + "00"
    )


def test_ids_far_apart_and_those_of_older_lists_are_listed_themselves() -> None:
    far = IdSet([Span(1, 2), Span(1 << 40, (1 << 40) + 1)])

    assert listed(far).hex() == "0100000000000000" + "0000000000010000"
    assert ids_in(bytes.fromhex("010000000000000002000000000000000001000000000000")) == IdSet(
        [Span(1, 3), Span(256, 257)]
    )
