"""Dispatch: reads the events that the core grants, once each, and sends them to every receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from penstock_core.channel.channel import ChannelMachine
from penstock_core.columns.events.batch import within
from penstock_core.columns.keys.lane_values import lanes_of
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.loggers import logger
from penstock_core.messages.delivery import AssignLanes, SingleOut, Skip, StallSession, Withhold
from penstock_core.messages.retention import Quarantine
from penstock_core.vocabulary.effects import Deliver, Effect, FindInterested, FindLanes, ReportEnd
from penstock_core.vocabulary.errors import (
    Deposed,
    NameDoesNotExist,
    PenstockError,
    StorageFailed,
)
from penstock_core.vocabulary.identities import SubscriptionId
from penstock_core.vocabulary.ports import Blobs, Clock, Offload
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.access.internal_errors import as_internal_error, new_incident_id
from penstock_server.runtime.delivery.byte_credit import Room, split_spans
from penstock_server.runtime.delivery.choosers import Choosers, SelectorUse
from penstock_server.runtime.delivery.latencies import DeliveryLatencies
from penstock_server.runtime.delivery.merged_delivery import (
    KnownKeys,
    Made,
    SelectedRows,
    note_granted,
    outgoing,
)
from penstock_server.runtime.delivery.owner_lease import ENDLESS, OwnerLease
from penstock_server.runtime.delivery.prefetch import ReadAhead
from penstock_server.runtime.delivery.selection import (
    DEFAULT_LIMITS,
    Choosing,
    Following,
    SelectorLimits,
)
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.message_fields import messages_of
from penstock_server.runtime.store.open_files import CACHE_BYTES_MAX, OpenFiles
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch, others, spans_in
from penstock_server.runtime.store.sealed_file import Damage, FilesNotOpen

_log = logger("penstock.delivery")

Redeliveries = tuple[tuple[int, Spans], ...]
"""Numbers of earlier deliveries, each with the ids of the events that were delivered so often."""


class Outlet(Protocol):
    """The receiver of the events of one subscription, in a front end."""

    session: str
    selector: Selector | None
    """The subscription's own selector. A durable's stored selector was applied at publish."""

    @property
    def is_writable(self) -> bool:
        """Whether the connection accepts more events right now."""
        ...

    def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
        """Send events to the client. ``redeliveries`` has the events among them that were delivered
        before."""
        ...

    def recall(self, spans: Spans) -> None:
        """Tell the client that delivered events count as not delivered (SEM D11). Called only for
        seats at durables."""
        return

    def finished(self) -> None:
        """Called when a browse has reached its end, or a demand is met."""
        return

    def closed(self, reason: PenstockError) -> None:
        """Called when the realm has ended the subscription, for example because its channel or
        durable was deleted."""
        ...


class DeliveryObserver(Protocol):
    """Records deliveries, such as a tracer. Must not raise errors."""

    def __call__(
        self, channel: ChannelMachine, subscription: int, rows: OutgoingBatch, *, outlet: Outlet
    ) -> None: ...


class Quarantiner(Protocol):
    """The receiver of reports about unreadable events."""

    def quarantine(self, channel_id: int, command: Quarantine) -> None: ...


class _Round:
    """One pass over the effects that a channel offers. Each batch is read once, and sent to all
    subscriptions that receive it."""

    __slots__ = (
        "channel",
        "has_progress",
        "held_subscriptions",
        "merged_batches",
        "number",
        "passed_over",
        "quarantiner",
        "read_batches",
        "store",
    )

    def __init__(
        self,
        channel_id: int,
        channel: ChannelMachine,
        store: ChannelStore,
        quarantiner: Quarantiner,
    ) -> None:
        self.number = channel_id
        self.channel = channel
        self.store = store
        self.quarantiner = quarantiner
        self.read_batches: dict[Spans, tuple[list[OutgoingBatch], Damage]] = {}
        """Batches that were read in this round, by the granted spans."""
        self.merged_batches: Made = {}
        """Batches that were made from merged states in this round."""
        self.held_subscriptions: set[int] = set()
        """Subscriptions without room for an event. They get no later events in this round, so that
        their order is kept."""
        self.has_progress = False
        """Whether a subscriber has made progress in this round."""
        self.passed_over = 0
        """Number of selector comparisons for events that were passed over without reading them."""


class Dispatch:
    """All subscriptions of a realm, with their outlets."""

    observe: DeliveryObserver | None = None
    """Called with each batch that an outlet got; None if deliveries are not recorded."""

    def __init__(
        self,
        blobs: Blobs,
        clock: Clock,
        offload: Offload,
        *,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        lease: OwnerLease = ENDLESS,
        name_of: Callable[[int], str | None] = lambda _: None,
        selectors: SelectorLimits = DEFAULT_LIMITS,
    ) -> None:
        self._blobs = blobs
        self.lease = lease
        """Deliveries wait until this lease holds."""
        self.choosing = Choosing(offload, clock, selectors)
        self.choosers = Choosers(
            self.choosing, clock, self._is_open, on_failed=self._chooser_failed
        )
        """The subscriptions that wait until a thread has evaluated their slow selectors."""
        self.files = OpenFiles(blobs, cache_bytes_max)
        self.files_at = ""
        """URI of the folder or bucket with a cluster's files; empty if other processes cannot read
        the files."""
        self.ahead = ReadAhead()
        self.incidents = Incidents(name_of)
        self.latencies = DeliveryLatencies()
        self.withheld = {"answers": 0, "deliveries": 0}
        """Counts of answers and deliveries that waited for the lease."""
        self._clock = clock
        self._outlets: dict[int, tuple[int, Outlet]] = {}
        self._deletion_listeners: list[Callable[[int], None]] = []
        self.on_failed: Callable[[int], None] = lambda subscription: None
        """Called with a subscription that the delivery has ended because of a failure, so that its
        events in flight go back to the channel."""
        self._next = 1
        self._rooms: dict[int, Room] = {}
        """The byte credit of each subscription that has a limit in bytes."""
        self.following = Following()
        """Selectors of subscriptions that wait for new events."""
        self._known: dict[int, KnownKeys] = {}
        """The keys whose states the client of a subscription with deltas has, by subscription (SEM
        K3)."""

    # --- subscriptions -------------------------------------------------------------------

    def open(
        self,
        channel_id: int,
        outlet: Outlet,
        *,
        deltas: bool = False,
        room: Room | None = None,
    ) -> SubscriptionId:
        """Register an outlet on a channel and return the subscription's number in the realm.

        With ``deltas``, changes of states that the client has are sent as deltas (SEM K3). ``room``
        limits the bytes on their way to the client.
        """
        # Numbers are never used twice, so a late request cannot reach another subscription.
        subscription = SubscriptionId(self._next)
        if room is not None:
            self._rooms[subscription] = room
        if deltas:
            self._known[subscription] = KnownKeys()
        self._next += 1
        self._outlets[subscription] = (channel_id, outlet)
        return subscription

    def close(self, subscription: int) -> None:
        self._outlets.pop(subscription, None)
        self._known.pop(subscription, None)
        self._rooms.pop(subscription, None)
        self.following.remove(subscription)
        self.choosers.forget(subscription)

    def follow(self, subscription: int) -> bool:
        """Index a subscription's selector by the property values that it tests, so that new events
        find it. Return False if the selector cannot be indexed."""
        channel_id, outlet = self._outlets.get(subscription, (0, None))
        if outlet is None or outlet.selector is None:
            return False
        return self.following.add(channel_id, subscription, outlet.selector)

    def consumed(self, subscription: int, size: int) -> bool:
        """Release ``size`` bytes, which the client's application has consumed. Return whether an
        event of any size may be sent now."""
        room = self._rooms.get(subscription)
        if room is None:
            return False
        room.consumed(size)
        return room.is_half_free

    def on_gone(self, listener: Callable[[int], None]) -> None:
        """Register ``listener``, called with the number of each deleted channel or queue."""
        self._deletion_listeners.append(listener)

    def channel_gone(self, channel_id: int) -> None:
        """End the subscriptions of a deleted channel and notify the listeners."""
        self.ahead.forget(channel_id)
        for listener in self._deletion_listeners:
            try:
                listener(channel_id)
            except Exception as failure:  # noqa: BLE001  the other listeners must be called
                self._note(channel_id, failure)
        subscriptions = [n for n, (channel, _) in self._outlets.items() if channel == channel_id]
        self.ended(subscriptions, NameDoesNotExist("the channel was deleted"))

    def ended(self, subscriptions: list[int], reason: PenstockError) -> None:
        """End subscriptions and notify their outlets of the reason. A subscription has ended even
        if its outlet fails."""
        for subscription in subscriptions:
            registration = self._outlets.get(subscription)
            self.close(subscription)
            if registration is not None:
                try:
                    registration[1].closed(reason)
                except Exception as failure:  # noqa: BLE001  the others must be notified
                    self._note(registration[0], failure)

    def channels_of(self, session: str) -> list[int]:
        """Return the channels that a session subscribes to, without duplicates, in stable order."""
        channels = {n: None for n, outlet in self._outlets.values() if outlet.session == session}
        return list(channels)

    def local_path(self, name: str) -> str | None:
        """Return a path that other processes can use to map a file; None if they cannot."""
        return self._blobs.local_path(name)

    @property
    def count(self) -> int:
        """Number of open subscriptions."""
        return len(self._outlets)

    # --- delivering ----------------------------------------------------------------------

    async def rely(self, what: str = "deliveries") -> None:
        """Wait until the lease proves that ``what`` (``deliveries`` or ``answers``) may be sent to
        clients without an append. Raises ``Deposed``."""
        if not self.lease.holds():
            self.withheld[what] += 1
            await self.lease.held()

    def recall(self, channel: ChannelMachine) -> None:
        """Tell the subscriptions of ``channel`` which events it recalls (SEM D11)."""
        for recalled in channel.recalls():
            registration = self._outlets.get(recalled.subscription)
            if registration is not None:
                try:
                    registration[1].recall(recalled.spans)
                except Exception as failure:  # noqa: BLE001  ends this subscription alone
                    self._fail(registration[0], channel, [recalled.subscription], failure=failure)

    async def perform(
        self,
        channel_id: int,
        channel: ChannelMachine,
        store: ChannelStore,
        quarantiner: Quarantiner,
        below: int | None = None,
    ) -> bool:
        """Carry out the effects that ``channel`` offers for events with ids below ``below``, or for
        all events if it is None. Return whether any subscriber made progress; otherwise the channel
        would offer the same again.

        If all offered events are passed over, because no selector can match them, the channel
        offers further events in the same turn: passing over a record batch takes less time than a
        turn.

        An unexpected failure ends the subscription that it concerns; if this subscription is
        unknown, the failure ends all subscriptions of the channel.
        """
        has_progress, work = False, 0
        while True:
            round_ = _Round(channel_id, channel, store, quarantiner=quarantiner)
            await self._perform(round_, below)
            has_progress |= round_.has_progress
            work += round_.passed_over
            only_passed = round_.passed_over and not round_.read_batches and below is None
            may_continue = only_passed and work <= self.choosing.limits.passed_work
            if not (may_continue and channel.has_offers):
                return has_progress

    async def _perform(self, round_: _Round, below: int | None) -> None:
        """Carry out the effects of one round. An unexpected failure ends all subscriptions of the
        channel."""
        channel = round_.channel
        try:
            for effect in channel.offer(below, now_us=self._clock.now_us()):
                round_.has_progress |= await self._try_to_perform(round_, effect)
        except (StorageFailed, Deposed):  # these end the shard, not a subscription
            raise
        except Exception as failure:
            concerned = [*channel.state.subscribers, *channel.state.seats]
            if not concerned:  # without a subscription to end, the failure would repeat forever
                raise
            self._fail(round_.number, channel, concerned, failure=failure)
        # The next delivery can be predicted only if there was exactly one read, and further events
        # wait: after the newest event, a prediction would cost a turn of the loop and read nothing.
        if len(round_.read_batches) == 1:
            ((spans, (rows, _)),) = round_.read_batches.items()
            if spans[-1].end < channel.state.next_id:
                self.ahead.delivered(round_.number, spans, rows)

    async def _try_to_perform(self, round_: _Round, effect: Effect) -> bool:
        """Carry out an effect and return whether any subscriber made progress. A failure ends the
        subscriptions that it concerns."""
        try:
            if isinstance(effect, FindLanes):
                await self._find_lanes(round_, effect)
                return False
            if isinstance(effect, FindInterested):
                await self._find_interested(round_, effect)
                return False
            assert isinstance(effect, Deliver | ReportEnd), "channels know no other effects"
            return await self._serve_subscription(round_, effect)
        except (StorageFailed, Deposed):
            raise
        except Exception as failure:  # noqa: BLE001  the others must be served
            concerned = _concerned(round_.channel, effect)
            self._fail(round_.number, round_.channel, concerned, failure=failure)
            return False

    async def _serve_subscription(self, round_: _Round, effect: Deliver | ReportEnd) -> bool:
        """Deliver events to one subscription, or report an end to it. Return whether it made
        progress."""
        channel = round_.channel
        registration = self._outlets.get(effect.subscription)
        if registration is None:  # the subscription has ended; the shard processes that later
            self._give_back(channel, effect)
            return False
        outlet = registration[1]
        if isinstance(effect, ReportEnd):
            seat = channel.state.seats.get(effect.subscription)
            if seat is not None and seat[1].demand:
                return False  # events that meet the demand were withheld and come later
            await self.rely()
            outlet.finished()
            return True
        sent = await self._deliver(round_, effect, outlet)
        if not outlet.is_writable:
            # The round may have further deliveries for this demand, which must also be held.
            round_.held_subscriptions.add(effect.subscription)
            command = StallSession(outlet.session, stalled=True)
            channel.attend(command, self._clock.now_us())
        # A plain subscriber makes progress even if all events are passed over: its cursor moves.
        return sent or effect.subscription in channel.state.subscribers

    def _fail(
        self, channel_id: int, channel: ChannelMachine, subscriptions: list[int], failure: Exception
    ) -> None:
        """End subscriptions that could not be served. Their events in flight go back to the channel
        and count as delivered, because some may have arrived (SEM D13)."""
        reason = as_internal_error(self._note(channel_id, failure))
        # The core removes the subscriptions first, so that it grants them no events while their
        # outlets are notified.
        for subscription in subscriptions:
            channel.leave(subscription)
        self.ended(subscriptions, reason)
        for subscription in subscriptions:
            self.on_failed(subscription)

    def _note(self, channel_id: int, failure: Exception) -> str:
        """Log an unexpected failure and return the incident id that identifies it in the log."""
        incident = new_incident_id()
        _log.error("delivery.failed", incident=incident, channel=channel_id, exc_info=failure)
        return incident

    async def _find_lanes(self, round_: _Round, effect: FindLanes) -> None:
        """Read which lanes events belong to. Unreadable events get no lane."""
        rows, damage = await self.read(round_.store, effect.spans)
        self._report(round_, damage)
        keys, ends, ids = lanes_of([part.batch for part in rows], effect.property)
        command = AssignLanes(effect.durable, effect.spans[-1].end, keys, ends=ends, ids=ids)
        round_.channel.attend(command, self._clock.now_us())

    async def _find_interested(self, round_: _Round, effect: FindInterested) -> None:
        """Find the followers whose selectors may match events. Unreadable events match none."""
        rows, _ = await self._rows(round_, effect.spans)
        followers = self.following.interested(round_.number, rows, messages_of(round_.channel))
        round_.channel.attend(SingleOut(followers), self._clock.now_us())

    def _is_open(self, subscription: int) -> bool:
        return subscription in self._outlets

    def _chooser_failed(self, subscription: int, failure: Exception) -> None:
        """End a subscription whose selector takes too long, or fails on its events."""
        if not isinstance(failure, PenstockError):
            failure = as_internal_error(self._note(self._outlets[subscription][0], failure))
        self.ended([subscription], failure)
        self.on_failed(subscription)

    def _give_back(self, channel: ChannelMachine, effect: Deliver | ReportEnd) -> None:
        """Return events to the channel that it has granted to an ended subscription. They count as
        not delivered, because they were not sent. Events of a plain subscriber wait for the
        subscription that resumes its position (SEM J5)."""
        channel.leave(effect.subscription)
        if isinstance(effect, ReportEnd):
            return
        subscription, spans, now_us = effect.subscription, effect.spans, self._clock.now_us()
        if subscription in channel.state.subscribers:
            channel.attend(Withhold(subscription, spans, is_full=True), now_us)
        else:
            channel.attend(Skip(subscription, spans), now_us)

    async def _deliver(self, round_: _Round, effect: Deliver, outlet: Outlet) -> bool:
        """Deliver granted events and return whether any were sent. The core gets commands for the
        events that were not sent: ``Skip`` for events that the selector does not match or that are
        damaged, ``Withhold`` for events that have no room yet."""
        if effect.subscription in round_.held_subscriptions:
            self._withhold(round_, effect, effect.spans[0].first)
            return False
        known_keys = self._known.get(effect.subscription)
        if known_keys is not None and isinstance(round_.store, MergeStore):
            return await self._deliver_merged(
                round_, round_.store, known_keys, effect=effect, outlet=outlet
            )
        now_us = self._clock.now_us()
        selector, spans = outlet.selector, effect.spans
        unsent: list[Span] = []
        sent, held_from = False, None
        if selector is not None:
            messages = messages_of(round_.channel)
            spans = round_.store.promising(spans, selector, now_us, messages=messages)
            if spans != effect.spans:
                unsent += others(effect.spans, spans)
        if spans:
            sent, held_from = await self._deliver_read(
                round_, effect, outlet, spans=spans, unsent=unsent
            )
        elif selector is not None:
            round_.passed_over += selector.work
        # Events after the first withheld one were not examined, so they must not be skipped.
        if held_from is not None:
            unsent = list(split_spans(tuple(unsent), held_from)[0])
        if unsent:
            round_.channel.attend(Skip(effect.subscription, tuple(unsent)), now_us)
        self._withhold(round_, effect, held_from)
        if held_from is None and selector is not None:
            self.choosers.drop_results(effect.subscription, effect.spans[-1].end)
        return sent

    async def _deliver_read(
        self, round_: _Round, effect: Deliver, outlet: Outlet, spans: Spans, unsent: list[Span]
    ) -> tuple[bool, int | None]:
        """Send the events of ``spans`` that the outlet's selector matches, and add the other events
        to ``unsent``. Return whether any were sent, and the first id that has to wait; None if no
        event has to wait."""
        sent = False
        rows, damage = await self._rows(round_, spans)
        unsent += damage.ids.spans
        use = self._use(round_.channel, outlet)
        for part, matching_rows in self.choosers.chosen(
            effect.subscription, outlet.session, use, rows=rows
        ):
            if matching_rows is not part:
                unsent += others(
                    part.spans, matching_rows.spans if matching_rows is not None else ()
                )
            if matching_rows is not None:
                if not self.lease.holds():
                    await self.rely()
                was_sent, held_from = self.send(round_.channel, matching_rows, effect, outlet)
                sent |= was_sent
                if held_from is not None:
                    return sent, held_from
        return sent, self.choosers.waits_from(effect.subscription)

    def _use(self, channel: ChannelMachine, outlet: Outlet) -> SelectorUse | None:
        """Return the outlet's selector with the present time; None without a selector."""
        if outlet.selector is None:
            return None
        return SelectorUse(outlet.selector, self._clock.now_us(), messages_of(channel))

    def send(
        self, channel: ChannelMachine, rows: OutgoingBatch, effect: Deliver, outlet: Outlet
    ) -> tuple[bool, int | None]:
        """Send rows. Return whether any were sent, and the first id without room; None if all rows
        were sent."""
        room = self._rooms.get(effect.subscription)
        seat = channel.state.seats.get(effect.subscription)
        sent = False
        for frame in rows.frames:
            fits = frame if room is None else room.fitting(frame)
            if fits is not None:
                outlet.deliver(fits, effect.redeliveries)
                sent = True
                if self.observe is not None:
                    self.observe(channel, effect.subscription, fits, outlet=outlet)
                if seat is not None:
                    redelivered, now_us = effect.redeliveries, self._clock.now_us()
                    self.latencies.note(seat[0], fits, redelivered, now_us)
                if room is not None:
                    room.sent(room.size_of(fits))
            if fits is not frame:
                return sent, frame.spans[0].first if fits is None else fits.spans[-1].end
        return sent, None

    def _withhold(self, round_: _Round, effect: Deliver, held_from: int | None) -> None:
        """Report to the core the granted events from id ``held_from`` on, which were not sent: the
        client has no room for them, or an expensive selector is not evaluated yet. The core grants
        them again later."""
        room = self._rooms.get(effect.subscription)
        if held_from is None and (room is None or not room.is_full):
            return
        spans: Spans = ()
        if held_from is not None:
            spans = split_spans(effect.spans, held_from)[1]
            round_.held_subscriptions.add(effect.subscription)
        command = Withhold(
            effect.subscription,
            spans,
            is_full=room is not None and not room.is_half_free,
            is_choosing=self.choosers.has(effect.subscription),
        )
        round_.channel.attend(command, self._clock.now_us())

    async def _deliver_merged(
        self,
        round_: _Round,
        store: MergeStore,
        known_keys: KnownKeys,
        effect: Deliver,
        outlet: Outlet,
    ) -> bool:
        """Deliver granted events of a merge channel as full events or deltas. Return whether any
        were sent."""
        channel, now_us = round_.channel, self._clock.now_us()
        spans, selected_rows, held_from = self._chosen_merged(channel, store, effect, outlet=outlet)
        rows, skipped = (
            outgoing(
                store, known_keys, spans, selected_rows=selected_rows, made=round_.merged_batches
            )
            if spans
            else ([], ())
        )
        if skipped:
            channel.attend(Skip(effect.subscription, skipped), now_us)
        if rows:
            await self.rely()
        for part in rows:
            for frame in part.frames:
                outlet.deliver(frame, ())
                if self.observe is not None:
                    self.observe(channel, effect.subscription, frame, outlet=outlet)
                if (room := self._rooms.get(effect.subscription)) is not None:
                    room.sent(room.size_of(frame))
        self._withhold(round_, effect, held_from)
        if (subscriber := channel.state.subscribers.get(effect.subscription)) is not None:
            note_granted(known_keys, subscriber.cursor, channel.state.next_id)
        return bool(rows)

    def _chosen_merged(
        self, channel: ChannelMachine, store: MergeStore, effect: Deliver, outlet: Outlet
    ) -> tuple[Spans, SelectedRows | None, int | None]:
        """Apply the outlet's selector to granted merged events.

        Return the spans that may be sent now, the rows of them that the selector matches (None
        without a selector), and the first id that waits because the selector takes long.
        """
        spans, use = effect.spans, self._use(channel, outlet)
        rows_merged = None if use is None else store.merged_rows(spans)
        if use is None or rows_merged is None:
            return spans, None, None
        subscription = effect.subscription
        if (mask := self.choosers.mask_now(subscription, use, rows_merged.batch)) is not None:
            return spans, SelectedRows(rows_merged, mask), None
        matched = IdSet()
        rows = [OutgoingBatch(spans_in(rows_merged.batch), batch=rows_merged.batch)]
        for _, part in self.choosers.chosen(subscription, outlet.session, use, rows=rows):
            matched.add_all(IdSet(() if part is None else part.spans))
        held_from = self.choosers.waits_from(subscription)
        if held_from is not None:
            spans = split_spans(spans, held_from)[0]
            rows_merged = store.merged_rows(spans) if spans else None
        else:
            self.choosers.drop_results(subscription, spans[-1].end)
        if rows_merged is None:
            return spans, None, held_from
        return (
            spans,
            SelectedRows(rows_merged, pa.array(within(rows_merged.ids, matched.spans))),
            held_from,
        )

    async def _rows(self, round_: _Round, spans: Spans) -> tuple[list[OutgoingBatch], Damage]:
        """Return the stored events of ``spans``, and the damage among them. They are read once in a
        round; events that were prefetched are not read again."""
        rows_and_damage = round_.read_batches.get(spans)
        if rows_and_damage is not None:
            return rows_and_damage
        if (ready := self.ahead.take(round_.number, spans)) is not None:
            rows_and_damage = list(ready), Damage()
        else:
            state = round_.channel.state
            # Files with dead events that move stay open: steps of the writer read them (SEM T7).
            keep = state.definition.storage.enable_caching or state.moves_dead
            rows_and_damage = await self.read(round_.store, spans, keep=keep)
            self._report(round_, rows_and_damage[1])
        round_.read_batches[spans] = rows_and_damage
        return rows_and_damage

    async def read(
        self, store: ChannelStore, spans: Spans, *, keep: bool = True
    ) -> tuple[list[OutgoingBatch], Damage]:
        """Read the events of ``spans``. Files are opened as needed, and closed again unless
        ``keep``."""
        while True:
            if store.files:
                await self.open_files(store, spans)
            damage = Damage()
            try:
                rows = store.read(spans, damage)
                break
            except FilesNotOpen:  # a file has grown or was closed while another file was opened
                continue
        if not keep:
            for file in store.files_for(spans):
                self.files.close(file)
        return rows, damage

    async def open_files(self, store: ChannelStore, spans: Spans) -> None:
        """Map the files that have events of ``spans``."""
        if store.files and spans[0].first < store.sealed_end:
            await self.files.open(store.files_for(spans))

    def _report(self, round_: _Round, damage: Damage) -> None:
        """Log damaged events and put them into quarantine."""
        if damage.ids:
            for reason in damage.reasons:
                _log.error("events.quarantined", channel=round_.number, reason=reason)
            round_.store.quarantined += damage.reasons
            round_.quarantiner.quarantine(round_.number, Quarantine(damage.ids.spans))


def _concerned(channel: ChannelMachine, effect: Effect) -> list[int]:
    """Return the subscriptions that an effect concerns."""
    if isinstance(effect, FindLanes):
        return [seat.subscription for seat in channel.state.durables[effect.durable].seats]
    if isinstance(effect, FindInterested):
        return list(channel.state.followers.members)
    assert isinstance(effect, Deliver | ReportEnd), "channels know no other effects"
    return [effect.subscription]
