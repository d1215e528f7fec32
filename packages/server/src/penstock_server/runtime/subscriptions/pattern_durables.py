"""Making and ending durables over patterns (SEM D22)."""

from __future__ import annotations

from penstock_core.api.patterns import CreatePatternDurable, PatternDurableInfo
from penstock_core.loggers import logger
from penstock_core.messages.durables import RemoveDurable
from penstock_core.messages.pattern_durables import (
    PatternDurable,
    PatternDurableCreated,
    PatternDurableDeleted,
)
from penstock_core.realm.pattern_durables import refuse_difference, rehearsed, terms_of
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import durable_attributes
from penstock_core.vocabulary.errors import NameDoesNotExist, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.delivery.selection import Choosing
from penstock_server.runtime.subscriptions.subscriptions import Subscriptions
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

_ANY_CHANNEL = Definition(dead_event_store="dead")
"""A channel that every durable can be on."""

_log = logger("penstock.realm")


class PatternDurableOperations:
    def __init__(self, shard: Shard, subscriptions: Subscriptions, choosing: Choosing) -> None:
        self._shard = shard
        self._subscriptions = subscriptions
        self._choosing = choosing

    async def create(self, asked: CreatePatternDurable) -> PatternDurableInfo:
        """Make the durable on all channels that fit, and on those made later.

        It is true once every channel has it: until then channels are looked for that are made
        meanwhile. Where one refuses, those that were made here are removed again.

        Raises ``NameAlreadyBound``, also for a channel that has another durable of the name,
        ``InvalidArgument``, ``InvalidName``, ``InvalidSelector``, ``LimitReached``.
        """
        given = PatternDurable(
            asked.pattern,
            asked.name,
            asked.kind,
            selector=asked.selector,
            persistent=asked.persistent,
            attributes=durable_attributes(asked),
        )

        if asked.selector:
            await self._choosing.parse(asked.selector)  # or it is refused

        def keep(group: Group) -> tuple[PatternDurable, list[ChannelId]]:
            wanted = _checked(group, given)
            lacking = _lacking(group, wanted)
            if not lacking:
                group.realm_fact(0, PatternDurableCreated(wanted))
            return wanted, lacking

        made: list[ChannelId] = []
        try:
            while True:
                wanted, lacking = await self._shard.act(keep, sweeps=())
                if not lacking:
                    break
                for channel_id in lacking:
                    made += [channel_id] if await self._make(channel_id, wanted, asked) else []
        except PenstockError:
            for channel_id in made:
                await self._remove(channel_id, given.name)
            raise
        _log.info("pattern_durable.created", pattern=wanted.pattern, name=wanted.name)
        return await self._info(wanted)

    async def _make(
        self, channel_id: ChannelId, wanted: PatternDurable, asked: CreatePatternDurable
    ) -> bool:
        """Make it on one channel; False: that is not there any more."""
        try:
            await self._subscriptions.create_durable(
                channel_id,
                wanted.name,
                wanted.kind,
                start=asked.start,
                selector=wanted.selector,
                persistent=wanted.persistent,
                attributes=wanted.attributes,
            )
        except NameDoesNotExist:
            return False
        return True

    async def _remove(self, channel_id: ChannelId, name: str) -> None:
        try:
            await self._subscriptions.delete_durable(channel_id, name)
        except NameDoesNotExist:
            return  # with its channel

    async def delete(self, pattern: str, name: str) -> None:
        """End it, and remove its durables from all channels that no other pattern gives them to.

        Raises ``NameDoesNotExist``.
        """

        def delete(group: Group) -> tuple[PatternDurable, list[int]]:
            directory = group.state.directory
            gone = directory.patterns.get(pattern, name)
            group.realm_fact(0, PatternDurableDeleted(gone.pattern, gone.name))
            seats: list[int] = []
            for channel_id in _taken(group, gone):
                state = group.channel(channel_id).state
                durable = state.durables.get(gone.name)
                kept = [each.name for each in directory.patterns.applying_to(state.name)]
                if durable is not None and gone.name not in kept:
                    seats += [seat.subscription for seat in durable.seats]
                    group.do(channel_id, RemoveDurable(gone.name))
            return gone, seats

        gone, seats = await self._shard.act(delete)
        _log.info("pattern_durable.deleted", pattern=gone.pattern, name=gone.name)
        self._subscriptions.ended(seats, NameDoesNotExist(f"durable {gone.name} was deleted"))

    async def list(self) -> list[PatternDurableInfo]:
        """All of them, by pattern and name."""

        def look(group: Group) -> list[PatternDurableInfo]:
            return [_info(group, each) for each in group.state.directory.patterns]

        infos: list[PatternDurableInfo] = await self._shard.act(look, sweeps=())
        return infos

    async def _info(self, made: PatternDurable) -> PatternDurableInfo:
        info: PatternDurableInfo = await self._shard.act(
            lambda group: _info(group, made), sweeps=()
        )
        return info


def _checked(group: Group, given: PatternDurable) -> PatternDurable:
    """It in canonical form, after every channel was asked whether it may have it."""
    directory = group.state.directory
    wanted = directory.patterns.checked(given)
    rehearsed([wanted], "any channel", _ANY_CHANNEL, rules=directory.rules)
    for channel_id in _taken(group, wanted):
        channel = group.state.channels[channel_id]
        state = channel.state
        would = rehearsed([wanted], state.name, state.definition, rules=directory.rules)[
            wanted.name
        ]
        there = state.durables.get(wanted.name)
        if there is not None:
            refuse_difference(wanted, state.name, terms_of(there), would=terms_of(would))
        else:
            channel.decide(wanted.command(), group.now_us)
    return wanted


def _taken(group: Group, made: PatternDurable) -> list[ChannelId]:
    return [
        ChannelId(number)
        for number, channel in group.state.channels.items()
        if made.takes(channel.state.name, channel.state.definition.kind)
        and number not in group.state.directory.internal.machines
    ]


def _lacking(group: Group, made: PatternDurable) -> list[ChannelId]:
    channels = group.state.channels
    return [each for each in _taken(group, made) if made.name not in channels[each].state.durables]


def _info(group: Group, made: PatternDurable) -> PatternDurableInfo:
    return PatternDurableInfo(
        pattern=made.pattern,
        name=made.name,
        type=made.kind,
        selector=made.selector,
        persistent=made.persistent,
        channels=len(_taken(group, made)),
        **{name: getattr(made.attributes, name) for name in made.attributes.__struct_fields__},
    )
