"""The namespace of a realm: which channels and queues there are, by name and by number, and
what ties them together (SEM C2, C3, T7, L)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from penstock_core.channel.attributes import refuse_without_effect
from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.channel_type import ChannelType
from penstock_core.channel.retention import check_limits
from penstock_core.channel.state import RealmRules
from penstock_core.messages.definitions import ChannelCreated, ChannelDeleted
from penstock_core.messages.joins import Join, JoinCreated, JoinDeleted
from penstock_core.messages.pattern_durables import PatternDurableCreated, PatternDurableDeleted
from penstock_core.messages.publishing import PublishingPauseSet
from penstock_core.messages.unions import AnyRealmFact
from penstock_core.realm.internal_stores import InternalStores
from penstock_core.realm.joins import JoinTable
from penstock_core.realm.pattern_durables import PatternTable
from penstock_core.realm.topic_table import TopicTable
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    LimitReached,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.reach import leads_out
from penstock_core.vocabulary.temporary import is_temporary_store, refuse_as_chosen
from penstock_core.vocabulary.topic_templates import template_of, templates_of

HIDDEN_KINDS = frozenset({"schedule", "outbox"})
"""The kinds of stores that a realm keeps for itself: nobody finds one by name."""

SCHEDULE_PREFIX = "$"
"""Begins the names of schedules. They are found by the store they belong to, never by name, so a
user's channel may be called the same."""


class Directory:
    def __init__(self, rules: RealmRules) -> None:
        self.rules = rules
        self.channels: dict[int, ChannelMachine] = {}
        """Queues and schedules among them."""
        self.joins = JoinTable()
        self.patterns = PatternTable()
        self.topics = TopicTable()
        self.publishing_paused = False
        self.local_names: Mapping[str, str] = {}
        """Names of stores that single nodes of the cluster have for themselves, each with what it
        is and where; no store may get one (SEM N8)."""
        self._ids_by_name: dict[str, ChannelId] = {}
        self._schedules: dict[str, ChannelId] = {}
        """Ids of schedules, by the name of their channel or queue."""
        self.internal = InternalStores(rules.mqtt_channel)
        self.temporary: dict[int, ChannelMachine] = {}
        """Temporary destinations, which no list has (SEM R2)."""
        self.next_channel_id = 1
        self._newest = Definition()
        """The attributes that a store was made with last."""

    def serve_mqtt(self, channel: str) -> None:
        """MQTT is served with this channel of all topics: reserve the names beside it. A store that
        is there and fits becomes internal."""
        self.internal.reserve(channel)
        self.internal.is_serving_mqtt = True
        for name in self.internal.reserved:
            number = self._ids_by_name.get(name)
            made = None if number is None else self.channels[number]
            if made is not None and self.internal.takes(name, made.state.definition):
                self.internal.add(self._ids_by_name.pop(name), made)

    # --- deciding ------------------------------------------------------------------------

    def decide_create(
        self, name: str, definition: Definition, *, temporary: bool = False
    ) -> ChannelCreated:
        """``temporary``: a temporary destination (SEM R2). Raises ``InvalidName``,
        ``NameAlreadyBound``, ``InvalidArgument``, ``LimitReached``, and ``NameDoesNotExist`` for a
        dead event store there is not. A store may lie beside a folder of its name."""
        name = destination_name(name)
        self.internal.refuse_as_chosen(name, definition)
        if not temporary:
            refuse_as_chosen(name)
        self._refuse_taken(name)
        self._refuse_too_many()
        if definition.kind in HIDDEN_KINDS:
            plural = {"schedule": "schedules", "outbox": "outboxes"}[definition.kind]
            raise InvalidArgument(f"only the realm makes {plural}; create a channel or a queue")
        return ChannelCreated(self.next_channel_id, name, self.checked(name, definition))

    def decide_internal(self, name: str, definition: Definition) -> ChannelCreated:
        """An internal store. Raises ``NameAlreadyBound``, ``InvalidArgument``."""
        self._refuse_taken(name)
        return ChannelCreated(self.next_channel_id, name, self.checked(name, definition))

    def _refuse_taken(self, name: str) -> None:
        if name in self._ids_by_name or name in self.internal.ids_by_name:
            raise NameAlreadyBound(f"{name} already exists")
        if name in self.local_names:
            raise NameAlreadyBound(
                f"{name} already exists, as a local {self.local_names[name]}; choose another name"
            )

    def decide_schedule(self, channel_id: int) -> ChannelCreated:
        """The store of what waits to be published on channel ``channel_id`` (SEM X4)."""
        state = self.channels[channel_id].state
        definition = Definition(
            kind="schedule",
            type=state.type.scheduled_on,
            event_ttl=True,
            dead_event_store=state.name,
            storage=Storage(sync=state.definition.storage.sync),
            cluster_wide=state.definition.cluster_wide if self.rules.is_cluster else None,
        )
        return ChannelCreated(self.next_channel_id, SCHEDULE_PREFIX + state.name, definition)

    def decide_delete(self, name: str, kind: str | None = None) -> list[ChannelDeleted]:
        """Raises ``NameDoesNotExist``; ``IllegalState`` when other stores need it."""
        channel_id = self.channel_id_of(name, kind)
        name = self.channels[channel_id].state.name
        self.internal.refuse_deletion(name)
        for channel in self.channels.values():
            own = channel.state.definition
            if own.dead_event_store == name and own.kind != "schedule":
                raise IllegalState(
                    f"{name} is the dead event store of {channel.state.name}; "
                    "edit or delete that first"
                )
        for join in self.joins.into(channel_id):
            source = self.channels[join.source].state.name
            raise IllegalState(
                f"{name} is the destination of a join from {source}; delete that join first"
            )
        schedule = self.schedule_of(channel_id)
        gone = [channel_id] if schedule is None else [schedule, channel_id]
        return [ChannelDeleted(each) for each in gone]

    def decide_join(
        self,
        source: str,
        destination: str,
        selector: str,
        *,
        archive: bool,
        owner: str = "",
        groups: tuple[str, ...] = (),
    ) -> JoinCreated:
        """Raises ``NameDoesNotExist``, ``NameAlreadyBound``, ``InvalidArgument``."""
        for name in map(destination_name, (source, destination)):
            if name in self.local_names:
                raise InvalidArgument(
                    f"{name} is a local {self.local_names[name]}: make a join from it there, to a "
                    f"store of that node or a cluster-wide one; none leads to it from here, for "
                    f"what every node keeps would then be with one of them"
                )
        origin, target = self._source(source), self.channel_id_of(destination)
        state, other = self.channels[origin].state, self.channels[target].state
        if origin == target:
            raise InvalidArgument(f"a join from {state.name} to itself would never end")
        if archive and other.definition.kind != "queue":
            raise InvalidArgument(
                f"{other.name} is a channel; the destination of an archive join must be a queue"
            )
        if self._leads_out(state.definition, other.definition):
            raise InvalidArgument(
                f"{state.name} is cluster-wide and {other.name} is not, so what is copied would "
                f"not be kept as it was; join it to a cluster-wide destination"
            )
        if self.joins.find(origin, target) is not None:
            raise NameAlreadyBound(f"a join from {state.name} to {other.name} already exists")
        return JoinCreated(
            Join(origin, target, selector, archive=archive, owner=owner, groups=groups)
        )

    def decide_join_out(
        self, source: str, target: str, join: Join
    ) -> tuple[ChannelCreated | JoinCreated, ...]:
        """A join from a local channel to a store of the whole cluster, which is known to be there:
        its outbox, and the join itself (SEM N9). ``join`` says what else it is to be. Raises
        ``NameDoesNotExist``, ``NameAlreadyBound``, ``InvalidArgument``."""
        origin, name = self._source(source), destination_name(target)
        source = self.channels[origin].state.name
        known = self.joined_out(source, name)
        if known is not None and not known.ending:
            raise NameAlreadyBound(f"a join from {source} to {name} already exists")
        if known is not None and known.source != origin:
            raise IllegalState(
                f"a join from an earlier channel {source} to {name} still has events that wait for "
                f"the cluster; create this one when they have left"
            )
        outbox = self.next_channel_id if known is None else known.destination
        drawn = join.outbox if known is None else known.outbox
        wanted = replace(join, source=origin, destination=outbox, source_name=source, outbox=drawn)
        made = ChannelCreated(outbox, name, Definition(kind="outbox", type="persistent"))
        return (JoinCreated(wanted),) if known is not None else (made, JoinCreated(wanted))

    def decide_unjoin(self, source: str, destination: str) -> JoinDeleted | JoinCreated:
        """The end of a join; one that leads out ends when its outbox is empty. Raises
        ``NameDoesNotExist``."""
        names = destination_name(source), destination_name(destination)
        outward = self.joined_out(*names)
        if outward is not None and not outward.ending:
            return JoinCreated(replace(outward, ending=True))
        if outward is not None:
            raise NameDoesNotExist(
                f"the join from {source} to {destination} has been deleted; what it copied before "
                f"waits for the cluster"
            )
        origin, target = self.channel_id_of(source), self.channel_id_of(destination)
        if self.joins.find(origin, target) is None:
            raise NameDoesNotExist(f"there is no join from {source} to {destination}")
        return JoinDeleted(origin, target)

    def decide_end(self, outbox: int) -> tuple[JoinDeleted, ChannelDeleted] | None:
        """The end of an outbox, with the join that has ended; None: it still copies."""
        join = self.joins.by_outbox.get(outbox)
        if join is None or not join.ending:
            return None
        return JoinDeleted(join.source, outbox), ChannelDeleted(outbox)

    def joined_out(self, source: str, target: str) -> Join | None:
        """The join that leads from a channel, by name, out to a store of the cluster."""
        for join in self.joins.by_outbox.values():
            name = self.channels[join.destination].state.name
            if (join.source_name, name) == (source, target):
                return join
        return None

    def _source(self, name: str) -> ChannelId:
        """The channel a join begins at. Raises ``NameDoesNotExist``, ``InvalidArgument``."""
        origin = self.channel_id_of(name)
        state = self.channels[origin].state
        if state.definition.kind == "queue":
            raise InvalidArgument(
                f"{state.name} is a queue; the source of a join must be a channel"
            )
        return origin

    def checked(self, name: str, definition: Definition) -> Definition:
        """``definition`` of the store ``name``, in the form it is kept.

        Raises ``InvalidArgument`` for what cannot be, ``NameDoesNotExist`` for a dead event
        store there is not.
        """
        self._refuse_combination(definition)
        self._refuse_topics(name, definition)
        for what, given, known in (
            ("type", definition.type, self.rules.types),
            ("engine", definition.engine, self.rules.engines),
        ):
            if given not in known:
                raise InvalidArgument(
                    f"{given!r} is not a channel {what}; there are {', '.join(sorted(known))}"
                )
        check_limits(definition)
        kind, engine = self.rules.types[definition.type], self.rules.engines[definition.engine]
        if engine.merges and kind.relays:
            raise InvalidArgument(
                f"a {definition.type} channel stores no events, so there is no state to merge "
                f"into; use a type that stores events with engine merge"
            )
        refuse_without_effect(definition, kind, merges=engine.merges)
        definition = replace(definition, cluster_wide=self._is_cluster_wide(name, definition, kind))
        if not definition.dead_event_store:
            return definition
        return replace(definition, dead_event_store=self._dead_event_store(name, definition))

    def _is_cluster_wide(self, name: str, definition: Definition, kind: ChannelType) -> bool | None:
        """Whether the store ``name`` is to exist on every node (SEM C5, N5); None where there is
        no cluster, and so nothing is."""
        wanted = definition.cluster_wide
        if wanted and not kind.clusterable:
            raise InvalidArgument(
                f"a {definition.type} channel cannot be cluster-wide: it does not keep its ids "
                f"over a restart"
            )
        if not self.rules.is_cluster:
            if wanted and self.rules.local_to:
                raise InvalidArgument(
                    f"{name} is to be cluster-wide, and here are the local channels of node "
                    f"{self.rules.local_to}: make it in the realm of the cluster, or leave "
                    f"cluster_wide out"
                )
            if wanted:
                raise InvalidArgument(
                    f"{name} cannot be cluster-wide: this realm is on one machine and has no other "
                    f"nodes; leave cluster_wide out, or serve it as a cluster (penstock serve "
                    f"--cluster)"
                )
            return None
        known = self._ids_by_name.get(name)
        if known is not None:
            there = bool(self.channels[known].state.definition.cluster_wide)
            if wanted is not None and wanted != there:
                raise InvalidArgument(
                    f"{name} is {'' if there else 'not '}cluster-wide, which cannot be edited in a "
                    f"cluster: its events are stored accordingly; make another store and join it"
                )
            return there
        if wanted is False and kind.home == "pages":
            raise InvalidArgument(
                f"a {definition.type} channel of a cluster is cluster-wide: its pages would be "
                f"files of one node, which others do not see; leave cluster_wide out"
            )
        return kind.clusterable if wanted is None else wanted

    def _refuse_combination(self, definition: Definition) -> None:
        """SEM C4."""
        engines = definition.engine.replace(",", " ").replace("+", " ").split()
        if {"jms", "merge"} <= set(engines):
            raise InvalidArgument(
                "engines jms and merge cannot be combined: jms removes events that merge must keep"
            )
        if definition.engine == "merge" and list(definition.keys.values()) != [1]:
            raise InvalidArgument(
                "engine merge needs exactly one publish key, of depth 1: the state it merges into"
            )
        if definition.kind == "queue" and definition.engine != "default":
            raise InvalidArgument(
                f"a queue takes engine default only, not {definition.engine!r}: "
                "each event goes to one reader"
            )
        if definition.kind == "queue" and definition.retain_consumed:
            raise InvalidArgument(
                "retain_consumed is an attribute of channels; a queue removes what its reader has "
                "committed"
            )
        if definition.max_deliveries and definition.kind != "queue":
            raise InvalidArgument(
                "max_deliveries is an attribute of queues and durables, not of a channel"
            )
        if definition.backoff is not None and definition.kind != "queue":
            raise InvalidArgument(
                "backoff is an attribute of queues and durables, not of a channel"
            )
        if definition.max_deliveries and not definition.dead_event_store:
            raise InvalidArgument(
                "max_deliveries needs a dead_event_store for the events that are rolled back too "
                "often"
            )

    def _refuse_topics(self, name: str, definition: Definition) -> None:
        """A filter belongs to one channel (SEM M12)."""
        if definition.payload != "bytes" and not definition.topics:
            raise InvalidArgument(
                f"payload {definition.payload!r} is about messages of topics, and the channel has "
                f"none; give topics, too, or leave it out"
            )
        if not definition.topics:
            return
        if definition.kind != "channel":
            raise InvalidArgument(
                f"topics are an attribute of channels, not of a {definition.kind}"
            )
        wanted = {each.filter: each.text for each in templates_of(definition.topics)}
        for channel in self.channels.values():
            if channel.state.name == name:
                continue
            for each in channel.state.definition.topics:
                if (own := wanted.get(template_of(each).filter)) is not None:
                    raise InvalidArgument(
                        f"the topic {own!r} of {name} belongs to {channel.state.name} already, as "
                        f"{each!r}; give one of them another filter, for each has one channel"
                    )

    def _dead_event_store(self, name: str, definition: Definition) -> str:
        """The canonical name of the dead event store; no way leads from it back (SEM T7)."""
        dead = destination_name(definition.dead_event_store)
        path = [name]
        at = dead
        while at:
            if at in path:
                path.append(at)
                raise InvalidArgument(
                    f"dead_event_store {dead} leads back: {' -> '.join(path)}; dead events would "
                    f"move in a circle"
                )
            path.append(at)
            if at not in self._ids_by_name:
                if self.rules.local_to or at in self.internal.reserved:
                    self.channel_id_of(at)
                if at in self.local_names:
                    raise InvalidArgument(
                        f"the dead event store {at} is a local {self.local_names[at]}, so it would "
                        f"not keep what {name} does; choose a cluster-wide one"
                    )
                raise NameDoesNotExist(
                    f"the dead event store {at} does not exist{self._near(at)}; create it first"
                )
            at = self.channels[self._ids_by_name[at]].state.definition.dead_event_store
        if self._leads_out(definition, self.channels[self._ids_by_name[dead]].state.definition):
            raise InvalidArgument(
                f"the dead event store {dead} is not cluster-wide, so it would not keep what "
                f"{name} does; choose a cluster-wide one"
            )
        return dead

    def _leads_out(self, source: Definition, destination: Definition) -> bool:
        """Whether events would leave what every node keeps, for what one of them does."""
        return self.rules.is_cluster and leads_out(source, destination)

    # --- applying ------------------------------------------------------------------------

    def apply(self, fact: AnyRealmFact) -> None:
        match fact:
            case ChannelCreated(channel_id, name, definition):
                self.next_channel_id = max(self.next_channel_id, channel_id + 1)
                definition = self._shared(definition)
                made = self.channels[channel_id] = ChannelMachine(name, definition, self.rules)
                if is_temporary_store(name, definition):
                    self.temporary[channel_id] = made
                self._enter(channel_id, made)
                self.note_topics(channel_id)
            case ChannelDeleted(channel_id):
                self._deleted(channel_id)
            case JoinCreated(join):
                self.joins.add(join)
            case JoinDeleted(source, destination):
                self.joins.remove(source, destination)
            case PublishingPauseSet(paused):
                self.publishing_paused = paused
            case PatternDurableCreated(made):
                self.patterns.add(made)
            case PatternDurableDeleted(pattern, name):
                self.patterns.remove((pattern, name))

    def _enter(self, channel_id: int, made: ChannelMachine) -> None:
        """Enter a store that was made among the names."""
        name, definition = made.state.name, made.state.definition
        if self.internal.takes(name, definition):
            self.internal.add(channel_id, made)
        elif definition.kind != "outbox":
            names, key = self._place(name, definition)
            names[key] = ChannelId(channel_id)

    def _shared(self, definition: Definition) -> Definition:
        """One object for attributes that are the same as those of the store made before, as they
        are for most of many. Publish keys have an order, which equal ones may not share."""
        if definition.keys:
            return definition
        if definition != self._newest:
            self._newest = definition
        return self._newest

    def note_topics(self, channel_id: int) -> None:
        """A channel was made or edited: note whether it has topics (SEM M12)."""
        state = self.channels[channel_id].state
        self.topics.note(channel_id, state.topics_since, has_topics=bool(state.definition.topics))

    def _deleted(self, channel_id: int) -> None:
        channel = self.channels.pop(channel_id, None)
        if channel is None:
            return
        self.temporary.pop(channel_id, None)
        self.joins.forget(channel_id)
        self.topics.forget(channel_id)
        if channel_id in self.internal.machines:
            self.internal.remove(channel_id)
            return
        if channel.state.definition.kind == "outbox":
            return
        names, key = self._place(channel.state.name, channel.state.definition)
        del names[key]

    def _place(self, name: str, definition: Definition) -> tuple[dict[str, ChannelId], str]:
        """The dictionary that holds the number of a store, and its key there."""
        if definition.kind == "schedule":
            return self._schedules, name.removeprefix(SCHEDULE_PREFIX)
        return self._ids_by_name, name

    # --- asking --------------------------------------------------------------------------

    def channel_id_of(self, name: str, kind: str | None = None) -> ChannelId:
        """The number of a channel or queue; with ``kind`` of one of that kind.

        Raises ``NameDoesNotExist``.
        """
        known = destination_name(name)
        channel_id = self._ids_by_name.get(known)
        if channel_id is None:
            if (internal := self.internal.reserved.get(known)) is not None:
                raise NameDoesNotExist(
                    f"{known} is an internal store of the realm ({internal.purpose}), which no "
                    f"right opens; use {internal.instead}"
                )
            if known in self.local_names:
                raise NameDoesNotExist(
                    f"{known} is a local {self.local_names[known]}: connect to it there"
                )
            what = kind or "channel or queue"
            if self.rules.local_to:
                raise NameDoesNotExist(
                    f"there is no {what} {known}{self._near(known)} among the local channels of "
                    f"node {self.rules.local_to}; cluster-wide ones are in the realm of the "
                    f"cluster, to which joins lead, and dead event stores do not"
                )
            raise NameDoesNotExist(
                f"there is no {what} {known}{self._near(known)}; "
                f"create it first, or list the {kind or 'store'}s there are"
            )
        own = self.channels[channel_id].state.definition.kind
        if kind is not None and own != kind:
            raise NameDoesNotExist(f"{known} is a {own}, not a {kind}; open the {own} {known}")
        return channel_id

    def find(self, name: str) -> ChannelId | None:
        """The number of the store with this canonical name, if there is one."""
        return self._ids_by_name.get(name)

    def names(self, kind: str) -> list[str]:
        """The names of all stores of a kind, sorted, but for internal and temporary ones."""
        hidden = self.internal.machines.keys() | self.temporary.keys()
        states = (each.state for number, each in self.channels.items() if number not in hidden)
        return sorted(state.name for state in states if state.definition.kind == kind)

    def is_taken(self, name: str) -> bool:
        """Whether no other store may get this name."""
        return name in self._ids_by_name or name in self.internal.reserved

    def is_shown(self, channel_id: int) -> bool:
        """Whether lists have a store."""
        if channel_id in self.internal.machines or channel_id in self.temporary:
            return False
        return self.channels[channel_id].state.definition.kind not in HIDDEN_KINDS

    def schedule_of(self, channel_id: int) -> int | None:
        """The store of what waits to be published on ``channel_id``, if anything ever did."""
        return self._schedules.get(self.channels[channel_id].state.name)

    def dead_event_store_of(self, channel_id: int) -> ChannelId | None:
        """The channel or queue that dead events of ``channel_id`` go to; None: none."""
        name = self.channels[channel_id].state.definition.dead_event_store
        return self._ids_by_name.get(name) if name else None

    def _near(self, name: str) -> str:
        for other in self._ids_by_name:
            if other.casefold() == name.casefold():
                return f" (names are case-sensitive: there is {other})"
        return ""

    def _refuse_too_many(self) -> None:
        if not self.rules.stores_max:
            return
        if sum(map(self.is_shown, self.channels)) + len(self.temporary) >= self.rules.stores_max:
            raise LimitReached(
                f"there are {self.rules.stores_max} channels and queues, which is the limit "
                f"(limits.channels_max)"
                "; delete one, or raise the limit"
            )
