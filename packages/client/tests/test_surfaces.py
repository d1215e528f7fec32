"""The blocking and the asyncio client have the same methods with the same parameters."""

from __future__ import annotations

import ast
import inspect
import re

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
    (aio.Access, sync.Access),
    (aio.Joins, sync.Joins),
    (aio.Registered, penstock.Registered),
    (aio.Schedule, sync.Schedule),
    (aio.Transaction, sync.Transaction),
    (aio.JointTransaction, sync.JointTransaction),
    (aio.Producer, Producer),
    (aio.DeliveredEvent, DeliveredEvent),
    (aio.DeliveredBatch, DeliveredBatch),
]
HANDLES = [kind for pair in PAIRS for kind in pair]
ONLY_ASYNC: dict[type, set[str]] = {
    # here: it is open once it is made, and the realm that is shared
    aio.Realm: {"open", "sharing"},
}
DUNDERS = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}
ONLY_BLOCKING: dict[type, set[str]] = {
    penstock.Realm: {"admit"},  # how the asynchronous one connects to it
    Producer: {"acknowledged"},  # there: an attribute
    penstock.Registered: {"event_id"},  # there: an attribute
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def declared(kind: type) -> set[str]:
    """Names of its fields, as the reference page has them."""
    return {name for base in kind.__mro__ for name in inspect.get_annotations(base)}


def parameters(kind: type, name: str) -> list[tuple[str, object, object]] | None:
    """Name, kind and default of each; None: an attribute."""
    if not inspect.isroutine(getattr(kind, name)):
        return None
    signature = inspect.signature(getattr(kind, name))
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


@pytest.mark.parametrize(("async_class", "blocking_class"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_methods(async_class: type, blocking_class: type) -> None:
    async_names = public(async_class) - ONLY_ASYNC.get(async_class, set())

    assert async_names == public(blocking_class) - ONLY_BLOCKING.get(blocking_class, set())


@pytest.mark.parametrize(("async_class", "blocking_class"), PAIRS, ids=lambda kind: kind.__name__)
def test_methods_of_one_name_take_the_same_parameters(
    async_class: type, blocking_class: type
) -> None:
    shared_names = public(async_class) & public(blocking_class)

    assert {name: parameters(blocking_class, name) for name in shared_names} == {
        name: parameters(async_class, name) for name in shared_names
    }


@pytest.mark.parametrize(("async_class", "blocking_class"), PAIRS, ids=lambda kind: kind.__name__)
def test_what_is_a_context_or_iterable_here_is_one_there(
    async_class: type, blocking_class: type
) -> None:
    batches = (aio.DeliveredBatch, DeliveredBatch)  # both iterate without waiting
    for ours, theirs in DUNDERS.items():
        if blocking_class not in batches:
            assert hasattr(blocking_class, ours) == hasattr(async_class, theirs), ours


def test_both_connect_alike() -> None:
    assert inspect.signature(penstock.connect).parameters == (
        inspect.signature(aio.connect).parameters
    )


@pytest.mark.parametrize("kind", HANDLES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_no_public_name_of_a_handle_is_without_its_text(kind: type) -> None:
    """Names that only the client itself uses begin with an underscore."""
    methods = public(kind) - declared(kind)

    assert {name for name in methods if not inspect.getdoc(getattr(kind, name))} == set()


@pytest.mark.parametrize("async_class", [pair[0] for pair in PAIRS], ids=lambda kind: kind.__name__)
def test_no_handle_shows_an_attribute_that_it_does_not_declare(async_class: type) -> None:
    """Fields that are set when a handle is made are public by their names alone."""
    tree = ast.parse(inspect.getsource(async_class))
    shown = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and not node.attr.startswith("_")
    }

    assert shown <= declared(async_class)


@pytest.mark.parametrize("kind", HANDLES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_duration_of_a_handle_takes_the_same_forms(kind: type) -> None:
    durations = [
        parameter
        for name in public(kind)
        if inspect.isroutine(getattr(kind, name))
        for parameter in inspect.signature(getattr(kind, name)).parameters.values()
        if re.search("timeout|delay|ttl|linger|time$", parameter.name)
    ]

    for parameter in durations:
        assert re.search("Duration|Milliseconds|timedelta", str(parameter.annotation)), parameter
