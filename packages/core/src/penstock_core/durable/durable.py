"""A durable subscription: the record of the events that its clients have not acknowledged (SEM D).

This module is the mechanism. The policy, which decides what client may attach and which one is
served next, is a ``DurableKind``; each kind is one file in ``penstock_core.durables``. Outstanding
ids below ``head`` are kept as sets. Every stored event from ``head`` on is outstanding without
being recorded, so a durable without clients costs nothing per event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock_core.durable.deadlines import Deadlines
from penstock_core.durable.lanes import Lanes
from penstock_core.durable.redelivery_counts import RedeliveryCounts
from penstock_core.durable.seat import (
    DEALT_MAX,
    DurableKind,
    KeptPlace,
    Seat,
    dealt,
    has_small_windows,
)
from penstock_core.durable.waiting import Waiting
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.durable_attributes import DURABLE_DEFAULTS, DurableAttributes
from penstock_core.vocabulary.errors import IllegalState
from penstock_core.vocabulary.seeks import LastSeek


class Durable:
    """The outstanding events of one durable, and the seats that hold them."""

    __slots__ = (
        "__weakref__",  # other modules keep data about durables in weak dictionaries
        "ack_timeout_ms",
        "acknowledged",
        "attributes",
        "deadlines",
        "delivered",
        "head",
        "kind",
        "lanes",
        "last_seek",
        "levels",
        "name",
        "newest_rank",
        "outstanding",
        "parked",
        "persistent",
        "places",
        "read_us",
        "ready",
        "rolled_back",
        "seats",
        "selector",
        "unrecorded",
        "waiting",
    )

    def __init__(
        self,
        name: str,
        kind: DurableKind,
        head: int,
        *,
        selector: str = "",
        persistent: bool = True,
        attributes: DurableAttributes = DURABLE_DEFAULTS,
    ) -> None:
        self.name = name
        self.kind = kind
        self.selector = selector
        self.persistent = persistent
        self.attributes = attributes
        self.lanes = Lanes() if attributes.order_by else None
        """Soft state, which a restart forgets: lanes of the examined events; None without
        ``order_by``."""
        self.head = head
        """Stored events from this id on are outstanding. With a selector only offered events are
        outstanding, and ids below ``head`` are not offered (SEM D3)."""
        self.outstanding = IdSet()
        """Hard state, rebuilt from facts: unsettled events below ``head``."""
        self.unrecorded = IdSet()
        """Used at recovery: unsettled ids below ``head`` of which no fact has recorded an event.
        The events only passed through memory, unless a later fact stores them (SEM J7)."""
        self.ready = IdSet()
        """Soft state, which a restart forgets: outstanding events that no client holds and that are
        not delayed. With lanes delayed events are included, and their lanes hold them back."""
        self.waiting: Waiting | None = None
        """Events that are delayed after a rollback (SEM D18); None until the first one."""
        self.parked = IdSet()
        """Soft state, which a restart forgets: rolled-back events that wait for the next attach."""
        self.deadlines: Deadlines | None = None
        """Soft state, which a restart forgets: acknowledgement deadlines; None until the first
        one."""
        self.levels = RedeliveryCounts()
        """Redelivery counts: ``levels[n]`` holds the ids that were redelivered n times."""
        self.rolled_back = IdSet()
        """Events rolled back and not settled since, at cumulative types that do not redeliver at
        once. An acknowledgement of a later event covers them only if they were delivered again."""
        self.seats: list[Seat] = []
        self.places: dict[str, KeptPlace] = {}
        """Hard state, rebuilt from facts: seats that are reserved over a failover, oldest first
        (SEM N6)."""
        self.newest_rank = 0
        """Soft state, which a restart forgets: the rank of the newest seat."""
        self.read_us = 0
        """Time at which a client last attached, held or settled events, in microseconds."""
        self.delivered = 0
        """Soft state, which a restart forgets: number of deliveries to clients since the realm
        started; redeliveries count again."""
        self.acknowledged = 0
        """Soft state, which a restart forgets: events acknowledged since the realm started,
        including those purged for this durable."""
        self.last_seek = LastSeek()
        """Hard state, rebuilt from facts: the last seek, whose answer a repeated seek gets again
        (SEM D20)."""

    # --- hard state: apply ---------------------------------------------------------------

    def add_published(self, span: Span, matched: IdSet) -> None:
        """Record published events; ``matched`` are those that the durable's selector matches."""
        if not self.selector:
            return  # the events are at or beyond head, so they are outstanding already
        if span.first < self.head:  # the durable may begin at a later id (SEM D3)
            matched = matched.within(Span(self.head, span.end))
        self.outstanding.add_all(matched)
        self.ready.add_all(matched)
        self.head = max(self.head, span.end)

    def forget_all_but(self, stored: IdSet) -> None:
        """Drop ids that are not in ``stored``, because a snapshot may contain events that were
        never stored."""
        id_sets = (self.outstanding, self.ready, self.rolled_back, *self.levels.values())
        for ids in id_sets:
            if ids:
                unstored = ids.copy()
                unstored.discard_all(stored)
                ids.discard_all(unstored)
        if self.waiting:
            unstored = self.waiting.ids.copy()
            unstored.discard_all(stored)
            self.waiting.discard(unstored)

    def settle_all(self, ids: IdSet) -> None:
        """Remove events that were acknowledged or have left the channel."""
        self._take_back(ids)
        # Counted before the removal: the lanes have to know how many waiting events leave.
        ready_before = len(self.ready)
        were_delayed = self.waiting.discard(ids) if self.waiting else None
        sets = (self.outstanding, self.unrecorded, self.ready, self.parked, self.rolled_back)
        for id_set in (*sets, *self.levels.values()):
            if id_set:
                id_set.discard_all(ids)
        if self.lanes is not None:
            self.lanes.settled(ids, ready_before - len(self.ready), self.ready)
            if were_delayed:
                self.lanes.wake(were_delayed)
        for seat in self.seats:
            if seat.wanted:
                seat.wanted.discard_all(ids)
            if seat.refused:
                seat.refused.discard_all(ids)

    def roll_back(self, ids: IdSet) -> int:
        """Take ``ids`` back from all clients, and count a redelivery of those that are outstanding.
        Return the number of counted redeliveries, which is 0 at types that redeliver with the next
        attach."""
        returned = self.outstanding.overlap(ids)
        if not self.kind.redelivers_at_once:
            self.rolled_back.add_all(ids)
            self.park(ids)
            return 0
        self._take_back(ids)
        self._wait_again(ids)
        self.levels.raise_by_one(returned)
        return len(returned)

    def postpone(self, ids: IdSet, until_us: int) -> None:
        """Delay the outstanding events of ``ids`` until ``until_us``."""
        delayed = self.outstanding.overlap(ids)
        if not delayed:
            return
        if self.waiting is None:
            self.waiting = Waiting()
        self.waiting.add(delayed, until_us)
        if self.lanes is None:
            self.ready.discard_all(delayed)
        else:  # the events stay ready, so that their lanes wait behind them
            self.lanes.asleep.add_all(delayed)

    def wake(self, now_us: int) -> None:
        """Make delayed events ready whose delay has ended."""
        if not self.waiting:
            return
        woken = self.waiting.take_due(now_us)
        if self.lanes is not None:
            self.lanes.wake(woken)
            return
        woken.discard_all(self.parked)  # ready with the next attach
        for seat in self.seats:  # a client that holds the durable as a whole may hold them
            woken.discard_all(seat.in_flight)
        self.ready.add_all(woken)

    def park(self, ids: IdSet) -> None:
        """Take ``ids`` back from all clients. They become ready at the next attach, and no
        redelivery is counted for them."""
        self._take_back(ids)
        parked = self.outstanding.overlap(ids)
        # After a restart an event is ready already, and waits for the next client anyway.
        parked.discard_all(self.ready)
        self.parked.add_all(parked)

    def take_back_unsent(self, ids: IdSet) -> None:
        """Undo the grant of events that were never sent."""
        self.delivered -= len(ids)
        if not self.kind.redelivers_at_once:
            self.park(ids)
            return
        self._take_back(ids)
        self._wait_again(ids)

    def take_back_withheld(self, ids: IdSet) -> None:
        """Take back events that were granted to a client without room; they are granted again."""
        self.delivered -= len(ids)
        self.recall(ids)

    def _wait_again(self, ids: IdSet) -> None:
        """Return events that clients no longer hold to the ready events, and to their former places
        in the lanes."""
        self._offer_again(self.outstanding.overlap(ids))
        if self.lanes is not None:
            self.lanes.put_back(ids)

    def _offer_again(self, returned: IdSet) -> None:
        """Make the events ``returned`` ready, because no client holds them any more. Delayed events
        stay delayed, and are removed from ``returned``."""
        if self.waiting and self.lanes is None:
            returned.discard_all(self.waiting.ids)
        self.ready.add_all(returned)

    def recall(self, ids: IdSet) -> None:
        """Take ``ids`` back from all clients without counting a redelivery (SEM D11)."""
        self._take_back(ids)
        self._wait_again(ids)

    def _take_back(self, ids: IdSet) -> None:
        """Remove events from the events in flight of all seats."""
        if self.deadlines:
            self.deadlines.discard(ids)
        for seat in self.seats:
            if seat.in_flight:
                seat.in_flight.discard_all(ids)

    def record_seat(self, place: str, session: str, *, sole: bool, waited_us: int) -> None:
        """Record a taken seat, which is reserved over a failover, and the time that owners have
        waited for its session, in microseconds. An existing seat keeps its rank."""
        self.newest_rank += place not in self.places
        rank = self.places[place].rank if place in self.places else self.newest_rank
        self.places[place] = KeptPlace(rank, session, sole, waited_us=waited_us)

    def reach(self, end: int, stored: IdSet) -> None:
        """Record outstanding events up to ``end`` in sets and move ``head`` there."""
        if end <= self.head:
            return
        # With a selector the sets have all outstanding events already.
        if not self.selector:
            reached = Span(self.head, end)
            stored_part = stored.within(reached)
            self.outstanding.add_all(stored_part)
            self.ready.add_all(stored_part)
            if not self.seats and len(stored_part) < reached.size:
                self.unrecorded.add(reached)
                self.unrecorded.discard_all(stored_part)
        self.head = end

    # --- soft state: attend and offer ----------------------------------------------------

    def seat_of(self, subscription: int) -> Seat | None:
        return next((seat for seat in self.seats if seat.subscription == subscription), None)

    def attach(self, seat: Seat) -> None:
        """Add a seat, after the seats that are served before it, and make parked events ready."""
        assert self.kind.may_attach(self.seats), "decide() has checked"
        reserved = self.places.get(seat.place)
        if reserved is None:
            seat.rank = self.newest_rank = self.newest_rank + 1
        else:
            seat.rank = reserved.rank
            for former in self.seats:  # a former connection whose loss was not noticed yet
                former.place = "" if former.place == seat.place else former.place
        if not self.seats:
            self._unpark()
        position = len(self.seats)
        if position and self.seats[-1].reach:
            position -= 1  # behind all seats but the one served last, so that it is served next
        self.seats.insert(position, seat)
        self.unrecorded = IdSet()  # recovery has ended

    def hold(self, seat: Seat, span: Span, stored: IdSet, now_us: int) -> None:
        """Let a sole seat hold the ready events of ``span``, which ends at or below the channel's
        next id."""
        if seat.recalls:
            return  # its client must confirm the recall first
        self.reach(span.end, stored)
        events = self.ready.within(span)
        self.ready.remove_all(events)
        if self.waiting:  # the client acknowledges all events up to an id, so delays do not apply
            events.add_all(self.waiting.ids.within(span))
            for held_elsewhere in (seat.in_flight, self.parked):
                events.discard_all(held_elsewhere)
        seat.in_flight.add_all(events)
        seat.record_grant(events.spans, now_us)
        self.delivered += len(events)

    def _unpark(self) -> None:
        """Make all parked events ready."""
        self._offer_again(self.parked)
        self.parked = IdSet()

    def add_passing(self, ids: IdSet, end: int, stored: IdSet) -> None:
        """Make the events ``ids`` ready for this turn only. They were never stored, or are no
        longer stored, and keep their place in the order (SEM E8, T3). ``end`` is an id above all
        of them."""
        # The stored events before them become ready first, so that they are not overtaken.
        if not self.selector:
            self.reach(end, stored)
        self.ready.add_all(ids)

    def drop_passed(self, ids: IdSet) -> None:
        """Drop events at the end of the turn that made them ready (:meth:`add_passing`). Clients
        that have not been sent them by now never get them."""
        missed = self.ready.remove_all(ids)
        if self.lanes is not None:
            self.lanes.settled(IdSet(), len(missed), self.ready)
        for seat in self.seats:
            if seat.wanted is not None:
                seat.wanted.remove_all(ids)

    def hand_until(self, seat: Seat, spans: Spans, now_us: int) -> int:
        """Set the acknowledgement deadline of events granted to ``seat``, and return it in
        microseconds. Events that are never stored get no deadline, because they are not
        redelivered."""
        if self.deadlines is None:
            self.deadlines = Deadlines()
        handed = self.outstanding.overlap(IdSet(spans))
        return self.deadlines.hand(handed, now_us, seat.ack_timeout_ms * 1_000)

    def detach(self, subscription: int) -> None:
        """Remove a seat and make its events ready. Their redeliveries are counted by a fact that
        was applied before."""
        seat = self.seat_of(subscription)
        if seat is None:
            return
        if self.deadlines:
            self.deadlines.discard(seat.in_flight)
        # Before `remove_seat`: a lane belongs to the seat until its events in flight are returned.
        self._wait_again(seat.in_flight)
        self.seats.remove(seat)
        if self.lanes is not None:
            self.lanes.remove_seat(seat)
        if seat.reach:  # it was served, so its successor gets the events that it rolled back
            self._unpark()

    def grants(self, stored: IdSet, chunk: int, below: int) -> list[tuple[Seat, Spans]]:
        """Grant the lowest ready events under ``below`` to the seats in turn, a fair share to each
        seat: one by one if all windows are small, otherwise as runs of ids of at most ``chunk``
        events (SEM D8)."""
        granted: list[tuple[Seat, Spans]] = []
        if self.is_waiting:
            return granted  # absent sessions come first (SEM N6)
        if self.lanes is not None:
            return self._by_lane(self.lanes, chunk, below)
        if self.waiting and self.kind.waits_in_order:
            below = self.waiting.held_up(below, self.parked)
        if any(seat.wanted is not None or seat.refused for seat in self.seats):
            return self._selective(stored, chunk, below)
        # One round may leave credit and ready events, because `chunk` and the smallest window limit
        # the shares.
        while seats := self.kind.servable(self.seats):
            wanted = min(sum(seat.credit for seat in seats), chunk * len(seats))
            self._fill(wanted, stored, below)
            count = self._ready_count(below)
            if not count:
                break
            # Rounded up, so that the last events need not wait for another round.
            share = max(1, -(-min(count, wanted) // len(seats)))
            if 1 < share <= DEALT_MAX and len(seats) > 1 and has_small_windows(seats):
                share = min(share, *[seat.credit for seat in seats])
                shares = iter(dealt(seats, self._take(share * len(seats), below)))
            else:
                shares = self._runs(seats, min(share, chunk), below)
            for seat, spans in shares:
                self._grant(seat, spans)
                granted.append((seat, spans))
        return granted

    def _runs(self, seats: Sequence[Seat], share: int, below: int) -> Iterator[tuple[Seat, Spans]]:
        """Take the lowest ready events, up to ``share`` for each seat, as a run of ids."""
        for seat in seats:
            if not (spans := self._take(min(seat.credit, share), below)):
                return
            yield seat, spans

    def _by_lane(self, lanes: Lanes, chunk: int, below: int) -> list[tuple[Seat, Spans]]:
        """Grant the events whose lanes are known, each lane to one seat at a time (SEM D11)."""
        granted: list[tuple[Seat, Spans]] = []
        while shares := lanes.shares(self.seats, below, chunk, self.ready):
            for seat, ids in shares:
                self.ready.remove_all(ids)
                self._grant(seat, ids.spans)
                granted.append((seat, ids.spans))
        return granted

    def without_known_lane(self, stored: IdSet, limit: int, below: int) -> Spans:
        """Return the next events whose lanes the shell must find, at most ``limit`` events under
        ``below``. None are returned while no client has credit."""
        if self.lanes is None or not any(seat.credit > 0 for seat in self.seats):
            return ()
        if self.is_waiting:
            return ()
        spans: list[Span] = []
        next_id = self.lanes.examined_end
        while limit > 0:
            span = self.ready.next_span(next_id, limit)
            # Without a selector every stored event is for this durable, so the next ones become
            # ready now. With one, the matching events are not known here.
            if span is None and not self.selector:
                beyond = stored.next_span(self.head, limit)
                if beyond is not None and beyond.first < below:
                    self.reach(min(beyond.end, below), stored)
                    span = self.ready.next_span(next_id, limit)
            if span is None or span.first >= below:
                break
            spans.append(Span(span.first, min(span.end, below)))
            limit -= span.size
            next_id = span.end
        return tuple(spans)

    def _selective(self, stored: IdSet, chunk: int, below: int) -> list[tuple[Seat, Spans]]:
        """Grant events while some seats want only part of them. Events that one seat does not want
        stay ready for the others."""
        granted: list[tuple[Seat, Spans]] = []
        idle = 0
        self.reach(below, stored)
        while seats := self.kind.servable(self.seats):
            seat = seats[0]
            ready = self.ready.within(Span(0, below))
            if seat.wanted is not None:
                ready = ready.overlap(seat.wanted)
            if seat.refused:
                ready.discard_all(seat.refused)
            share = max(1, len(ready) // len(seats))
            spans = self._lowest(ready, min(seat.credit, share, chunk))
            if spans:
                self._grant(seat, spans)
                granted.append((seat, spans))
                idle = 0
                continue
            # Stop once every seat in turn has got nothing.
            idle += 1
            if idle >= (len(seats) if len(seats) > 1 else len(self.seats)):
                break
            self._grant(seat, ())  # no events, but the next seat has its turn
        return granted

    def _lowest(self, ready: IdSet, limit: int) -> Spans:
        """Remove the lowest ``limit`` events of ``ready`` from the ready events, and return
        them."""
        spans: list[Span] = []
        while limit > 0 and (span := ready.take(limit)) is not None:
            self.ready.remove(span)
            spans.append(span)
            limit -= span.size
        return tuple(spans)

    def _ready_count(self, below: int) -> int:
        """Return the number of ready events with ids below ``below``."""
        highest = self.ready.highest
        if highest is None or highest < below:
            return len(self.ready)
        return self.ready.count(Span(0, below))

    def _fill(self, wanted: int, stored: IdSet, below: int) -> None:
        """Move ``head`` forward, under ``below``, until ``wanted`` events are ready or all are."""
        if self.selector:
            return  # matching events become ready when they are published or the durable is created
        while len(self.ready) < wanted:
            span = stored.next_span(self.head, wanted - len(self.ready))
            if span is None or span.first >= below:
                return
            self.reach(min(span.end, below), stored)

    def _take(self, limit: int, below: int) -> Spans:
        """Remove and return the lowest ready ids below ``below``, at most ``limit``."""
        spans: list[Span] = []
        while limit > 0 and (lowest := self.ready.lowest) is not None and lowest < below:
            span = self.ready.take(min(limit, below - lowest))
            assert span is not None, "a set with a lowest id is not empty"
            spans.append(span)
            limit -= span.size
        return tuple(spans)

    def _grant(self, seat: Seat, spans: Spans) -> None:
        """Grant ``spans`` to a seat, and move the seat to the end of the queue of seats."""
        self.delivered += seat.hand(spans)
        # The seat goes to the end: `servable` starts with the seat that was served longest ago.
        self.seats.remove(seat)
        self.seats.append(seat)

    # --- questions -----------------------------------------------------------------------

    @property
    def absent(self) -> dict[str, KeptPlace]:
        """Reserved seats whose sessions are not connected."""
        if not self.places:
            return {}
        connected = {seat.place for seat in self.seats}
        return {place: kept for place, kept in self.places.items() if place not in connected}

    @property
    def is_waiting(self) -> bool:
        """Whether no client is served because absent sessions may still reconnect (SEM N6)."""
        absent = [kept.rank for kept in self.absent.values()]
        return bool(absent) and self.kind.waits_for(self.seats, absent)

    @property
    def is_fed(self) -> bool:
        """Whether connected clients take events without requests and acknowledge them automatically
        in order. On the JMS engine, events are then not kept for the durable (SEM J, J7)."""
        fed = [seat.auto_ack and seat.demand is None for seat in self.seats]
        return self.kind.cumulative and bool(fed) and all(fed)

    def settled_by(self, seat: Seat, spans: Spans, stored: IdSet) -> IdSet:
        """Return the ids that the client of ``seat`` settles if it names ``spans``. Raises
        ``IllegalState`` for outstanding events that the seat does not hold (SEM D15).

        Ids that are settled or have left are skipped: a second ack has no effect, and an event may
        be purged while a client holds it (SEM T9).
        """
        named = IdSet(spans)  # an id that occurs twice is settled once
        held = seat.in_flight.overlap(named)
        if len(held) != len(named):
            not_held = self.wanting(named.overlap(stored))
            not_held.discard_all(held)
            if not_held:
                raise IllegalState(
                    f"event {not_held.lowest} of durable {self.name} was not delivered to this "
                    f"subscription, or has been taken back{seat.in_time}; only the subscription "
                    "that holds it may settle it"
                )
        return held

    def below(self, seat: Seat, event_id: int, stored: IdSet) -> IdSet:
        """Return the ids that ``ack(previous)`` covers, up to and including ``event_id``.

        These are the events that the seat holds. For a cumulative kind they are all outstanding
        events up to the newest one granted to the seat, except those rolled back and not delivered
        again. For a sole seat they are all outstanding events that it has not rolled back itself.
        """
        if seat.sole:
            covered_by_sole = self.wanting(stored.within(Span(0, event_id + 1)))
            if self.rolled_back:
                covered_by_sole.discard_all(self.rolled_back.overlap(self.parked))
            return covered_by_sole
        if not self.kind.cumulative:
            return seat.in_flight.within(Span(0, event_id + 1))
        covered = Span(0, min(event_id + 1, seat.reach))
        settled = self.outstanding.within(covered)
        settled.discard_all(self.rolled_back)
        # Events that are never stored are in flight without being outstanding.
        settled.add_all(seat.in_flight.within(covered))
        return settled

    def wanting(self, ids: IdSet) -> IdSet:
        """Return the part of ``ids``, all stored, that is outstanding."""
        outstanding = self.outstanding.overlap(ids)
        if not self.selector:
            outstanding.add_all(ids.within(Span(self.head, 1 << 62)))
        return outstanding

    def ungranted(self, ids: IdSet) -> IdSet:
        """Return the part of ``ids``, all stored, that is ready and held by no client."""
        ready = self.ready.overlap(ids)
        if not self.selector:
            ready.add_all(ids.within(Span(self.head, 1 << 62)))
        return ready

    @property
    def limits_deliveries(self) -> bool:
        """Whether the number of deliveries of an event is limited (SEM T10)."""
        return self.attributes.max_deliveries > 0

    def exhausted(self, ids: IdSet) -> IdSet:
        """Return the part of ``ids`` that has reached the limit of deliveries (SEM T10)."""
        deliveries_max = self.attributes.max_deliveries
        if not deliveries_max:
            return IdSet()
        # The current delivery also counts, but it is not a redelivery yet.
        if deliveries_max == 1:
            return ids.copy()
        return self.levels.at_least(deliveries_max - 1, ids)

    def redeliveries(self, spans: Spans) -> tuple[tuple[int, Spans], ...]:
        """Return the events of ``spans`` that were redelivered, by redelivery count."""
        return self.levels.within(spans)

    def outstanding_count(self, stored: IdSet) -> int:
        """Return the number of outstanding events. Without a selector, all stored events from the
        head on are outstanding, too."""
        beyond = 0 if self.selector else stored.count(Span(self.head, 1 << 62))
        return len(self.outstanding) + beyond

    def first_outstanding(self, stored: IdSet) -> int | None:
        """Return the lowest outstanding id; None if no event is outstanding."""
        lowest = self.outstanding.lowest
        if lowest is not None or self.selector:
            return lowest
        beyond = stored.next_span(self.head, 1)
        return None if beyond is None else beyond.first

    def outstanding_spans(self, stored: IdSet) -> Spans:
        """Return the ids of outstanding events. Without a selector, all stored events from the head
        on are outstanding, too."""
        beyond = () if self.selector else stored.within(Span(self.head, 1 << 62)).spans
        return (*self.outstanding.spans, *beyond)

    @property
    def recalls(self) -> bool:
        """Whether events may be recalled after they were sent (SEM D11)."""
        return self.attributes.strict_order or self.lanes is not None

    @property
    def in_flight_count(self) -> int:
        return sum(len(seat.in_flight) for seat in self.seats)

    @property
    def redelivered_count(self) -> int:
        return sum(map(len, self.levels.values()))

    def position(self, next_id: int) -> int:
        """Return the id at which a snapshot may set ``head``: no event from this id on is recorded
        in the sets. ``next_id`` is the channel's next id."""
        return max(self.head, next_id) if self.selector else self.head
