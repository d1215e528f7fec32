"""A durable subscription: the ledger of what one named reader still has to see (SEM D).

This file is mechanism. Policy, which is who may attach and who is served next, is a
``DurableKind``; each kind is one file in ``penstock_core.durables``. Ids below ``head`` are kept as
sets; everything stored from ``head`` on is outstanding without being recorded, so a durable that
nobody reads costs nothing per event.
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
    """Outstanding events of one durable, and who holds which."""

    __slots__ = (
        "__weakref__",  # others keep notes on it that end with it
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
        """Soft state."""
        self.head = head
        """Ids from here on are outstanding where stored. With a selector none is that was not
        offered, and ids below it are not offered (SEM D3)."""
        self.outstanding = IdSet()
        """Hard state, below ``head``: not yet settled."""
        self.ready = IdSet()
        """Soft: outstanding, with no client, and not waiting for a time; with lanes those that
        wait are here, and their lanes know of it."""
        self.waiting: Waiting | None = None
        """Given back, and not to come again before a time (SEM D18); None: none ever was."""
        self.parked = IdSet()
        """Soft state: rolled back, waiting for the next attach."""
        self.deadlines: Deadlines | None = None
        """Soft state: until when clients have to acknowledge; None: none ever had to."""
        self.levels = RedeliveryCounts()
        """Redelivery counts: ``levels[n]`` holds the ids redelivered n times, if there are any."""
        self.rolled_back = IdSet()
        """For cumulative types that do not redeliver at once: rolled back and not settled since.
        Acknowledging a later event does not cover them unless they were delivered again."""
        self.seats: list[Seat] = []
        self.places: dict[str, KeptPlace] = {}
        """Hard state: the seats that are kept when another node takes over, in the order in which
        they were taken (SEM N6)."""
        self.newest_rank = 0
        """Soft state: the rank of the seat that was taken last."""
        self.read_us = 0
        """When a client last got or settled something."""
        self.delivered = 0
        """Soft state: events handed to clients since the realm started, each time again."""
        self.acknowledged = 0
        """Soft state: of events since the realm started, also when they were purged for it."""
        self.last_seek = LastSeek()
        """Hard state, for whoever asks again (SEM D20)."""

    # --- hard state: apply ---------------------------------------------------------------

    def offered(self, span: Span, matched: IdSet) -> None:
        """New events were published; ``matched`` are those a stored selector wants."""
        if not self.selector:
            return  # beyond head, outstanding by definition
        if span.first < self.head:  # it may begin later (SEM D3)
            matched = matched.within(Span(self.head, span.end))
        self.outstanding.add_all(matched)
        self.ready.add_all(matched)
        self.head = max(self.head, span.end)

    def forget_all_but(self, stored: IdSet) -> None:
        """Drop the ids that are not in ``stored``: a snapshot may name events never stored."""
        ledgers = (self.outstanding, self.ready, self.rolled_back, *self.levels.values())
        for ledger in ledgers:
            if ledger:
                gone = ledger.copy()
                gone.discard_all(stored)
                ledger.discard_all(gone)
        if self.waiting:
            gone = self.waiting.ids.copy()
            gone.discard_all(stored)
            self.waiting.discard(gone)

    def settle_all(self, ids: IdSet) -> None:
        """Note that these are acknowledged, or have left the channel."""
        self._take_back(ids)
        waited = len(self.ready)
        asleep = self.waiting.discard(ids) if self.waiting else None
        sets = (self.outstanding, self.ready, self.parked, self.rolled_back)
        for ledger in (*sets, *self.levels.values()):
            if ledger:
                ledger.discard_all(ids)
        if self.lanes is not None:
            self.lanes.settled(ids, waited - len(self.ready), self.ready)
            if asleep:
                self.lanes.woken(asleep)
        for seat in self.seats:
            if seat.wanted:
                seat.wanted.discard_all(ids)
            if seat.refused:
                seat.refused.discard_all(ids)

    def roll_back(self, ids: IdSet) -> int:
        """Take ``ids`` out of all hands: at once, one more redelivery on the count of those that
        are outstanding; gives how many these are. Where they return with the next attach nothing
        is counted."""
        back = self.outstanding.overlap(ids)
        if not self.kind.redelivers_at_once:
            self.rolled_back.add_all(ids)
            self.park(ids)
            return 0
        self._take_back(ids)
        self._wait_again(ids)
        self.levels.raise_by_one(back)
        return len(back)

    def postpone(self, ids: IdSet, until_us: int) -> None:
        """Have those of ``ids`` that are outstanding come again no sooner than then."""
        late = self.outstanding.overlap(ids)
        if not late:
            return
        if self.waiting is None:
            self.waiting = Waiting()
        self.waiting.add(late, until_us)
        if self.lanes is None:
            self.ready.discard_all(late)
        else:
            self.lanes.asleep.add_all(late)

    def wake(self, now_us: int) -> None:
        """Let those come again whose time has come."""
        if not self.waiting:
            return
        back = self.waiting.take_due(now_us)
        if self.lanes is not None:
            self.lanes.woken(back)
            return
        back.discard_all(self.parked)  # they come with the next attach
        for seat in self.seats:  # a client that holds the durable as a whole may have taken them
            back.discard_all(seat.in_flight)
        self.ready.add_all(back)

    def park(self, ids: IdSet) -> None:
        """Take ``ids`` out of all hands; they return, uncounted, with the next attach."""
        self._take_back(ids)
        parked = self.outstanding.overlap(ids)
        # read back after a restart, it waits for the next client anyway
        parked.discard_all(self.ready)
        self.parked.add_all(parked)

    def unsent(self, ids: IdSet) -> None:
        """``ids`` were granted and never sent: it is as if they had not been granted."""
        self.delivered -= len(ids)
        if not self.kind.redelivers_at_once:
            self.park(ids)
            return
        self._take_back(ids)
        self._wait_again(ids)

    def withheld(self, ids: IdSet) -> None:
        """``ids`` were granted to a client that has no room for them: they are granted again."""
        self.delivered -= len(ids)
        self.recalled(ids)

    def _wait_again(self, ids: IdSet) -> None:
        self._offer_again(self.outstanding.overlap(ids))
        if self.lanes is not None:
            self.lanes.returned(ids)

    def _offer_again(self, back: IdSet) -> None:
        """No client has these any more; ``back`` is changed."""
        if self.waiting and self.lanes is None:
            back.discard_all(self.waiting.ids)
        self.ready.add_all(back)

    def recalled(self, ids: IdSet) -> None:
        """Take ``ids`` out of all hands, uncounted (SEM D11)."""
        self._take_back(ids)
        self._wait_again(ids)

    def _take_back(self, ids: IdSet) -> None:
        if self.deadlines:
            self.deadlines.discard(ids)
        for seat in self.seats:
            if seat.in_flight:
                seat.in_flight.discard_all(ids)

    def seated(self, place: str, session: str, *, sole: bool, waited_us: int) -> None:
        """Note that a seat is taken which is kept when another node takes over, or how long its
        session has been waited for. It keeps its turn."""
        self.newest_rank += place not in self.places
        rank = self.places[place].rank if place in self.places else self.newest_rank
        self.places[place] = KeptPlace(rank, session, sole, waited_us=waited_us)

    def recover_passed(self, ids: IdSet) -> None:
        """Note at recovery that ``ids`` are stored, although earlier facts said that they only
        passed (SEM J7). Those that were given back are outstanding."""
        back = self.rolled_back.overlap(ids)
        self.outstanding.add_all(back)
        self.ready.add_all(back)

    def reach(self, end: int, stored: IdSet) -> None:
        """Record what is outstanding up to ``end``."""
        if end <= self.head:
            return
        if not self.selector:
            for part in stored.within(Span(self.head, end)).spans:
                self.outstanding.add(part)
                self.ready.add(part)
        self.head = end

    # --- soft state: attend and offer ----------------------------------------------------

    def seat_of(self, subscription: int) -> Seat | None:
        return next((seat for seat in self.seats if seat.subscription == subscription), None)

    def attach(self, seat: Seat) -> None:
        assert self.kind.may_attach(self.seats), "decide() has checked"
        kept = self.places.get(seat.place)
        if kept is None:
            seat.rank = self.newest_rank = self.newest_rank + 1
        else:
            seat.rank = kept.rank
            for other in self.seats:  # its connection is lost, and nobody has noticed yet
                other.place = "" if other.place == seat.place else other.place
        if not self.seats:
            self._unpark()
        at = len(self.seats)
        if at and self.seats[-1].reach:
            at -= 1  # the last one served has had its turn
        self.seats.insert(at, seat)

    def hold(self, seat: Seat, span: Span, stored: IdSet) -> None:
        """Hand what is ready of ``span``, below the channel's next id, to a sole seat."""
        if seat.recalls:
            return  # its client has to be told first
        self.reach(span.end, stored)
        taken = self.ready.within(span)
        self.ready.remove_all(taken)
        if self.waiting:  # it takes events as it likes, and acknowledges all up to an id
            taken.add_all(self.waiting.ids.within(span))
            for held in (seat.in_flight, self.parked):
                taken.discard_all(held)
        seat.in_flight.add_all(taken)
        self.delivered += len(taken)

    def _unpark(self) -> None:
        self._offer_again(self.parked)
        self.parked = IdSet()

    def passing(self, ids: IdSet, end: int, stored: IdSet) -> None:
        """Events that are never stored, or not any more, go by: in this turn they are ready, in
        their place among the others (SEM E8, T3)."""
        if not self.selector:
            self.reach(end, stored)
        self.ready.add_all(ids)

    def passed(self, ids: IdSet) -> None:
        """Note that passing events are gone; clients that have not got them will not."""
        missed = self.ready.remove_all(ids)
        if self.lanes is not None:
            self.lanes.settled(IdSet(), len(missed), self.ready)
        for seat in self.seats:
            if seat.wanted is not None:
                seat.wanted.remove_all(ids)

    def hand_until(self, seat: Seat, spans: Spans, now_us: int) -> int:
        """``seat`` has got these, and has to acknowledge them in time; gives by when. What is never
        stored does not come again, in time or not."""
        if self.deadlines is None:
            self.deadlines = Deadlines()
        handed = self.outstanding.overlap(IdSet(spans))
        return self.deadlines.hand(handed, now_us, seat.ack_timeout_ms * 1_000)

    def detach(self, subscription: int) -> None:
        """Remove a seat; nobody has what it held. A fact has counted the deliveries."""
        seat = self.seat_of(subscription)
        if seat is None:
            return
        if self.deadlines:
            self.deadlines.discard(seat.in_flight)
        self._wait_again(seat.in_flight)
        self.seats.remove(seat)
        if self.lanes is not None:
            self.lanes.remove_seat(seat)
        if seat.reach:  # it was served, so what it rolled back is for its successor
            self._unpark()

    def grants(self, stored: IdSet, chunk: int, below: int) -> list[tuple[Seat, Spans]]:
        """Hand the lowest ready events to the seats in turn, a fair share each: one by one where
        all windows are small, else as runs of ids (SEM D8). None is at or above ``below``."""
        granted: list[tuple[Seat, Spans]] = []
        if self.is_waiting:
            return granted
        if self.lanes is not None:
            return self._by_lane(self.lanes, chunk, below)
        if self.waiting and self.kind.waits_in_order:
            below = self.waiting.held_up(below, self.parked)
        if any(seat.wanted is not None or seat.refused for seat in self.seats):
            return self._selective(stored, chunk, below)
        while seats := self.kind.servable(self.seats):
            wanted = min(sum(seat.credit for seat in seats), chunk * len(seats))
            self._fill(wanted, stored, below)
            count = self._ready_count(below)
            if not count:
                break
            share = max(1, -(-min(count, wanted) // len(seats)))
            if 1 < share <= DEALT_MAX and len(seats) > 1 and has_small_windows(seats):
                share = min(share, *[seat.credit for seat in seats])
                shares = iter(dealt(seats, self._take(share * len(seats), below)))
            else:
                shares = self._runs(seats, min(share, chunk), below)
            for seat, spans in shares:
                self._hand(seat, spans)
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
                self._hand(seat, ids.spans)
                granted.append((seat, ids.spans))
        return granted

    def unlooked(self, stored: IdSet, limit: int, below: int) -> Spans:
        """The next events whose lanes have to be known, for somebody has room for more."""
        if self.lanes is None or not any(seat.credit > 0 for seat in self.seats):
            return ()
        if self.is_waiting:
            return ()
        found: list[Span] = []
        at = self.lanes.through
        while limit > 0:
            span = self.ready.next_span(at, limit)
            if span is None and not self.selector:
                beyond = stored.next_span(self.head, limit)
                if beyond is not None and beyond.first < below:
                    self.reach(min(beyond.end, below), stored)
                    span = self.ready.next_span(at, limit)
            if span is None or span.first >= below:
                break
            found.append(Span(span.first, min(span.end, below)))
            limit -= span.size
            at = span.end
        return tuple(found)

    def _selective(self, stored: IdSet, chunk: int, below: int) -> list[tuple[Seat, Spans]]:
        """Grant events where some seats want only some of them: what one seat does not take stays
        ready for others."""
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
                self._hand(seat, spans)
                granted.append((seat, spans))
                idle = 0
                continue
            idle += 1
            if idle >= (len(seats) if len(seats) > 1 else len(self.seats)):
                break
            self._hand(seat, ())  # its turn is over
        return granted

    def _lowest(self, ready: IdSet, limit: int) -> Spans:
        """Take the lowest ``limit`` events of ``ready``, which are no longer ready then."""
        taken: list[Span] = []
        while limit > 0 and (span := ready.take(limit)) is not None:
            self.ready.remove(span)
            taken.append(span)
            limit -= span.size
        return tuple(taken)

    def _ready_count(self, below: int) -> int:
        highest = self.ready.highest
        if highest is None or highest < below:
            return len(self.ready)
        return self.ready.count(Span(0, below))

    def _fill(self, wanted: int, stored: IdSet, below: int) -> None:
        """Take events from beyond ``head`` until ``wanted`` are ready."""
        if self.selector:
            return
        while len(self.ready) < wanted:
            span = stored.next_span(self.head, wanted - len(self.ready))
            if span is None or span.first >= below:
                return
            self.reach(min(span.end, below), stored)

    def _take(self, limit: int, below: int) -> Spans:
        taken: list[Span] = []
        while limit > 0 and (lowest := self.ready.lowest) is not None and lowest < below:
            span = self.ready.take(min(limit, below - lowest))
            assert span is not None, "there is a lowest one"
            taken.append(span)
            limit -= span.size
        return tuple(taken)

    def _hand(self, seat: Seat, spans: Spans) -> None:
        self.delivered += seat.hand(spans)
        self.seats.remove(seat)
        self.seats.append(seat)

    # --- questions -----------------------------------------------------------------------

    @property
    def absent(self) -> dict[str, KeptPlace]:
        """The seats whose sessions have not come back to them."""
        if not self.places:
            return {}
        there = {seat.place for seat in self.seats}
        return {place: kept for place, kept in self.places.items() if place not in there}

    @property
    def is_waiting(self) -> bool:
        """Whether nobody is served, for somebody else has to come back first (SEM N6)."""
        absent = [kept.rank for kept in self.absent.values()]
        return bool(absent) and self.kind.waits_for(self.seats, absent)

    @property
    def is_fed(self) -> bool:
        """Whether its clients are there and take and acknowledge events by themselves, in order:
        on the JMS engine nothing is kept for it before (SEM J, J7)."""
        fed = [seat.auto_ack and seat.demand is None for seat in self.seats]
        return self.kind.cumulative and bool(fed) and all(fed)

    def settled_by(self, seat: Seat, spans: Spans, stored: IdSet) -> IdSet:
        """The ids ``seat`` settles when it names ``spans``. Raises ``IllegalState`` (SEM D15).

        Ids that are settled or gone already are left out: a second ack has no effect, and an
        event may be purged while it is in a client's hands (SEM T9).
        """
        named = IdSet(spans)  # an id that is named twice is settled once
        mine = seat.in_flight.overlap(named)
        if len(mine) != len(named):
            due = self.wanting(named.overlap(stored))
            due.discard_all(mine)
            if due:
                raise IllegalState(
                    f"event {due.lowest} of durable {self.name} was not delivered to this "
                    f"subscription, or has been given back{seat.in_time}; only the subscription "
                    "that holds it may settle it"
                )
        return mine

    def below(self, seat: Seat, event_id: int, stored: IdSet) -> IdSet:
        """The ids that ``ack(previous)`` covers, up to and including ``event_id``: those the seat
        holds; for a cumulative kind everything outstanding up to the newest event the seat has
        got, but for what was rolled back and not delivered again; for a sole seat everything
        outstanding that it has not rolled back itself."""
        if seat.sole:
            wanted = self.wanting(stored.within(Span(0, event_id + 1)))
            if self.rolled_back:
                wanted.discard_all(self.rolled_back.overlap(self.parked))
            return wanted
        if not self.kind.cumulative:
            return seat.in_flight.within(Span(0, event_id + 1))
        covered = Span(0, min(event_id + 1, seat.reach))
        settled = self.outstanding.within(covered)
        settled.discard_all(self.rolled_back)
        # events that are never stored are only there
        settled.add_all(seat.in_flight.within(covered))
        return settled

    def wanting(self, ids: IdSet) -> IdSet:
        """The part of ``ids``, all stored, that is outstanding here."""
        found = self.outstanding.overlap(ids)
        if not self.selector:
            found.add_all(ids.within(Span(self.head, 1 << 62)))
        return found

    def ungranted(self, ids: IdSet) -> IdSet:
        """The part of ``ids``, all stored, that is ready for a client and in nobody's hands."""
        found = self.ready.overlap(ids)
        if not self.selector:
            found.add_all(ids.within(Span(self.head, 1 << 62)))
        return found

    @property
    def limits_deliveries(self) -> bool:
        """Whether an event may come only so often (SEM T10)."""
        return self.attributes.max_deliveries > 0

    def exhausted(self, ids: IdSet) -> IdSet:
        """The part of ``ids`` that may not be rolled back once more (SEM T10)."""
        most = self.attributes.max_deliveries
        if not most:
            return IdSet()
        if most == 1:
            return ids.copy()
        return self.levels.at_least(most - 1, ids)

    def redeliveries(self, spans: Spans) -> tuple[tuple[int, Spans], ...]:
        """The events of ``spans`` that were delivered before, by how often."""
        return self.levels.within(spans)

    def outstanding_count(self, stored: IdSet) -> int:
        beyond = 0 if self.selector else stored.count(Span(self.head, 1 << 62))
        return len(self.outstanding) + beyond

    def first_outstanding(self, stored: IdSet) -> int | None:
        """The lowest outstanding id; None: nothing is outstanding."""
        lowest = self.outstanding.lowest
        if lowest is not None or self.selector:
            return lowest
        beyond = stored.next_span(self.head, 1)
        return None if beyond is None else beyond.first

    def outstanding_spans(self, stored: IdSet) -> Spans:
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
        """The id from which on it has not been offered anything; ``next_id`` is the channel's."""
        return max(self.head, next_id) if self.selector else self.head
