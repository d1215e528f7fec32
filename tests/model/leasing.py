"""Events fetched under leases, drawn at random, by a channel and its model."""

from __future__ import annotations

from random import Random

import pytest

from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.seats import TakeLease
from penstock_core.vocabulary.errors import DurableInUse
from tests.model.channel_model import Seat
from tests.model.holding import Holding

LEASES_MS = (100, 400)
SESSION = "lease"


class Leasing(Holding):
    def lease(self, random: Random) -> None:
        """Fetch events under a lease (SEM H1): a seat with a timeout that is not longer than the
        durable's, and that receives only events that are available now. They are settled like those
        of any seat."""
        if not self.model.durables:
            return
        name, count = random.choice(sorted(self.model.durables)), random.randint(1, 6)
        own_ms, ledger = random.choice(LEASES_MS), self.model.durables[name]
        self.subscription += 1
        subscription = self.subscription
        self.settle_time()
        command = TakeLease(
            name, subscription, SESSION, window=None, pull=True, ack_timeout_ms=own_ms
        )
        if self.is_taken(name):
            with pytest.raises(DurableInUse):
                self.do(command)
            return
        time_ms = min(own_ms, ledger.timeout_ms or own_ms)
        seat = Seat(name, SESSION, 1_000, demand=0, timeout_ms=time_ms)
        self.model.attached(subscription, seat)
        self.do(command)
        seat.demand = count
        self.do(SetDemand(subscription, count))
        seat.demand = 0
        self.do(SetDemand(subscription, 0, at_once=True))

        assert len(seat.held) <= count
        assert set(seat.until) >= seat.held & ledger.due, "an event that nothing takes back"
