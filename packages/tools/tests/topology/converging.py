"""Strategies for topology files, and a check that applying one leads to what it describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from msgspec.structs import replace

import penstock
from penstock.client.handles.definitions import definition_of
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_tools.topology import Plan, Topology, apply, look, parse, plan, to_toml, topology_of
from penstock_tools.topology.document import WantedDurable, WantedJoin, WantedStore

NAMES = ("a", "eu/b", "größe", 'c "d"', "e/f")


storages = st.fixed_dictionaries(
    {},
    optional={
        "honour_capacity": st.booleans(),
        "sync": st.sampled_from(["group", "none"]),
        "sync_batch_time": st.sampled_from([1, 2_000]),
        "priority": st.integers(0, 9),
        "events_per_spindle": st.sampled_from([0, 50_000]),
    },
)


attributes = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["mixed", "persistent", "reliable", "transient"]),
        "ttl": st.sampled_from([0, 1, 90_000, 86_400_000]),
        "capacity": st.integers(0, 100),
        "keys": st.dictionaries(st.sampled_from(["sku", "a b", "ttl"]), st.integers(1, 3)),
        "event_ttl": st.booleans(),
        "storage": storages,
    },
)


durables = st.builds(
    WantedDurable,
    name=st.sampled_from(["x", "y/z"]),
    type=st.sampled_from(["shared", "serial"]),
    selector=st.sampled_from(["", "price > 5", "sku = 'it''s'"]),
    persistent=st.sampled_from([None, None, False]),
    attributes=st.builds(
        DurableAttributes,
        max_deliveries=st.sampled_from([0, 3]),
        order_by=st.sampled_from(["", "", "sku"]),
        backoff=st.sampled_from([None, Backoff(1_500), Backoff(0, factor=1.5, most=9, seed=7)]),
        ack_timeout=st.sampled_from([0, 30_000]),
    ),
)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Draw a topology that a realm can mostly have: the dead event store of a store comes before it
    in the order of names, and attributes fit the type."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    stores = [
        _store(
            draw(st.sampled_from(["channel", "channel", "queue"])), name, sorted(names), draw=draw
        )
        for name in names
    ]
    channels = [store.name for store in stores if store.kind == "channel"]
    pairs = [(source, to) for source in channels for to in names if source != to]
    joins = [
        WantedJoin(
            source=source, destination=destination, selector=draw(st.sampled_from(["", "a = 1"]))
        )
        for source, destination in draw(st.permutations(pairs))[:2]
    ]
    return Topology(stores=tuple(stores), joins=tuple(joins))


def _store(kind: Any, name: str, names: Sequence[str], draw: st.DrawFn) -> WantedStore:
    fields: dict[str, Any] = draw(attributes)
    dead = draw(st.sampled_from(["", *names[: names.index(name)]]))
    if fields.get("type") == "transient":
        fields = {key: fields[key] for key in fields if key in ("type", "ttl", "capacity")}
    else:
        fields["dead_event_store"] = dead
    if fields.get("type") == "reliable":
        fields.pop("storage", None)
    wanted = draw(st.lists(durables, unique_by=lambda durable: durable.name, max_size=2))
    if kind == "queue" or not fields.get("dead_event_store"):
        wanted = [durable for durable in wanted if not durable.attributes.max_deliveries]
    return WantedStore(
        kind=kind,
        name=name,
        definition=definition_of(fields, kind),
        durables=tuple(wanted) if kind == "channel" else (),
    )


@st.composite
def changes(draw: st.DrawFn) -> tuple[Topology, Topology]:
    """Draw two topologies. The second often has the stores of the first with other attributes,
    which are edited in place."""
    first = draw(topologies())
    if draw(st.booleans()):
        return first, draw(topologies())
    edited = tuple(_edited(store, draw) for store in first.stores)
    return first, Topology(stores=edited, joins=first.joins)


def _edited(store: WantedStore, draw: st.DrawFn) -> WantedStore:
    """Return a store with other attributes, but with those that cannot be edited."""
    old = store.definition
    fields: dict[str, Any] = draw(attributes)
    fields.pop("keys", None)
    if old.type == "transient":
        fields = {key: fields[key] for key in fields if key in ("ttl", "capacity")}
    if old.type == "reliable":
        fields.pop("storage", None)
    fields |= {"type": old.type, "keys": old.keys, "dead_event_store": old.dead_event_store}
    return replace(store, definition=definition_of(fields, store.kind))


def check_convergence(topologies: tuple[Topology, Topology]) -> None:
    """Apply two topologies to a realm, one after the other. After each, a new plan must be empty,
    and the realm must be the same as a new one to which only this topology was applied."""
    first, second = topologies
    with penstock.Realm() as realm, realm.connect() as session:
        try:
            creation = plan(first, look(session))
        except InvalidArgument:
            assume(False)
        apply(session, creation)

        assert plan(first, look(session), prune=True) == Plan()

        text = to_toml(topology_of(look(session)))
        assert plan(parse(text), look(session), prune=True) == Plan()
        with penstock.Realm() as copy, copy.connect() as copy_session:
            apply(copy_session, plan(parse(text), look(copy_session)))
            assert to_toml(topology_of(look(copy_session))) == text

        try:
            changed = plan(second, look(session), prune=True)
        except InvalidArgument:
            return
        if not changed.immovable:
            apply(session, changed)
            assert plan(second, look(session), prune=True) == Plan()
            assert text_of(session) == text_as_new(second), "an edited realm differs from a new one"


def text_of(session: Session) -> str:
    """Return the topology of a realm as TOML."""
    return to_toml(topology_of(look(session)))


def text_as_new(wanted: Topology) -> str:
    """Apply a topology to a new realm; return the realm's topology as TOML."""
    with penstock.Realm() as realm, realm.connect() as session:
        apply(session, plan(wanted, look(session)))
        return text_of(session)
