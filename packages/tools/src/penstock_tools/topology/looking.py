"""Looks at a realm: what is there of what a topology may say."""

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
from penstock_core.vocabulary.reach import portable, portable_attributes, tells_of_nodes
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
"""What a grant is on, by kind and name, and its subject."""


class FoundStore(Struct, frozen=True, kw_only=True):
    """A channel or queue that is there."""

    kind: Kind
    name: str
    definition: Definition
    events: int = 0
    durables: Mapping[str, DurableInfo] = {}

    @property
    def what(self) -> str:
        return f"{self.kind} {self.name}"


class Found(Struct, frozen=True, kw_only=True):
    """What a realm has."""

    realm: str
    me: Me
    """Who looks."""
    stores: Mapping[str, FoundStore] = {}
    durables: Mapping[tuple[str, str], PatternDurableInfo] = {}
    """Durables over patterns, by pattern and name."""
    joins: Mapping[tuple[str, str], JoinInfo] = {}
    users: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = {}
    grants: Mapping[GrantKey, tuple[str, ...]] = {}
    mqtt_channel: str = ""
    """The channel of all topics of MQTT, which the realm makes for itself; nothing deletes it."""

    @property
    def is_cluster(self) -> bool:
        """Whether it is a realm on several machines, as far as its stores show: only these know
        whether they are cluster-wide."""
        return any(tells_of_nodes(each.definition) for each in self.stores.values())

    def gives(self, channel: str, durable: str) -> bool:
        """Whether a pattern gives a channel the durable of a name."""
        return any(
            name == durable and choice_of(pattern).takes(channel) for pattern, name in self.durables
        )

    @property
    def keeps_access(self) -> bool:
        """Whether the realm keeps users, groups and rights."""
        return self.me.mode != "off"


def look(session: Session, wanted: Topology | None = None) -> Found:
    """What a realm has; users, groups and rights only if there is no topology ``wanted`` or it
    tells of them. Raises ``AccessDenied`` for who may not see all of it."""
    info = session.info()
    found = Found(
        realm=info.name,
        mqtt_channel=info.mqtt_channel,
        me=session.access.me(),
        stores={each.name: each for each in _stores(session)},
        durables={(each.pattern, each.name): each for each in session.durables.list()},
        joins={
            (each.source, each.destination): each
            for each in session.joins.list()
            if not each.ending
        },
    )
    if not found.keeps_access or (wanted is not None and not wanted.tells_access):
        return found
    resources = {("realm", ""), *_resources(found.stores.values())}
    resources |= {("topic", each) for each in session.access.topics()}
    if wanted is not None:
        resources |= {(each.kind, each.name) for each in wanted.grants if _may_ask(each, found)}
    return replace(
        found,
        users=tuple(each.name for each in session.access.users()),
        groups={each.name: each.members for each in session.access.groups()},
        grants=dict(_grants(session, sorted(resources))),
    )


def _stores(session: Session) -> Iterator[FoundStore]:
    """The channels and queues that stay: what is temporary belongs to a client, and goes with it
    (SEM R3)."""
    for name in filterfalse(is_temporary, session.channels.list()):
        channel = _opened(session, name, "channel")
        if channel is not None:
            durables = {
                each.name: each
                for each in session.channels.get(name).durables.list()
                if not is_of_session(each.name)
            }
            yield _store("channel", channel.info(), durables)
    for name in filterfalse(is_temporary, session.queues.list()):
        queue = _opened(session, name, "queue")
        if queue is not None:
            yield _store("queue", queue.info(), {})


def _opened(session: Session, name: str, kind: Kind) -> Channel | Queue | None:
    try:
        return session.channels.get(name) if kind == "channel" else session.queues.get(name)
    except NameDoesNotExist:  # deleted after it was listed
        return None


def _store(kind: Kind, info: ChannelInfo, durables: Mapping[str, DurableInfo]) -> FoundStore:
    return FoundStore(
        kind=kind,
        name=info.name,
        definition=info.definition,
        events=info.events,
        durables=durables,
    )


def _may_ask(grant: WantedGrant, found: Found) -> bool:
    if grant.kind in ("realm", "topic"):
        return True
    return grant.name.endswith("*") or grant.name in found.stores


def _resources(stores: Iterable[FoundStore]) -> Iterator[tuple[str, str]]:
    """Everything that rights may be granted on: the stores, their folders, and all of a kind."""
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
    for kind, name in resources:
        asked = {} if kind == "realm" else {kind: name}
        for entry in session.access.entries(**asked).entries:
            yield (kind, name, entry.subject), entry.rights


def topology_of(found: Found) -> Topology:
    """What was found, as a topology."""
    return Topology(
        stores=tuple(
            WantedStore(
                kind=store.kind,
                name=name,
                definition=_portable(store.definition),
                durables=tuple(
                    _durable(each, store.definition)
                    for _, each in sorted(store.durables.items())
                    if not found.gives(name, each.name)
                ),
            )
            for name, store in sorted(found.stores.items())
            if not _is_as_made(store, found)
        ),
        durables=tuple(
            WantedDurable(
                name=each.name,
                type=each.type,
                selector=each.selector,
                persistent=each.persistent,
                attributes=durable_attributes(each),
                pattern=each.pattern,
            )
            for _, each in sorted(found.durables.items())
        ),
        joins=tuple(
            WantedJoin(
                source=each.source,
                destination=each.destination,
                selector=each.selector,
                archive=each.archive,
            )
            for _, each in sorted(found.joins.items())
        ),
        users=tuple(WantedUser(name=name) for name in found.users),
        groups=tuple(
            WantedGroup(name=name, members=tuple(sorted(members)))
            for name, members in sorted(found.groups.items())
        ),
        grants=tuple(
            WantedGrant(kind=kind, name=name, subject=subject, rights=rights)
            for (kind, name, subject), rights in sorted(found.grants.items())
        ),
    )


def _is_as_made(store: FoundStore, found: Found) -> bool:
    """Whether it is the channel of all topics of MQTT as the realm makes it, with nothing that a
    file has to tell."""
    if store.name != found.mqtt_channel or store.durables:
        return False
    if _portable(store.definition) != Definition(retain_consumed=True):
        return False
    ties = {end for pair in found.joins for end in pair} | {name for _, name, _ in found.grants}
    return store.name not in ties


def _portable(definition: Definition) -> Definition:
    return portable(definition, clusterable=rules().types[definition.type].clusterable)


def _durable(info: DurableInfo, definition: Definition) -> WantedDurable:
    usual = rules().types[definition.type].ids_survive
    return WantedDurable(
        name=info.name,
        type=info.type,
        selector=info.selector,
        persistent=None if info.persistent == usual else info.persistent,
        attributes=portable_attributes(durable_attributes(info), definition),
    )
