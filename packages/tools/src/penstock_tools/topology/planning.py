"""Compares a topology with a realm, and plans the changes that make the realm match it.

Steps for stores, durables and joins are rehearsed on the realm's rules (``core``). The planner
therefore refuses what the realm would refuse before anything is changed, and orders each step
after the steps that it depends on.
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
from penstock_tools.topology.inventory import ExistingStore, Found, GrantKey
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
    RightsToRevoke,
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
"""Rights on the realm that allow granting other rights."""
_JOIN_PAUSE = "only events published until it is created again: they are not copied"
"""What is lost when a join is deleted and created again."""


def plan(wanted: Topology, existing: Found, *, prune: bool = False) -> Plan:
    """Return the changes that make a realm match ``wanted``; with ``prune`` they also delete
    objects that ``wanted`` does not name. Raises ``InvalidArgument`` with the place in the file if
    no realm can have that configuration."""
    return _Planning(wanted, existing, prune=prune).plan()


def _without_internal(wanted: Topology, mqtt_channel: str) -> Topology:
    """Return the topology without objects that a realm creates by itself: internal stores and the
    durables of sessions. Files exported by older versions contain them."""
    names = {store.name for store in (retained_store(mqtt_channel), session_store(mqtt_channel))}
    return replace(
        wanted,
        stores=tuple(
            replace(
                store,
                durables=tuple(
                    durable for durable in store.durables if not is_of_session(durable.name)
                ),
            )
            for store in wanted.stores
            if store.name not in names
        ),
        grants=tuple(grant for grant in wanted.grants if grant.name not in names),
    )


class _Planning:
    """The computation of one plan."""

    def __init__(self, wanted: Topology, existing: Found, *, prune: bool) -> None:
        self._wanted = _without_internal(wanted, existing.mqtt_channel)
        self._existing = existing
        self._prune = prune
        self._immovable: list[Immovable] = []
        self._unnamed: list[str] = []
        """Objects that the file does not name and that are not deleted, because this was not
        requested."""
        self._protected: list[str] = []
        """Objects that are not deleted, so that the realm stays accessible."""

    def plan(self) -> Plan:
        """Return the plan; may be called once."""
        steps = [*self._store_steps()]
        for store in self._wanted.stores:
            steps += self._durable_steps(store)
        steps += [*self._pattern_steps(), *self._join_steps(), *self._deletions()]
        # A plan that cannot be applied is not rehearsed: its steps may depend on the changes that
        # are not possible.
        if not self._immovable:
            steps = Rehearsal(self._wanted, self._existing).ordered(steps)
        access = list(self._access_steps())
        return Plan(
            steps=(*steps, *access),
            immovable=tuple(self._immovable),
            unnamed=tuple(self._unnamed),
            kept=tuple(self._protected) if self._prune else (),
        )

    # --- stores --------------------------------------------------------------------------

    def _store_steps(self) -> Iterator[PlannedStep]:
        """Yield the steps that create or edit stores, and record the stores that would have to be
        created again."""
        for store in self._wanted.stores:
            existing_store = self._existing.stores.get(store.name)
            if existing_store is None:
                details = tuple(_attribute_details(store.definition))
                yield PlannedStep(
                    sign="+", what=store.what, act=StoreToCreate(store), details=details
                )
            elif existing_store.kind != store.kind:
                self._refuse_change(
                    existing_store, [f"is a {existing_store.kind}, not a {store.kind}"]
                )
            elif step := self._edit(store, existing_store):
                yield step

    def _edit(self, store: WantedStore, existing_store: ExistingStore) -> PlannedStep | None:
        """Return the step that changes the attributes of a store; None if they do not differ, or if
        one of the differing ones cannot be edited."""
        definition = comparable(store.definition, existing_store.definition)
        changes = list(definition_changes(existing_store.definition, definition))
        immovable = (*FIXED, *(("cluster_wide",) if self._existing.is_cluster else ()))  # SEM C5
        fixed = [_format_change(*change) for change in changes if change[0] in immovable]
        if fixed:
            self._refuse_change(existing_store, fixed)
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
            details=tuple(_format_change(*change) for change in changes),
            loses=_describe_losses(existing_store, definition),
        )

    def _refuse_change(self, existing_store: ExistingStore, details: Sequence[str]) -> None:
        """Record differences of a store that cannot be resolved in place."""
        self._immovable.append(
            Immovable(
                what=existing_store.what,
                details=tuple(details),
                loses=self._describe_content(existing_store),
                remedy=f"penstock {existing_store.kind} delete {_quoted(existing_store.name)}",
            )
        )

    def _describe_content(self, existing_store: ExistingStore) -> str:
        """Return a description of the data that is lost with a store."""
        lost = [f"{existing_store.events:,} event{'' if existing_store.events == 1 else 's'}"]
        lost += [
            f"durable {durable.name}" for _, durable in sorted(existing_store.durables.items())
        ]
        lost += [
            f"the join to {destination}"
            for source, destination in sorted(self._existing.joins)
            if source == existing_store.name
        ]
        return ", ".join(lost)

    # --- durables ------------------------------------------------------------------------

    def _durable_steps(self, store: WantedStore) -> Iterator[PlannedStep]:
        """Yield the steps that create the durables of a store, and record the durables that
        differ."""
        existing_store = self._existing.stores.get(store.name)
        existing_durables = {} if existing_store is None else existing_store.durables
        for durable in store.durables:
            what = f"durable {durable.name} of {store.name}"
            # No attribute of a durable can be edited, so each difference is immovable.
            info = existing_durables.get(durable.name)
            if info is None:
                details = tuple(_durable_details(durable))
                act = DurableToCreate(store.name, durable)
                yield PlannedStep(sign="+", what=what, act=act, details=details)
            elif differing := list(_durable_changes(durable, info)):
                self._immovable.append(
                    Immovable(
                        what=what,
                        details=tuple(_format_change(*change) for change in differing),
                        loses=_describe_position(info),
                        remedy=f"penstock durable delete {_quoted(store.name)} "
                        f"{_quoted(durable.name)}",
                    )
                )

    def _pattern_steps(self) -> Iterator[PlannedStep]:
        """Yield the steps that create durables of patterns, and record those that differ."""
        for durable in self._wanted.durables:
            what = f"durable {durable.name} over {durable.pattern}"
            info = self._existing.durables.get((durable.pattern, durable.name))
            if info is None:
                details = tuple(_durable_details(durable))
                act = PatternToCreate(durable)
                yield PlannedStep(sign="+", what=what, act=act, details=details)
            elif differing := list(_durable_changes(durable, info)):
                self._immovable.append(
                    Immovable(
                        what=what,
                        details=tuple(_format_change(*change) for change in differing),
                        loses=_describe_positions(info.channels),
                        remedy=f"penstock durable delete {_quoted(durable.pattern)} "
                        f"{_quoted(durable.name)}",
                    )
                )

    # --- joins ---------------------------------------------------------------------------

    def _join_steps(self) -> Iterator[PlannedStep]:
        """Yield the steps that create joins, and record the joins that differ."""
        for join in self._wanted.joins:
            info = self._existing.joins.get((join.source, join.destination))
            if info is None:
                details = [f"selector {join.selector!r}"] if join.selector else []
                details += ["archive true"] if join.archive else []
                yield PlannedStep(
                    sign="+", what=join.what, act=JoinToCreate(join), details=tuple(details)
                )
                continue
            differing = [
                _format_change(name, getattr(info, name), getattr(join, name))
                for name in ("selector", "archive")
                if getattr(info, name) != getattr(join, name)
            ]
            if differing:
                self._immovable.append(
                    Immovable(
                        what=join.what,
                        details=tuple(differing),
                        loses=_JOIN_PAUSE,
                        remedy=f"penstock join delete {_quoted(join.source)} "
                        f"{_quoted(join.destination)}",
                    )
                )

    # --- objects that the file does not name ---------------------------------------------

    def _deletions(self) -> Iterator[PlannedStep]:
        """Yield the deletions of joins, durables and stores that the file does not name."""
        wanted = {store.name: store for store in self._wanted.stores}
        joins = {(join.source, join.destination) for join in self._wanted.joins}
        never_deleted = {self._existing.mqtt_channel}  # the realm creates it by itself
        deleted_stores = {
            name for name in self._existing.stores if name not in wanted
        } - never_deleted
        for pair in sorted(self._existing.joins):
            # A join is deleted with its source, so it needs no separate step then.
            if pair not in joins and pair[0] not in deleted_stores:
                what = f"join {pair[0]} -> {pair[1]}"
                yield from self._delete_or_report(
                    what, JoinToDelete(*pair), "the copies of future events"
                )
        patterns = {(durable.pattern, durable.name) for durable in self._wanted.durables}
        for pair, pattern_durable in sorted(self._existing.durables.items()):
            if pair not in patterns:
                what = f"durable {pair[1]} over {pair[0]}"
                yield from self._delete_or_report(
                    what, PatternToDelete(*pair), _describe_positions(pattern_durable.channels)
                )
        for name, existing_store in sorted(self._existing.stores.items()):
            if name in deleted_stores:
                yield from self._delete_or_report(
                    existing_store.what,
                    StoreToDelete(existing_store.kind, name),
                    self._describe_content(existing_store),
                )
                continue
            if name not in wanted:
                continue
            named_durables = {durable.name for durable in wanted[name].durables}
            named_durables |= {
                durable.name
                for durable in self._wanted.durables
                if choice_of(durable.pattern).takes(name)
            }
            named_durables |= {
                key for key in existing_store.durables if self._existing.is_from_pattern(name, key)
            }
            for key, info in sorted(existing_store.durables.items()):
                if key not in named_durables:
                    yield from self._delete_or_report(
                        f"durable {key} of {name}",
                        DurableToDelete(name, key),
                        _describe_position(info),
                    )

    def _delete_or_report(self, what: str, act: Any, loses: str) -> Iterator[PlannedStep]:
        """Yield the deletion of an object if objects are to be deleted; otherwise record it."""
        if self._prune:
            yield PlannedStep(sign="-", what=what, act=act, loses=loses)
        else:
            self._unnamed.append(what)

    # --- access --------------------------------------------------------------------------

    def _access_steps(self) -> Iterator[PlannedStep]:
        """Yield the steps for users, groups and rights. Raises ``InvalidArgument`` if the realm
        does not manage access."""
        wanted, existing = self._wanted, self._existing
        if not wanted.lists_access:
            return
        if not existing.keeps_access:
            places = [user.place for user in wanted.users]
            places += [group.place for group in wanted.groups]
            places += [grant.place for grant in wanted.grants]
            with wanted.errors_located_at(places[0], ""):
                raise InvalidArgument(
                    "the realm keeps no users, groups and rights, because its access.mode is off; "
                    "set it to optional or mandatory, or remove [[user]], [[group]] and [[grant]]"
                )
        self._check_grants()
        yield from self._user_and_group_steps()
        yield from self._grant_steps()
        yield from self._prune_access()

    def _user_and_group_steps(self) -> Iterator[PlannedStep]:
        for user in self._wanted.users:
            if user.name not in self._existing.users:
                details = ("without a password: penstock user password sets one",)
                yield PlannedStep(
                    sign="+", what=f"user {user.name}", act=UserToCreate(user.name), details=details
                )
        for group in self._wanted.groups:
            current = self._existing.groups.get(group.name)
            what = f"group {group.name}"
            if current is None:
                details = (f"members {', '.join(group.members) or 'none'}",)
                yield PlannedStep(sign="+", what=what, act=GroupToCreate(group), details=details)
            elif {*current} != {*group.members}:
                add = tuple(sorted({*group.members} - {*current}))
                remove = tuple(sorted({*current} - {*group.members}))
                changes = [f"add {member}" for member in add]
                changes += [f"remove {member}" for member in remove]
                act = GroupToChange(group.name, add, remove)
                yield PlannedStep(sign="~", what=what, act=act, details=tuple(changes))

    def _grant_steps(self) -> Iterator[PlannedStep]:
        removals = []
        for grant in self._wanted.grants:
            key = (grant.kind, grant.name, grant.subject)
            current, wanted = self._existing.grants.get(key, ()), grant.rights
            if add := tuple(right for right in wanted if right not in current):
                details = (f"add {_join_rights(add)}",)
                addition = RightsToAdd(*key, add)
                yield PlannedStep(
                    sign="~" if current else "+", what=grant.what, act=addition, details=details
                )
            if remove := tuple(right for right in current if right not in wanted):
                details = (f"revoke {_join_rights(remove)}",)
                revocation = RightsToRevoke(*key, remove)
                removals.append(
                    PlannedStep(sign="~", what=grant.what, act=revocation, details=details)
                )
        # Additions come first, so that no subject is without rights in between.
        yield from removals

    def _prune_access(self) -> Iterator[PlannedStep]:
        """Yield the steps that remove rights, groups and users that the file does not name. The
        caller's own rights and at least one administrator are kept, so that the realm stays
        accessible."""
        wanted, existing, me = self._wanted, self._existing, self._existing.me
        named_grants = {(grant.kind, grant.name, grant.subject) for grant in wanted.grants}
        stores = {store.name for store in wanted.stores} | {existing.mqtt_channel}
        administers: set[str] = set()
        for key, rights in sorted(existing.grants.items()):
            # The rights on a store disappear with it, so their removal is not a step.
            is_removed_with_store = (
                self._prune and key[1] in existing.stores and key[1] not in stores
            )
            if key in named_grants or is_removed_with_store:
                continue
            grant = WantedGrant(kind=key[0], name=key[1], subject=key[2], rights=rights)
            if self._is_protected(key, rights):
                administers.add(parse_subject(key[2]).user)
                self._protected.append(grant.what)
            else:
                yield from self._delete_or_report(
                    grant.what, RightsToRevoke(*key, rights), _join_rights(rights)
                )
        groups = {group.name for group in wanted.groups}
        users = {user.name for user in wanted.users}
        for name in sorted({*existing.groups} - groups):
            if name in administers or name in me.groups:
                self._protected.append(f"group {name}")
            else:
                yield from self._delete_or_report(
                    f"group {name}", GroupToDelete(name), "its rights"
                )
        for name in sorted({*existing.users} - users):
            if name in administers or name == me.user:
                self._protected.append(f"user {name}")
            else:
                loses = "its password; its sessions end"
                yield from self._delete_or_report(f"user {name}", UserToDelete(name), loses)

    def _is_protected(self, key: GrantKey, rights: Sequence[str]) -> bool:
        """Return whether a grant that the file does not name is protected from pruning."""
        # Protected are the caller's own rights. Rights to administer the realm are protected as
        # long as the file does not give such a right to anyone.
        subject = parse_subject(key[2])
        caller_names = self._existing.me.groups if subject.is_group else (self._existing.me.user,)
        return subject.user in caller_names or (
            key[0] == "realm"
            and not _ADMINISTRATION.isdisjoint(rights)
            and not any(
                grant.kind == "realm" and not _ADMINISTRATION.isdisjoint(grant.rights)
                for grant in self._wanted.grants
            )
        )

    def _check_grants(self) -> None:
        """Raise ``InvalidArgument`` if a grant is on a store that exists neither in the file nor in
        the realm."""
        kinds = {name: store.kind for name, store in self._existing.stores.items()}
        kinds |= {store.name: store.kind for store in self._wanted.stores}
        for grant in self._wanted.grants:
            if grant.kind in ("realm", "topic") or grant.name.endswith("*"):
                continue
            with self._wanted.errors_located_at(grant.place, grant.what):
                if kinds.get(grant.name) != grant.kind:
                    raise InvalidArgument(
                        f"{grant.kind} is {grant.name!r}, but neither the file nor the realm has "
                        f"a {grant.kind} of that name"
                    )


# --- differences -----------------------------------------------------------------------------


Change = tuple[str, Any, Any]
"""Name of an attribute, its value in the realm, and its value in the file."""


def definition_changes(existing: Definition, wanted: Definition) -> Iterator[Change]:
    """Yield the attributes that differ, with their present and their wanted value."""
    for name in Definition.__struct_fields__:
        # The kind is compared with the store, and the attributes of the storage one by one.
        current, desired = getattr(existing, name), getattr(wanted, name)
        if name not in ("kind", "storage") and current != desired:
            yield name, current, desired
    for name in Storage.__struct_fields__:
        current, desired = getattr(existing.storage, name), getattr(wanted.storage, name)
        if current != desired:
            yield f"storage.{name}", current, desired


def _attribute_details(definition: Definition) -> Iterator[str]:
    """Yield a text for each attribute that is not the default."""
    for name, _, value in definition_changes(Definition(), definition):
        yield f"{name} {_format_value(name, value)}"


def _durable_details(durable: WantedDurable) -> Iterator[str]:
    """Yield a text for the type of a durable and for each attribute that is not the default."""
    yield f"type {durable.type!r}"
    if durable.selector:
        yield f"selector {durable.selector!r}"
    for attribute in fields(durable.attributes):
        if (value := getattr(durable.attributes, attribute.name)) != attribute.default:
            yield f"{attribute.name} {value!r}"


def _durable_changes(
    wanted: WantedDurable, existing: DurableInfo | PatternDurableInfo
) -> Iterator[Change]:
    """Yield the attributes of a durable that differ."""
    for name in ("type", "selector"):
        if getattr(existing, name) != getattr(wanted, name):
            yield name, getattr(existing, name), getattr(wanted, name)
    if wanted.persistent not in (None, existing.persistent):
        yield "persistent", existing.persistent, wanted.persistent
    for attribute in fields(wanted.attributes):
        current, desired = (
            getattr(existing, attribute.name),
            getattr(wanted.attributes, attribute.name),
        )
        # In a cluster a durable is stored with its channel, whatever was requested.
        if current != desired and not (attribute.name == "cluster_wide" and current):
            yield attribute.name, current, desired


def _format_change(name: str, current: Any, desired: Any) -> str:
    return f"{name} {_format_value(name, current)} -> {_format_value(name, desired)}"


def _format_value(name: str, value: Any) -> str:
    """Return the value of attribute ``name`` as a line of a plan shows it."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(duration(name.rpartition(".")[2], value))


def _describe_losses(existing_store: ExistingStore, wanted: Definition) -> str:
    """Return a description of the events that an edit removes, immediately or with the next
    sweep."""
    current, lost = existing_store.definition, []
    if not existing_store.events:
        return ""
    excess = existing_store.events - wanted.capacity
    if wanted.capacity and excess > 0 and not wanted.storage.honour_capacity:
        lost.append(f"the oldest {excess:,} of {existing_store.events:,} events")
    if wanted.ttl and (not current.ttl or wanted.ttl < current.ttl):
        lost.append(f"events older than {duration('ttl', wanted.ttl)}")
    if current.retain_consumed and not wanted.retain_consumed:
        lost.append("events that every durable has acknowledged")
    return ", ".join(lost)


def _describe_positions(channels: int) -> str:
    return f"its position on {channels:,} channel{'' if channels == 1 else 's'}"


def _describe_position(info: DurableInfo) -> str:
    clients = len(info.clients)
    lost = f"its position, and the list of its {info.outstanding:,} outstanding events"
    return f"{lost}; {clients} connected clients are disconnected from it" if clients else lost


def _join_rights(rights: Sequence[str]) -> str:
    return ", ".join(rights)


def _quoted(name: str) -> str:
    """Return a name as an argument of a shell command."""
    return name if name.replace("/", "").replace("-", "").isalnum() else f"'{name}'"
