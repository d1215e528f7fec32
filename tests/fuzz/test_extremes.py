"""Every field of every message beyond its bounds: the realm survives, and other clients are not
affected."""

from __future__ import annotations

import pytest

from penstock_core.api.subscriptions import Settle
from penstock_core.api.transactions import CommitTransaction, Leaving
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.tags import TAGS
from tests.fuzz.bounding import in_time
from tests.fuzz.extremes import ROUNDS, conversation, kinds, messages, publishes, serve, served


@pytest.mark.slow
def test_every_request_is_tried() -> None:
    requests = {kind.__name__ for kind in TAGS.values()}

    assert requests <= set(kinds())
    with_fields = [name for name in requests if len(kinds()[name].fields) > 1]
    assert all(len(list(messages(name))) > ROUNDS for name in with_fields)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(kinds()))
def test_no_value_of_a_request_harms_other_clients(name: str) -> None:
    for header in messages(name):
        with in_time():
            served().handle(conversation(header))


@pytest.mark.slow
def test_no_column_of_a_batch_harms_other_clients() -> None:
    for _, data in publishes():
        with in_time():
            served().handle(data)


@pytest.mark.parametrize(
    "message",
    [
        wire.Asked(77, Settle(2, (Span(0, 2**63),))),
        wire.Asked(
            77,
            CommitTransaction("tx", (), (Leaving(ChannelId(1), (Span(0, 2**63),), (Span(0, 3),)),)),
        ),
        wire.Asked(
            77,
            CommitTransaction("tx", (), (Leaving(ChannelId(1), (Span(0, 3),), (Span(0, 2**63),)),)),
        ),
    ],
    ids=["Settle", "redriven", "purged"],
)
def test_an_id_that_no_event_can_have_ends_nothing(message: wire.Message) -> None:
    serve(wire.encode(message))


def test_a_connection_that_ends_while_it_opens_a_seat_leaves_no_opening_behind() -> None:
    """Otherwise its session could never open another seat."""
    for _ in range(2):  # one after the other
        serve(wire.encode(wire.Proof(b"not expected here")))

    assert not served().listener.openings
