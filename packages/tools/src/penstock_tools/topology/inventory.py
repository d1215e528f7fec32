"""Reads the configuration of a realm, as far as a topology can describe it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import filterfalse
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from penstock_core.api.access import Me
from penstock_core.api.channels import ChannelInfo
from penstock_core.api.durables import DurableInfo
from penstock_core.api.joins import JoinInfo
from penstock_core.api.patterns import PatternDurableInfo
from penstock_core.api.requests import Kind
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import durable_attributes
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.reach import belongs_to_cluster, portable, portable_attributes
from penstock_core.vocabulary.session_durables import is_of_session
from penstock_core.vocabulary.temporary import is_temporary
from penstock_server.bootstrap.registries import rules
from penstock_tools.topology.document import (
    Topology,
    WantedDurable,
    WantedGrant,
    WantedGroup,
    WantedJoin,
    WantedStore,
    WantedUser,
)

if TYPE_CHECKING:
    from penstock.client.sync.sync import Session
    from penstock.client.sync.sync_channels import Channel
    from penstock.client.sync.sync_queues import Queue

GrantKey = tuple[str, str, str]
"""Kind and name of the resource of a grant, and its subject."""


class ExistingStore(Struct, frozen=True, kw_only=True):
    """A channel or queue of a realm."""

    kind: Kind
    name: str
    definition: Definition
    events: int = 0
    """Number of events stored."""
    durables: Mapping[str, DurableInfo] = {}

    @property
    def what(self) -> str:
        """Kind and name, for texts."""
        return f"{self.kind} {self.name}"


class Found(Struct, frozen=True, kw_only=True):
    """The configuration of a realm, as :func:`look` has read it."""

    realm: str
    """Name of the realm."""
    me: Me
    """The user of the session that read the configuration."""
    stores: Mapping[str, ExistingStore] = {}
    durables: Mapping[tuple[str, str], PatternDurableInfo] = {}
    """Durables that are defined for a pattern of channels, by pattern and name."""
    joins: Mapping[tuple[str, str], JoinInfo] = {}
    users: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = {}
    grants: Mapping[GrantKey, tuple[str, ...]] = {}
    mqtt_channel: str = ""
    """The channel of all MQTT topics. The realm creates it, and it is never deleted."""

    @property
    def is_cluster(self) -> bool:
        """Whether the realm runs on several machines. Only then do the definitions of its
        stores have ``cluster_wide``."""
        return any(belongs_to_cluster(store.definition) for store in self.stores.values())

    def is_from_pattern(self, channel: str, durable: str) -> bool:
        """Return whether a durable of this name on the channel comes from a pattern."""
        return any(
            name == durable and choice_of(pattern).takes(channel) for pattern, name in self.durables
        )

    @property
    def keeps_access(self) -> bool:
        """Whether the realm keeps users, groups and rights."""
        return self.me.mode != "off"


def look(session: Session, wanted: Topology | None = None) -> Found:
    """Return the configuration of a realm. Users, groups and rights are left out if ``wanted`` is a
    topology without them. Raises ``AccessDenied`` if the session's user may not read the whole
    configuration."""
    info = session.info()
    existing = Found(
        realm=info.name,
        mqtt_channel=info.mqtt_channel,
        me=session.access.me(),
        stores={store.name: store for store in _stores(session)},
        durables={(durable.pattern, durable.name): durable for durable in session.durables.list()},
        joins={
            (join.source, join.destination): join
            for join in session.joins.list()
            if not join.ending
        },
    )
    if not existing.keeps_access or (wanted is not None and not wanted.lists_access):
        return existing
    resources = {("realm", ""), *_resources(existing.stores.values())}
    resources |= {("topic", name) for name in session.access.topics()}
    if wanted is not None:
        resources |= {
            (grant.kind, grant.name) for grant in wanted.grants if _can_list_rights(grant, existing)
        }
    return replace(
        existing,
        users=tuple(user.name for user in session.access.users()),
        groups={group.name: group.members for group in session.access.groups()},
        grants=dict(_grants(session, sorted(resources))),
    )


def _stores(session: Session) -> Iterator[ExistingStore]:
    """Yield the channels and queues that are not temporary: a temporary one belongs to a client
    and is deleted with it (SEM R3)."""
    for name in filterfalse(is_temporary, session.channels.list()):
        channel = _open_if_exists(session, name, "channel")
        if channel is not None:
            durables = {
                durable.name: durable
                for durable in session.channels.get(name).durables.list()
                if not is_of_session(durable.name)
            }
            yield _store("channel", channel.info(), durables)
    for name in filterfalse(is_temporary, session.queues.list()):
        queue = _open_if_exists(session, name, "queue")
        if queue is not None:
            yield _store("queue", queue.info(), {})


def _open_if_exists(session: Session, name: str, kind: Kind) -> Channel | Queue | None:
    """Return the channel or queue of this name; None if it was deleted after it was listed."""
    try:
        return session.channels.get(name) if kind == "channel" else session.queues.get(name)
    except NameDoesNotExist:
        return None


def _store(kind: Kind, info: ChannelInfo, durables: Mapping[str, DurableInfo]) -> ExistingStore:
    return ExistingStore(
        kind=kind,
        name=info.name,
        definition=info.definition,
        events=info.events,
        durables=durables,
    )


def _can_list_rights(grant: WantedGrant, existing: Found) -> bool:
    """Return whether the realm can list the rights on the resource of a grant. It refuses for a
    channel or queue that does not exist."""
    if grant.kind in ("realm", "topic"):
        return True
    return grant.name.endswith("*") or grant.name in existing.stores


def _resources(stores: Iterable[ExistingStore]) -> Iterator[tuple[str, str]]:
    """Yield every resource that can have grants: the stores, their folders, and ``*`` for all
    stores of a kind."""
    for kind in ("channel", "queue"):
        yield kind, "*"
    for store in stores:
        yield store.kind, store.name
        parts = store.name.split("/")[:-1]
        for length in range(1, len(parts) + 1):
            yield store.kind, "/".join((*parts[:length], "*"))


def _grants(
    session: Session, resources: list[tuple[str, str]]
) -> Iterator[tuple[GrantKey, tuple[str, ...]]]:
    """Yield the rights of every subject on these resources."""
    for kind, name in resources:
        resource = {} if kind == "realm" else {kind: name}
        for entry in session.access.entries(**resource).entries:
            yield (kind, name, entry.subject), entry.rights


def topology_of(existing: Found) -> Topology:
    """Return the configuration of a realm as a topology."""
    return Topology(
        stores=tuple(
            WantedStore(
                kind=store.kind,
                name=name,
                definition=_portable(store.definition),
                durables=tuple(
                    wanted_durable(durable, store.definition)
                    for _, durable in sorted(store.durables.items())
                    if not existing.is_from_pattern(name, durable.name)
                ),
            )
            for name, store in sorted(existing.stores.items())
            if not _is_default_mqtt_channel(store, existing)
        ),
        durables=tuple(
            WantedDurable(
                name=durable.name,
                type=durable.type,
                selector=durable.selector,
                persistent=durable.persistent,
                attributes=durable_attributes(durable),
                pattern=durable.pattern,
            )
            for _, durable in sorted(existing.durables.items())
        ),
        joins=tuple(
            WantedJoin(
                source=join.source,
                destination=join.destination,
                selector=join.selector,
                archive=join.archive,
            )
            for _, join in sorted(existing.joins.items())
        ),
        users=tuple(WantedUser(name=name) for name in existing.users),
        groups=tuple(
            WantedGroup(name=name, members=tuple(sorted(members)))
            for name, members in sorted(existing.groups.items())
        ),
        grants=tuple(
            WantedGrant(kind=kind, name=name, subject=subject, rights=rights)
            for (kind, name, subject), rights in sorted(existing.grants.items())
        ),
    )


def _is_default_mqtt_channel(store: ExistingStore, existing: Found) -> bool:
    """Return whether the store is the channel of all MQTT topics exactly as the realm creates it,
    so that a file need not list it."""
    if store.name != existing.mqtt_channel or store.durables:
        return False
    if _portable(store.definition) != Definition(retain_consumed=True):
        return False
    linked_names = {end for pair in existing.joins for end in pair} | {
        name for _, name, _ in existing.grants
    }
    return store.name not in linked_names


def _portable(definition: Definition) -> Definition:
    """Return a definition without the values that depend on the realm that it was read from."""
    return portable(definition, clusterable=rules().types[definition.type].clusterable)


def wanted_durable(info: DurableInfo, definition: Definition) -> WantedDurable:
    """Return an existing durable as a topology describes it."""
    default_persistence = rules().types[definition.type].ids_survive
    return WantedDurable(
        name=info.name,
        type=info.type,
        selector=info.selector,
        persistent=None if info.persistent == default_persistence else info.persistent,
        attributes=portable_attributes(durable_attributes(info), definition),
    )
