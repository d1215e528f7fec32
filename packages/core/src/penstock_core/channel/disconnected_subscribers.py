"""Subscribers that have lost their connection: on the JMS engine, events wait for them for some
time (SEM J5). This is soft state, which a restart forgets; in a cluster
``penstock_core.channel.kept_interest`` restores it."""

from __future__ import annotations

from penstock_core.channel import kept_interest
from penstock_core.channel.state import ChannelState
from penstock_core.durable.subscriber import Subscriber
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.subscribers import AddSubscriber, Disconnect
from penstock_core.vocabulary.digest import Digest


def note_ttls(state: ChannelState, digest: Digest) -> None:
    """Record the event TTLs, which limit how long events wait for disconnected subscribers."""
    if not state.engine.needs_interest:
        return
    first = state.next_id - digest.count
    for ttl_ms, spans in digest.ttls:
        if ttl_ms <= 0:
            continue
        ids = IdSet(Span(*span).shifted(first) for span in spans)
        if ids := ids.overlap(state.stored):
            state.waits.setdefault(ttl_ms, IdSet()).add_all(ids)


def note_lost_connection(state: ChannelState, command: Disconnect, now_us: int) -> None:
    """Keep the position of a subscriber whose connection is lost."""
    subscriber = state.subscribers.get(command.subscription)
    if subscriber is None or not subscriber.has_interest:
        return
    if command.arrived:
        arrived = IdSet(command.arrived)
        state.removal_candidates.add_all(subscriber.confirmed(arrived))
    if subscriber.lost_us is None:
        state.absent += 1
        state.followers.single_out((subscriber.subscription,))
        subscriber.record_lost_connection(now_us)


def resume(state: ChannelState, command: AddSubscriber) -> Subscriber | None:
    """Return the former subscriber whose place the new subscriber takes over, after removing it.
    Return None if no place was kept, or if the former subscriber had another selector."""
    subscription = kept_interest.former_of(state, command)
    subscriber = None if subscription is None else state.remove_subscriber(subscription)
    if subscriber is None:
        return None
    if subscriber.lost_us is None:  # it reconnected before the loss was noticed
        subscriber.record_lost_connection(0)
    else:
        state.absent -= 1
    state.recheck_from(subscriber.cursor)
    return subscriber if subscriber.selector == command.selector else None


def note_left(state: ChannelState, subscriber: Subscriber) -> None:
    """Record that a subscriber has ended: events that waited only for it may leave."""
    state.absent -= subscriber.lost_us is not None
    state.places_over = state.places_over or subscriber.place in state.places
    state.recheck_from(subscriber.resumes_at)


def drop_overdue(state: ChannelState, now_us: int) -> None:
    """Stop keeping events that have waited long enough for absent subscribers, and remove a
    subscriber with the last of its events."""
    for ttl_ms in [ttl_ms for ttl_ms, ids in state.waits.items() if not ids]:
        del state.waits[ttl_ms]
    for subscriber in list(state.subscribers.values()):
        if subscriber.lost_us is None:
            continue
        # After a failover the time of the loss is unknown, so it counts from the first sweep.
        if subscriber.lost_us == kept_interest.UNKNOWN_US:
            subscriber.lost_us = now_us
        missed_us = now_us - subscriber.lost_us
        _give_up(state, subscriber, missed_us)
        waiting_longer = [ids for ttl_ms, ids in state.waits.items() if ttl_ms * 1_000 > missed_us]
        if subscriber.is_given_up and not any(subscriber.waits_for(ids) for ids in waiting_longer):
            state.remove_subscriber(subscriber.subscription)
            note_left(state, subscriber)


def _give_up(state: ChannelState, subscriber: Subscriber, missed_us: int) -> None:
    """Stop keeping events for a subscriber that has been disconnected for ``missed_us``. Events
    with an event TTL are kept for that TTL, all others for ``event_timeout_us``."""
    awaited_span = Span(subscriber.cursor, subscriber.until)
    overdue = IdSet()
    if missed_us >= state.rules.event_timeout_us and not subscriber.is_given_up:
        subscriber.until = state.next_id
        overdue = state.stored.within(awaited_span)
        for ids in state.waits.values():
            overdue.discard_all(ids)
    for ttl_ms, ids in state.waits.items():
        if ttl_ms * 1_000 <= missed_us:
            overdue.add_all(ids.within(awaited_span))
    overdue.discard_all(subscriber.missed)
    subscriber.missed.add_all(overdue)
    state.removal_candidates.add_all(overdue)
