"""Bodies that are read at once: small ones always, large ones in parts that leave others theirs."""

from __future__ import annotations

import pytest

from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.vocabulary.errors import Unavailable
from penstock_server.frontends.shared.buffers import SMALL_BYTES, Buffers

ANN, BOB = Principal("ann", "localhost"), Principal("bob", "localhost")
LARGE = SMALL_BYTES + 100


def test_small_bodies_are_read_whatever_large_ones_take() -> None:
    buffers = Buffers(200)
    with buffers.body(ANN) as large, buffers.body(BOB) as others_body, buffers.body(BOB) as small:
        large(LARGE)
        others_body(SMALL_BYTES + 50)
        with pytest.raises(Unavailable):
            others_body(SMALL_BYTES + 51)

        small(SMALL_BYTES)


def test_a_user_gets_at_most_half_of_the_free_part() -> None:
    buffers = Buffers(200)
    with buffers.body(ANN) as first, buffers.body(ANN) as second, buffers.body(BOB) as others_body:
        first(SMALL_BYTES + 60)
        with pytest.raises(Unavailable, match="of ann"):
            second(SMALL_BYTES + 41)
        second(SMALL_BYTES + 40)

        others_body(SMALL_BYTES + 50)


def test_bytes_are_freed_after_reading() -> None:
    buffers = Buffers(200)
    for _ in range(5):
        with buffers.body(ANN) as grow:
            grow(SMALL_BYTES + 1)
            grow(LARGE)
    with buffers.body(ANN) as grow:
        grow(LARGE)
        with pytest.raises(Unavailable):
            grow(SMALL_BYTES + 201)
    with buffers.body(ANN) as grow:
        grow(LARGE)


def test_anonymous_clients_are_counted_by_host_and_users_by_name() -> None:
    buffers = Buffers(400)
    here, second_principal = Principal(ANONYMOUS, "10.0.0.1"), Principal(ANONYMOUS, "10.0.0.2")
    with buffers.body(here) as first, buffers.body(second_principal) as second:
        first(SMALL_BYTES + 200)
        second(SMALL_BYTES + 100)
    away = Principal("ann", "10.0.0.2")
    with buffers.body(ANN) as first, buffers.body(away) as second:
        first(SMALL_BYTES + 200)
        with pytest.raises(Unavailable):
            second(SMALL_BYTES + 100)
