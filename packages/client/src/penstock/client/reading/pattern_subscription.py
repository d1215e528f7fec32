"""Subscriptions to all channels of a pattern, including channels created later (SEM D21)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

from penstock.client.connection import tracing
from penstock.client.connection.arguments import Duration, check_count, timeout_s
from penstock.client.connection.connection import RealmConnection
from penstock.client.reading.channel_ring import ChannelRing
from penstock.client.reading.delivered import DeliveredBatch, DeliveringLoops
from penstock.client.reading.durable_subscription import DurableSubscription
from penstock.client.reading.looping import Looping, ReceivingLoops
from penstock.client.reading.merging import Merger, key_name_of
from penstock.client.reading.received import ReceivedBatch
from penstock.client.reading.settlements import Settlements
from penstock.client.reading.subscription import Subscription
from penstock_core.api.channels import ChannelOpened
from penstock_core.display import safe_repr
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.start_positions import AnyStart, FromEarliest

B = TypeVar("B", ReceivedBatch, DeliveredBatch)

CHANNEL_BUFFER_BYTES = 1 << 20
"""Default limit of the unread bytes of each channel of a pattern, held by the client or in
transit."""


class PatternLoops(Looping[B]):
    """Loops over the events of all channels of a pattern."""

    _ring: ChannelRing[Any]
    _timeout: float | None

    @safe_repr
    def __repr__(self) -> str:
        name, count = type(self).__name__, len(self._ring.members)
        state = "open" if self._ring.is_open else "not open"
        return f"<{name} of {self._ring.description}, {state}, {count} channels>"

    @property
    def channels(self) -> list[str]:
        """The names of the channels that the subscription reads now, sorted."""
        return self._ring.channels

    async def open(self) -> Self:
        """Open the subscription and return it; ``async with`` and iterating also do so. Raises
        ``InvalidSelector``, ``AccessDenied``; with a durable also ``DurableInUse``,
        ``InvalidArgument``, and ``NameDoesNotExist`` if no channel of the pattern has the
        durable."""
        await self._ring.open()
        return self

    async def next_batch(self, timeout: Duration | None = None) -> B | None:
        """Return the next events, all of one channel; None if none arrive within ``timeout``
        seconds (default: the subscription's timeout)."""
        timeout = timeout_s(timeout)
        await self.open()
        self._ring.put_back(self._loops.rests())
        waiting = self._ring.next_batch(self._timeout if timeout is None else timeout)
        batch: B | None = await tracing.received(self._ring.source, waiting)
        return batch

    async def __aenter__(self) -> Self:
        return await self.open()


class PatternSubscription(PatternLoops[ReceivedBatch], ReceivingLoops):
    """A subscription to all channels of a pattern: ``session.subscribe("orders/*")``.

    Each channel's events are delivered in the order of their ids, each once; the channels take
    turns. ``event.channel`` is the name of the channel. After a reconnect delivery continues with
    the next events. Iterate over the subscription for single events, or over :meth:`batches` for
    batches with Arrow columns, each of one channel.
    """

    def __init__(
        self,
        connection: RealmConnection,
        pattern: str,
        start: AnyStart,
        *,
        selector: str = "",
        timeout: Duration | None = None,
        merged: bool = False,
        buffer_bytes: int = CHANNEL_BUFFER_BYTES,
    ) -> None:
        timeout = timeout_s(timeout)
        check_count(buffer_bytes, "buffer_bytes", "bytes")
        self._timeout = timeout

        def make(channel: ChannelOpened, is_new: bool, arrives: Callable[[], None]) -> Subscription:
            definition = channel.definition
            merges = merged and definition.engine == "merge"
            return Subscription(
                connection,
                channel.channel,
                FromEarliest() if is_new else start,
                selector=selector,
                merger=Merger(key_name_of(channel.name, definition)) if merges else None,
                buffer_bytes=buffer_bytes,
                channel_name=channel.name,
                on_arrival=arrives,
            )

        self._ring: ChannelRing[Subscription] = ChannelRing(connection, choice_of(pattern), make)
        super().__init__(self._ring)

    async def close(self) -> None:
        """End the subscription. If it is opened again, each channel continues with the first event
        that was not delivered."""
        self._ring.put_back(self._loops.all_rests())
        self._loops.closed()
        await self._ring.close()


class PatternDurableSubscription(PatternLoops[DeliveredBatch], DeliveringLoops):
    """A subscription of a durable on several channels: it has a seat on each channel whose name
    matches the pattern and that has a durable of this name, as in
    ``session.subscribe("orders/*", durable="billing")``.

    Events are acknowledged and rolled back like those of any durable. ``event.channel`` is the name
    of their channel. Iterate over the subscription for single events, or over :meth:`batches` for
    batches with Arrow columns, each of one channel.
    """

    def __init__(
        self,
        connection: RealmConnection,
        pattern: str,
        durable: str,
        *,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: Duration | None = None,
        buffer_bytes: int = CHANNEL_BUFFER_BYTES,
    ) -> None:
        timeout = timeout_s(timeout)
        if window is not None:
            check_count(window, "window")
            if auto_ack:
                raise InvalidArgument(
                    "a window implies manual acknowledgement; give window or auto_ack, not both"
                )
        self._timeout = timeout

        def make(
            channel: ChannelOpened, _is_new: bool, arrives: Callable[[], None]
        ) -> DurableSubscription:
            return DurableSubscription(
                connection,
                channel.channel,
                durable,
                window=window,
                auto_ack=auto_ack,
                selector=selector,
                buffer_bytes=buffer_bytes,
                channel_name=channel.name,
                on_arrival=arrives,
            )

        self._ring: ChannelRing[DurableSubscription] = ChannelRing(
            connection, choice_of(pattern), make, durable=durable
        )
        super().__init__(self._ring, auto_ack=auto_ack)

    async def flush(self) -> None:
        """Wait until the realm has stored all settlements so far, on all channels. Raises the error
        of the first refused settlement, and ``ConnectionLost`` if the connection was lost before
        all of them were confirmed."""
        for settlements in self._settlements():
            await settlements.confirm()
        self._raise_first()

    def _settlements(self) -> list[Settlements]:
        seats = (member.inner for member in self._ring.members.values())
        return [*self._ring.ended, *(seat._settlements for seat in seats)]

    def _raise_first(self) -> None:
        for settlements in self._settlements():
            settlements.raise_first()
        self._ring.ended.clear()

    async def close(self) -> None:
        """Wait until settlements are confirmed, return unsettled events to the durables, and leave
        the seats. Raises, as :meth:`flush` does, the first refused or lost settlement that has not
        been raised yet."""
        await self._close_quietly()
        self._raise_first()

    async def _close_quietly(self) -> None:
        self._loops.closed()
        await self._ring.close()
        for settlements in self._ring.ended:
            await settlements.confirm()
