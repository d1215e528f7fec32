"""Random actions on a channel, applied to it and to its model."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from msgspec.structs import replace

from penstock_core.channel.channel import ChannelMachine
from penstock_core.durable.queue import READERS
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.definitions import Edit
from penstock_core.messages.delivery import ConfirmRecall, SetDemand, Skip, StallSession
from penstock_core.messages.durables import AddDurable, PurgeOutstanding, RemoveDurable
from penstock_core.messages.kinds import Command
from penstock_core.messages.retention import PurgeEvents, Quarantine, RemoveRedriven
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, BuryEvents, ExtendTime, RollBack
from penstock_core.messages.subscribers import AddSubscriber, GrantCredit
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import DurableInUse, IllegalState
from penstock_server.bootstrap import rules
from penstock_testing.play import Play
from tests.model.channel_model import (
    FORGETTING,
    SURVIVING,
    ChannelModel,
    Ledger,
    Reader,
    Seat,
    lane_of,
)
from tests.model.compared import by_when
from tests.model.leasing import SESSION, Leasing
from tests.model.publishing import Publishing
from tests.model.seeking import Seeking

TYPES = ["persistent", "persistent", "mixed", "mixed"]
TYPES += ["reliable", "simple", "transient", "off_heap", "paged"]
TAKEN_OUT: list[tuple[Callable[[Spans], Command], Cause]] = [
    (PurgeEvents, Cause.PURGED),
    (PurgeEvents, Cause.PURGED),
    (RemoveRedriven, Cause.REDRIVEN),
    (Quarantine, Cause.QUARANTINED),
]
DELAYS_MS = (None, None, 0, 10, 35, 200)
BACKOFFS = (None, None, Backoff(10), Backoff(20, factor=4.0, most=90))
KINDS = ("shared", "shared", "exclusive", "priority", "serial", "serial", "shared_queued")
AT_ONCE = ("shared", "serial", "shared_queued")
"""Types that redeliver at once and count redeliveries; their subscriptions have a window, and may
have a selector."""
EVENT_TIMEOUT_MS = 100
FIRST = ["shared", "even", "exclusive", "priority", "shared_queued", "serial", "strict"]
FIRST += ["lanes", "lanes"]
Step = Callable[[Any, Random], None]
LATE = "was recalled|was taken back"
FLAGS = st.lists(st.booleans(), min_size=1, max_size=9)


def _spans(ids: set[int]) -> tuple[Span, ...]:
    return IdSet.from_ids(ids).spans


class ChannelLife(Publishing, Leasing, Seeking):
    drawn: int = 0
    """Index of the backoff and timeout of the next durable."""
    timeouts_ms: tuple[int, ...] = (0, 100, 300, 0, 0)
    """Acknowledgement timeouts of the durables, in turn; 0: none."""
    steps: dict[Step, int]
    """The possible actions, with their weights."""

    @initialize(
        type=st.sampled_from(TYPES),
        kind=st.sampled_from(["channel", "channel", "queue"]),
        depth=st.sampled_from([0, 0, 1, 2]),
        merges=st.booleans(),
        dead=st.sampled_from(["", "dead"]),
        limit=st.sampled_from([0, 1, 2, 3]),
        event_bytes=st.sampled_from([1, 1, 4 << 20]),
        ttl=st.sampled_from([0, 0, 40]),
        capacity=st.sampled_from([0, 0, 4, 12]),
        honour=st.booleans(),
        retain=st.booleans(),
        start=st.sampled_from([0, 7]),
        first=st.lists(st.sampled_from(FIRST), max_size=3),
        window=st.integers(1, 5),
        events=FLAGS,
    )
    def open(
        self,
        type: str,
        kind: Literal["channel", "queue"],
        depth: int,
        merges: bool,
        dead: str,
        limit: int,
        event_bytes: int,
        ttl: int,
        capacity: int,
        honour: bool,
        retain: bool,
        start: int,
        first: list[str],
        window: int,
        events: list[bool],
    ) -> None:
        merges = merges and depth == 1 and kind == "channel" and type != "transient"
        definition = Definition(
            type=type,
            kind=kind,
            keys={"k": depth} if depth else {},
            engine="merge" if merges else "default",
            dead_event_store=dead,
            max_deliveries=limit if dead and kind == "queue" else 0,
            backoff=BACKOFFS[len(events) % len(BACKOFFS)] if kind == "queue" else None,
            ttl=ttl,
            capacity=capacity,
            retain_consumed=retain,
            start_event_id=start,
            storage=Storage(honour_capacity=honour),
        )
        self.begin(definition, ChannelModel(definition), limit, event_bytes=event_bytes)
        self.drawn = window + len(events)
        if kind == "queue":
            self.open_queue(len(first), window)
        else:
            self.open_durables(first, window)
        self.publish_events(events, 0, producer=True)

    def begin(
        self, definition: Definition, model: ChannelModel, limit: int, event_bytes: int
    ) -> None:
        self.definition = definition
        self.limit = limit if definition.dead_event_store else 0
        self.event_bytes = event_bytes
        short = replace(rules(), event_timeout_us=EVENT_TIMEOUT_MS * 1_000)
        self.play = Play(ChannelMachine("life", definition, short))
        self.play.lane_of = lane_of
        self.model = model
        self.is_exact = True
        self.subscription = 0
        self.sequence = 0
        self.stored_as = {}
        self.volatile_seen = False
        self.all_lasts = True

    def first_id(self, requested_id: int) -> int:
        """Return the position at which a durable begins that asked for ``requested_id``."""
        return requested_id

    def open_queue(self, readers: int, window: int) -> None:
        lasting = self.model.type in SURVIVING
        ledger = Ledger("queue", self.model.start, "", persistent=lasting, limit=self.limit)
        ledger.backoff = self.definition.backoff
        self.model.durables[READERS] = ledger
        for n in range(readers):
            self.take_seat(READERS, f"s{n}", window, pull=False, selective=n == 1)

    def open_durables(self, first: list[str], window: int) -> None:
        for name, wanted in zip("abc", first, strict=False):
            kind = {"even": "shared", "strict": "serial", "lanes": "serial"}.get(wanted, wanted)
            order = wanted if kind == "serial" else ""
            self.create(name, kind, 0, wanted == "even", None, order=order)
            self.take_seat(name, "s1", window, pull=False)
            if kind != "exclusive":
                self.take_seat(name, "s2", window + 1, pull=False)

    @rule(seed=st.integers(0, 1 << 32))
    def live(self, seed: int) -> None:
        """Do one action; ``seed`` determines which, and its arguments."""
        random = Random(seed)
        steps = [step for step in self.steps for _ in range(self.steps[step])]
        random.choice(steps)(self, random)

    # --- durables ------------------------------------------------------------------------

    def create_durable(self, random: Random) -> None:
        free = [name for name in "abc" if name not in self.model.durables]
        if self.definition.kind == "queue":
            self.settle_time()
            with pytest.raises(IllegalState):
                self.do(AddDurable("a", "shared"))
        elif free:
            kind = random.choice(KINDS)
            order = (
                random.choice(("serial", "strict", "lanes", "lanes")) if kind == "serial" else ""
            )
            start = random.choice((0, 0, self.model.issued, self.model.issued + 4))
            persistent = random.choice((None, None, False, True))
            filtered = random.random() < 0.4
            self.create(random.choice(free), kind, start, filtered, persistent, order=order)

    def create(
        self,
        name: str,
        kind: str,
        start: int,
        filtered: bool,
        persistent: bool | None,
        *,
        order: str = "",
    ) -> None:
        self.settle_time()
        selector = "even" if filtered and kind in AT_ONCE else ""
        lasting = self.model.type not in FORGETTING if persistent is None else persistent
        limit = self.limit if kind in AT_ONCE else 0
        first = self.first_id(start)
        ledger = Ledger(kind, first, selector, persistent=lasting, limit=limit)
        ledger.strict, ledger.lanes = order == "strict", order == "lanes"
        if kind in AT_ONCE:
            ledger.backoff = BACKOFFS[self.drawn % len(BACKOFFS)]
            ledger.timeout_ms = self.timeouts_ms[self.drawn % len(self.timeouts_ms)]
            self.drawn += 1
        ledger.due = {i for i, kept in self.model.stored.items() if ledger.wants(i, kept)}
        matched = _spans(ledger.due) if selector else ()
        self.model.durables[name] = ledger
        self.do(
            AddDurable(
                name,
                kind,
                start,
                selector=selector,
                matched=matched,
                persistent=persistent,
                max_deliveries=limit,
                strict_order=ledger.strict,
                order_by="k" if ledger.lanes else "",
                backoff=ledger.backoff,
                ack_timeout=ledger.timeout_ms,
            )
        )
        self.all_lasts &= lasting

    def delete_durable(self, random: Random) -> None:
        if not self.model.durables or self.definition.kind == "queue":
            return
        name = random.choice(sorted(self.model.durables))
        self.settle_time()
        del self.model.durables[name]
        self.model.seats = {n: s for n, s in self.model.seats.items() if s.durable != name}
        self.do(RemoveDurable(name))

    def attach(self, random: Random) -> None:
        if self.model.durables:
            name = random.choice(sorted(self.model.durables))
            session = random.choice(("s1", "s2"))
            selective = name == READERS and random.random() < 0.4
            window, pull = random.randint(1, 5), random.random() < 0.3
            self.take_seat(name, session, window, pull=pull, selective=selective)

    def take_seat(
        self,
        name: str,
        session: str,
        window: int,
        *,
        pull: bool,
        selective: bool = False,
        auto_ack: bool = False,
    ) -> None:
        ledger = self.model.durables[name]
        self.subscription += 1
        windowed = not ledger.is_cumulative
        self.settle_time()
        even = {i for i in ledger.due if self.model.stored[i].even} if selective else set()
        command = TakeSeat(
            name,
            self.subscription,
            session,
            window=window if windowed else None,
            pull=pull,
            selector="even" if selective else "",
            matched=_spans(even),
            auto_ack=auto_ack,
            ack_timeout_ms=100 if selective else 0,
        )
        if self.is_taken(name):
            with pytest.raises(DurableInUse):
                self.do(command)
            return
        seat = Seat(
            name,
            session,
            window if windowed else 1_000,
            demand=0 if pull else None,
            selective=selective,
            auto_ack=auto_ack,
            timeout_ms=100 if selective else ledger.timeout_ms,
        )
        self.model.attached(self.subscription, seat)
        self.do(command)

    def demand(self, random: Random) -> None:
        seats = self.model.seats.items()  # a lease receives no further events
        pulling = [n for n, s in seats if s.demand is not None and s.session != SESSION]
        if not pulling:
            return
        subscription, count = random.choice(pulling), random.randint(0, 8)
        self.settle_time()
        seat = self.model.seats[subscription]
        if seat.demand is not None:
            seat.demand = count
        self.do(SetDemand(subscription, count))

    def settle(self, random: Random) -> None:
        holders = [n for n, seat in self.model.seats.items() if seat.held]
        if not holders:
            return
        how = random.choice(
            ("ack", "ack", "ack", "previous", "back", "back", "back", "steal", "reject")
        )
        subscription = random.choice(holders)
        seat = self.model.seats[subscription]
        ids = set(random.sample(sorted(seat.held), random.randint(1, min(4, len(seat.held)))))
        self.settle_time()
        ids_held = ids & seat.held
        late = ids & self.recalled_from(seat)
        spans = tuple(Span(i, i + 1) for i in ids for _ in range(2))
        match how:
            case "ack" if late:
                with pytest.raises(IllegalState, match=LATE):
                    self.do(Ack(subscription, spans))
            case "previous" if max(ids) in late:
                with pytest.raises(IllegalState, match=LATE):
                    self.do(AckPrevious(subscription, max(ids)))
            case "steal":
                self.steal(subscription, ids & seat.held)
            case "back":
                delay_ms = random.choice(DELAYS_MS)
                self.model.roll_back(seat, ids_held, delay_ms=delay_ms, now_us=self.play.now_us)
                self.do(RollBack(subscription, spans, delay_ms=delay_ms))
            case "reject":
                self.reject(subscription, seat, set(sorted(ids_held)[:1]))
            case "ack":
                self.model.ack(seat, ids if self.is_cumulative(seat) else ids_held)
                self.do(Ack(subscription, spans))
            case _:
                self.model.ack(seat, self.covered(seat, max(ids)) | self.top(seat, ids))
                self.do(AckPrevious(subscription, max(ids)))

    def reject(self, subscription: int, seat: Seat, ids: set[int]) -> None:
        """Reject events that are in flight and still stored: they are dead for this durable (SEM
        T11)."""
        command = BuryEvents(subscription, _spans(ids))
        if not self.model.moves_dead:
            with pytest.raises(IllegalState, match="has no dead event store"):
                self.do(command)
            return
        dead = ids & self.model.durables[seat.durable].due
        for event_id in sorted(dead):
            self.model.bury(event_id, seat.durable, Cause.REJECTED)
        self.do(command)

        assert self.play.answer == len(dead)

    def extend(self, random: Random) -> None:
        timed = [n for n, seat in self.model.seats.items() if seat.until and not seat.recalls]
        if not timed:
            return
        subscription, time_ms = random.choice(timed), random.choice((10, 100, 400))
        self.settle_time()
        seat = self.model.seats[subscription]
        held = sorted(seat.held & self.model.durables[seat.durable].due)
        if seat.recalls or not held:
            return
        ids = set(random.sample(held, random.randint(1, len(held))))
        until_us = by_when(self.play.now_us, time_ms)
        seat.until |= {i: max(until_us, seat.until[i]) for i in ids}
        self.do(ExtendTime(subscription, _spans(ids), time_ms))

        assert self.play.answer == len(ids)

    def skip(self, random: Random) -> None:
        holders = [
            n for n, seat in self.model.seats.items() if seat.held and self.is_cumulative(seat)
        ]
        if not holders:
            return
        subscription = random.choice(holders)
        self.settle_time()
        seat = self.model.seats[subscription]
        held = sorted(seat.held)
        ids = set(random.sample(held, random.randint(1, min(4, len(held))))) if held else set()
        if seat.sole or not ids:
            return
        self.model.skip(seat, ids)
        if seat.demand is not None:
            seat.demand += len(ids)
        self.play.channel.attend(Skip(subscription, _spans(ids)), self.play.now_us)
        self.watch(self.play.offers())

    def is_cumulative(self, seat: Seat) -> bool:
        return self.model.durables[seat.durable].is_cumulative

    def top(self, seat: Seat, ids: set[int]) -> set[int]:
        """Return the last of the named events; for a cumulative kind it counts even if it is not
        stored any more."""
        return {max(ids)} if self.is_cumulative(seat) else set()

    def recalled_from(self, seat: Seat) -> set[int]:
        """Return the recalled events of a seat whose client has not confirmed the recall, if they
        are still outstanding."""
        late = set().union(*seat.recalls) & self.model.durables[seat.durable].due - seat.held
        return late | seat.sought

    def settle_recalled(self, random: Random) -> None:
        """Settle recalled events for a client that does not know of the recall: an acknowledgement
        is refused, a rollback has no effect."""
        waiting = [n for n, seat in self.model.seats.items() if seat.recalls]
        if not waiting:
            return
        subscription = random.choice(waiting)
        seat = self.model.seats[subscription]
        self.settle_time()
        recalled = sorted(self.recalled_from(seat))
        how = random.choice(("ack", "back", "confirm", "confirm", "confirm"))
        if how == "confirm" or not recalled:
            seat.sought -= seat.recalls.pop(0)
            self.do(ConfirmRecall(subscription))
        elif how == "back":
            self.do(RollBack(subscription, _spans({random.choice(recalled)})))
        else:
            with pytest.raises(IllegalState, match=LATE):
                self.do(Ack(subscription, _spans({random.choice(recalled)})))

    def purge_durable(self, random: Random) -> None:
        if not self.model.durables or self.definition.kind == "queue":
            return
        name = random.choice(sorted(self.model.durables))
        ledger = self.model.durables[name]
        first, size = random.randint(0, self.model.issued), random.randint(1, 6)
        command = PurgeOutstanding(name, (Span(first, first + size),))
        self.settle_time()
        if ledger.kind not in ("shared", "serial"):
            with pytest.raises(IllegalState, match="cannot be purged"):
                self.do(command)
            return
        removed = {i for i in ledger.due if first <= i < first + size}
        self.model.take_off(name, removed)
        self.do(command)

        assert self.play.answer == len(removed)

    def steal(self, owner: int, ids: set[int]) -> None:
        durable = self.model.seats[owner].durable
        others = [n for n, s in self.model.seats.items() if s.durable == durable and n != owner]
        ids &= self.model.durables[durable].due  # no client has a relayed event any more
        for other_subscription in others if ids else ():
            with pytest.raises(IllegalState):
                self.do(Ack(other_subscription, _spans(ids)))

    def detach(self, random: Random) -> None:
        if not (subscriptions := [*self.model.seats, *self.model.readers]):
            return
        subscription = random.choice(subscriptions)
        self.settle_time()
        if subscription in self.model.seats:
            self.model.detached(subscription)
        self.model.readers.pop(subscription, None)
        self.do(Detach(subscription))

    def stall(self, random: Random) -> None:
        session, stalled = random.choice(("s1", "s2")), random.random() < 0.4
        self.settle_time()
        for seat in self.model.seats.values():
            if seat.session == session:
                seat.stalled = stalled
        self.play.channel.attend(StallSession(session, stalled=stalled), self.play.now_us)
        self.watch(self.play.offers())

    # --- plain subscribers ---------------------------------------------------------------

    def subscribe(self, random: Random) -> None:
        start, credit = random.randint(0, self.model.issued + 3), random.randint(0, 12)
        browse = self.definition.kind == "queue" or random.random() < 0.4
        self.settle_time()
        self.subscription += 1
        stop = self.play.channel.state.next_id if browse else None
        self.model.readers[self.subscription] = Reader(start, credit, stop)
        self.do(AddSubscriber(self.subscription, "plain", start, stop_id=stop, credit=credit))

    def credit(self, random: Random) -> None:
        if not self.model.readers:
            return
        subscription, count = random.choice(sorted(self.model.readers)), random.randint(1, 20)
        self.settle_time()
        self.model.readers[subscription].credit += count
        self.do(GrantCredit(subscription, count))

    # --- the channel ---------------------------------------------------------------------

    def purge(self, random: Random) -> None:
        first, size = random.randint(0, self.model.issued), random.randint(1, 6)
        self.settle_time()
        removed = [i for i in self.model.stored if first <= i < first + size]
        command, cause = random.choice(TAKEN_OUT)
        for event_id in removed:
            self.model.drop(event_id, cause)
        self.do(command((Span(first, first + size),)))

        assert self.play.answer == len(removed)

    def wait(self, random: Random) -> None:
        self.play.wait(random.choice((1, 10, 30, 200)))

    def edit(self, random: Random) -> None:
        capacity = random.choice((0, 3, 8))
        self.settle_time()
        state = self.play.channel.state.definition
        self.model.capacity = capacity
        if not self.definition.storage.honour_capacity:
            self.model.evict()
        effects = self.play.do(Edit(replace(state, capacity=capacity)))
        while self.play.channel.state.overdue:  # events above the limit move in steps
            self.play.sweep()
        self.watch([*effects, *self.play.offers()])

    def snapshot(self, _: Random) -> None:
        self.play.snapshot()
        self.model.acked_lasting = {
            i for i in self.model.acked if not self.model.stored[i].volatile
        }

    def restart(self, random: Random) -> None:
        how = random.choice(("cut", "cut", "snapshot", "close"))
        match how:
            case "cut":
                self.play.restart()
            case "snapshot":
                self.play.restart_from_snapshot()
            case _:
                self.play.close()
        self.model.restart(counted=how == "snapshot")
        self.is_exact &= self.all_lasts and not self.volatile_seen
        if self.model.type in FORGETTING:
            assert self.play.channel.state.next_id == self.model.start, "ids start again"
            self.stored_as, self.volatile_seen = {}, False
        self.stored_as = {} if self.volatile_seen else self.stored_as
        self.model.issued = max(self.model.issued, self.play.channel.state.next_id)
        if not self.volatile_seen:
            assert self.play.channel.state.next_id == self.model.issued, "ids stay dense"
        self.settle_time()


STEPS: dict[Step, int] = {
    ChannelLife.publish: 10,
    ChannelLife.settle: 24,
    ChannelLife.settle_recalled: 4,
    ChannelLife.skip: 3,
    ChannelLife.extend: 3,
    ChannelLife.purge_durable: 1,
    ChannelLife.attach: 4,
    ChannelLife.detach: 2,
    ChannelLife.demand: 3,
    ChannelLife.create_durable: 2,
    ChannelLife.delete_durable: 1,
    ChannelLife.subscribe: 2,
    ChannelLife.credit: 2,
    ChannelLife.retry: 1,
    ChannelLife.purge: 2,
    ChannelLife.wait: 7,
    ChannelLife.stall: 3,
    ChannelLife.edit: 1,
    ChannelLife.snapshot: 1,
    ChannelLife.restart: 2,
    ChannelLife.hold: 5,
    ChannelLife.lease: 3,
    ChannelLife.seek: 3,
}
ChannelLife.steps = STEPS
