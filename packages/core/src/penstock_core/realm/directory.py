"""The namespace of a realm: its channels and queues by name and by id, and the relations between
them (SEM C2, C3, T7, L)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from penstock_core.channel.attributes import refuse_without_effect
from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.channel_type import ChannelType
from penstock_core.channel.retention import check_deliveries, check_limits
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
"""Kinds of stores that a realm keeps for itself; clients cannot find them by name."""

SCHEDULE_PREFIX = "$"
"""Prefix of the names of schedules. A schedule is found by its store and never by name, so a user's
channel may have the same name."""


class Directory:
    """All channels and queues of a realm, with their names, joins and relations."""

    def __init__(self, rules: RealmRules) -> None:
        self.rules = rules
        self.channels: dict[int, ChannelMachine] = {}
        """All stores of the realm by id, including queues, schedules and internal stores."""
        self.joins = JoinTable()
        self.patterns = PatternTable()
        self.topics = TopicTable()
        self.publishing_paused = False
        self.local_names: Mapping[str, str] = {}
        """Names of local stores of single nodes of the cluster, each with its kind and node. No
        other store may get such a name (SEM N8)."""
        self._ids_by_name: dict[str, ChannelId] = {}
        """Ids of the stores that users can find, by canonical name."""
        self._schedules: dict[str, ChannelId] = {}
        """Ids of schedules, by the name of their channel or queue."""
        self.internal = InternalStores(rules.mqtt_channel)
        self.temporary: dict[int, ChannelMachine] = {}
        """Temporary destinations, which lists do not show (SEM R2)."""
        self.next_channel_id = 1
        self._newest = Definition()
        """Attributes of the newest store, shared by stores with equal attributes to save memory."""

    def serve_mqtt(self, channel: str) -> None:
        """Serve MQTT with this channel of all topics, and reserve the names of its internal stores.
        An existing store with such a name and a fitting definition becomes internal."""
        self.internal.reserve(channel)
        self.internal.is_serving_mqtt = True
        for name in self.internal.reserved:
            channel_id = self._ids_by_name.get(name)
            store = None if channel_id is None else self.channels[channel_id]
            if store is not None and self.internal.is_internal(name, store.state.definition):
                self.internal.add(self._ids_by_name.pop(name), store)

    # --- deciding ------------------------------------------------------------------------

    def decide_create(
        self, name: str, definition: Definition, *, temporary: bool = False
    ) -> ChannelCreated:
        """Decide the creation of a store. ``temporary`` is whether it is a temporary destination
        (SEM R2).

        Raises ``InvalidName``, ``NameAlreadyBound``, ``InvalidArgument``, ``LimitReached``, and
        ``NameDoesNotExist`` if the dead event store does not exist. A store may have the same name
        as a folder of other stores.
        """
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
        """Decide the creation of an internal store. Raises ``NameAlreadyBound``,
        ``InvalidArgument``."""
        self._refuse_taken(name)
        return ChannelCreated(self.next_channel_id, name, self.checked(name, definition))

    def _refuse_taken(self, name: str) -> None:
        """Raise ``NameAlreadyBound`` if a store has this name."""
        if name in self._ids_by_name or name in self.internal.ids_by_name:
            raise NameAlreadyBound(f"{name} already exists")
        if name in self.local_names:
            raise NameAlreadyBound(
                f"{name} already exists, as a local {self.local_names[name]}; choose another name"
            )

    def decide_schedule(self, channel_id: int) -> ChannelCreated:
        """Decide the creation of the store for scheduled events of a channel (SEM X4)."""
        state = self.channels[channel_id].state
        # An event in the schedule expires when it is due, and then moves to the channel as other
        # expired events move to a dead event store.
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
        """Decide the deletion of a store and its schedule. Raises ``NameDoesNotExist``, and
        ``IllegalState`` if other stores need it."""
        channel_id = self.channel_id_of(name, kind)
        name = self.channels[channel_id].state.name
        self.internal.refuse_deletion(name)
        for channel in self.channels.values():
            definition = channel.state.definition
            # The schedule of a store also names it, but is deleted with it.
            if definition.dead_event_store == name and definition.kind != "schedule":
                raise IllegalState(
                    f"{name} is the dead event store of {channel.state.name}; "
                    "edit or delete that first"
                )
        for join in self.joins.into(channel_id):
            source = self.channels[join.source].state.name
            raise IllegalState(
                f"{name} is the destination of a join from {source}; delete that join first"
            )
        # The schedule first, so that it never exists without its channel.
        schedule = self.schedule_of(channel_id)
        channel_ids = [channel_id] if schedule is None else [schedule, channel_id]
        return [ChannelDeleted(deleted_id) for deleted_id in channel_ids]

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
        """Decide a join within the realm. Raises ``NameDoesNotExist``, ``NameAlreadyBound``,
        ``InvalidArgument``."""
        for name in map(destination_name, (source, destination)):
            if name in self.local_names:
                raise InvalidArgument(
                    f"{name} is a local {self.local_names[name]}: make a join from it there, to a "
                    f"store of that node or a cluster-wide one. A join from here to it is not "
                    f"allowed, because only one node would keep the copies"
                )
        origin, target = self._source(source), self.channel_id_of(destination)
        state, target_state = self.channels[origin].state, self.channels[target].state
        if origin == target:
            raise InvalidArgument(f"a join from {state.name} to itself would never end")
        if archive and target_state.definition.kind != "queue":
            raise InvalidArgument(
                f"{target_state.name} is a channel; the destination of an archive join must be a "
                f"queue"
            )
        if self._leads_out(state.definition, target_state.definition):
            raise InvalidArgument(
                f"{state.name} is cluster-wide and {target_state.name} is not, so copies would not "
                f"be kept as safely as the events; join it to a cluster-wide destination"
            )
        if self.joins.find(origin, target) is not None:
            raise NameAlreadyBound(
                f"a join from {state.name} to {target_state.name} already exists"
            )
        return JoinCreated(
            Join(origin, target, selector, archive=archive, owner=owner, groups=groups)
        )

    def decide_join_out(
        self, source: str, target: str, join: Join
    ) -> tuple[ChannelCreated | JoinCreated, ...]:
        """Decide a join from a local channel to a store of the whole cluster (SEM N9). The caller
        has checked that the store exists. Return the facts that create the join, and its outbox
        unless the outbox of an earlier join remains. The new join has the attributes of ``join``
        except its source and destination. Raises ``NameDoesNotExist``, ``NameAlreadyBound``,
        ``InvalidArgument``, and ``IllegalState`` while the outbox of an earlier source channel is
        not empty."""
        origin, name = self._source(source), destination_name(target)
        source = self.channels[origin].state.name
        existing = self.joined_out(source, name)
        if existing is not None and not existing.ending:
            raise NameAlreadyBound(f"a join from {source} to {name} already exists")
        if existing is not None and existing.source != origin:
            raise IllegalState(
                f"a join from an earlier channel {source} to {name} still has events that wait for "
                f"the cluster; create the new join after they have left"
            )
        # The outbox of a deleted join may not be empty yet; the new join continues with it.
        outbox = self.next_channel_id if existing is None else existing.destination
        outbox_name = join.outbox if existing is None else existing.outbox
        new_join = replace(
            join, source=origin, destination=outbox, source_name=source, outbox=outbox_name
        )
        new_outbox = ChannelCreated(outbox, name, Definition(kind="outbox", type="persistent"))
        return (
            (JoinCreated(new_join),)
            if existing is not None
            else (new_outbox, JoinCreated(new_join))
        )

    def decide_unjoin(self, source: str, destination: str) -> JoinDeleted | JoinCreated:
        """Decide the end of a join. A join to another realm is only marked as ending, by a changed
        ``JoinCreated``, and ends when its outbox is empty. Raises ``NameDoesNotExist``."""
        names = destination_name(source), destination_name(destination)
        outward = self.joined_out(*names)
        if outward is not None and not outward.ending:
            return JoinCreated(replace(outward, ending=True))
        if outward is not None:
            raise NameDoesNotExist(
                f"the join from {source} to {destination} has been deleted; events that it copied "
                f"before still wait for the cluster"
            )
        origin, target = self.channel_id_of(source), self.channel_id_of(destination)
        if self.joins.find(origin, target) is None:
            raise NameDoesNotExist(f"there is no join from {source} to {destination}")
        return JoinDeleted(origin, target)

    def decide_end(self, outbox: int) -> tuple[JoinDeleted, ChannelDeleted] | None:
        """Decide the end of an outbox and its join. Return None if the join still copies events."""
        join = self.joins.by_outbox.get(outbox)
        if join is None or not join.ending:
            return None
        return JoinDeleted(join.source, outbox), ChannelDeleted(outbox)

    def joined_out(self, source: str, target: str) -> Join | None:
        """Return the join from a local channel, by name, to a store of the cluster."""
        for join in self.joins.by_outbox.values():
            name = self.channels[join.destination].state.name
            if (join.source_name, name) == (source, target):
                return join
        return None

    def _source(self, name: str) -> ChannelId:
        """Return the source channel of a join. Raises ``NameDoesNotExist``, ``InvalidArgument``."""
        origin = self.channel_id_of(name)
        state = self.channels[origin].state
        if state.definition.kind == "queue":
            raise InvalidArgument(
                f"{state.name} is a queue; the source of a join must be a channel"
            )
        return origin

    def checked(self, name: str, definition: Definition) -> Definition:
        """Return the definition of the store ``name`` in its stored form.

        Raises ``InvalidArgument`` for a definition that is not possible, and ``NameDoesNotExist``
        if its dead event store does not exist.
        """
        self._refuse_combination(definition)
        self._refuse_topics(name, definition)
        for attribute, name_of_rule, registry in (
            ("type", definition.type, self.rules.types),
            ("engine", definition.engine, self.rules.engines),
        ):
            if name_of_rule not in registry:
                raise InvalidArgument(
                    f"{name_of_rule!r} is not a channel {attribute}; allowed are "
                    f"{', '.join(sorted(registry))}"
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
        """Return whether the store ``name`` exists on every node (SEM C5, N5); None without a
        cluster. Raises ``InvalidArgument``."""
        requested = definition.cluster_wide
        if requested and not kind.clusterable:
            raise InvalidArgument(
                f"a {definition.type} channel cannot be cluster-wide: it does not keep its ids "
                f"over a restart"
            )
        if not self.rules.is_cluster:
            if requested and self.rules.local_to:
                raise InvalidArgument(
                    f"{name} cannot be cluster-wide: this realm has the local channels of node "
                    f"{self.rules.local_to}; create it in the realm of the cluster, or leave "
                    f"cluster_wide out"
                )
            if requested:
                raise InvalidArgument(
                    f"{name} cannot be cluster-wide: this realm is on one machine and has no other "
                    f"nodes; leave cluster_wide out, or serve it as a cluster (penstock serve "
                    f"--cluster)"
                )
            return None
        existing_id = self._ids_by_name.get(name)
        if existing_id is not None:
            is_wide = bool(self.channels[existing_id].state.definition.cluster_wide)
            if requested is not None and requested != is_wide:
                raise InvalidArgument(
                    f"{name} is {'' if is_wide else 'not '}cluster-wide, which cannot be edited in "
                    f"a cluster: its events are stored accordingly; make another store and join it"
                )
            return is_wide
        if requested is False and kind.home == "pages":
            raise InvalidArgument(
                f"a {definition.type} channel of a cluster is cluster-wide: its pages would be "
                f"files of one node, which others do not see; leave cluster_wide out"
            )
        return kind.clusterable if requested is None else requested

    def _refuse_combination(self, definition: Definition) -> None:
        """Raise ``InvalidArgument`` for attributes that contradict each other (SEM C4)."""
        engines = definition.engine.replace(",", " ").replace("+", " ").split()
        if {"jms", "merge"} <= set(engines):
            raise InvalidArgument(
                "engines jms and merge cannot be combined: jms removes events that merge must keep"
            )
        if definition.engine == "merge" and list(definition.keys.values()) != [1]:
            raise InvalidArgument(
                "engine merge needs exactly one publish key with depth 1, because it keeps one "
                f"state for each value; the keys are {dict(definition.keys)}"
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
        check_deliveries(definition)

    def _refuse_topics(self, name: str, definition: Definition) -> None:
        """Raise ``InvalidArgument`` if the topics are invalid or a filter belongs to another
        channel already (SEM M12)."""
        if definition.payload != "bytes" and not definition.topics:
            raise InvalidArgument(
                f"payload {definition.payload!r} applies to MQTT messages, and the channel has no "
                f"topics; set topics, too, or leave payload out"
            )
        if not definition.topics:
            return
        if definition.kind != "channel":
            raise InvalidArgument(
                f"topics are an attribute of channels, not of a {definition.kind}"
            )
        own_topics = {
            template.filter: template.text for template in templates_of(definition.topics)
        }
        for channel in self.channels.values():
            if channel.state.name == name:
                continue
            for other_text in channel.state.definition.topics:
                if (own_text := own_topics.get(template_of(other_text).filter)) is not None:
                    raise InvalidArgument(
                        f"the topic {own_text!r} of {name} belongs to {channel.state.name} "
                        f"already, as {other_text!r}; change the filter of one of them"
                    )

    def _dead_event_store(self, name: str, definition: Definition) -> str:
        """Return the canonical name of the dead event store. Raises ``InvalidArgument`` if dead
        events would move in a circle (SEM T7)."""
        dead = destination_name(definition.dead_event_store)
        path = [name]
        current = dead
        while current:
            if current in path:
                path.append(current)
                raise InvalidArgument(
                    f"dead_event_store {dead} leads back: {' -> '.join(path)}; dead events would "
                    f"move in a circle"
                )
            path.append(current)
            if current not in self._ids_by_name:
                if self.rules.local_to or current in self.internal.reserved:
                    # This call raises the error that explains local and internal stores.
                    self.channel_id_of(current)
                if current in self.local_names:
                    raise InvalidArgument(
                        f"the dead event store {current} is a local "
                        f"{self.local_names[current]}, which would keep dead events of {name} on "
                        f"one node only; choose a cluster-wide one"
                    )
                raise NameDoesNotExist(
                    f"the dead event store {current} does not exist"
                    f"{self._near(current)}; create it first"
                )
            current = self.channels[self._ids_by_name[current]].state.definition.dead_event_store
        if self._leads_out(definition, self.channels[self._ids_by_name[dead]].state.definition):
            raise InvalidArgument(
                f"the dead event store {dead} is not cluster-wide and would keep dead events of "
                f"{name} on one node only; choose a cluster-wide one"
            )
        return dead

    def _leads_out(self, source: Definition, destination: Definition) -> bool:
        """Whether events would move from a store of every node to a store of one node."""
        return self.rules.is_cluster and leads_out(source, destination)

    # --- applying ------------------------------------------------------------------------

    def apply(self, fact: AnyRealmFact) -> None:
        """Apply a fact about the namespace."""
        match fact:
            case ChannelCreated(channel_id, name, definition):
                self.next_channel_id = max(self.next_channel_id, channel_id + 1)
                definition = self._shared(definition)
                created = self.channels[channel_id] = ChannelMachine(name, definition, self.rules)
                if is_temporary_store(name, definition):
                    self.temporary[channel_id] = created
                self._enter(channel_id, created)
                self.note_topics(channel_id)
            case ChannelDeleted(channel_id):
                self._remove_from_indexes(channel_id)
            case JoinCreated(join):
                self.joins.add(join)
            case JoinDeleted(source, destination):
                self.joins.remove(source, destination)
            case PublishingPauseSet(paused):
                self.publishing_paused = paused
            case PatternDurableCreated(created):
                self.patterns.add(created)
            case PatternDurableDeleted(pattern, name):
                self.patterns.remove((pattern, name))

    def _enter(self, channel_id: int, store: ChannelMachine) -> None:
        """Add a new store to the names."""
        name, definition = store.state.name, store.state.definition
        if self.internal.is_internal(name, definition):
            self.internal.add(channel_id, store)
        elif definition.kind != "outbox":
            names, key = self._place(name, definition)
            names[key] = ChannelId(channel_id)

    def _shared(self, definition: Definition) -> Definition:
        """Return the definition object of the store created before if it equals ``definition``, to
        save memory in realms with many similar stores."""
        # Publish keys are ordered, and equal dictionaries may differ in their order.
        if definition.keys:
            return definition
        if definition != self._newest:
            self._newest = definition
        return self._newest

    def note_topics(self, channel_id: int) -> None:
        """Record the topics of a channel that was created or edited (SEM M12)."""
        state = self.channels[channel_id].state
        self.topics.note(channel_id, state.topics_since, has_topics=bool(state.definition.topics))

    def _remove_from_indexes(self, channel_id: int) -> None:
        """Remove a store from all indexes."""
        channel = self.channels.pop(channel_id, None)
        if channel is None:
            return
        self.temporary.pop(channel_id, None)
        self.joins.forget(channel_id)
        self.topics.forget(channel_id)
        if channel_id in self.internal.machines:
            self.internal.remove(channel_id)
            return
        # Outboxes have no entry among the names, because users do not find them.
        if channel.state.definition.kind == "outbox":
            return
        names, key = self._place(channel.state.name, channel.state.definition)
        del names[key]

    def _place(self, name: str, definition: Definition) -> tuple[dict[str, ChannelId], str]:
        """Return the dictionary that contains the id of a store, and the key of the store in that
        dictionary."""
        # A schedule is found by the name of its channel.
        if definition.kind == "schedule":
            return self._schedules, name.removeprefix(SCHEDULE_PREFIX)
        return self._ids_by_name, name

    # --- reading -------------------------------------------------------------------------

    def channel_id_of(self, name: str, kind: str | None = None) -> ChannelId:
        """Return the id of a channel or queue.

        Raises ``NameDoesNotExist`` if no store has this name, or if the store is not of ``kind``.
        """
        canonical = destination_name(name)
        channel_id = self._ids_by_name.get(canonical)
        if channel_id is None:
            if (internal := self.internal.reserved.get(canonical)) is not None:
                raise NameDoesNotExist(
                    f"{canonical} is an internal store of the realm ({internal.purpose}), which no "
                    f"right opens; use {internal.instead}"
                )
            if canonical in self.local_names:
                raise NameDoesNotExist(
                    f"{canonical} is a local {self.local_names[canonical]}: connect to that node "
                    "to use it"
                )
            what = kind or "channel or queue"
            if self.rules.local_to:
                raise NameDoesNotExist(
                    f"there is no {what} {canonical}{self._near(canonical)} among the local "
                    f"channels of node {self.rules.local_to}; a cluster-wide store can be the "
                    f"destination of a join from here, but not a dead event store"
                )
            raise NameDoesNotExist(
                f"there is no {what} {canonical}{self._near(canonical)}; "
                f"create it first, or list the existing {kind or 'store'}s"
            )
        actual_kind = self.channels[channel_id].state.definition.kind
        if kind is not None and actual_kind != kind:
            raise NameDoesNotExist(
                f"{canonical} is a {actual_kind}, not a {kind}; open the {actual_kind} {canonical}"
            )
        return channel_id

    def find(self, name: str) -> ChannelId | None:
        """Return the id of the store with this canonical name, or None."""
        return self._ids_by_name.get(name)

    def names(self, kind: str) -> list[str]:
        """Return the names of all stores of a kind, sorted, without internal and temporary ones."""
        hidden = self.internal.machines.keys() | self.temporary.keys()
        channels = self.channels.items()
        states = (channel.state for channel_id, channel in channels if channel_id not in hidden)
        return sorted(state.name for state in states if state.definition.kind == kind)

    def is_taken(self, name: str) -> bool:
        """Whether no other store may get this name."""
        return name in self._ids_by_name or name in self.internal.reserved

    def is_shown(self, channel_id: int) -> bool:
        """Whether lists show a store."""
        if channel_id in self.internal.machines or channel_id in self.temporary:
            return False
        return self.channels[channel_id].state.definition.kind not in HIDDEN_KINDS

    def schedule_of(self, channel_id: int) -> int | None:
        """Return the id of the store of scheduled events of a channel; None if no event was
        scheduled yet."""
        return self._schedules.get(self.channels[channel_id].state.name)

    def dead_event_store_of(self, channel_id: int) -> ChannelId | None:
        """Return the id of the dead event store of a channel; None if it has none."""
        name = self.channels[channel_id].state.definition.dead_event_store
        return self._ids_by_name.get(name) if name else None

    def _near(self, name: str) -> str:
        """Return a hint for an error text if a store has the same name in other letter case; empty
        otherwise."""
        for existing in self._ids_by_name:
            if existing.casefold() == name.casefold():
                return f" (names are case-sensitive: there is {existing})"
        return ""

    def _refuse_too_many(self) -> None:
        """Raise ``LimitReached`` if the realm has as many stores as it may have."""
        if not self.rules.stores_max:
            return
        # Temporary stores are not shown in lists, but they count.
        if sum(map(self.is_shown, self.channels)) + len(self.temporary) >= self.rules.stores_max:
            raise LimitReached(
                f"the realm has {self.rules.stores_max} channels and queues, which is the limit "
                f"(limits.channels_max)"
                "; delete one, or raise the limit"
            )
