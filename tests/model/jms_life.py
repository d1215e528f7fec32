"""Random lives of a channel of the JMS engine: subscribers lose their connection and come back,
durables are served, and events that nobody waits for are not kept (SEM J)."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from penstock_core.messages.subscribers import AddSubscriber, Disconnect, GrantCredit
from penstock_core.vocabulary.definitions import Definition, Storage
from tests.model.channel_life import (
    EVENT_TIMEOUT_MS,
    FIRST,
    FLAGS,
    STEPS,
    TYPES,
    ChannelLife,
)
from tests.model.channel_model import Kept, Reader
from tests.model.jms_model import JmsModel, Listener


class JmsLife(ChannelLife):
    model: JmsModel

    @initialize(
        type=st.sampled_from(TYPES),
        depth=st.sampled_from([0, 0, 1]),
        dead=st.sampled_from(["", "dead"]),
        limit=st.sampled_from([0, 2]),
        event_bytes=st.sampled_from([1, 1, 4 << 20]),
        ttl=st.sampled_from([0, 0, 40]),
        capacity=st.sampled_from([0, 0, 12]),
        honour=st.booleans(),
        start=st.sampled_from([0, 7]),
        first=st.lists(st.sampled_from(FIRST), max_size=2),
        listeners=st.lists(st.booleans(), max_size=3),
        events=FLAGS,
    )
    def open(
        self,
        type: str,
        depth: int,
        dead: str,
        limit: int,
        event_bytes: int,
        ttl: int,
        capacity: int,
        honour: bool,
        start: int,
        first: list[str],
        listeners: list[bool],
        events: list[bool],
    ) -> None:
        definition = Definition(
            type=type,
            engine="jms",
            keys={"k": depth} if depth else {},
            dead_event_store=dead,
            ttl=ttl,
            capacity=capacity,
            start_event_id=start,
            storage=Storage(honour_capacity=honour),
        )
        self.begin(
            definition, JmsModel(definition, EVENT_TIMEOUT_MS), limit, event_bytes=event_bytes
        )
        self.former_subscriptions: set[int] = set()
        for even in listeners:
            self.listen(Listener(0, 20, even=even, confirms=True))
        self.open_durables(first, 3)
        self.publish_events(events, 0, producer=True)

    def first_id(self, requested_id: int) -> int:
        return self.play.channel.state.next_id  # SEM J3

    # --- subscribers ---------------------------------------------------------------------

    def listen(self, listener: Listener, former: int | None = None, start: int = 0) -> None:
        """Subscribe; with ``former``, as the continuation of that subscription."""
        self.settle_time()
        self.subscription += 1
        if former is not None:
            self.model.resumed(listener, former, start)
        self.model.readers[self.subscription] = listener
        self.do(
            AddSubscriber(
                self.subscription,
                "plain",
                start,
                credit=listener.credit,
                confirms=listener.confirms,
                resumes=former,
                selector="even" if listener.even else "",
            )
        )

    def subscribe(self, random: Random) -> None:
        if random.random() < 0.2:
            self.browse(random)
            return
        credit = random.choice((0, 2, 12))
        even, confirms = random.random() < 0.5, random.random() < 0.8
        start = random.randint(0, self.model.issued + 3)
        self.listen(Listener(0, credit, even=even, confirms=confirms), start=start)

    def browse(self, random: Random) -> None:
        start, credit = random.randint(0, self.model.issued + 3), random.randint(0, 12)
        self.settle_time()
        self.subscription += 1
        stop = self.play.channel.state.next_id
        self.model.readers[self.subscription] = Reader(start, credit, stop)
        self.do(AddSubscriber(self.subscription, "plain", start, stop_id=stop, credit=credit))

    def lose(self, random: Random) -> None:
        if listeners := [n for n, one in self.model.readers.items() if isinstance(one, Listener)]:
            subscription = random.choice(listeners)
            self.settle_time()
            if subscription in self.model.readers:
                self.former_subscriptions.add(subscription)
                self.model.lost(subscription, self.play.now_us)
                self.do(Disconnect(subscription))

    def come_back(self, random: Random) -> None:
        """Come back after a lost connection: in time, too late, or before the loss was noticed.
        Some of the events under way have arrived."""
        self.settle_time()
        listeners = [n for n, one in self.model.readers.items() if isinstance(one, Listener)]
        if not (names := sorted({*listeners, *self.former_subscriptions})):
            return
        former = random.choice(names)
        self.former_subscriptions.discard(former)
        old = self.model.readers.get(former)
        even, start = random.random() < 0.5, 0
        if isinstance(old, Listener):
            even = old.even if random.random() < 0.9 else not old.even
            start = random.choice([0, *(i + 1 for i in old.sent)])
        self.listen(Listener(0, 8, even=even, confirms=True), former, start)

    def credit(self, random: Random) -> None:
        if not self.model.readers:
            return
        subscription, count = random.choice(sorted(self.model.readers)), random.randint(0, 20)
        self.settle_time()
        listener = self.model.readers.get(subscription)
        if listener is None:
            return
        next_id = 0
        if isinstance(listener, Listener):
            if listener.lost_us is not None:  # without a connection it cannot confirm
                return
            next_id = random.choice([0, *(i + 1 for i in listener.sent)])
            arrived = {i for i in listener.sent if i < next_id}
            listener.sent -= arrived
            listener.arrived |= arrived
        listener.credit += count
        self.do(GrantCredit(subscription, count, next_id))

    def attach(self, random: Random) -> None:
        if self.model.durables:
            name = random.choice(sorted(self.model.durables))
            auto_ack = self.model.durables[name].is_cumulative and random.random() < 0.7
            session, window = random.choice(("s1", "s2")), random.randint(1, 5)
            pull = random.random() < 0.3
            self.take_seat(name, session, window, pull=pull, auto_ack=auto_ack)

    # --- publishing ----------------------------------------------------------------------

    def kept(
        self, offset: int, persistent: bool, own_ttl: int, transient: bool, key: int | None
    ) -> Kept:
        one = super().kept(offset, persistent, own_ttl, transient=transient, key=key)
        one.waits_ms = own_ttl if offset % 3 == 0 else 0
        return one

    def is_refused(self, kept: list[Kept], superseded: set[int]) -> bool:
        first = self.play.channel.state.next_id
        ledgers = self.model.durables.values()
        dropped = {
            event_id
            for event_id, one in enumerate(kept, first)
            if not one.relayed
            and not any(ledger.wants(event_id, one) for ledger in ledgers)
            and not any(listener.hears(one) for listener in self.model.listeners())
        }
        staying = [one for i, one in enumerate(kept, first) if not one.relayed and i not in dropped]
        return super().is_refused(staying, superseded - dropped)

    # --- comparing -----------------------------------------------------------------------

    def read(self, reader: Reader, ids: list[int]) -> None:
        if not isinstance(reader, Listener):
            super().read(reader, ids)
            return
        assert reader.lost_us is None, "it is not there"
        assert ids == sorted(reader.waits)[: len(ids)], "a gap, or not for it"
        assert not reader.arrived & set(ids), "it has had that"
        reader.credit -= len(ids)
        assert reader.credit >= 0
        reader.waits -= set(ids)
        if reader.confirms:
            reader.sent |= set(ids)
        else:
            reader.arrived |= set(ids)

    def catch_up(self) -> None:
        state = self.play.channel.state
        assert set(state.subscribers) == set(self.model.readers), "a place was kept, or was not"
        for subscription, subscriber in state.subscribers.items():
            reader = self.model.readers[subscription]
            if not isinstance(reader, Listener):
                assert subscriber.cursor >= reader.cursor
                reader.cursor = subscriber.cursor

    def nothing_is_held_back(self) -> None:
        listeners = {n: one for n, one in self.model.readers.items() if isinstance(one, Listener)}
        for listener in listeners.values():
            if listener.credit > 0 and listener.lost_us is None:
                assert not listener.waits, "a subscriber with credit waits"
        others = {n: one for n, one in self.model.readers.items() if n not in listeners}
        self.model.readers, everyone = others, self.model.readers
        super().nothing_is_held_back()
        self.model.readers = everyone

    @invariant()
    def each_event_is_where_the_table_says(self) -> None:
        """Check the rules of SEM J4 for each event: on disk, in memory or nowhere, and who waits
        for it."""
        if not hasattr(self, "model") or self.play.channel.state.expired(self.play.now_us):
            return
        state, stored = self.play.channel.state, self.model.stored
        assert set(state.volatile) == {i for i, one in stored.items() if one.volatile}
        assert set(state.passing) == {i for i, one in stored.items() if one.passing}
        for subscription, subscriber in state.subscribers.items():
            reader = self.model.readers.get(subscription)
            if isinstance(reader, Listener):
                waits = set(subscriber.waits_for(state.stored))
                assert waits == (reader.waits | reader.sent) & stored.keys()


JmsLife.steps = {
    **{step: often for step, often in STEPS.items()},
    ChannelLife.attach: 0,
    ChannelLife.subscribe: 0,
    ChannelLife.credit: 0,
    JmsLife.attach: 4,
    JmsLife.subscribe: 3,
    JmsLife.credit: 6,
    JmsLife.lose: 4,
    JmsLife.come_back: 4,
}
