"""Moving durables back or forward (the rules are in ``penstock_core.channel.seeking``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock_core.api.durables import SeekOutcome
from penstock_core.channel.seeking import gone_since, preview
from penstock_core.channel.state import ChannelState
from penstock_core.ids.ids import IdSet, Span
from penstock_core.loggers import logger
from penstock_core.messages.seeking import Seek
from penstock_core.vocabulary.errors import IllegalState
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import durable_name
from penstock_core.vocabulary.start_positions import AnyStart, FromEarliest, FromId, FromTime
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.subscriptions.start_positions import first_id
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.selector_scan import Matching
from penstock_server.runtime.writer.shard import Shard
from penstock_server.runtime.writer.with_files import with_open_files

_BEYOND = 1 << 62
"""An id above all event ids."""

_log = logger("penstock.realm")


class Seeking:
    """Moves durables, and previews the outcome."""

    def __init__(self, shard: Shard, dispatch: Dispatch) -> None:
        self._shard = shard
        self._dispatch = dispatch

    async def preview(self, channel_id: ChannelId, name: str, to: AnyStart) -> SeekOutcome:
        """Return the outcome that :meth:`seek` would have, without changing the durable. Raises the
        errors of :meth:`seek`."""

        def evaluate(group: Group, command: Seek) -> SeekOutcome:
            state = group.channel(channel_id).state
            outcome = preview(state, command)
            return SeekOutcome(
                command.start_id,
                outcome.again,
                outcome.skipped,
                taken_back=outcome.taken_back,
                outstanding=outcome.outstanding,
                gone=gone_since(state, _lowest_named(state, to, command.start_id)),
            )

        return await self._run_at(channel_id, durable_name(name), to, key="", action=evaluate)

    async def seek(
        self, channel_id: ChannelId, name: str, to: AnyStart, *, key: str = ""
    ) -> SeekOutcome:
        """Move a durable to another position (SEM D20). A request repeated with the same ``key``
        gets the first answer and moves nothing.

        Raises ``NameDoesNotExist``; ``IllegalState`` for a removed event, and for a queue;
        ``InvalidArgument`` for an id that was not assigned yet; ``DurableInUse`` while a client
        holds the durable as a whole.
        """

        def move(group: Group, command: Seek) -> SeekOutcome:
            group.do(channel_id, command)
            state = group.channel(channel_id).state
            durable = state.durable(command.durable)
            # A request repeated with its key moves nothing, and gets the first outcome.
            seek = durable.last_seek.find(command.key) or durable.last_seek
            return SeekOutcome(
                seek.start_id,
                seek.again,
                seek.skipped,
                taken_back=seek.taken_back,
                outstanding=durable.outstanding_count(state.stored),
                gone=gone_since(state, _lowest_named(state, to, seek.start_id)),
            )

        name = durable_name(name)
        outcome = await self._run_at(channel_id, name, to, key=key, action=move)
        _log.info(
            "durable.sought",
            durable=name,
            channel=self._shard.state.channels[channel_id].state.name,
            position=outcome.position,
            again=outcome.again,
            skipped=outcome.skipped,
        )
        return outcome

    async def _run_at(
        self,
        channel_id: ChannelId,
        name: str,
        to: AnyStart,
        key: str,
        action: Callable[[Group, Seek], SeekOutcome],
    ) -> SeekOutcome:
        """Run ``action`` in a turn of the writer with a ``Seek`` command, whose id is that of the
        position ``to`` in this turn."""

        def selector_now(group: Group) -> str:
            return group.channel(channel_id).state.durable(name).selector

        def among(group: Group) -> IdSet:
            first = _first(group, channel_id, to)
            return group.channel(channel_id).state.stored.within(Span(first, _BEYOND))

        selector: str = await self._shard.act(selector_now, sweeps=(channel_id,))
        matching: Matching | None = None
        if selector:
            choosing = self._dispatch.choosing
            parsed = await choosing.parse(selector)
            matching = Matching(parsed, choosing, self._shard, files=self._dispatch.files)

        def act(group: Group) -> SeekOutcome:
            group.sweep(channel_id)
            # The matches are those of the selector that an earlier turn has read.
            if selector_now(group) != selector:
                raise IllegalState(
                    f"durable {name} was deleted and created again during the request; try again"
                )
            first = _first(group, channel_id, to)
            matched = () if matching is None else matching.now(group, channel_id, among).spans
            is_exact = isinstance(to, FromId)
            return action(group, Seek(name, first, matched, is_exact=is_exact, key=key))

        outcome: Any
        if matching is not None:
            outcome = await matching.act(channel_id, among, act)
        elif isinstance(to, FromTime):
            # The id of a time is searched among the stored events, whose files may be closed.
            outcome = await with_open_files(
                self._shard, self._dispatch.files, channel_id, action=act
            )
        else:
            outcome = await self._shard.act(act, sweeps=(channel_id,))
        assert isinstance(outcome, SeekOutcome), "the action returns an outcome"
        return outcome


def _first(group: Group, channel_id: ChannelId, to: AnyStart) -> int:
    """Return the id of a position now; the earliest position is the first stored event."""
    channel = group.channel(channel_id)
    if isinstance(to, FromEarliest):
        lowest = channel.state.stored.lowest
        return channel.state.next_id if lowest is None else lowest
    return first_id(channel, group.state.stores[channel_id], to)


def _lowest_named(state: ChannelState, to: AnyStart, first: int) -> int:
    """Return the lowest id that a position may refer to, stored or not. For a time this is the id
    after the last stored event published before it, because the times of removed events are not
    known."""
    match to:
        case FromEarliest():
            return 0
        case FromTime():
            before = state.stored.within(Span(0, first)).highest
            return 0 if before is None else before + 1
        case _:
            return first
