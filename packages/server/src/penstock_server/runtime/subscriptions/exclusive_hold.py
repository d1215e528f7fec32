"""Operations of a client that holds a durable as a whole, so that no other client gets its events
(the rules are in ``penstock_core.channel.holding``)."""

from __future__ import annotations

from collections.abc import Callable

from penstock_core.api.durables import Outstanding
from penstock_core.channel.state import ChannelState
from penstock_core.columns.schema.layout import REASON_CHARACTERS_MAX
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.delivery import HoldEvents
from penstock_core.messages.settlements import BuryEvents, ExtendTime
from penstock_core.vocabulary.errors import IllegalState
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.stored_ids import id_set, stored_form
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.requests import RunAction
from penstock_server.runtime.writer.shard import Shard


class Holding:
    """Runs the operations of clients that hold a durable as a whole."""

    def __init__(self, shard: Shard, channel_of: Callable[[int], int | None]) -> None:
        """Create the operations. ``channel_of`` returns the channel of an open subscription."""
        self._shard = shard
        self._channel_of = channel_of

    async def hold(self, subscription: int, span: Span) -> Outstanding:
        """Put the outstanding events of ``span`` in flight for a client that holds the durable
        alone. The answer includes events that were already in flight. Raises ``IllegalState``."""
        channel_id = self._channel_id(subscription)

        def hold(group: Group) -> Outstanding:
            group.sweep(channel_id)
            group.do(channel_id, HoldEvents(subscription, span))
            state = group.channel(channel_id).state
            durable, seat = state.seat(subscription)
            return _describe(state, durable, seat.in_flight.within(span), now_us=group.now_us)

        outstanding: Outstanding = await self._shard.act(hold, sweeps=(channel_id,))
        return outstanding

    async def outstanding(self, channel_id: ChannelId, name: str, span: Span) -> Outstanding:
        """Describe the outstanding events of ``span`` at a durable, without changing them.

        Raises ``NameDoesNotExist``.
        """

        def describe(group: Group) -> Outstanding:
            group.sweep(channel_id)
            state = group.channel(channel_id).state
            durable = state.durable(name)
            wanting = durable.wanting(state.stored.within(span))
            return _describe(state, durable, wanting, now_us=group.now_us)

        outstanding: Outstanding = await self._shard.act(describe, sweeps=(channel_id,))
        return outstanding

    async def extend(self, subscription: int, spans: Spans, time_ms: int) -> int:
        """Let a client settle its events in flight within the next ``time_ms`` (SEM D19). Return
        the number of these events. Raises ``IllegalState``."""
        channel_id = self._channel_id(subscription)

        def extend(group: Group) -> int:
            group.sweep(channel_id)
            answer = group.do(channel_id, ExtendTime(subscription, spans, time_ms)).answer
            assert isinstance(answer, int), "the command is answered with a count"
            return answer

        count: int = await self._shard.act(extend, sweeps=(channel_id,))
        return count

    async def bury(self, subscription: int, spans: Spans, reason: str) -> int:
        """Send events that a client rejects to the dead event store; return their number.

        Raises ``IllegalState``.
        """
        channel_id = self._channel_id(subscription)

        command = BuryEvents(subscription, spans)

        def bury(group: Group) -> int:
            group.sweep(channel_id)
            answer = group.do(channel_id, command, reason=reason).answer
            assert isinstance(answer, int), "the command is answered with a count"
            return answer

        state = self._shard.state.channels[channel_id].state
        # Count stored events only, because the client may name any range of ids.
        buried = len(state.stored.overlap(IdSet(spans)))
        room = int(2 * (state.event_bytes + min(len(reason), REASON_CHARACTERS_MAX))) * buried
        settles = channel_id, command
        count: int = await self._shard.ask(
            RunAction(bury, sweeps=(channel_id,), room=room, settles=settles)
        )
        return count

    def _channel_id(self, subscription: int) -> int:
        channel_id = self._channel_of(subscription)
        if channel_id is None:
            raise IllegalState("the durable is no longer held; hold it again")
        return channel_id


def _describe(state: ChannelState, durable: Durable, ids: IdSet, now_us: int) -> Outstanding:
    """Return the outstanding events ``ids`` of a durable with their redeliveries and delays."""
    if state.overdue:
        ids = ids.copy()
        # Expired events are hidden from clients while they wait to be moved (SEM T1).
        ids.discard_all(state.expired(now_us))
    counts = []
    for count, spans in durable.redeliveries(ids.spans):
        counts.append((count, stored_form(id_set(spans))))
    waits = durable.waiting.by_time(ids) if durable.waiting else []
    delayed = tuple((until_us, stored_form(waiting)) for until_us, waiting in waits)
    return Outstanding(stored_form(ids), tuple(counts), delayed)
