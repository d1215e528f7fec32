"""Plays the steps of a plan on the realm's own rules, before any of them is done."""

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
from penstock_tools.topology.looking import Found
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
    """Plays steps on the realm's own rules, which refuse what the realm would refuse."""

    def __init__(self, wanted: Topology, found: Found) -> None:
        self._wanted = wanted
        told = any(is_everywhere(each.definition) for each in wanted.stores)
        is_cluster = found.is_cluster or (told and not found.stores)
        # The realm has its own limits
        own = replace(
            rules(),
            stores_max=0,
            durables_max=0,
            is_cluster=is_cluster,
            mqtt_channel=found.mqtt_channel or "mqtt",
        )
        self._directory = directory = Directory(own)
        for name, store in found.stores.items():
            number = directory.next_number
            directory.apply(ChannelCreated(number, name, store.definition))
            for info in store.durables.values():
                directory.channels[number].apply(_as_created(info))
        for over in found.durables.values():
            directory.patterns.add(
                PatternDurable(
                    over.pattern,
                    over.name,
                    over.type,
                    selector=over.selector,
                    persistent=over.persistent,
                    attributes=durable_attributes(over),
                )
            )
        for source, destination in found.joins:
            ends = directory.find(source), directory.find(destination)
            if ends[0] is not None and ends[1] is not None:
                directory.apply(JoinCreated(RealmJoin(*ends)))  # type: ignore[arg-type]

    def ordered(self, steps: Sequence[PlannedStep]) -> list[PlannedStep]:
        """The steps in an order in which each is possible. Raises what the first is refused with
        that is possible in none."""
        waiting, done = list(steps), []
        while waiting:
            later: list[PlannedStep] = []
            why: InvalidArgument | None = None
            for step in waiting:
                try:
                    self.play(step)
                    done.append(step)
                except InvalidArgument as error:
                    why = why or error
                    later.append(step)
            if why is not None and len(later) == len(waiting):
                raise why
            waiting = later
        return done

    def play(self, step: PlannedStep) -> None:
        """Do a step as the realm would. Raises ``InvalidArgument`` with its place in the file."""
        act, directory = step.act, self._directory
        match act:
            case StoreToCreate(store):
                with self._wanted.naming(store.place, store.what):
                    self._create(store)
            case StoreToEdit():
                self._edit(act)
            case DurableToCreate(channel, durable):
                with self._wanted.naming(durable.place, f"durable {durable.name} of {channel}"):
                    self._create_durable(channel, durable)
            case JoinToCreate(join):
                self._join(join)
            case JoinToDelete(source, destination):
                directory.apply(directory.decide_unjoin(source, destination))
            case DurableToDelete(channel, name):
                number = directory.number_of(channel, "channel")
                directory.channels[number].apply(DurableDeleted(name))
            case StoreToDelete(kind, name):
                self._delete(step.what, lambda: directory.decide_delete(name, kind))
            case PatternToCreate() | PatternToDelete():
                self._change_pattern(step.what, act)
            case _:
                pass  # what remains depends on nothing here

    def _create(self, store: WantedStore) -> None:
        directory = self._directory
        made = directory.decide_create(store.name, store.definition)
        over = directory.patterns.of(made.name, made.definition.kind)
        rehearsed(over, made.name, made.definition, rules=directory.rules)
        directory.apply(made)
        for each in over:
            self._give(directory.channels[made.number], each)

    def _change_pattern(self, what: str, act: PatternToCreate | PatternToDelete) -> None:
        match act:
            case PatternToCreate(durable):
                with self._wanted.naming(durable.place, what):
                    self._create_over(durable)
            case PatternToDelete(pattern, name):
                gone, patterns = (
                    self._directory.patterns.get(pattern, name),
                    self._directory.patterns,
                )
                patterns.remove(gone.key)
                for machine in self._directory.channels.values():
                    state = machine.state
                    kept = {each.name for each in patterns.of(state.name, state.definition.kind)}
                    if gone.takes(state.name, state.definition.kind) and name not in kept:
                        machine.apply(DurableDeleted(name))

    def _edit(self, act: StoreToEdit) -> None:
        store = next(each for each in self._wanted.stores if each.name == act.name)
        machine = self._directory.channels[self._directory.number_of(act.name, act.kind)]
        with self._wanted.naming(store.place, store.what):
            now = comparable(store.definition, machine.state.definition)
            kept = self._directory.checked(act.name, now)
            machine.decide(Edit(kept), 0)
            machine.apply(Edited(kept))

    def _create_durable(self, channel: str, durable: WantedDurable) -> None:
        machine = self._directory.channels[self._directory.number_of(channel, "channel")]
        command = AddDurable(
            name=durable.name,
            kind=durable.type,
            selector=durable.selector,
            persistent=durable.persistent,
            **asdict(durable.attributes),
        )
        for fact in machine.decide(command, 0).facts:
            machine.apply(fact)

    def _create_over(self, durable: WantedDurable) -> None:
        patterns, rules_ = self._directory.patterns, self._directory.rules
        wanted = patterns.checked(
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
            if not wanted.takes(state.name, state.definition.kind):
                continue
            would = rehearsed([wanted], state.name, state.definition, rules=rules_)[wanted.name]
            there = state.durables.get(wanted.name)
            if there is None:
                self._give(machine, wanted)
            else:
                refuse_difference(wanted, state.name, terms_of(there), would=terms_of(would))
        patterns.add(wanted)

    def _give(self, machine: ChannelMachine, made: PatternDurable) -> None:
        for fact in machine.decide(made.command(), 0).facts:
            machine.apply(fact)

    def _join(self, join: WantedJoin) -> None:
        with self._wanted.naming(join.place, join.what):
            made = self._directory.decide_join(
                join.source, join.destination, join.selector, archive=join.archive
            )
            self._directory.apply(made)

    def _delete(self, what: str, decide: Callable[[], Any]) -> None:
        try:
            for fact in decide():
                self._directory.apply(fact)
        except Refused as error:
            raise InvalidArgument(f"{what} is not in the file, but {error}") from error


def _as_created(info: DurableInfo) -> DurableCreated:
    attributes = asdict(durable_attributes(info))
    return DurableCreated(
        info.name, info.type, 0, selector=info.selector, persistent=info.persistent, **attributes
    )
