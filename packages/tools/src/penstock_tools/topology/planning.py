"""Compares a topology with what a realm has, and plans what makes the one of the other.

A plan of stores, durables and joins is rehearsed on the realm's own rules (``core``), so that what
the realm would refuse is refused before anything is changed, and so that each step comes after
those that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import fields, replace

from penstock_core.access.rights import parse_subject
from penstock_core.api.durables import DurableInfo
from penstock_core.api.patterns import PatternDurableInfo
from penstock_core.realm.internal_stores import retained_store, session_store
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.reach import comparable
from penstock_core.vocabulary.session_durables import is_of_session
from penstock_tools.topology.document import Topology, WantedDurable, WantedGrant, WantedStore
from penstock_tools.topology.looking import Found, FoundStore, GrantKey
from penstock_tools.topology.rehearsing import Rehearsal
from penstock_tools.topology.steps import (
    DurableToCreate,
    DurableToDelete,
    GroupToChange,
    GroupToCreate,
    GroupToDelete,
    Immovable,
    JoinToCreate,
    JoinToDelete,
    PatternToCreate,
    PatternToDelete,
    Plan,
    PlannedStep,
    RightsToAdd,
    RightsToTake,
    StoreToCreate,
    StoreToDelete,
    StoreToEdit,
    UserToCreate,
    UserToDelete,
)
from penstock_tools.topology.writing import duration

FIXED = ("type", "engine", "keys", "start_event_id")
"""Attributes of a store that cannot be edited (SEM C3)."""
_ADMINISTRATION = frozenset(("full", "manage_acl"))
"""Rights on the realm with which the others can be granted."""
_NOTHING = "nothing but the time in between, in which no events are copied"


def plan(wanted: Topology, found: Found, *, prune: bool = False) -> Plan:
    """What makes a realm as ``wanted`` says; with ``prune`` also what deletes what it does not
    name. Raises ``InvalidArgument`` for what no realm can be, with the place in the file."""
    return _Planning(wanted, found, prune=prune).plan()


def _without_internal(wanted: Topology, mqtt_channel: str) -> Topology:
    """Leave out what a realm makes for itself, which the files of an older version name: internal
    stores, and the durables of sessions."""
    names = {each.name for each in (retained_store(mqtt_channel), session_store(mqtt_channel))}
    return replace(
        wanted,
        stores=tuple(
            replace(
                store, durables=tuple(it for it in store.durables if not is_of_session(it.name))
            )
            for store in wanted.stores
            if store.name not in names
        ),
        grants=tuple(each for each in wanted.grants if each.name not in names),
    )


class _Planning:
    def __init__(self, wanted: Topology, found: Found, *, prune: bool) -> None:
        self._wanted = _without_internal(wanted, found.mqtt_channel)
        self._found = found
        self._prune = prune
        self._immovable: list[Immovable] = []
        self._unnamed: list[str] = []
        self._kept: list[str] = []

    def plan(self) -> Plan:
        steps = [*self._store_steps()]
        for store in self._wanted.stores:
            steps += self._durable_steps(store)
        steps += [*self._pattern_steps(), *self._join_steps(), *self._deletions()]
        if not self._immovable:
            steps = Rehearsal(self._wanted, self._found).ordered(steps)
        access = list(self._access_steps())
        return Plan(
            steps=(*steps, *access),
            immovable=tuple(self._immovable),
            unnamed=tuple(self._unnamed),
            kept=tuple(self._kept) if self._prune else (),
        )

    # --- stores --------------------------------------------------------------------------

    def _store_steps(self) -> Iterator[PlannedStep]:
        for store in self._wanted.stores:
            there = self._found.stores.get(store.name)
            if there is None:
                details = tuple(_attributes_shown(store.definition))
                yield PlannedStep(
                    sign="+", what=store.what, act=StoreToCreate(store), details=details
                )
            elif there.kind != store.kind:
                self._cannot(there, [f"is a {there.kind}, not a {store.kind}"])
            elif step := self._edit(store, there):
                yield step

    def _edit(self, store: WantedStore, there: FoundStore) -> PlannedStep | None:
        definition = comparable(store.definition, there.definition)
        changes = list(_changes(there.definition, definition))
        immovable = (*FIXED, *(("cluster_wide",) if self._found.is_cluster else ()))  # SEM C5
        fixed = [_change(*each) for each in changes if each[0] in immovable]
        if fixed:
            self._cannot(there, fixed)
            return None
        if not changes:
            return None
        attributes: dict[str, Any] = {}
        for name, _, value in changes:
            first, _, inner = name.partition(".")
            if inner:
                attributes.setdefault(first, {})[inner] = value
            else:
                attributes[first] = value
        return PlannedStep(
            sign="~",
            what=store.what,
            act=StoreToEdit(store.kind, store.name, attributes),
            details=tuple(_change(*each) for each in changes),
            loses=_lost_by(there, definition),
        )

    def _cannot(self, there: FoundStore, details: Sequence[str]) -> None:
        self._immovable.append(
            Immovable(
                what=there.what,
                details=tuple(details),
                loses=self._content(there),
                remedy=f"penstock {there.kind} delete {_quoted(there.name)}",
            )
        )

    def _content(self, there: FoundStore) -> str:
        """What is lost with a store."""
        lost = [f"{there.events:,} event{'' if there.events == 1 else 's'}"]
        lost += [f"durable {each.name}" for _, each in sorted(there.durables.items())]
        lost += [
            f"the join to {destination}"
            for source, destination in sorted(self._found.joins)
            if source == there.name
        ]
        return ", ".join(lost)

    # --- durables ------------------------------------------------------------------------

    def _durable_steps(self, store: WantedStore) -> Iterator[PlannedStep]:
        there = self._found.stores.get(store.name)
        known = {} if there is None else there.durables
        for durable in store.durables:
            what = f"durable {durable.name} of {store.name}"
            info = known.get(durable.name)
            if info is None:
                details = tuple(_durable_shown(durable))
                act = DurableToCreate(store.name, durable)
                yield PlannedStep(sign="+", what=what, act=act, details=details)
            elif differing := list(_durable_changes(durable, info)):
                self._immovable.append(
                    Immovable(
                        what=what,
                        details=tuple(_change(*each) for each in differing),
                        loses=_position(info),
                        remedy=f"penstock durable delete {_quoted(store.name)} "
                        f"{_quoted(durable.name)}",
                    )
                )

    def _pattern_steps(self) -> Iterator[PlannedStep]:
        for durable in self._wanted.durables:
            what = f"durable {durable.name} over {durable.pattern}"
            info = self._found.durables.get((durable.pattern, durable.name))
            if info is None:
                details = tuple(_durable_shown(durable))
                act = PatternToCreate(durable)
                yield PlannedStep(sign="+", what=what, act=act, details=details)
            elif differing := list(_durable_changes(durable, info)):
                self._immovable.append(
                    Immovable(
                        what=what,
                        details=tuple(_change(*each) for each in differing),
                        loses=_positions(info.channels),
                        remedy=f"penstock durable delete {_quoted(durable.pattern)} "
                        f"{_quoted(durable.name)}",
                    )
                )

    # --- joins ---------------------------------------------------------------------------

    def _join_steps(self) -> Iterator[PlannedStep]:
        for join in self._wanted.joins:
            info = self._found.joins.get((join.source, join.destination))
            if info is None:
                details = [f"selector {join.selector!r}"] if join.selector else []
                details += ["archive true"] if join.archive else []
                yield PlannedStep(
                    sign="+", what=join.what, act=JoinToCreate(join), details=tuple(details)
                )
                continue
            differing = [
                _change(name, getattr(info, name), getattr(join, name))
                for name in ("selector", "archive")
                if getattr(info, name) != getattr(join, name)
            ]
            if differing:
                self._immovable.append(
                    Immovable(
                        what=join.what,
                        details=tuple(differing),
                        loses=_NOTHING,
                        remedy=f"penstock join delete {_quoted(join.source)} "
                        f"{_quoted(join.destination)}",
                    )
                )

    # --- what the file does not name -----------------------------------------------------

    def _deletions(self) -> Iterator[PlannedStep]:
        """Deletes joins, durables and stores that the file does not name, if that is wanted."""
        wanted = {each.name: each for each in self._wanted.stores}
        joins = {(each.source, each.destination) for each in self._wanted.joins}
        kept = {self._found.mqtt_channel}  # the realm makes it for itself
        going = {name for name in self._found.stores if name not in wanted} - kept
        for pair in sorted(self._found.joins):
            if pair not in joins and pair[0] not in going:
                what = f"join {pair[0]} -> {pair[1]}"
                yield from self._gone(what, JoinToDelete(*pair), "what it would copy")
        patterns = {(each.pattern, each.name) for each in self._wanted.durables}
        for pair, over in sorted(self._found.durables.items()):
            if pair not in patterns:
                what = f"durable {pair[1]} over {pair[0]}"
                yield from self._gone(what, PatternToDelete(*pair), _positions(over.channels))
        for name, there in sorted(self._found.stores.items()):
            if name in going:
                act = StoreToDelete(there.kind, name)
                yield from self._gone(there.what, act, self._content(there))
                continue
            if name not in wanted:
                continue
            named = {each.name for each in wanted[name].durables}
            named |= {
                each.name for each in self._wanted.durables if choice_of(each.pattern).takes(name)
            }
            named |= {key for key in there.durables if self._found.gives(name, key)}
            for info in (each for key, each in sorted(there.durables.items()) if key not in named):
                gone = DurableToDelete(name, info.name)
                yield from self._gone(f"durable {info.name} of {name}", gone, _position(info))

    def _gone(self, what: str, act: Any, loses: str) -> Iterator[PlannedStep]:
        if self._prune:
            yield PlannedStep(sign="-", what=what, act=act, loses=loses)
        else:
            self._unnamed.append(what)

    # --- access --------------------------------------------------------------------------

    def _access_steps(self) -> Iterator[PlannedStep]:
        wanted, found = self._wanted, self._found
        if not wanted.tells_access:
            return
        if not found.keeps_access:
            places = [each.place for each in wanted.users]
            places += [each.place for each in wanted.groups]
            places += [each.place for each in wanted.grants]
            with wanted.naming(places[0], ""):
                raise InvalidArgument(
                    "the realm keeps no users, groups and rights, because its access.mode is off; "
                    "set that to optional or mandatory, or leave [[user]], [[group]] and [[grant]] "
                    "out"
                )
        self._check_grants()
        yield from self._people()
        yield from self._rights()
        yield from self._people_gone()

    def _people(self) -> Iterator[PlannedStep]:
        for user in self._wanted.users:
            if user.name not in self._found.users:
                details = ("without a password: penstock user password sets one",)
                yield PlannedStep(
                    sign="+", what=f"user {user.name}", act=UserToCreate(user.name), details=details
                )
        for group in self._wanted.groups:
            has = self._found.groups.get(group.name)
            what = f"group {group.name}"
            if has is None:
                details = (f"members {', '.join(group.members) or 'none'}",)
                yield PlannedStep(sign="+", what=what, act=GroupToCreate(group), details=details)
            elif {*has} != {*group.members}:
                add = tuple(sorted({*group.members} - {*has}))
                remove = tuple(sorted({*has} - {*group.members}))
                told = (*(f"add {each}" for each in add), *(f"remove {each}" for each in remove))
                act = GroupToChange(group.name, add, remove)
                yield PlannedStep(sign="~", what=what, act=act, details=told)

    def _rights(self) -> Iterator[PlannedStep]:
        taken = []
        for grant in self._wanted.grants:
            key = (grant.kind, grant.name, grant.subject)
            has, wanted = self._found.grants.get(key, ()), grant.rights
            if add := tuple(each for each in wanted if each not in has):
                told = (f"add {_list(add)}",)
                adding = RightsToAdd(*key, add)
                yield PlannedStep(
                    sign="~" if has else "+", what=grant.what, act=adding, details=told
                )
            if remove := tuple(each for each in has if each not in wanted):
                told = (f"take {_list(remove)}",)
                taking = RightsToTake(*key, remove)
                taken.append(PlannedStep(sign="~", what=grant.what, act=taking, details=told))
        yield from taken  # what adds comes first, so that nobody is without rights in between

    def _people_gone(self) -> Iterator[PlannedStep]:
        """Takes the rights, groups and users that the file does not name, if that is wanted. What
        whoever applies it has stays, and somebody who may administer: nobody locks the door from
        outside."""
        wanted, found, me = self._wanted, self._found, self._found.me
        named = {(each.kind, each.name, each.subject) for each in wanted.grants}
        stores = {each.name for each in wanted.stores} | {found.mqtt_channel}
        administers: set[str] = set()
        for key, rights in sorted(found.grants.items()):
            goes_with_its_store = self._prune and key[1] in found.stores and key[1] not in stores
            if key in named or goes_with_its_store:
                continue
            grant = WantedGrant(kind=key[0], name=key[1], subject=key[2], rights=rights)
            if self._stays(key, rights):
                administers.add(parse_subject(key[2]).user)
                self._kept.append(grant.what)
            else:
                yield from self._gone(grant.what, RightsToTake(*key, rights), _list(rights))
        groups, users = {each.name for each in wanted.groups}, {each.name for each in wanted.users}
        for name in sorted({*found.groups} - groups):
            if name in administers or name in me.groups:
                self._kept.append(f"group {name}")
            else:
                yield from self._gone(f"group {name}", GroupToDelete(name), "what it was granted")
        for name in sorted({*found.users} - users):
            if name in administers or name == me.user:
                self._kept.append(f"user {name}")
            else:
                loses = "its password; its sessions end"
                yield from self._gone(f"user {name}", UserToDelete(name), loses)

    def _stays(self, key: GrantKey, rights: Sequence[str]) -> bool:
        """Whether a grant that the file does not name is not pruned."""
        subject = parse_subject(key[2])
        own = self._found.me.groups if subject.is_group else (self._found.me.user,)
        return subject.user in own or (
            key[0] == "realm"
            and not _ADMINISTRATION.isdisjoint(rights)
            and not any(
                each.kind == "realm" and not _ADMINISTRATION.isdisjoint(each.rights)
                for each in self._wanted.grants
            )
        )

    def _check_grants(self) -> None:
        kinds = {name: each.kind for name, each in self._found.stores.items()}
        kinds |= {each.name: each.kind for each in self._wanted.stores}
        for grant in self._wanted.grants:
            if grant.kind in ("realm", "topic") or grant.name.endswith("*"):
                continue
            with self._wanted.naming(grant.place, grant.what):
                if kinds.get(grant.name) != grant.kind:
                    raise InvalidArgument(
                        f"{grant.kind} is {grant.name!r}, but neither the file nor the realm has "
                        f"such a {grant.kind}"
                    )


# --- differences -----------------------------------------------------------------------------


Change = tuple[str, Any, Any]
"""Name, what is there, and what is wanted."""


def _changes(found: Definition, wanted: Definition) -> Iterator[Change]:
    for each in fields(Definition):
        if each.name not in ("kind", "storage") and getattr(found, each.name) != getattr(
            wanted, each.name
        ):
            yield each.name, getattr(found, each.name), getattr(wanted, each.name)
    for each in fields(Storage):
        has, given = getattr(found.storage, each.name), getattr(wanted.storage, each.name)
        if has != given:
            yield f"storage.{each.name}", has, given


def _attributes_shown(definition: Definition) -> Iterator[str]:
    for name, _, value in _changes(Definition(), definition):
        yield f"{name} {_shown(name, value)}"


def _durable_shown(durable: WantedDurable) -> Iterator[str]:
    yield f"type {durable.type!r}"
    if durable.selector:
        yield f"selector {durable.selector!r}"
    for each in fields(durable.attributes):
        if (value := getattr(durable.attributes, each.name)) != each.default:
            yield f"{each.name} {value!r}"


def _durable_changes(
    wanted: WantedDurable, found: DurableInfo | PatternDurableInfo
) -> Iterator[Change]:
    for name in ("type", "selector"):
        if getattr(found, name) != getattr(wanted, name):
            yield name, getattr(found, name), getattr(wanted, name)
    if wanted.persistent not in (None, found.persistent):
        yield "persistent", found.persistent, wanted.persistent
    for each in fields(wanted.attributes):
        has, given = getattr(found, each.name), getattr(wanted.attributes, each.name)
        # In a cluster a durable is where its channel is, whatever was asked for
        if has != given and not (each.name == "cluster_wide" and has):
            yield each.name, has, given


def _change(name: str, has: Any, given: Any) -> str:
    return f"{name} {_shown(name, has)} -> {_shown(name, given)}"


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(duration(name.rpartition(".")[2], value))


def _lost_by(there: FoundStore, wanted: Definition) -> str:
    """What an edit removes at once, or soon."""
    found, lost = there.definition, []
    if not there.events:
        return ""
    over = there.events - wanted.capacity
    if wanted.capacity and over > 0 and not wanted.storage.honour_capacity:
        lost.append(f"the oldest {over:,} of {there.events:,} events")
    if wanted.ttl and (not found.ttl or wanted.ttl < found.ttl):
        lost.append(f"events older than {duration('ttl', wanted.ttl)}")
    if found.retain_consumed and not wanted.retain_consumed:
        lost.append("events that every durable has acknowledged")
    return ", ".join(lost)


def _positions(channels: int) -> str:
    return f"its position on {channels:,} channel{'' if channels == 1 else 's'}"


def _position(info: DurableInfo) -> str:
    clients = len(info.clients)
    lost = f"its position, and which {info.outstanding:,} events are outstanding"
    return f"{lost}; {clients} of its clients lose it" if clients else lost


def _list(rights: Sequence[str]) -> str:
    return ", ".join(rights)


def _quoted(name: str) -> str:
    return name if name.replace("/", "").replace("-", "").isalnum() else f"'{name}'"
