"""Subscribing, settling and purging: requests with ids, times and selectors."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from penstock_core.api.durables import DeliveryPage, DurableInfo
from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.delivery_state import Selected, delivery_runs
from penstock_core.columns.selectors import Selector
from penstock_core.durable.durable import Durable
from penstock_core.durable.queue import READERS
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.loggers import logger
from penstock_core.messages.delivery import ConfirmRecall, EndChoosing, SetDemand, StallSession
from penstock_core.messages.durables import AddDurable, PurgeOutstanding, RemoveDurable
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, GiveUpSeats, TakeLease, TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, Release, RollBack
from penstock_core.messages.subscribers import (
    AddKnownSubscriber,
    AddSubscriber,
    Disconnect,
    GrantCredit,
)
from penstock_core.vocabulary.delivery_runs import DeliveryPlace
from penstock_core.vocabulary.durable_attributes import DURABLE_DEFAULTS, DurableAttributes
from penstock_core.vocabulary.errors import (
    DurableUnbound,
    IllegalState,
    NameDoesNotExist,
    PenstockError,
)
from penstock_core.vocabulary.identities import ChannelId, SubscriptionId
from penstock_core.vocabulary.names import durable_name
from penstock_core.vocabulary.ports import Clock
from penstock_core.vocabulary.start_positions import AnyStart, FromId, FromTime
from penstock_server.runtime.delivery.byte_credit import Room
from penstock_server.runtime.delivery.delivery import Dispatch, Outlet
from penstock_server.runtime.subscriptions import views
from penstock_server.runtime.subscriptions.exclusive_hold import Holding
from penstock_server.runtime.subscriptions.resume_places import ResumePlaces, await_seats
from penstock_server.runtime.subscriptions.seeking import Seeking
from penstock_server.runtime.subscriptions.start_positions import first_id, keyed_spans
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.publish_selectors import refuse_costly
from penstock_server.runtime.writer.requests import (
    GrantRoom,
    Reply,
    RunAction,
    RunCommand,
    SeatHolder,
)
from penstock_server.runtime.writer.selector_scan import Among, Matching
from penstock_server.runtime.writer.shard import Shard
from penstock_server.runtime.writer.with_files import with_open_files

_ENDLESS = 1 << 62
"""End of a browse that continues with new events: an id above all event ids."""


_log = logger("penstock.realm")


class OpenedSubscription(NamedTuple):
    """A subscription that was opened."""

    number: SubscriptionId
    first_id: int = 0
    stop_id: int | None = None
    recalls: bool = False
    """Whether delivered events may be recalled (SEM D11)."""
    confirms: bool = False
    """Whether the client confirms the arrival of events (SEM J5)."""
    cumulative: bool = False
    ack_timeout_ms: int = 0


class Subscriptions:
    """The open subscriptions of a realm, and the requests about them."""

    def __init__(self, shard: Shard, dispatch: Dispatch, clock: Clock) -> None:
        self._shard = shard
        self.dispatch = dispatch
        self._clock = clock
        self._numbers: dict[int, ChannelId] = {}
        """Channel of each open subscription, by subscription id."""
        self._places = ResumePlaces()
        self._keeps_seats = False
        dispatch.on_failed = self.detach
        dispatch.choosers.on_chosen = self._grant_chosen
        self.holding = Holding(shard, self._numbers.get)
        self.seeking = Seeking(shard, dispatch)

    # --- plain subscriptions -------------------------------------------------------------

    async def subscribe(
        self,
        channel_id: ChannelId,
        start: AnyStart,
        outlet: Outlet,
        *,
        credit: int,
        browse: bool = False,
        last_id: int | None = None,
        place: str = "",
        confirms: bool = False,
        deltas: bool = False,
        endless: bool = False,
        room: Room | None = None,
    ) -> OpenedSubscription:
        """Open a subscription that gets stored events and then live ones, without a gap (SEM E6).

        ``place`` identifies the subscription on its next connection. A client that ``confirms``
        reports the arrival of events; after a lost connection it gets unconfirmed events again
        (SEM J5). With ``deltas`` the client gets changes of a merge channel as deltas (SEM K3). An
        ``endless`` browse continues with new events, but the channel keeps no events for it.
        ``room`` limits the bytes in flight.
        """
        # The outlet is registered before the writer's turn, because the group that adds the
        # subscriber also delivers to it.
        subscription = self.dispatch.open(
            channel_id, outlet, deltas=deltas and not browse, room=room
        )

        def subscribe(group: Group) -> OpenedSubscription:
            channel = group.channel(channel_id)
            group.sweep(channel_id)
            stop = None
            if browse:
                stop = _ENDLESS if endless else channel.state.next_id
                stop = stop if last_id is None else min(stop, last_id + 1)
            store = group.state.stores[channel_id]
            first = first_id(channel, store, start)
            command = AddSubscriber(
                subscription, outlet.session, first, stop_id=stop, credit=credit, confirms=confirms
            )
            if browse and not endless:
                # No other event that is stored now can match.
                command = replace(command, only=keyed_spans(channel, store, outlet.selector))
            if not (browse or channel.state.engine.needs_interest):
                command = replace(command, is_selective=self.dispatch.follow(subscription))
            elif not browse:
                if (selector := outlet.selector) is not None:
                    refuse_costly(group.state, channel_id, selector.text, selector=selector)
                command = self._with_interest(
                    command, channel_id, place, outlet=outlet, start=start
                )
            group.do(channel_id, command)
            opened = channel.state.subscribers[subscription]
            return OpenedSubscription(subscription, opened.cursor, stop, confirms=opened.confirms)

        # A time is searched among the stored events, whose files may be closed.
        reads = isinstance(start, FromTime)
        return await self._open(subscription, channel_id, subscribe, reads=reads)

    def _with_interest(
        self,
        command: AddSubscriber,
        channel_id: ChannelId,
        place: str,
        outlet: Outlet,
        start: AnyStart,
    ) -> AddSubscriber:
        """Return the command that subscribes to a channel with interest, which keeps events only
        for its subscribers. It has the selector, so that the channel keeps only matching events
        (SEM J2), and the former subscription of ``place``, whose missed events the new one gets
        (SEM J5)."""
        former = self._places.take(channel_id, place, command.subscription) if place else None
        if former is not None:
            # The server may not have noticed yet that the former connection is lost.
            self._numbers.pop(former, None)
            self.dispatch.close(former)
        # The channel applies the selector at publish; the outlet must not evaluate it again.
        selector, outlet.selector = outlet.selector, None
        text = selector.text if selector else ""
        fields = asdict(replace(command, resumes=former, selector=text))
        return AddKnownSubscriber(**fields, place=place, goes_on=isinstance(start, FromId))

    def lose(self, subscription: int, arrived: Spans = ()) -> None:
        """Handle the lost connection of a subscription. The events of a seat go back to the durable
        immediately (SEM D13). The place of a plain subscription is kept for a while (SEM J5);
        ``arrived`` are events whose arrival the client has confirmed and the core does not know
        yet."""
        if subscription not in self._places:
            self.detach(subscription)
            return
        channel_id = self._numbers.pop(subscription, None)
        if channel_id is None:
            return
        self.dispatch.close(subscription)
        self._shard.submit(RunCommand(channel_id, Disconnect(subscription, arrived)))

    def forget_places(self) -> None:
        """Forget places whose subscribers did not return in time. Called regularly."""
        self._places.forget(self._shard.state.channels, self._numbers)

    async def browse_durable(
        self,
        channel_id: ChannelId,
        name: str,
        outlet: Outlet,
        credit: int,
        *,
        first_id: int = 0,
        room: Room | None = None,
    ) -> OpenedSubscription:
        """Deliver the outstanding events of a durable in order, without changing it (SEM D16)."""
        subscription = self.dispatch.open(channel_id, outlet, room=room)

        def browse(group: Group) -> OpenedSubscription:
            state = group.channel(channel_id).state
            group.sweep(channel_id)
            durable = state.durable(name)
            outstanding = durable.outstanding_spans(state.stored)
            stop = outstanding[-1].end if outstanding else 0
            command = AddSubscriber(
                subscription,
                outlet.session,
                first_id,
                stop_id=stop,
                credit=credit,
                only=outstanding,
                durable=durable.name,
            )
            group.do(channel_id, command)
            return OpenedSubscription(subscription, first_id, stop)

        return await self._open(subscription, channel_id, browse)

    async def _open(
        self,
        subscription: int,
        channel_id: ChannelId,
        action: Callable[[Group], OpenedSubscription],
        *,
        reads: bool = False,
        chosen: tuple[Matching, Among] | None = None,
    ) -> OpenedSubscription:
        """Run the action that opens a subscription; end the subscription if that fails."""
        self._numbers[subscription] = channel_id
        try:
            opened: OpenedSubscription = await self._act(
                channel_id, action, reads=reads, chosen=chosen
            )
        except BaseException:
            # Also if the wait for the answer was cancelled, because then no client knows the
            # subscription.
            self.detach(subscription)
            raise
        return opened

    def credit(
        self,
        subscription: int,
        count: int,
        next_id: int = 0,
        *,
        withdrawn: int = 0,
        taken: int = 0,
    ) -> None:
        """Grant credit for ``count`` more events, and take back ``withdrawn`` credit. Record that
        all events sent with ids below ``next_id`` have arrived, and that the application has
        consumed ``taken`` bytes."""
        # An unknown id is not an error, because the subscription may just have ended.
        if channel_id := self._numbers.get(subscription):
            has_room = bool(taken) and self.dispatch.consumed(subscription, taken)
            command = GrantCredit(
                subscription, count, next_id, withdrawn=withdrawn, has_room=has_room
            )
            self._shard.submit(RunCommand(channel_id, command))

    def arrived(self, subscription: int, spans: Spans, reply: Reply) -> None:
        """Record that events have arrived at the client of a plain subscription (SEM J5)."""
        if channel_id := self._numbers.get(subscription):
            self._shard.submit(
                RunCommand(channel_id, GrantCredit(subscription, 0, arrived=spans), reply=reply)
            )

    # --- durables ------------------------------------------------------------------------

    async def create_durable(
        self,
        channel_id: ChannelId,
        name: str,
        kind: str,
        start: AnyStart,
        selector: str,
        *,
        persistent: bool | None,
        attributes: DurableAttributes = DURABLE_DEFAULTS,
    ) -> DurableInfo:
        name = durable_name(name)
        reads = isinstance(start, FromTime)

        def among(group: Group) -> IdSet:
            channel = group.channel(channel_id)
            first = first_id(channel, group.state.stores[channel_id], start)
            return channel.state.stored.within(Span(first, channel.state.next_id))

        matching = await self._matching_text(selector) if selector else None

        def create(group: Group) -> DurableInfo:
            channel = group.channel(channel_id)
            group.sweep(channel_id)
            first = first_id(channel, group.state.stores[channel_id], start)
            matched: Spans = ()
            if matching is not None:
                refuse_costly(group.state, channel_id, selector, selector=matching.selector)
                matched = matching.now(group, channel_id, among).spans
            command = AddDurable(
                name,
                kind,
                first,
                selector=selector,
                matched=matched,
                persistent=persistent,
                **asdict(attributes),
            )
            group.do(channel_id, command)
            return self._info(channel, channel.state.durable(name))

        chosen = None if matching is None else (matching, among)
        info: DurableInfo = await self._act(channel_id, create, reads=reads, chosen=chosen)
        _log.info("durable.created", name=info.name, channel=info.channel, type=info.type)
        return info

    async def delete_durable(self, channel_id: ChannelId, name: str) -> None:
        def delete(group: Group) -> tuple[str, list[int]]:
            state = group.channel(channel_id).state
            durable = state.durable(durable_name(name))
            seats = [seat.subscription for seat in durable.seats]
            group.state.directory.patterns.refuse_removal(state.name, durable.name)
            group.do(channel_id, RemoveDurable(name))
            return state.name, seats

        channel, seats = await self._shard.act(delete, sweeps=(channel_id,))
        _log.info("durable.deleted", name=name, channel=channel)
        self.ended(seats, NameDoesNotExist(f"durable {name} was deleted"))

    async def delete_consumed(
        self, name: str, consumed: Collection[ChannelId], agree: Callable[[], bool]
    ) -> bool:
        """Delete the durable ``name`` on all channels, if it has no outstanding event on the
        channels ``consumed``. Return whether the durable was deleted.

        ``agree`` is called in the turn of the writer that deletes the durable, so no event can be
        published between the call and the deletion. If ``agree`` returns False, the durable stays.
        The caller ends the subscriptions.
        """

        def delete(group: Group) -> bool:
            states = {id: channel.state for id, channel in group.state.channels.items()}
            channel_ids = [id for id, state in states.items() if name in state.durables]
            for channel_id in channel_ids:
                state = states[channel_id]
                if channel_id in consumed:
                    group.sweep(channel_id)
                    if state.durable(name).wanting(state.stored):
                        return False
            # Asked last, because only then the answer and the deletion belong together.
            if not agree():
                return False
            for channel_id in channel_ids:
                group.do(channel_id, RemoveDurable(name))
            return True

        return bool(await self._shard.act(delete))

    async def unbind(self, channel_id: ChannelId, name: str) -> int:
        """End all subscriptions of a durable, as if their clients had left (SEM D13, D14)."""

        def unbind(group: Group) -> list[int]:
            durable = group.channel(channel_id).state.durable(durable_name(name))
            seats = [seat.subscription for seat in durable.seats]
            # Iterates over a separate list, because each `Detach` removes a seat of the durable.
            for subscription in seats:
                group.do(channel_id, Detach(subscription))
            group.do(channel_id, GiveUpSeats(durable.name))
            return seats

        seats: list[int] = await self._shard.act(unbind, sweeps=(channel_id,))
        self.ended(
            seats,
            DurableUnbound(
                f"an administrator ended all subscriptions of durable {name}; its events went "
                f"back to the durable: subscribe again to continue"
            ),
        )
        return len(seats)

    def ended(self, seats: list[int], reason: PenstockError) -> None:
        """Close the subscriptions of ended seats, with the reason for their clients."""
        self.dispatch.ended(seats, reason)
        for subscription in seats:
            self._numbers.pop(subscription, None)

    async def durables(self, channel_id: ChannelId) -> list[DurableInfo]:
        def describe(group: Group) -> list[DurableInfo]:
            channel = group.channel(channel_id)
            group.sweep(channel_id)
            durables = channel.state.durables
            return [self._info(channel, durables[name]) for name in sorted(durables) if name]

        infos: list[DurableInfo] = await self._shard.act(describe, sweeps=(channel_id,))
        return infos

    async def durable(self, channel_id: ChannelId, name: str) -> DurableInfo:
        def describe(group: Group) -> DurableInfo:
            channel = group.channel(channel_id)
            group.sweep(channel_id)
            return self._info(channel, channel.state.durable(name))

        info: DurableInfo = await self._shard.act(describe, sweeps=(channel_id,))
        return info

    async def delivery(
        self, channel_id: ChannelId, selected: Selected, place: DeliveryPlace
    ) -> DeliveryPage:
        """Return a page of the delivery states of the stored events of a channel or queue (SEM
        D23). Raises ``NameDoesNotExist``, ``InvalidArgument``."""

        def describe(group: Group) -> DeliveryPage:
            group.sweep(channel_id)
            state = group.channel(channel_id).state
            runs, next_place = delivery_runs(state, selected, place, now_us=group.now_us)
            return DeliveryPage(tuple(runs), next_place)

        page: DeliveryPage = await self._shard.act(describe, sweeps=(channel_id,))
        return page

    def _info(self, channel: ChannelMachine, durable: Durable) -> DurableInfo:
        return views.durable_info(channel.state, durable, self._clock.now_us())

    async def attach(
        self,
        channel_id: ChannelId,
        durable: str,
        outlet: Outlet,
        *,
        window: int | None,
        pull: bool,
        auto_ack: bool = False,
        sole: bool = False,
        ack_timeout_ms: int = 0,
        leased: bool = False,
        place: str = "",
        room: Room | None = None,
    ) -> OpenedSubscription:
        """Take a seat at a durable, or become a reader of a queue (durable ``""``). A ``sole``
        seat holds the durable as a whole; a ``leased`` seat belongs to a lease and has the lease
        time for each event (SEM H1). ``place`` identifies the seat on its next connection.
        ``room`` limits the bytes in flight.

        Raises ``DurableInUse``, ``InvalidArgument``, and ``IllegalState`` for a selector that the
        seat cannot have.
        """
        selector = outlet.selector
        if sole and selector is not None:
            raise IllegalState("hold() does not accept a selector; leave it out")
        chooses = durable == READERS and selector is not None
        if chooses:
            outlet.selector = None  # the queue applies the reader's selector when it grants events
        subscription = self.dispatch.open(channel_id, outlet, room=room)

        def among(group: Group) -> IdSet:
            state = group.channel(channel_id).state
            return IdSet(state.durable(durable).outstanding_spans(state.stored))

        matching = self._matching(selector) if chooses and selector is not None else None

        def attach(group: Group) -> OpenedSubscription:
            state = group.channel(channel_id).state
            group.sweep(channel_id)
            attached = state.durable(durable)
            if selector is not None and attached.kind.stores_selector:
                raise IllegalState(
                    f"durable {durable} is {attached.kind.name}: set its selector when you create "
                    f"it"
                )
            command = (TakeLease if leased else TakeSeat)(
                attached.name,
                subscription,
                outlet.session,
                window=window,
                pull=pull,
                auto_ack=auto_ack,
                sole=sole,
                ack_timeout_ms=ack_timeout_ms,
                place=place,
            )
            if matching is not None and selector is not None:
                refuse_costly(group.state, channel_id, selector.text, selector=selector)
                matched = matching.now(group, channel_id, among).spans
                command = replace(command, selector=selector.text, matched=matched)
            group.do(channel_id, command)
            timeout_ms = state.seats[subscription][1].ack_timeout_ms
            return OpenedSubscription(
                subscription,
                recalls=attached.recalls or timeout_ms > 0,
                cumulative=attached.kind.cumulative,
                ack_timeout_ms=timeout_ms,
            )

        chosen = None if matching is None else (matching, among)
        return await self._open(subscription, channel_id, attach, chosen=chosen)

    def recall_seen(self, subscription: int) -> None:
        """Record that the client of a subscription has seen a recall."""
        if channel_id := self._numbers.get(subscription):
            self._shard.submit(RunCommand(channel_id, ConfirmRecall(subscription)))

    def demand(self, subscription: int, count: int) -> None:
        if channel_id := self._numbers.get(subscription):
            self._shard.submit(RunCommand(channel_id, SetDemand(subscription, count)))

    def settle(
        self,
        subscription: int,
        spans: Spans,
        reply: Reply,
        *,
        roll_back: bool,
        previous: bool,
        delay_ms: int | None = None,
    ) -> None:
        """Acknowledge events or roll them back; ``reply`` is called once the settlement is on
        disk. ``previous`` also acknowledges all earlier events."""
        channel_id = self._numbers.get(subscription)
        if channel_id is None:
            reply(
                None,
                IllegalState(f"subscription {subscription} is not open; open it again to settle"),
            )
            return
        command: Ack | AckPrevious | RollBack
        if previous and not roll_back:
            command = AckPrevious(subscription, max((span.end for span in spans), default=0) - 1)
        else:
            command = Ack(subscription, spans)
            if roll_back:
                command = RollBack(subscription, spans, delay_ms=delay_ms)
        self._shard.submit(RunCommand(channel_id, command, reply=reply))

    def _grant_chosen(self, subscription: int) -> None:
        """Let the core grant events, after a thread has evaluated a slow selector on them."""
        if channel_id := self._numbers.get(subscription):
            self._shard.submit(RunCommand(channel_id, EndChoosing(subscription)))

    def give_back(
        self,
        channel_id: ChannelId,
        subscription: int,
        spans: Spans,
        reply: Reply,
        *,
        counted: bool,
        elsewhere: bool = False,
        delay_ms: int | None = None,
    ) -> None:
        """Return events to the durable for another delivery, after ``delay_ms`` if given. With
        ``counted`` the next delivery counts as a redelivery, because the client has processed the
        events. With ``elsewhere`` the events go to another client."""
        command = (RollBack if counted else Release)(subscription, spans, elsewhere, delay_ms)
        self._shard.submit(RunCommand(channel_id, command, reply=reply))

    def grant(self, channel_id: ChannelId, holder: SeatHolder) -> None:
        """Deliver events to a seat in the next turn of the writer, as many as ``holder`` has room
        for."""
        self._shard.submit(GrantRoom(channel_id, holder))

    # --- ends ----------------------------------------------------------------------------

    def detach(self, subscription: int, reply: Reply | None = None) -> None:
        """End a subscription; events in flight go back to the durable (SEM D13)."""
        self.dispatch.close(subscription)
        if (channel_id := self._numbers.pop(subscription, None)) is None:
            # The subscription has ended already, so a repeated request also succeeds.
            if reply is not None:
                reply(None, None)
            return
        command = Detach(subscription, self._keeps_seats)
        self._shard.submit(RunCommand(channel_id, command, reply=reply))

    def keep_seats(self) -> None:
        """Keep the seats of connections that end from now on, because the realm ends them and not
        their clients (SEM N6)."""
        self._keeps_seats = True

    def await_seats(self) -> None:
        """Start the timeout of kept seats. Until it ends, their sessions may come back."""
        self._keeps_seats = False
        self._shard.submit(RunAction(await_seats))

    def stall(self, session: str, *, stalled: bool) -> None:
        """Stop or resume the deliveries to a session whose connection is full or drained."""
        for channel_id in self.dispatch.channels_of(session):
            self._shard.submit(RunCommand(channel_id, StallSession(session, stalled)))

    # --- purge and look-ups --------------------------------------------------------------

    async def purge(
        self,
        channel_id: ChannelId,
        first: int | None,
        last: int | None,
        selector: str,
        *,
        dry_run: bool = False,
    ) -> int:
        """Remove events; return their number (SEM T9)."""

        def among(group: Group) -> IdSet:
            state = group.channel(channel_id).state
            end = state.next_id if last is None else last + 1
            return state.stored.within(Span(first or 0, end))

        matching = await self._matching_text(selector) if selector else None

        def purge(group: Group) -> int:
            group.sweep(channel_id)
            ids = among(group) if matching is None else matching.now(group, channel_id, among)
            if dry_run:
                return len(ids)
            answer = group.do(channel_id, PurgeEvents(ids.spans)).answer
            assert isinstance(answer, int), "a purge answers with a count"
            return answer

        chosen = None if matching is None else (matching, among)
        return int(await self._act(channel_id, purge, chosen=chosen))

    async def purge_durable(
        self,
        channel_id: ChannelId,
        name: str,
        first: int | None,
        last: int | None,
        selector: str,
        *,
        dry_run: bool = False,
    ) -> int:
        """Remove outstanding events from a durable; return their number (SEM D)."""

        def among(group: Group) -> IdSet:
            state = group.channel(channel_id).state
            end = state.next_id if last is None else last + 1
            ids = IdSet(state.durable(durable_name(name)).outstanding_spans(state.stored))
            return ids.within(Span(first or 0, end))

        matching = await self._matching_text(selector) if selector else None

        def purge(group: Group) -> int:
            group.sweep(channel_id)
            ids = among(group) if matching is None else matching.now(group, channel_id, among)
            if dry_run:
                return len(ids)
            answer = group.do(channel_id, PurgeOutstanding(name, ids.spans)).answer
            assert isinstance(answer, int), "a purge answers with a count"
            return answer

        chosen = None if matching is None else (matching, among)
        return int(await self._act(channel_id, purge, chosen=chosen))

    async def _matching_text(self, selector: str) -> Matching:
        return self._matching(await self.dispatch.choosing.parse(selector))

    def _matching(self, selector: Selector) -> Matching:
        """Return a scan that evaluates a selector on stored events ahead of the turn that needs
        the matches."""
        return Matching(selector, self.dispatch.choosing, self._shard, files=self.dispatch.files)

    async def _act(
        self,
        channel_id: ChannelId,
        action: Callable[[Group], Any],
        *,
        reads: bool = False,
        chosen: tuple[Matching, Among] | None = None,
    ) -> Any:
        """Run ``action`` in a turn of the writer. If the action ``reads`` events, their files are
        opened before. If ``chosen`` has a scan and its events, the selector of the scan is
        evaluated on these events before."""
        if chosen is not None:
            matching, among = chosen
            return await matching.act(channel_id, among, action)
        if not reads:
            return await self._shard.act(action, sweeps=(channel_id,))
        return await with_open_files(self._shard, self.dispatch.files, channel_id, action=action)
