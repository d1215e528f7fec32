"""Decides what a command leads to on a channel. It reads state and never writes it."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from penstock_core.bounds import (
    DURABLE_SELECTORS_CHARACTERS_MAX,
    REDELIVERIES_MAX,
    SHORT_SELECTOR_CHARACTERS,
)
from penstock_core.channel.awaited_seats import (
    decide_given_up,
    decide_left,
    decide_taken,
    seats_waited_for,
    taken_or_reserved,
)
from penstock_core.channel.dead import MOVED_EVENTS_MAX, buried, moved_at_once, unconsumed
from penstock_core.channel.decided import Decided
from penstock_core.channel.delays import backed_off, postponed, still_waiting
from penstock_core.channel.holding import check_sole, decide_holding, what_to_do
from penstock_core.channel.interest import not_chosen_yet, unwanted
from penstock_core.channel.kept_interest import decide_ended, decide_interest, interest_over
from penstock_core.channel.publish import decide_publish
from penstock_core.channel.recall import not_recalled, refuse_recalled
from penstock_core.channel.release import decide_release
from penstock_core.channel.retention import check_limits, make_room
from penstock_core.channel.seeking import decide_seek
from penstock_core.channel.state import ChannelState
from penstock_core.channel.timeouts import (
    check_ack_timeout,
    check_seat_timeout,
    decide_extension,
    held_too_long,
)
from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import DurableKind
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.definitions import Edit, Edited
from penstock_core.messages.delivery import (
    ConfirmRecall,
    EndChoosing,
    HoldEvents,
    SetDemand,
    Skip,
    StallSession,
    Withhold,
)
from penstock_core.messages.durables import (
    AddDurable,
    DurableCreated,
    DurableDeleted,
    PurgeOutstanding,
    RemoveDurable,
)
from penstock_core.messages.kinds import Command
from penstock_core.messages.publishing import Publish
from penstock_core.messages.retention import (
    EndRelay,
    PersistedLate,
    PurgeEvents,
    Quarantine,
    Removed,
    RemoveRedriven,
    Sweep,
)
from penstock_core.messages.seats import AwaitSeats, Detach, GiveUpSeats, TakeSeat
from penstock_core.messages.seeking import Seek
from penstock_core.messages.settlements import (
    Ack,
    Acked,
    AckPrevious,
    BuryEvents,
    ExtendTime,
    Release,
    RollBack,
    RolledBack,
    TimedOut,
)
from penstock_core.messages.subscribers import AddSubscriber, Disconnect, GrantCredit
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.backoff import check_backoff, check_delay
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import durable_attributes
from penstock_core.vocabulary.errors import (
    DurableInUse,
    IllegalState,
    InvalidArgument,
    LimitReached,
    NameAlreadyBound,
)

WINDOW_MAX = 1_000_000
"""Largest window that a client may request, in events."""

_SOFT = (
    AwaitSeats,
    ConfirmRecall,
    Disconnect,
    EndChoosing,
    Skip,
    StallSession,
    Withhold,
)
"""Commands that change soft state only and lead to no fact."""

_REMOVAL_CAUSES: dict[type[Command], Cause] = {
    PurgeEvents: Cause.PURGED,
    RemoveRedriven: Cause.REDRIVEN,
    Quarantine: Cause.QUARANTINED,
}
"""Cause of removal by the command that removes events."""


def decide(state: ChannelState, command: Command, now_us: int) -> Decided:
    """Return the facts and the answer that ``command`` leads to, without changing the state. Raises
    ``Refused``."""
    match command:
        case Publish():
            return decide_publish(command, state, now_us)
        case Ack() | AckPrevious():
            name, ids = _acknowledged(state, command)
            return Decided((Acked(name, ids.spans),) if ids else (), follows=False)
        case RollBack():
            return _rolled_back(state, command, now_us)
        case Detach(subscription, comes_back):
            if subscription not in state.seats:
                return decide_ended(state, subscription)
            durable, seat = state.seats[subscription]
            decided = _return_or_bury(state, durable, seat.in_flight.spans)  # SEM D13
            return decided if comes_back else decide_left(state, decided, subscription)
        case Sweep(may_write, moved_max):
            return _sweep(state, now_us, may_write=may_write, moved_max=moved_max)
        case Release():
            return decide_release(state, command, now_us)
        case _:
            return _decide_rare(state, command, now_us)


def _acknowledged(state: ChannelState, command: Ack | AckPrevious) -> tuple[str, IdSet]:
    """Return the name of the durable and the ids that ``command`` acknowledges. Raises
    ``IllegalState`` (SEM D15)."""
    durable, seat = state.seat(command.subscription)
    if isinstance(command, AckPrevious):
        event_id = command.event_id
        refuse_recalled(durable, seat, (Span(event_id, event_id + 1),), state.stored)
        return durable.name, durable.below(seat, event_id, state.stored)
    spans = command.spans
    refuse_recalled(durable, seat, spans, state.stored)
    held = durable.settled_by(seat, spans, state.stored)
    # An acknowledgement covers all earlier events, also if the named event has left (SEM T9).
    if durable.kind.cumulative:
        last = max((span[1] for span in spans), default=0) - 1
        held = durable.below(seat, last, state.stored)
    return durable.name, held


def _decide_rare(state: ChannelState, command: Command, now_us: int) -> Decided:
    """Decide a command that clients do not send for every few events."""
    match command:
        case TakeSeat():
            _check_attach(state, command)
            return decide_taken(state, command)
        case HoldEvents() | BuryEvents() | ExtendTime():
            return _decide_on_held_events(state, command)
        case AddSubscriber(stop_id=None) if state.definition.kind != "channel":
            raise IllegalState(
                f"{state.name} is a {state.definition.kind}: only channels have subscribers; open "
                f"a reader or peek instead"
            )
        case AddSubscriber(credit=count) | GrantCredit(_, count) | SetDemand(_, count):
            if count < 0:
                raise InvalidArgument(f"the credit is {count}; it must be 0 or more")
        case AddDurable() | RemoveDurable() | PurgeOutstanding() | GiveUpSeats() | Seek():
            return _decide_on_durable(state, command, now_us)
        case PurgeEvents() | RemoveRedriven() | Quarantine() | EndRelay():
            return _decide_removal(state, command)
        case Edit(definition):
            _check_edit(state, definition)
            return Decided((Edited(definition), *_evicted(state, definition)))
        case _:
            assert isinstance(command, _SOFT), f"a channel does not know {type(command).__name__}"
    return decide_interest(state, command)


def _decide_on_held_events(
    state: ChannelState, command: HoldEvents | BuryEvents | ExtendTime
) -> Decided:
    if isinstance(command, ExtendTime):
        return decide_extension(state, command)
    return decide_holding(state, command)


def _rolled_back(state: ChannelState, command: RollBack, now_us: int) -> Decided:
    """Return events to the durable, delayed by the request or by the durable's backoff."""
    check_delay(command.delay_ms)
    durable, seat = state.seat(command.subscription)
    spans = not_recalled(durable, seat, command.spans, state.stored)
    held = durable.settled_by(seat, spans, state.stored)
    if durable.kind.redelivers_at_once:
        decided = _return_or_bury(state, durable, held.spans)
    else:
        # Events that were never stored cannot be redelivered.
        returned = held.overlap(state.stored)
        decided = Decided((RolledBack(durable.name, returned.spans),) if returned else ())
    if command.delay_ms is None and durable.attributes.backoff is None:
        return decided
    delays: tuple[StoredFact, ...] = ()
    for fact in decided.facts:
        if isinstance(fact, RolledBack):
            ids = IdSet(fact.spans)
            if command.delay_ms is None:
                delays += backed_off(state, durable, ids, now_us=now_us)
            else:
                delays += postponed(state, durable, ids, delay_ms=command.delay_ms, now_us=now_us)
    return Decided((*decided.facts, *delays))


def _return_or_bury(state: ChannelState, durable: Durable, spans: Spans) -> Decided:
    """Roll back the events of a durable; bury those that have reached its delivery limit."""
    if not spans or not durable.kind.redelivers_at_once:
        return Decided()
    if not durable.limits_deliveries or not state.moves_dead:
        return Decided((RolledBack(durable.name, spans),))
    returned = IdSet(spans)
    exhausted = durable.exhausted(returned.overlap(state.stored))
    returned.remove_all(exhausted)
    facts: list[StoredFact] = [RolledBack(durable.name, returned.spans)] if returned else []
    return Decided((*buried(state, durable, exhausted, cause=Cause.UNDELIVERABLE), *facts))


def _sweep(state: ChannelState, now_us: int, *, may_write: bool, moved_max: int) -> Decided:
    """Decide the removal of events that have expired, are consumed or exceed a lowered capacity,
    the return of events that clients held too long, and the end of waits for absent seats."""
    expired = state.expired(now_us)
    facts: list[StoredFact] = [*seats_waited_for(state, now_us), *interest_over(state)]
    if state.moves_dead:
        facts += _expired_or_excess(state, expired, moved_max)
    elif expired:
        facts.append(Removed(expired.spans, Cause.EXPIRED))
    if state.wakes_us and state.wakes_us <= now_us:
        facts += _timed_out(state, expired, facts, now_us=now_us)
    # An event that has expired leaves by that cause, even if it was also consumed.
    candidates = state.removal_candidates.overlap(state.stored)
    candidates.discard_all(expired)
    facts += _consumed_or_unwanted(state, candidates)
    if may_write and state.has_left and (owed := _passing_to_store(state)):
        owed.discard_all(expired)
        # Each range gets a separate fact, because a fact has only one publish time.
        for span in owed.spans:
            facts.append(PersistedLate((span,), state.ages.oldest_us(span.first) or now_us))
        facts += still_waiting(state, owed)
    return Decided(tuple(facts))


def _timed_out(
    state: ChannelState, expired: IdSet, removals: list[StoredFact], now_us: int
) -> list[StoredFact]:
    """Return the facts about events that clients have held for too long (SEM D19): timeouts, delays
    and burials. Events that are expired, or that ``removals`` remove, are left out."""
    # An event that leaves in this step, or expired and leaves in a later one, is not redelivered.
    leaving = expired.copy()
    for removal in removals:
        if isinstance(removal, Removed):
            leaving.add_all(IdSet(removal.spans))
    facts: list[StoredFact] = []
    for durable, ids in held_too_long(state, now_us):
        ids.discard_all(leaving)
        if ids and not durable.kind.redelivers_at_once:  # from a lease: the next lease gets them
            facts.append(TimedOut(durable.name, ids.spans))
        for fact in _return_or_bury(state, durable, ids.spans).facts:
            if not isinstance(fact, RolledBack):
                facts.append(fact)
                continue
            facts.append(TimedOut(fact.durable, fact.spans))
            facts += backed_off(state, durable, IdSet(fact.spans), now_us=now_us)
    return facts


def _expired_or_excess(state: ChannelState, expired: IdSet, moved_max: int) -> list[StoredFact]:
    """Return the facts that remove expired events, and events above a lowered capacity, in this
    step. The bytes of dead events are copied to the dead event store, so one step moves at most
    ``moved_max`` events."""
    # Scheduled events are published in the order of their times, which holds within one step only.
    scheduled = state.definition.kind == "schedule"
    events_left = MOVED_EVENTS_MAX if scheduled else moved_max
    facts: list[StoredFact] = []
    if expired:
        # Excess events wait until no expired event is left to move.
        moving = moved_at_once(state, expired, events_max=events_left)
        events_left = events_left - len(moving) if len(moving) == len(expired) else 0
        dead = moving if scheduled else unconsumed(state, moving, Cause.EXPIRED)
        spans = moving.spans
        facts.append(
            Removed(spans, Cause.EXPIRED, dead.spans if len(dead) < len(moving) else spans)
        )
    if state.excess > len(expired) and events_left:
        remaining = state.stored.copy()
        remaining.remove_all(expired)
        above = IdSet(make_room(state.definition.capacity, remaining, IdSet()))
        moving = moved_at_once(state, above, events_max=events_left)
        dead = unconsumed(state, moving, Cause.EVICTED)
        facts.append(Removed(moving.spans, Cause.EVICTED, dead.spans))
    return facts


def _consumed_or_unwanted(state: ChannelState, ids: IdSet) -> list[StoredFact]:
    """Return facts that remove consumed or unwanted events of ``ids`` (SEM D6, J2).

    An event is consumed if all durables have acknowledged it and every subscriber has received it.
    On the JMS engine it also leaves when no client waits for it any more. The merge engine keeps
    its states.
    """
    if not ids or not (state.durables or state.engine.needs_interest):
        return []
    unwanted_ids = unwanted(ids, state.durables.values(), state.followers.each_place)
    consumed = unwanted_ids
    facts: list[StoredFact] = []
    if state.engine.needs_interest:
        consumed = unwanted_ids.remove_all(state.acked)
        if unwanted_ids:
            facts.append(Removed(unwanted_ids.spans, Cause.DROPPED))
    if consumed and not state.retains_consumed:
        facts.append(Removed(consumed.spans, Cause.CONSUMED))
    return facts


def _passing_to_store(state: ChannelState) -> IdSet:
    """Return the passing events that must be stored, because the client of a durable has left or
    has rolled them back (SEM J7)."""
    owed = IdSet()
    for durable in state.durables.values():
        if not durable.is_fed:
            owed.add_all(durable.wanting(state.passing))
        elif durable.rolled_back:
            owed.add_all(durable.rolled_back.overlap(state.passing))
    return owed


def _check_attach(state: ChannelState, command: TakeSeat) -> None:
    """Raise an error if the client may not take a seat at the durable."""
    durable = state.durable(command.durable)
    kind = durable.kind
    if command.window is not None:
        if not kind.takes_window:
            raise InvalidArgument(
                f"durable {durable.name} is {kind.name} and does not take a window; leave it out"
            )
        if not 1 <= command.window <= WINDOW_MAX:
            raise InvalidArgument(f"window is {command.window}; allowed are 1 to {WINDOW_MAX}")
    if command.selector and state.definition.kind != "queue":
        raise InvalidArgument(
            f"durable {durable.name} does not take a selector for each reader; only queues do"
        )
    check_seat_timeout(state, durable, command)
    others = taken_or_reserved(durable, command.place, command.session)
    check_sole(state, durable, others, sole=command.sole)
    if not kind.may_attach(others):
        raise DurableInUse(
            f"durable {durable.name} of {state.name} is {kind.name} and held by session "
            f"{others[0].session}; {what_to_do(state, others[0])}"
        )


def _decide_on_durable(
    state: ChannelState,
    command: AddDurable | RemoveDurable | PurgeOutstanding | GiveUpSeats | Seek,
    now_us: int,
) -> Decided:
    """Decide a command about a durable as a whole."""
    match command:
        case AddDurable():
            return _decide_creation(state, command)
        case RemoveDurable(name):
            return Decided((DurableDeleted(state.durable(name).name),))
        case PurgeOutstanding():
            return _decide_purge(state, command)
        case GiveUpSeats(name):
            return Decided(decide_given_up(state.durable(name)))
        case Seek():
            return decide_seek(state, command, now_us)


def _decide_creation(state: ChannelState, command: AddDurable) -> Decided:
    """Decide the creation of a durable, after checking its attributes."""
    name = command.name
    if state.definition.kind == "queue":
        raise IllegalState(f"{state.name} is a queue; queues have readers, not durables")
    if name in state.durables:
        raise NameAlreadyBound(f"durable {name} already exists on {state.name}")
    _refuse_too_many(state)
    kind = state.rules.kinds.get(command.kind)
    if kind is None:
        kinds = ", ".join(sorted(state.rules.kinds))
        hint = "; the named durable of other products is exclusive here"
        raise InvalidArgument(
            f"{command.kind!r} is not a durable type; the types are {kinds}"
            f"{hint if command.kind == 'named' else ''}"
        )
    if command.selector and not kind.stores_selector:
        raise InvalidArgument(
            f"a durable of type {kind.name} does not keep a selector; give one with each "
            f"subscription instead"
        )
    _refuse_long_selectors(state, command.selector)
    if command.strict_order and not kind.orders_strictly:
        raise InvalidArgument(
            f"a durable of type {kind.name} cannot have strict_order: it needs a type that serves "
            "one client at a time and redelivers at once; use a serial durable"
        )
    if command.order_by:
        _check_order_by(command, kind)
    _check_deliveries(state, command.max_deliveries, kind)
    check_ack_timeout(command.ack_timeout, kind)
    check_backoff(command.backoff)
    if command.backoff is not None and not kind.redelivers_at_once:
        raise InvalidArgument(
            f"a durable of type {kind.name} does not count redeliveries: backoff applies only to "
            "types that redeliver at once; give each rollback a delay instead"
        )
    attributes = replace(durable_attributes(command), cluster_wide=_is_cluster_wide(state, command))
    persistent = command.persistent
    start_id, matched = command.start_id, command.matched
    if state.engine.first_id(start_id, state.next_id) != start_id:  # SEM J3
        start_id, matched = state.next_id, ()
    if persistent is None:
        persistent = state.type.ids_survive
    return Decided(
        (
            DurableCreated(
                name,
                kind.name,
                start_id,
                selector=command.selector,
                matched=matched,
                persistent=persistent,
                **asdict(attributes),
            ),
        )
    )


def _is_cluster_wide(state: ChannelState, command: AddDurable) -> bool:
    """Whether a durable exists on every node; by default it does if its channel does. Raises
    ``InvalidArgument``."""
    if command.cluster_wide and state.rules.local_to:
        raise InvalidArgument(
            f"durable {command.name} cannot be cluster-wide: {state.name} is a local channel of "
            f"node {state.rules.local_to}; leave cluster_wide out"
        )
    if command.cluster_wide and not state.rules.is_cluster:
        raise InvalidArgument(
            f"durable {command.name} cannot be cluster-wide: this realm is on one machine and has "
            f"no other nodes; leave cluster_wide out, or serve it as a cluster (penstock serve "
            f"--cluster)"
        )
    if command.cluster_wide and not state.definition.cluster_wide:
        raise InvalidArgument(
            f"{state.name} is not cluster-wide, so its durables cannot be cluster-wide; leave "
            f"cluster_wide out, or make the durable on a cluster-wide channel"
        )
    if command.cluster_wide and command.persistent is False:
        raise InvalidArgument(
            f"durable {command.name} cannot be cluster-wide: with persistent=False it ends with "
            "its node; give only one of the two"
        )
    # A durable that is not persistent ends with its node, so it cannot be on all nodes.
    by_channel = state.rules.is_cluster and state.definition.cluster_wide is True
    return command.cluster_wide or (by_channel and command.persistent is not False)


def _refuse_too_many(state: ChannelState) -> None:
    durables_max = state.rules.durables_max
    if durables_max and len(state.durables) >= durables_max:
        raise LimitReached(
            f"{state.name} has {len(state.durables)} durables; at most {durables_max} are "
            "allowed (limits.durables_per_channel_max); delete one, or raise the limit"
        )


def _refuse_long_selectors(state: ChannelState, added: str) -> None:
    """Raise ``LimitReached`` if the selectors of all durables would be too long in total."""
    if len(added) <= SHORT_SELECTOR_CHARACTERS:
        return
    characters = len(added) + sum(len(durable.selector) for durable in state.durables.values())
    if characters > DURABLE_SELECTORS_CHARACTERS_MAX:
        raise LimitReached(
            f"the selectors of the durables of {state.name} would have {characters:,} characters "
            f"together; allowed are {DURABLE_SELECTORS_CHARACTERS_MAX:,}: shorten the selector, "
            f"for example let publishers set a property that it compares, or delete durables that "
            f"no client uses"
        )


def _check_order_by(command: AddDurable, kind: DurableKind) -> None:
    """Raise ``InvalidArgument`` if the durable cannot have ``order_by``."""
    if not kind.orders_strictly:
        raise InvalidArgument(
            f"a durable of type {kind.name} cannot have order_by: it needs a type that keeps order "
            "and redelivers at once; use a serial durable"
        )
    if command.strict_order:
        raise InvalidArgument(
            "order_by keeps order within each value and strict_order over all events: give only "
            "one of them"
        )
    if command.order_by.startswith("$"):
        raise InvalidArgument(
            f"order_by is {command.order_by!r}; use the name of an event property, which does not "
            "start with '$'"
        )


def _decide_purge(state: ChannelState, command: PurgeOutstanding) -> Decided:
    """Acknowledge events for one durable, on request of an administrator."""
    durable = state.durable(command.name)
    if not durable.kind.purgeable:
        raise IllegalState(
            f"durable {durable.name} is {durable.kind.name}: its events cannot be purged for this "
            f"durable alone; purge the channel"
        )
    ids = durable.wanting(state.stored_part(command.spans))
    return Decided((Acked(durable.name, ids.spans),) if ids else (), len(ids))


def _check_deliveries(state: ChannelState, limit: int, kind: DurableKind) -> None:
    """Raise ``InvalidArgument`` for a limit of deliveries that the durable cannot have."""
    if not 0 <= limit <= REDELIVERIES_MAX:
        raise InvalidArgument(f"max_deliveries is {limit}; allowed are 0 to {REDELIVERIES_MAX}")
    if limit and not kind.redelivers_at_once:
        raise InvalidArgument(
            f"a durable of type {kind.name} does not count redeliveries: max_deliveries applies "
            f"only to types that redeliver at once"
        )
    if limit and not state.moves_dead:
        raise InvalidArgument(f"max_deliveries needs a dead event store, and {state.name} has none")


def _check_edit(state: ChannelState, definition: Definition) -> None:
    """Raise ``InvalidArgument`` for an edit of a fixed attribute, or to a value out of bounds."""
    current = state.definition
    for fixed in ("kind", "type", "engine", "keys", "start_event_id"):
        if getattr(definition, fixed) != getattr(current, fixed):
            raise InvalidArgument(
                f"{fixed} is fixed at creation ({getattr(current, fixed)!r}); "
                f"create another {current.kind} to change it"
            )
    check_limits(definition)
    limited = [d.name for d in state.durables.values() if d.name and d.attributes.max_deliveries]
    if limited and not definition.dead_event_store:
        raise InvalidArgument(
            f"durable {limited[0]} of {state.name} has max_deliveries and needs a dead event "
            f"store; name another one instead of removing it"
        )


def _evicted(state: ChannelState, definition: Definition) -> tuple[Removed, ...]:
    """Return the fact of the eviction that a new capacity causes immediately (SEM C3). Empty with
    ``honour_capacity``: a full channel then refuses publishes and evicts no event (SEM T4)."""
    if definition.storage.honour_capacity:
        return ()
    above = make_room(definition.capacity, state.stored, IdSet())
    if not above:
        return ()
    if not definition.dead_event_store:
        return (Removed(above, Cause.EVICTED),)
    moving = moved_at_once(state, IdSet(above))  # sweeps move the others, step by step
    dead = unconsumed(state, moving, Cause.EVICTED)
    return (Removed(moving.spans, Cause.EVICTED, dead.spans),)


def _decide_removal(
    state: ChannelState, command: PurgeEvents | RemoveRedriven | Quarantine | EndRelay
) -> Decided:
    """Remove the events that a command names, even if durables or subscribers want them."""
    if isinstance(command, EndRelay):
        passed = _consumed_or_unwanted(state, state.removal_candidates.overlap(state.passing))
        unstored = state.relayed.copy()
        unstored.add_all(state.leaving)
        # A slow selector is still being applied to some of them; a later EndRelay removes those.
        if unstored and command.spares:
            unstored.discard_all(not_chosen_yet(state.subscribers.values(), state.seats.values()))
        relayed_facts = (Removed(unstored.spans, Cause.RELAYED),) if unstored else ()
        return Decided((*relayed_facts, *passed), len(state.relayed))
    named, cause = state.stored_part(command.spans), _REMOVAL_CAUSES[type(command)]
    return Decided((Removed(named.spans, cause),) if named else (), len(named))
