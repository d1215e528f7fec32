"""Creating, deleting and listing durables over patterns (SEM D22)."""

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
"""The definition of a channel that accepts every kind of durable, used for a first check."""

_log = logger("penstock.realm")


class PatternDurableOperations:
    """Creates, deletes and lists durables over patterns."""

    def __init__(self, shard: Shard, subscriptions: Subscriptions, choosing: Choosing) -> None:
        self._shard = shard
        self._subscriptions = subscriptions
        self._choosing = choosing

    async def create(self, request: CreatePatternDurable) -> PatternDurableInfo:
        """Create the durable on all matching channels, and on channels created later.

        The durable over the pattern exists once all matching channels have it, so the search is
        repeated until it finds no new channel. If a channel refuses, the durables created so far
        are deleted again.

        Raises ``NameAlreadyBound``, also for a channel that has another durable of the name,
        ``InvalidArgument``, ``InvalidName``, ``InvalidSelector``, ``LimitReached``.
        """
        requested = PatternDurable(
            request.pattern,
            request.name,
            request.kind,
            selector=request.selector,
            persistent=request.persistent,
            attributes=durable_attributes(request),
        )

        if request.selector:
            await self._choosing.parse(request.selector)  # raises InvalidSelector

        def finish(group: Group) -> tuple[PatternDurable, list[ChannelId]]:
            durable = _check(group, requested)
            lacking = _channels_without(group, durable)
            # In the same turn as the search, so that no channel can be created in between.
            if not lacking:
                group.realm_fact(0, PatternDurableCreated(durable))
            return durable, lacking

        created: list[ChannelId] = []
        try:
            while True:
                checked_durable, lacking = await self._shard.act(finish, sweeps=())
                if not lacking:
                    break
                for channel_id in lacking:
                    was_created = await self._create_on(channel_id, checked_durable, request)
                    created += [channel_id] if was_created else []
        except PenstockError:
            for channel_id in created:
                await self._remove(channel_id, requested.name)
            raise
        _log.info(
            "pattern_durable.created", pattern=checked_durable.pattern, name=checked_durable.name
        )
        return await self._info(checked_durable)

    async def _create_on(
        self, channel_id: ChannelId, durable: PatternDurable, request: CreatePatternDurable
    ) -> bool:
        """Create the durable on a channel; False if the channel no longer exists."""
        try:
            await self._subscriptions.create_durable(
                channel_id,
                durable.name,
                durable.kind,
                start=request.start,
                selector=durable.selector,
                persistent=durable.persistent,
                attributes=durable.attributes,
            )
        except NameDoesNotExist:
            return False
        return True

    async def _remove(self, channel_id: ChannelId, name: str) -> None:
        try:
            await self._subscriptions.delete_durable(channel_id, name)
        except NameDoesNotExist:
            return  # the durable was deleted together with its channel

    async def delete(self, pattern: str, name: str) -> None:
        """Delete the durable over the pattern, and its durables on all channels that no other
        pattern with a durable of this name matches.

        Raises ``NameDoesNotExist``.
        """

        def delete(group: Group) -> tuple[PatternDurable, list[int]]:
            directory = group.state.directory
            deleted = directory.patterns.get(pattern, name)
            group.realm_fact(0, PatternDurableDeleted(deleted.pattern, deleted.name))
            seats: list[int] = []
            for channel_id in _matching_channels(group, deleted):
                state = group.channel(channel_id).state
                durable = state.durables.get(deleted.name)
                applying = directory.patterns.applying_to(state.name)
                remaining = [pattern_durable.name for pattern_durable in applying]
                if durable is not None and deleted.name not in remaining:
                    seats += [seat.subscription for seat in durable.seats]
                    group.do(channel_id, RemoveDurable(deleted.name))
            return deleted, seats

        deleted, seats = await self._shard.act(delete)
        _log.info("pattern_durable.deleted", pattern=deleted.pattern, name=deleted.name)
        self._subscriptions.ended(seats, NameDoesNotExist(f"durable {deleted.name} was deleted"))

    async def list(self) -> list[PatternDurableInfo]:
        """Return all durables over patterns, sorted by pattern and name."""

        def describe(group: Group) -> list[PatternDurableInfo]:
            return [_info(group, durable) for durable in group.state.directory.patterns]

        infos: list[PatternDurableInfo] = await self._shard.act(describe, sweeps=())
        return infos

    async def _info(self, durable: PatternDurable) -> PatternDurableInfo:
        info: PatternDurableInfo = await self._shard.act(
            lambda group: _info(group, durable), sweeps=()
        )
        return info


def _check(group: Group, requested: PatternDurable) -> PatternDurable:
    """Return the durable in canonical form. Raises an error if a matching channel refuses it."""
    directory = group.state.directory
    durable = directory.patterns.checked(requested)
    rehearsed([durable], "any channel", _ANY_CHANNEL, rules=directory.rules)
    for channel_id in _matching_channels(group, durable):
        channel = group.state.channels[channel_id]
        state = channel.state
        planned = rehearsed([durable], state.name, state.definition, rules=directory.rules)[
            durable.name
        ]
        existing = state.durables.get(durable.name)
        if existing is not None:
            refuse_difference(durable, state.name, terms_of(existing), would=terms_of(planned))
        else:
            # Raises the channel's refusal. The facts of the decision are not applied.
            channel.decide(durable.command(), group.now_us)
    return durable


def _matching_channels(group: Group, durable: PatternDurable) -> list[ChannelId]:
    """Return the channels that a durable over a pattern applies to, without internal stores."""
    return [
        ChannelId(number)
        for number, channel in group.state.channels.items()
        if durable.takes(channel.state.name, channel.state.definition.kind)
        and number not in group.state.directory.internal.machines
    ]


def _channels_without(group: Group, durable: PatternDurable) -> list[ChannelId]:
    """Return the matching channels that do not have the durable."""
    channels = group.state.channels
    return [
        channel_id
        for channel_id in _matching_channels(group, durable)
        if durable.name not in channels[channel_id].state.durables
    ]


def _info(group: Group, durable: PatternDurable) -> PatternDurableInfo:
    """Return the description of a durable over a pattern."""
    attributes = durable.attributes
    return PatternDurableInfo(
        pattern=durable.pattern,
        name=durable.name,
        type=durable.kind,
        selector=durable.selector,
        persistent=durable.persistent,
        channels=len(_matching_channels(group, durable)),
        **{name: getattr(attributes, name) for name in attributes.__struct_fields__},
    )
