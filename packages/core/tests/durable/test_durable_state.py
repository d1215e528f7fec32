"""The state of a durable in a snapshot."""

from __future__ import annotations

import msgspec
import pytest

from penstock_core.durable.durable import Durable
from penstock_core.durable.durable_state import durable_of, state_of
from penstock_core.durable.redelivery_counts import RedeliveryCounts
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.durable_attributes import DurableAttributes, DurableState
from penstock_server.bootstrap import rules
from penstock_testing.play import span

KIND = rules().kinds["serial"]
GIVEN = DurableAttributes(
    max_deliveries=5,
    cluster_wide=True,
    order_by="k",
    backoff=Backoff(10, jitter=0.5, seed=3),
    ack_timeout=30_000,
)


def full() -> Durable:
    durable = Durable(
        "d",
        KIND,
        20,
        selector="n > 1",
        persistent=False,
        attributes=GIVEN,
    )
    durable.outstanding = IdSet((span(2, 9),))
    durable.levels = RedeliveryCounts({1: IdSet((span(2),)), 4: IdSet((span(5, 6),))})
    durable.rolled_back = IdSet((span(3),))
    durable.postpone(IdSet((span(2, 3),)), 1_000)
    durable.postpone(IdSet((span(7),)), 500)
    return durable


@pytest.mark.spec("D4")
def test_a_durable_comes_back_as_it_was() -> None:
    state = state_of(full(), 0)
    again = durable_of(state, KIND)

    assert state_of(again, 0) == state
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=DurableState) == state
    assert again.waiting is not None
    assert again.waiting.by_time() == [(500, IdSet((span(7),))), (1_000, IdSet((span(2, 3),)))]
    assert again.attributes == GIVEN
    assert {*DurableAttributes.__struct_fields__} < {*DurableState.__struct_fields__}


@pytest.mark.spec("D4")
def test_what_no_restart_finds_is_left_out() -> None:
    state = state_of(full(), 0, IdSet((span(2, 5),)))

    assert state.outstanding == (span(6, 9),)
    assert state.redelivered == ((4, (span(6),)),)
    assert state.rolled_back == ()
    assert state.waiting == ((500, (span(7),)),)


def test_what_was_kept_before_there_were_waits_and_timeouts_is_read() -> None:
    before = msgspec.msgpack.encode(list(msgspec.structs.astuple(state_of(full(), 0)))[:12])
    again = durable_of(msgspec.msgpack.decode(before, type=DurableState), KIND)

    assert (again.attributes.backoff, again.waiting, again.attributes.ack_timeout) == (
        None,
        None,
        0,
    )


@pytest.mark.spec("D3", "D4")
def test_a_durable_with_a_selector_is_kept_as_one_that_was_offered_everything() -> None:
    chooses, begins_later = Durable("d", KIND, 5, selector="n = 1"), Durable("d", KIND, 20)
    begins_later.selector = "n = 1"

    assert state_of(chooses, 9).head == 9
    assert state_of(begins_later, 9).head == 20
    assert state_of(Durable("d", KIND, 5), 9).head == 5, "the rest is outstanding"
