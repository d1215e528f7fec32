"""Files of topologies, and what applying them must reach."""

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
    """Mostly such as a realm may be: dead events go to a store that comes earlier by name, and
    attributes fit the type."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    stores = [
        _store(
            draw(st.sampled_from(["channel", "channel", "queue"])), name, sorted(names), draw=draw
        )
        for name in names
    ]
    channels = [each.name for each in stores if each.kind == "channel"]
    pairs = [(source, to) for source in channels for to in names if source != to]
    joins = [
        WantedJoin(
            source=source, destination=destination, selector=draw(st.sampled_from(["", "a = 1"]))
        )
        for source, destination in draw(st.permutations(pairs))[:2]
    ]
    return Topology(stores=tuple(stores), joins=tuple(joins))


def _store(kind: Any, name: str, names: Sequence[str], draw: st.DrawFn) -> WantedStore:
    given: dict[str, Any] = draw(attributes)
    dead = draw(st.sampled_from(["", *names[: names.index(name)]]))
    if given.get("type") == "transient":
        given = {key: given[key] for key in given if key in ("type", "ttl", "capacity")}
    else:
        given["dead_event_store"] = dead
    if given.get("type") == "reliable":
        given.pop("storage", None)
    held = draw(st.lists(durables, unique_by=lambda each: each.name, max_size=2))
    if kind == "queue" or not given.get("dead_event_store"):
        held = [each for each in held if not each.attributes.max_deliveries]
    return WantedStore(
        kind=kind,
        name=name,
        definition=definition_of(given, kind),
        durables=tuple(held) if kind == "channel" else (),
    )


@st.composite
def changes(draw: st.DrawFn) -> tuple[Topology, Topology]:
    """A file and another one, often the same with other attributes: what is edited in place."""
    first = draw(topologies())
    if draw(st.booleans()):
        return first, draw(topologies())
    edited = tuple(_edited(each, draw) for each in first.stores)
    return first, Topology(stores=edited, joins=first.joins)


def _edited(store: WantedStore, draw: st.DrawFn) -> WantedStore:
    has = store.definition
    given: dict[str, Any] = draw(attributes)
    given.pop("keys", None)
    if has.type == "transient":
        given = {key: given[key] for key in given if key in ("ttl", "capacity")}
    if has.type == "reliable":
        given.pop("storage", None)
    given |= {"type": has.type, "keys": has.keys, "dead_event_store": has.dead_event_store}
    return replace(store, definition=definition_of(given, store.kind))


def check_convergence(files: tuple[Topology, Topology]) -> None:
    """A realm is as the first file says, and then as the second, and a second time there is nothing
    to do."""
    first, second = files
    with penstock.Realm() as realm, realm.connect() as session:
        try:
            made = plan(first, look(session))
        except InvalidArgument:
            assume(False)
        apply(session, made)

        assert plan(first, look(session), prune=True) == Plan()

        written = to_toml(topology_of(look(session)))
        assert plan(parse(written), look(session), prune=True) == Plan()
        with penstock.Realm() as copy, copy.connect() as there:
            apply(there, plan(parse(written), look(there)))
            assert to_toml(topology_of(look(there))) == written

        try:
            changed = plan(second, look(session), prune=True)
        except InvalidArgument:
            return
        if not changed.immovable:
            apply(session, changed)
            assert plan(second, look(session), prune=True) == Plan()
            assert written_of(session) == as_new(second), "changed in place, and not as a new one"


def written_of(session: Session) -> str:
    return to_toml(topology_of(look(session)))


def as_new(wanted: Topology) -> str:
    """How a realm is written that was made by the file and nothing else."""
    with penstock.Realm() as realm, realm.connect() as session:
        apply(session, plan(wanted, look(session)))
        return written_of(session)
