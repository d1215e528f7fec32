"""The blocking and the asyncio client have the same methods with the same parameters."""

from __future__ import annotations

import inspect

import pytest

import penstock
from penstock import aio
from penstock.client.sync import sync
from penstock.client.sync.sync_delivered import DeliveredBatch, DeliveredEvent
from penstock.client.sync.sync_producer import Producer

PAIRS = [
    (aio.Session, sync.Session),
    (aio.Realm, penstock.Realm),
    (aio.Channels, sync.Channels),
    (aio.Channel, sync.Channel),
    (aio.Subscription, sync.Subscription),
    (aio.Durables, sync.Durables),
    (aio.Durable, sync.Durable),
    (aio.DurableSubscription, sync.DurableSubscription),
    (aio.DurableHold, sync.DurableHold),
    (aio.Queues, sync.Queues),
    (aio.Queue, sync.Queue),
    (aio.Reader, sync.Reader),
    (aio.Joins, sync.Joins),
    (aio.Schedule, sync.Schedule),
    (aio.Transaction, sync.Transaction),
    (aio.JointTransaction, sync.JointTransaction),
    (aio.Producer, Producer),
    (aio.DeliveredEvent, DeliveredEvent),
    (aio.DeliveredBatch, DeliveredBatch),
]
INSIDE = {
    aio.Session: {
        *("open", "report", "request", "ask", "ask_to_open", "tell", "drained"),
        *(
            "schema_number",
            "row_number",
            "request_for",
            "hurry",
            "add",
            "unsubscribe",
            "is_closed",
            "remove",
            "give_up",
            "received",
            "lost",
        ),
    },
    aio.Realm: {"open"},
    aio.Channel: {"publisher"},
    aio.Queue: {"publisher"},
    aio.Reader: {
        *("reopen", "delivered", "finished", "failed", "is_open", "next_part", "handed", "hurry"),
    },
    aio.Subscription: {"reopen", "delivered", "finished", "failed", "is_open"},
    aio.DurableSubscription: {
        *("reopen", "delivered", "finished", "failed", "is_open", "pull", "settle_soon"),
        *("recalled", "may_recall", "is_recalled", "has_rolled_back", "has_ended", "hurry"),
        *("settle", "settlements", "check_held", "settle_in_turn"),
    },
    aio.DurableHold: {"reopen", "delivered", "finished", "failed"},
    aio.Producer: {"send_gathered", "send_gathered_soon"},
    aio.DeliveredBatch: {"subscription", "attachment", "without", "part"},
}
"""What other modules of the client use and users do not."""
DUNDERS = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}
HERE_BY_OTHER_MEANS = {
    penstock.Realm: {"admit"},
    sync.Session: {"session_id"},  # there: set when made
    sync.Transaction: {"id"},
    sync.JointTransaction: {"id"},
    Producer: {"acknowledged"},
    DeliveredEvent: {"of"},  # how one client makes the other's events
    DeliveredBatch: {"begin"},
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(kind: type, name: str) -> list[tuple[str, object, object]] | None:
    """Name, kind and default of each; None: an attribute."""
    if not inspect.isroutine(getattr(kind, name)):
        return None
    signature = inspect.signature(getattr(kind, name))
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


@pytest.mark.parametrize(("there", "here"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_methods(there: type, here: type) -> None:
    assert public(there) - INSIDE.get(there, set()) == public(here) - HERE_BY_OTHER_MEANS.get(
        here, set()
    )


@pytest.mark.parametrize(("there", "here"), PAIRS, ids=lambda kind: kind.__name__)
def test_methods_of_one_name_take_the_same_parameters(there: type, here: type) -> None:
    both = public(there) & public(here)

    assert {name: parameters(here, name) for name in both} == {
        name: parameters(there, name) for name in both
    }


@pytest.mark.parametrize(("there", "here"), PAIRS, ids=lambda kind: kind.__name__)
def test_what_is_a_context_or_iterable_here_is_one_there(there: type, here: type) -> None:
    batches = (aio.DeliveredBatch, DeliveredBatch)  # both iterate without waiting
    for ours, theirs in DUNDERS.items():
        if here not in batches:
            assert hasattr(here, ours) == hasattr(there, theirs), ours


def test_both_connect_alike() -> None:
    assert inspect.signature(penstock.connect).parameters == (
        inspect.signature(aio.connect).parameters
    )
