"""Subscribers that have lost their connection: on the JMS engine what they miss waits for them for
a while (SEM J5). Soft state: a restart of the realm forgets them, but in a cluster
(``penstock_core.channel.kept_interest``)."""

from __future__ import annotations

from penstock_core.channel import kept_interest
from penstock_core.channel.state import ChannelState
from penstock_core.durable.subscriber import Subscriber
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.subscribers import AddSubscriber, Disconnect
from penstock_core.vocabulary.digest import Digest


def note_ttls(state: ChannelState, digest: Digest) -> None:
    """Remember the TTLs that say how long events wait for a disconnected subscriber."""
    if not state.engine.needs_interest:
        return
    first = state.next_id - digest.count
    for ttl_ms, spans in digest.ttls:
        if ttl_ms <= 0:
            continue
        ids = IdSet(Span(*span).shifted(first) for span in spans)
        if ids := ids.overlap(state.stored):
            state.waits.setdefault(ttl_ms, IdSet()).add_all(ids)


def lose(state: ChannelState, command: Disconnect, now_us: int) -> None:
    """Keep the place of a subscriber whose connection is lost."""
    subscriber = state.subscribers.get(command.subscription)
    if subscriber is None or not subscriber.has_interest:
        return
    if command.arrived:
        arrived = IdSet(command.arrived)
        state.removal_candidates.add_all(subscriber.confirmed(arrived))
    if subscriber.lost_us is None:
        state.absent += 1
        state.followers.single_out((subscriber.subscription,))
        subscriber.lost(now_us)


def resume(state: ChannelState, command: AddSubscriber) -> Subscriber | None:
    """The former subscriber at whose cursor this one continues; None if its place was not kept."""
    number = kept_interest.former_of(state, command)
    subscriber = None if number is None else state.remove_subscriber(number)
    if subscriber is None:
        return None
    if subscriber.lost_us is None:  # it came back before its loss was noticed
        subscriber.lost(0)
    else:
        state.absent -= 1
    state.looked_at_from(subscriber.cursor)
    return subscriber if subscriber.selector == command.selector else None


def note_left(state: ChannelState, subscriber: Subscriber) -> None:
    """Note that a subscriber has left for good: events that waited only for it may leave."""
    state.absent -= subscriber.lost_us is not None
    state.places_over = state.places_over or subscriber.place in state.places
    state.looked_at_from(subscriber.resumes_at)


def drop_overdue(state: ChannelState, now_us: int) -> None:
    """Give up what has waited long enough for those who are absent, and them with the last of
    it."""
    for ttl_ms in [ttl_ms for ttl_ms, ids in state.waits.items() if not ids]:
        del state.waits[ttl_ms]
    for subscriber in list(state.subscribers.values()):
        if subscriber.lost_us is None:
            continue
        if subscriber.lost_us == kept_interest.UNKNOWN_US:
            subscriber.lost_us = now_us
        missed_us = now_us - subscriber.lost_us
        _give_up(state, subscriber, missed_us)
        longer = [ids for ttl_ms, ids in state.waits.items() if ttl_ms * 1_000 > missed_us]
        if subscriber.is_given_up and not any(subscriber.waits_for(ids) for ids in longer):
            state.remove_subscriber(subscriber.subscription)
            note_left(state, subscriber)


def _give_up(state: ChannelState, subscriber: Subscriber, missed_us: int) -> None:
    here = Span(subscriber.cursor, subscriber.until)
    over = IdSet()
    if missed_us >= state.rules.event_timeout_us and not subscriber.is_given_up:
        subscriber.until = state.next_id
        over = state.stored.within(here)
        for ids in state.waits.values():
            over.discard_all(ids)
    for ttl_ms, ids in state.waits.items():
        if ttl_ms * 1_000 <= missed_us:
            over.add_all(ids.within(here))
    over.discard_all(subscriber.missed)
    subscriber.missed.add_all(over)
    state.removal_candidates.add_all(over)
