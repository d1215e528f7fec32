"""Soft state: connected clients, the events they hold, and what to send next. A restart forgets
it."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_core.channel import (
    awaited_seats,
    capacity_overflow,
    disconnected_subscribers,
    kept_interest,
)
from penstock_core.channel.followers import may_follow
from penstock_core.channel.holding import hold
from penstock_core.channel.release import release
from penstock_core.channel.state import ChannelState
from penstock_core.channel.timeouts import extend, timeout_of
from penstock_core.durable.durable import Durable
from penstock_core.durable.lanes import LANE_SEARCH_EVENTS_MAX, LANE_SEARCHES_MAX, Lanes
from penstock_core.durable.pace import Pace
from penstock_core.durable.seat import Seat
from penstock_core.durable.subscriber import Subscriber
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.delivery import (
    AssignLanes,
    ConfirmRecall,
    EndChoosing,
    HoldEvents,
    SetDemand,
    SingleOut,
    Skip,
    StallSession,
    Withhold,
)
from penstock_core.messages.kinds import Command
from penstock_core.messages.publishing import Publish
from penstock_core.messages.retention import Sweep
from penstock_core.messages.seats import AwaitSeats, Detach, TakeSeat
from penstock_core.messages.seeking import Seek
from penstock_core.messages.settlements import (
    Ack,
    AckPrevious,
    BuryEvents,
    ExtendTime,
    Release,
    RollBack,
)
from penstock_core.messages.subscribers import (
    AddKnownSubscriber,
    AddSubscriber,
    Disconnect,
    GrantCredit,
)
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.effects import (
    Deliver,
    Effect,
    FindInterested,
    FindLanes,
    Recall,
    ReportEnd,
)


def attend(  # noqa: C901, PLR0912  one case a command
    state: ChannelState, command: Command, now_us: int
) -> None:
    """Update the soft state (sessions, credit, demand) after a command; a restart forgets it."""
    match command:
        case Ack(subscription) | AckPrevious(subscription) | BuryEvents(subscription):
            _adjust_after_settlement(state, subscription, now_us)
        case GrantCredit():
            _credit(state, command)
        case Disconnect() | StallSession() | AwaitSeats():
            _connection(state, command, now_us)
        case HoldEvents() | ExtendTime():
            _hold_or_extend(state, command, now_us)
        case SetDemand():
            _demand(state, command)
        case RollBack():
            _adjust_after_rollback(state, command, now_us)
        case ConfirmRecall(subscription):
            _confirm_recall(state, subscription)
        case AssignLanes():
            _assign(state, command)
        case Skip() | Withhold() | EndChoosing() | SingleOut():
            _report_of_delivery(state, command)
        case Release():
            release(state, command)
        case Seek():
            # After a seek the durable is owed the passing events (SEM J7).
            state.has_left = state.has_left or bool(state.passing)
        case AddSubscriber():
            _subscribe(state, command)
        case TakeSeat():
            _attach(state, command, now_us)
        case Detach(subscription, comes_back):
            _detach(state, subscription, comes_back=comes_back)
        case Publish(digest):
            _match_readers(state, digest)
            disconnected_subscribers.note_ttls(state, digest)
        case Sweep(may_write):
            _swept(state, now_us)
            state.has_left = state.has_left and not may_write
        case _:
            pass


def _hold_or_extend(state: ChannelState, command: HoldEvents | ExtendTime, now_us: int) -> None:
    if isinstance(command, HoldEvents):
        hold(state, command, now_us)
    else:
        extend(state, command, now_us)


def _subscribe(state: ChannelState, command: AddSubscriber) -> None:
    """Add a plain subscriber, at its former position if that was kept for it."""
    start_id, former = command.start_id, None
    if command.stop_id is None:
        start_id = state.engine.first_id(start_id, state.next_id)
        former = disconnected_subscribers.resume(state, command)
        if former is not None:
            start_id = kept_interest.first_id(former, command)
    subscriber = Subscriber(
        command.subscription,
        command.session,
        start_id,
        stop_id=command.stop_id,
        credit=command.credit,
        only=command.only,
        durable=command.durable,
        confirms=command.confirms and state.engine.needs_interest,
        selector=command.selector,
        is_selective=command.is_selective,
    )
    if isinstance(command, AddKnownSubscriber):
        subscriber.place = command.place
    if former is not None:
        subscriber.takes_place_of(former, state.next_id)
    state.add_subscriber(subscriber)
    state.may_deliver = True


def _credit(state: ChannelState, command: GrantCredit) -> None:
    """Add credit to a plain subscriber, or note that the client of a seat can receive bytes
    again."""
    subscriber = state.subscribers.get(command.subscription)
    if subscriber is None:
        if command.has_room and (attached := state.seats.get(command.subscription)) is not None:
            durable, seat = attached
            seat.is_full = False
            state.touch(durable)
        return
    if command.next_id:
        state.removal_candidates.add_all(subscriber.confirmed(IdSet((Span(0, command.next_id),))))
    if command.arrived:
        state.removal_candidates.add_all(subscriber.confirmed(IdSet(command.arrived)))
    subscriber.credit += command.count - command.withdrawn
    subscriber.is_full = subscriber.is_full and not command.has_room
    state.may_deliver = True


def _match_readers(state: ChannelState, digest: Digest) -> None:
    """Record which of the events just published match the selectors of readers and subscribers."""
    first = state.next_id - digest.count
    for selector, matched in digest.matched.items():
        ids = [Span(*offsets).shifted(first) for offsets in matched]
        holders = state.selectors_in_use.holders(selector)
        for subscriber in holders.subscribers.values():
            if subscriber.only is not None and subscriber.has_interest:
                subscriber.only.add_all(IdSet(ids))
        for seat in holders.seats.values():
            if seat.wanted is not None:
                seat.wanted.add_all(IdSet(ids))


def _swept(state: ChannelState, now_us: int) -> None:
    """Update the soft state after the facts of a sweep have been applied."""
    # The facts of the sweep were applied, so all candidates have been examined.
    state.removal_candidates = IdSet()
    state.swept_us = now_us
    state.wake(now_us)
    state.overdue = 0
    if state.moves_dead:
        state.ages.gather(state.stored, now_us)
        state.overdue = max(len(state.expired(now_us)), state.excess)
    if not state.overdue:
        state.ages.forget(state.stored.lowest, now_us)
    state.places_over = False
    # Events that move in a later step (SEM T7) are dead if an absent subscriber waits for them (SEM
    # T6), so the subscriber must not be dropped before that step.
    if state.absent and not state.overdue:
        disconnected_subscribers.drop_overdue(state, now_us)
    if state.awaits_seats:
        awaited_seats.advance_wait(state, now_us)


def _demand(state: ChannelState, command: SetDemand) -> None:
    """Set, or cancel, the number of events that a synchronous consumer requests."""
    subscription, count = command.subscription, command.count
    subscriber = state.subscribers.get(subscription)
    if subscriber is not None and not count:
        state.followers.single_out((subscription,))
        subscriber.asks = state.may_deliver = True
        subscriber.pulls = subscriber.stop_id is None
    attached = state.seats.get(subscription)
    if attached is None or attached[1].demand is None:  # a seat with pushed events has no demand
        return
    durable, seat = attached
    if count or command.at_once:
        seat.demand = count
    elif seat.demand:  # cancelled: events that are ready already are sent first
        state.cancelled.append(seat.subscription)
    state.touch(durable)


def _attach(state: ChannelState, command: TakeSeat, now_us: int) -> None:
    """Add the seat of a client to its durable."""
    durable = state.durables[command.durable]
    window = durable.kind.window_default if command.window is None else command.window
    pace = Pace(window, now_us) if _has_growing_window(durable, command) else None
    seat = Seat(
        command.subscription,
        command.session,
        window,
        pull=command.pull and not command.sole,
        selector=command.selector,
        matched=command.matched,
        auto_ack=command.auto_ack and not command.sole,
        sole=command.sole,
        place=command.place,
        ack_timeout_ms=timeout_of(durable, command),
        pace=pace,
    )
    was_fed = durable.is_fed
    durable.attach(seat)
    if was_fed and not durable.is_fed:
        state.has_left = True  # events that the durable is owed are stored from now on (SEM J4)
    durable.read_us = now_us
    state.add_seat(durable, seat)


def _has_growing_window(durable: Durable, command: TakeSeat) -> bool:
    """Whether a client's window grows with its speed.

    The window does not grow if events have a time limit or a limit of deliveries, because events
    that wait in a large window could exceed the limit before the client processes them.
    """
    is_limited = timeout_of(durable, command) or durable.limits_deliveries
    return command.window is None and durable.kind.window_grows and not is_limited


def _detach(state: ChannelState, subscription: int, *, comes_back: bool) -> None:
    """Remove the seat or subscriber of a subscription that ends. ``comes_back`` is whether the seat
    stays reserved, because the realm itself has closed the connection."""
    removed = state.remove_seat(subscription)
    if removed is not None:
        durable, _ = removed
        if comes_back and durable.places:
            awaited_seats.interrupted(state, now=False)
        durable.detach(subscription)
        state.touched.seat_removed(durable)
        state.has_left = True
    if (subscriber := state.remove_subscriber(subscription)) is not None:
        disconnected_subscribers.note_left(state, subscriber)
    state.may_deliver = True


def _adjust_after_rollback(state: ChannelState, command: RollBack, now_us: int) -> None:
    """Adjust the window of a seat after a rollback, and park events that wait for the next
    attach."""
    durable, seat = state.seats[command.subscription]
    seat.gave_back(now_us)
    durable.read_us = now_us
    state.touch(durable)
    ids = IdSet(command.spans)
    ids.discard_all(seat.sought)  # a seek has taken these back already
    if not durable.kind.redelivers_at_once:
        durable.park(ids)
        state.has_left = state.has_left or bool(state.passing)  # parked events are kept (SEM J7)
    elif command.elsewhere:
        seat.refused.add_all(ids.overlap(durable.outstanding))


def _confirm_recall(state: ChannelState, subscription: int) -> None:
    """End the oldest recall of a seat, whose client has confirmed it."""
    attached = state.seats.get(subscription)
    if attached is None:
        return
    durable, seat = attached
    if seat.recalls:
        seat.sought.discard_all(seat.recalls.pop(0))
        state.touch(durable)


def recalls(state: ChannelState) -> list[Recall]:
    """Return the recalls since the last call. Clients must get them before a rollback is
    answered."""
    recalls, state.recalls = state.recalls, []
    return recalls


def _report_of_delivery(
    state: ChannelState, command: Skip | Withhold | EndChoosing | SingleOut
) -> None:
    """Apply what the delivery reports about granted events: they were skipped or withheld, a slow
    selector has been applied, or followers are to be served individually."""
    match command:
        case SingleOut(subscriptions):
            state.followers.single_out(subscriptions)
        case Skip(subscription, spans):
            _skip(state, subscription, spans)
        case Withhold():
            _withhold(state, command)
        case EndChoosing(subscription):
            _end_choosing(state, subscription)


def _skip(state: ChannelState, subscription: int, spans: Spans) -> None:
    """Undo the grant of events that do not match or cannot be read, and return their credit."""
    size = sum(span.size for span in spans)
    if subscriber := state.subscribers.get(subscription):
        subscriber.credit += size
        state.delivered -= subscriber.delivered_count(spans)
        if subscriber.confirms:
            state.removal_candidates.add_all(subscriber.confirmed(IdSet(spans)))
    elif attached := state.seats.get(subscription):
        durable, seat = attached
        durable.take_back_unsent(IdSet(spans))
        seat.not_sent(size)
        state.touch(durable)
    state.may_deliver = True


def _withhold(state: ChannelState, command: Withhold) -> None:
    """Undo the grant of events that the client cannot receive now, or to which a slow selector is
    still being applied."""
    if (subscriber := state.subscribers.get(command.subscription)) is not None:
        state.followers.single_out((command.subscription,))
        state.delivered -= subscriber.delivered_count(command.spans)
        subscriber.take_back_withheld(command.spans)
        subscriber.is_full = command.is_full
        subscriber.is_choosing = command.is_choosing
    elif (attached := state.seats.get(command.subscription)) is not None:
        durable, seat = attached
        ids = IdSet(command.spans)
        durable.take_back_withheld(ids)
        seat.not_sent(len(ids))
        if command.is_choosing:  # events that are not stored wait with the others
            for unstored in (state.relayed, state.leaving):
                durable.ready.add_all(unstored.overlap(ids))
        seat.is_full, seat.is_choosing = command.is_full, command.is_choosing
        state.touch(durable)
    state.may_deliver = True


def _end_choosing(state: ChannelState, subscription: int) -> None:
    """Allow grants to a subscription again, because its selector has been applied to the withheld
    events."""
    if (subscriber := state.subscribers.get(subscription)) is not None:
        subscriber.is_choosing = False
    elif (attached := state.seats.get(subscription)) is not None:
        durable, seat = attached
        seat.is_choosing = False
        state.touch(durable)
    state.may_deliver = True


def _adjust_after_settlement(state: ChannelState, subscription: int, now_us: int) -> None:
    """Adjust the window of a seat after its client has acknowledged or buried events."""
    if attached := state.seats.get(subscription):
        durable, seat = attached
        seat.adjust_window(now_us)
        durable.read_us = now_us
        state.touch(durable)


def _connection(
    state: ChannelState, command: Disconnect | StallSession | AwaitSeats, now_us: int
) -> None:
    """Record a lost, stalled or resumed connection."""
    if isinstance(command, Disconnect):
        disconnected_subscribers.note_lost_connection(state, command, now_us)
        return
    if isinstance(command, AwaitSeats):
        state.refuses_reconnects, state.awaited_from_us = False, None
        return
    # A stalled subscriber may fall behind the shared place of the followers.
    subscribers = [s for s in state.subscribers.values() if s.session == command.session]
    state.followers.single_out([subscriber.subscription for subscriber in subscribers])
    for subscriber in subscribers:
        subscriber.stalled = command.stalled
    for _, seat in state.seats.values():
        if seat.session == command.session:
            seat.stalled = command.stalled
    state.touch_all()


def leave(state: ChannelState, subscription: int) -> None:
    """Offer no more events to a subscription that is about to end. The command that ends it
    follows later."""
    subscriber = state.subscribers.get(subscription)
    if subscriber is not None:
        state.followers.single_out((subscription,))
        subscriber.stalled = True
    attached = state.seats.get(subscription)
    if attached is not None:
        _, seat = attached
        seat.stalled = True


def offer(state: ChannelState, below: int | None = None, *, now_us: int = 0) -> Iterator[Effect]:
    """Yield the effects that the shell must perform now; at most one delivery for each plain
    subscriber.

    ``now_us`` is the time from which acknowledgement deadlines count.

    With ``below`` only events under that id are offered, which were stored before the facts that
    are being written right now. A later call without ``below`` offers the other events.

    Call it again while the channel ``has_offers``. Between two calls the shell may mark sessions
    whose send buffers are full (``StallSession``).
    """
    if not state.may_deliver or state.overdue:
        return
    # A call with `below` leaves events to a later call, which must take place.
    state.may_deliver = below is not None and (
        below < state.next_id
        or bool(state.relayed or state.leaving or state.cancelled)
        or any(subscriber.asks for subscriber in state.followers.apart.values())
    )
    end = state.next_id if below is None else below
    readable = state.readable
    touched = state.touched.get()
    if below is None:
        state.touched.clear()
    if below is None and state.followers.members:
        yield from _offer_followers(state, readable, end)
    yield from _offer_subscribers(state, readable, end, is_all=below is None)
    for durable in touched:
        yield from _offer_durable(state, durable, end, now_us)
    if below is not None:
        return
    yield from _confirm_cancelled(state)
    capacity_overflow.note_offered(state)


def _offer_subscribers(
    state: ChannelState, readable: IdSet, end: int, *, is_all: bool
) -> Iterator[Effect]:
    """Yield the deliveries to subscribers that are served individually. ``is_all`` is whether the
    channel has no event from ``end`` on."""
    for subscriber in list(state.followers.apart.values()):
        if not subscriber.hungry and not subscriber.is_finished:
            if is_all and subscriber.answers(end):
                yield ReportEnd(subscriber.subscription)
            continue
        before = subscriber.cursor
        # A browse reads stored events only, not those that are just passing or were evicted.
        candidates = readable if subscriber.stop_id is None else state.stored
        spans = subscriber.advance(candidates, end, state.chunk)
        passed = state.stored if state.engine.needs_interest else state.acked
        if passed and subscriber.cursor > before:
            state.removal_candidates.add_all(
                passed.within(Span(before, subscriber.cursor))
            )  # SEM D6, J2
        if spans:
            state.delivered += subscriber.delivered_count(spans)
            counts = _counts(state, subscriber.durable, spans)
            yield Deliver(subscriber.subscription, spans, counts)
            if not is_all or subscriber.cursor < end or subscriber.is_selective:
                # The subscriber may want more events, or become a follower, in the next round.
                state.may_deliver = True
        if subscriber.is_finished:
            state.remove_subscriber(subscriber.subscription)
            yield ReportEnd(subscriber.subscription)
        elif is_all and subscriber.answers(end):
            yield ReportEnd(subscriber.subscription)
        if is_all and not spans and may_follow(subscriber, state.engine, end):
            state.followers.join(subscriber, end)


def _offer_followers(state: ChannelState, readable: IdSet, end: int) -> Iterator[Effect]:
    """Single out the followers that may want the next events, and move the position of the other
    followers past these events."""
    followers, before = state.followers, state.followers.cursor
    if before >= end:
        return
    spans = followers.next_spans(readable, end, state.chunk)
    if spans:
        yield FindInterested(spans)
        if spans[-1].end < end:
            state.may_deliver = (
                True  # the limit of one delivery has cut the spans off before ``end``
            )
            end = spans[-1].end
    followers.move_on(end)
    if state.acked:
        state.removal_candidates.add_all(state.acked.within(Span(before, end)))  # SEM D6


def _counts(state: ChannelState, name: str | None, spans: Spans) -> tuple[tuple[int, Spans], ...]:
    """Return the redelivery counts that a browse of a durable shows (SEM E9)."""
    durable = None if name is None else state.durables.get(name)
    return () if durable is None else durable.redeliveries(spans)


def _confirm_cancelled(state: ChannelState) -> Iterator[Effect]:
    """End the demands that clients have cancelled."""
    cancelled, state.cancelled = state.cancelled, []
    for subscription in cancelled:
        attached = state.seats.get(subscription)
        if attached is None or not attached[1].demand:
            continue
        _, seat = attached
        if seat.is_choosing:  # events that are ready already are sent first
            state.cancelled.append(subscription)
            continue
        seat.demand = 0
        yield ReportEnd(subscription)


def _assign(state: ChannelState, command: AssignLanes) -> None:
    durable = state.durables[command.durable]
    assert durable.lanes is not None, "only a durable with lanes yields FindLanes"
    durable.lanes.assign(command)


def _offer_durable(
    state: ChannelState, durable: Durable, end: int, now_us: int
) -> Iterator[Effect]:
    """Yield the deliveries of a durable, and the searches for lanes that lead to more of them."""
    yield from _deliver_granted(state, durable, end, now_us)
    if durable.lanes is not None:
        yield from _find_next_lanes(state, durable, durable.lanes, end, now_us)


def _find_next_lanes(
    state: ChannelState, durable: Durable, lanes: Lanes, end: int, now_us: int
) -> Iterator[Effect]:
    """Find the lanes of the next events while some client has credit. A blocked lane does not hide
    the events behind it (SEM D11)."""
    searched_max = min(LANE_SEARCH_EVENTS_MAX, state.chunk)
    for _ in range(LANE_SEARCHES_MAX):
        spans = durable.without_known_lane(state.stored, searched_max, end)
        if not spans:
            return
        yield FindLanes(durable.name, durable.attributes.order_by, spans)
        if lanes.examined_end < spans[-1].end:
            return  # the shell could not read the events, and ends the waiting subscriptions
        yield from _deliver_granted(state, durable, end, now_us)
    # Other clients of the channel are served before the next searches.
    state.touch(durable)


def _deliver_granted(
    state: ChannelState, durable: Durable, end: int, now_us: int
) -> Iterator[Effect]:
    """Yield the deliveries that a durable grants to its seats."""
    served: dict[int, Seat] = {}
    granted = durable.grants(state.stored, state.chunk, end)
    for seat, spans in granted:
        served[seat.subscription] = seat
        seat.record_grant(spans, now_us)
        if seat.ack_timeout_ms:
            state.wake_by(durable.hand_until(seat, spans, now_us))
    for seat, spans in granted:
        yield Deliver(seat.subscription, spans, durable.redeliveries(spans))
    # After all deliveries, because several of them may serve one demand.
    for seat in served.values():
        if seat.demand == 0:
            yield ReportEnd(seat.subscription)
