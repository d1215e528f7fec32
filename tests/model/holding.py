"""Holds of a whole durable, drawn at random, in a channel and its model."""

from __future__ import annotations

from random import Random

import pytest

from penstock_core.ids.ids import Span
from penstock_core.messages.delivery import HoldEvents
from penstock_core.messages.seats import TakeSeat
from penstock_core.messages.settlements import AckPrevious, BuryEvents
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import DurableInUse, IllegalState, InvalidArgument
from tests.model.channel_model import Seat
from tests.model.compared import Compared


class Holding(Compared):
    definition: Definition
    subscription: int

    def is_taken(self, name: str) -> bool:
        """Whether another client of the usual kind would be refused."""
        seats = self.model.seats_of(name).values()
        return any(seat.sole for seat in seats) or (
            bool(seats) and self.model.durables[name].kind == "exclusive"
        )

    def covered(self, seat: Seat, last: int) -> set[int]:
        """Return the events that an acknowledgement up to ``last`` covers."""
        ids = self.model.durables[seat.durable].due if seat.sole else seat.held
        return {event_id for event_id in ids if event_id <= last}

    def hold(self, random: Random) -> None:
        if not self.model.durables or self.definition.kind == "queue":
            return
        holders = [n for n, seat in self.model.seats.items() if seat.sole]
        if not holders or random.random() < 0.2:
            self.hold_whole(random)
            return
        subscription = random.choice(holders)
        self.settle_time()
        seat = self.model.seats[subscription]
        event_id = random.randint(0, self.model.issued)
        how = random.choice(("take", "take", "take", "ack", "bury"))
        if how == "bury":
            self.bury_one(subscription, random)
        elif seat.recalls:
            return
        elif how == "take":
            span = Span(event_id, event_id + random.randint(1, 8))
            ledger = self.model.durables[seat.durable]
            free = ledger.due - ledger.parked  # including events that wait for their delay
            ids_taken = {i for i in free if span.first <= i < span.end}
            seat.got_us |= dict.fromkeys(ids_taken - seat.held, self.play.now_us)
            seat.held |= ids_taken
            self.do(HoldEvents(subscription, span))
        else:
            self.model.ack(seat, self.covered(seat, event_id))
            self.do(AckPrevious(subscription, event_id))

    def hold_whole(self, random: Random) -> None:
        name = random.choice(sorted(self.model.durables))
        self.settle_time()
        self.subscription += 1
        command = TakeSeat(name, self.subscription, "s1", sole=True)
        if self.model.durables[name].lanes:
            with pytest.raises(InvalidArgument, match="order_by"):
                self.do(command)
        elif self.model.seats_of(name):
            with pytest.raises(DurableInUse):
                self.do(command)
        else:
            self.model.attached(self.subscription, Seat(name, "s1", 0, sole=True))
            self.do(command)

    def bury_one(self, subscription: int, random: Random) -> None:
        durable = self.model.seats[subscription].durable
        due = sorted(self.model.durables[durable].due)
        event_id = random.choice(due) if due else self.model.issued
        command = BuryEvents(subscription, (Span(event_id, event_id + 1),))
        if not self.model.moves_dead:
            with pytest.raises(IllegalState, match="dead event store"):
                self.do(command)
            return
        if due:
            self.model.bury(event_id, durable, Cause.REJECTED)
        self.do(command)

        assert self.play.answer == len(due[:1])
