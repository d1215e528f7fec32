"""Rehearses the steps of a plan on the realm's rules before any step is executed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from penstock_core.api.durables import DurableInfo
from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.definitions import ChannelCreated, Edit, Edited
from penstock_core.messages.durables import AddDurable, DurableCreated, DurableDeleted
from penstock_core.messages.joins import Join as RealmJoin
from penstock_core.messages.joins import JoinCreated
from penstock_core.messages.pattern_durables import PatternDurable
from penstock_core.realm.directory import Directory
from penstock_core.realm.pattern_durables import refuse_difference, rehearsed, terms_of
from penstock_core.vocabulary.durable_attributes import durable_attributes
from penstock_core.vocabulary.errors import InvalidArgument, Refused
from penstock_core.vocabulary.reach import comparable, is_everywhere
from penstock_server.bootstrap.registries import rules
from penstock_tools.topology.document import Topology, WantedDurable, WantedJoin, WantedStore
from penstock_tools.topology.inventory import Found
from penstock_tools.topology.steps import (
    DurableToCreate,
    DurableToDelete,
    JoinToCreate,
    JoinToDelete,
    PatternToCreate,
    PatternToDelete,
    PlannedStep,
    StoreToCreate,
    StoreToDelete,
    StoreToEdit,
)


class Rehearsal:
    """Executes steps on a copy of the realm's configuration in memory. The same rules run there as
    in the realm, so a step that the realm would refuse is refused here."""

    def __init__(self, wanted: Topology, existing: Found) -> None:
        self._wanted = wanted
        wants_cluster = any(is_everywhere(store.definition) for store in wanted.stores)
        # A realm without stores does not show whether it is a cluster, so the file decides.
        is_cluster = existing.is_cluster or (wants_cluster and not existing.stores)
        # The limits of the realm are not known here; it enforces them when the plan is applied.
        rehearsal_rules = replace(
            rules(),
            stores_max=0,
            durables_max=0,
            is_cluster=is_cluster,
            mqtt_channel=existing.mqtt_channel or "mqtt",
        )
        self._directory = directory = Directory(rehearsal_rules)
        for name, store in existing.stores.items():
            number = directory.next_channel_id
            directory.apply(ChannelCreated(number, name, store.definition))
            for info in store.durables.values():
                directory.channels[number].apply(_as_created(info))
        for pattern_durable in existing.durables.values():
            directory.patterns.add(
                PatternDurable(
                    pattern_durable.pattern,
                    pattern_durable.name,
                    pattern_durable.type,
                    selector=pattern_durable.selector,
                    persistent=pattern_durable.persistent,
                    attributes=durable_attributes(pattern_durable),
                )
            )
        for source, destination in existing.joins:
            ends = directory.find(source), directory.find(destination)
            if ends[0] is not None and ends[1] is not None:
                directory.apply(JoinCreated(RealmJoin(*ends)))  # type: ignore[arg-type]

    def ordered(self, steps: Sequence[PlannedStep]) -> list[PlannedStep]:
        """Return the steps in an order in which each is possible. Raises ``InvalidArgument`` with
        the reason of the first step that is impossible in every order."""
        remaining, executed = list(steps), []
        # Each round executes the steps that are possible by now, and retries the others.
        while remaining:
            postponed: list[PlannedStep] = []
            first_error: InvalidArgument | None = None
            for step in remaining:
                try:
                    self.play(step)
                    executed.append(step)
                except InvalidArgument as error:
                    first_error = first_error or error
                    postponed.append(step)
            if first_error is not None and len(postponed) == len(remaining):
                raise first_error
            remaining = postponed
        return executed

    def play(self, step: PlannedStep) -> None:
        """Execute a step in memory as the realm would. Raises ``InvalidArgument`` with the place in
        the file if the realm would refuse the step."""
        act, directory = step.act, self._directory
        match act:
            case StoreToCreate(store):
                with self._wanted.errors_located_at(store.place, store.what):
                    self._create(store)
            case StoreToEdit():
                self._edit(act)
            case DurableToCreate(channel, durable):
                with self._wanted.errors_located_at(
                    durable.place, f"durable {durable.name} of {channel}"
                ):
                    self._create_durable(channel, durable)
            case JoinToCreate(join):
                self._join(join)
            case JoinToDelete(source, destination):
                directory.apply(directory.decide_unjoin(source, destination))
            case DurableToDelete(channel, name):
                number = directory.channel_id_of(channel, "channel")
                directory.channels[number].apply(DurableDeleted(name))
            case StoreToDelete(kind, name):
                self._delete(step.what, lambda: directory.decide_delete(name, kind))
            case PatternToCreate() | PatternToDelete():
                self._change_pattern(step.what, act)
            case _:
                pass  # users, groups and rights depend on nothing in the directory

    def _create(self, store: WantedStore) -> None:
        """Create a store, with the durables that patterns define for it."""
        directory = self._directory
        created = directory.decide_create(store.name, store.definition)
        pattern_durables = directory.patterns.applying_to(created.name, created.definition.kind)
        rehearsed(pattern_durables, created.name, created.definition, rules=directory.rules)
        directory.apply(created)
        for pattern_durable in pattern_durables:
            self._add_durable(directory.channels[created.number], pattern_durable)

    def _change_pattern(self, what: str, act: PatternToCreate | PatternToDelete) -> None:
        """Create or delete a durable of a pattern, on every channel that the pattern covers."""
        match act:
            case PatternToCreate(durable):
                with self._wanted.errors_located_at(durable.place, what):
                    self._create_pattern_durable(durable)
            case PatternToDelete(pattern, name):
                patterns = self._directory.patterns
                removed = patterns.get(pattern, name)
                patterns.remove(removed.key)
                for machine in self._directory.channels.values():
                    state = machine.state
                    # A channel keeps the durable if another pattern defines the same name for it.
                    still_applying = {
                        durable.name
                        for durable in patterns.applying_to(state.name, state.definition.kind)
                    }
                    if (
                        removed.takes(state.name, state.definition.kind)
                        and name not in still_applying
                    ):
                        machine.apply(DurableDeleted(name))

    def _edit(self, act: StoreToEdit) -> None:
        store = next(store for store in self._wanted.stores if store.name == act.name)
        machine = self._directory.channels[self._directory.channel_id_of(act.name, act.kind)]
        with self._wanted.errors_located_at(store.place, store.what):
            definition = comparable(store.definition, machine.state.definition)
            checked_definition = self._directory.checked(act.name, definition)
            machine.decide(Edit(checked_definition), 0)
            machine.apply(Edited(checked_definition))

    def _create_durable(self, channel: str, durable: WantedDurable) -> None:
        machine = self._directory.channels[self._directory.channel_id_of(channel, "channel")]
        command = AddDurable(
            name=durable.name,
            kind=durable.type,
            selector=durable.selector,
            persistent=durable.persistent,
            **asdict(durable.attributes),
        )
        for fact in machine.decide(command, 0).facts:
            machine.apply(fact)

    def _create_pattern_durable(self, durable: WantedDurable) -> None:
        patterns, realm_rules = self._directory.patterns, self._directory.rules
        pattern_durable = patterns.checked(
            PatternDurable(
                durable.pattern,
                durable.name,
                durable.type,
                selector=durable.selector,
                persistent=durable.persistent,
                attributes=durable.attributes,
            )
        )
        for machine in self._directory.channels.values():
            state = machine.state
            if not pattern_durable.takes(state.name, state.definition.kind):
                continue
            expected = rehearsed(
                [pattern_durable], state.name, state.definition, rules=realm_rules
            )[pattern_durable.name]
            existing = state.durables.get(pattern_durable.name)
            if existing is None:
                self._add_durable(machine, pattern_durable)
            else:
                refuse_difference(
                    pattern_durable, state.name, terms_of(existing), would=terms_of(expected)
                )
        patterns.add(pattern_durable)

    def _add_durable(self, machine: ChannelMachine, pattern_durable: PatternDurable) -> None:
        for fact in machine.decide(pattern_durable.command(), 0).facts:
            machine.apply(fact)

    def _join(self, join: WantedJoin) -> None:
        with self._wanted.errors_located_at(join.place, join.what):
            created = self._directory.decide_join(
                join.source, join.destination, join.selector, archive=join.archive
            )
            self._directory.apply(created)

    def _delete(self, what: str, decide: Callable[[], Any]) -> None:
        """Delete an object that the file does not name; its error has no place in the file."""
        try:
            for fact in decide():
                self._directory.apply(fact)
        except Refused as error:
            raise InvalidArgument(
                f"{what} is not in the file, but cannot be deleted: {error}"
            ) from error


def _as_created(info: DurableInfo) -> DurableCreated:
    """Return the fact that creates a durable like an existing one."""
    attributes = asdict(durable_attributes(info))
    return DurableCreated(
        info.name, info.type, 0, selector=info.selector, persistent=info.persistent, **attributes
    )
