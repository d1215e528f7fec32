"""From ids to bytes on their way: what the core grants is read once and sent to each receiver."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
import structlog

from penstock.columns.digest import spans_of
from penstock.columns.lane_values import lanes_of
from penstock.columns.selectors import Selector
from penstock.core.channel import Channel
from penstock.core.effects import Deliver, FindLanes, Finished
from penstock.core.errors import NameDoesNotExist, PenstockError
from penstock.core.ids import IdSet, Span
from penstock.core.lanes import AssignLanes
from penstock.core.messages import Quarantine, Skip, Spans
from penstock.core.ports import Blobs, Clock
from penstock.runtime.channel_store import ChannelStore
from penstock.runtime.message_fields import messages_of
from penstock.runtime.open_files import CACHE_BYTES_MAX, OpenFiles
from penstock.runtime.rows import Rows
from penstock.runtime.sealed_file import Damage

_log = structlog.get_logger("penstock.delivery")

FRAME_MAX = 16 << 20
"""Larger batches are sent in parts."""

Redeliveries = tuple[tuple[int, Spans], ...]


class Outlet(Protocol):
    """Where the events of one subscription go."""

    session: str
    selector: Selector | None
    """The subscription's own; a durable's stored selector was applied at publish."""

    @property
    def writable(self) -> bool:
        """Whether the connection takes more right now."""
        ...

    def deliver(self, rows: Rows, redeliveries: Redeliveries) -> None: ...

    def recall(self, spans: Spans) -> None:
        """These were delivered and count as if they had not been (SEM D11)."""
        ...

    def finished(self) -> None:
        """A browse is at its end, a demand is met."""
        ...

    def closed(self, reason: PenstockError) -> None:
        """The subscription is over: its channel or durable is gone."""
        ...


class Quarantiner(Protocol):
    """Who is told of unreadable events."""

    def quarantine(self, number: int, command: Quarantine) -> None: ...


class Dispatch:
    """All subscriptions of a realm, and the way to them."""

    def __init__(
        self, blobs: Blobs, clock: Clock, *, cache_bytes_max: int = CACHE_BYTES_MAX
    ) -> None:
        self._blobs = blobs
        self.files = OpenFiles(blobs, cache_bytes_max)
        self._clock = clock
        self._outlets: dict[int, tuple[int, Outlet]] = {}
        self._next = 1

    # --- who is there --------------------------------------------------------------------

    def open(self, number: int, outlet: Outlet) -> int:
        """Register an outlet on channel ``number``; gives the subscription's realm-wide number."""
        subscription = self._next
        self._next += 1
        self._outlets[subscription] = (number, outlet)
        return subscription

    def close(self, subscription: int) -> None:
        self._outlets.pop(subscription, None)

    def channel_gone(self, number: int) -> None:
        for subscription, (own, outlet) in list(self._outlets.items()):
            if own == number:
                del self._outlets[subscription]
                outlet.closed(NameDoesNotExist("the channel was deleted"))

    def ended(self, subscriptions: list[int], reason: PenstockError) -> None:
        """The realm has ended these."""
        for subscription in subscriptions:
            held = self._outlets.pop(subscription, None)
            if held is not None:
                held[1].closed(reason)

    def channels_of(self, session: str) -> list[int]:
        found = {n: None for n, outlet in self._outlets.values() if outlet.session == session}
        return list(found)

    def local_path(self, name: str) -> str | None:
        """Where other processes can map a file."""
        return self._blobs.local_path(name)

    @property
    def count(self) -> int:
        return len(self._outlets)

    # --- what goes out -------------------------------------------------------------------

    def recall(self, channel: Channel) -> None:
        """Tell those concerned what ``channel`` takes back (SEM D11)."""
        for recalled in channel.recalls():
            held = self._outlets.get(recalled.subscription)
            if held is not None:
                held[1].recall(recalled.spans)

    async def perform(
        self,
        number: int,
        channel: Channel,
        store: ChannelStore,
        quarantiner: Quarantiner,
        below: int | None = None,
    ) -> bool:
        """Carry out what ``channel`` offers (of events under ``below``).

        Tells whether anybody has come further by it: what could not be sent to a client of a
        durable is offered again and again.
        """
        has_moved = False
        read: dict[Spans, tuple[list[Rows], Damage]] = {}
        for effect in channel.offer(below):
            if isinstance(effect, FindLanes):
                await self._find_lanes(effect, number, channel, store, quarantiner)
                continue
            held = self._outlets.get(_subscription(effect))
            if held is None:  # its end waits at the shard: what was not sent was not delivered
                channel.leave(_subscription(effect))
                if isinstance(effect, Deliver):
                    channel.attend(Skip(effect.subscription, effect.spans), self._clock.now_us())
                continue
            outlet = held[1]
            match effect:
                case Finished():
                    has_moved = True
                    outlet.finished()
                case Deliver(subscription, spans, redeliveries):
                    if spans not in read:
                        state = channel.state
                        keep = state.definition.storage.enable_caching or state.moves_dead
                        read[spans] = await self.read(store, spans, keep=keep)
                        self._report(number, store, read[spans][1], quarantiner)
                    rows, damage = read[spans]
                    if damage.ids:
                        channel.attend(Skip(subscription, damage.ids.spans), self._clock.now_us())
                    sent = self._send(channel, subscription, outlet, rows, redeliveries)
                    has_moved |= sent or subscription in channel.state.subscribers
                    if not outlet.writable:
                        channel.stall(outlet.session, stalled=True)
                case _:
                    raise AssertionError(f"no such effect: {effect}")
        return has_moved

    async def _find_lanes(
        self,
        wanted: FindLanes,
        number: int,
        channel: Channel,
        store: ChannelStore,
        quarantiner: Quarantiner,
    ) -> None:
        """Look which lanes events are in; those that cannot be read are in none."""
        rows, damage = await self.read(store, wanted.spans)
        self._report(number, store, damage, quarantiner)
        keys, ends, ids = lanes_of([part.batch for part in rows], wanted.order_by)
        command = AssignLanes(wanted.durable, wanted.spans[-1].end, keys, ends, ids)
        channel.attend(command, self._clock.now_us())

    async def read(
        self, store: ChannelStore, spans: Spans, *, keep: bool = True
    ) -> tuple[list[Rows], Damage]:
        """The events of ``spans``; files are opened as needed, and closed unless ``keep``."""
        await self.open_files(store, spans)
        damage = Damage()
        rows = [part for whole in store.read(spans, damage) for part in whole.within(FRAME_MAX)]
        if not keep:
            for file in store.files_for(spans):
                self.files.close(file)
        return rows, damage

    async def open_files(self, store: ChannelStore, spans: Spans) -> None:
        """Map the files that hold some of ``spans``."""
        if store.files and spans[0].first < store.sealed_through:
            await self.files.open(store.files_for(spans))

    def _report(
        self, number: int, store: ChannelStore, damage: Damage, quarantiner: Quarantiner
    ) -> None:
        if damage.ids:
            for reason in damage.reasons:
                _log.error("events.quarantined", channel=number, reason=reason)
            store.quarantined += damage.reasons
            quarantiner.quarantine(number, Quarantine(damage.ids.spans))

    def _send(
        self,
        channel: Channel,
        subscription: int,
        outlet: Outlet,
        rows: list[Rows],
        redeliveries: Redeliveries,
    ) -> bool:
        """Whether any of it was for them."""
        if outlet.selector is None:
            for part in rows:
                outlet.deliver(part, redeliveries)
            return bool(rows)
        sent = False
        for part in rows:
            wanted, skipped = self._selected(channel, outlet.selector, part)
            if skipped:
                channel.attend(Skip(subscription, skipped), self._clock.now_us())
            if wanted is not None:
                outlet.deliver(wanted, redeliveries)
                sent = True
        return sent

    def _selected(
        self, channel: Channel, selector: Selector, rows: Rows
    ) -> tuple[Rows | None, Spans]:
        """The rows a selector matches, and the ids of the others."""
        mask = selector.mask(rows.batch, now_us=self._clock.now_us(), messages=messages_of(channel))
        if mask.true_count == len(mask):
            return rows, ()
        ids = IdSet(rows.spans)
        if mask.true_count == 0:
            return None, ids.spans
        batch = rows.batch.filter(mask)
        wanted = _placed(spans_of(mask), rows)
        skipped = ids.copy()
        for span in wanted:
            skipped.remove(span)
        return Rows(wanted, batch=batch, publishers=rows.publishers), skipped.spans


def _placed(offsets: Spans, rows: Rows) -> Spans:
    """Offsets inside ``rows`` as event ids."""
    if len(rows.spans) == 1:
        first = rows.spans[0].first
        return tuple(Span(*offset).shifted(first) for offset in offsets)
    ids: pa.Array = rows.batch.column(0)
    found = IdSet()
    for first, end in offsets:
        found.add_all(IdSet.of(ids.slice(first, end - first).to_pylist()))
    return found.spans


def _subscription(effect: object) -> int:
    assert isinstance(effect, Deliver | Finished), "channels know no other effects"
    return effect.subscription
