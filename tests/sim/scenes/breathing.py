"""Events that were rolled back and wait for redelivery (SEM D18), that were not acknowledged in
time (SEM D19), or were rejected (SEM T11), while the clock jumps and the realm fails: never too
early, never forgotten, never passed where order is kept, and dead once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import IdSet, Spans
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import IllegalState, StorageFailed
from penstock_testing.loop import pass_time
from tests.sim.clients import Arrived, Outlet, Publisher, Worker, stored
from tests.sim.promises import Ledger, Receipts
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World

BACKOFF = Backoff(300, factor=3.0, most=2_000)
DELAYS_MS = (None, None, 60, 800, 3_000)
TIMEOUT_MS = 500
"""Timeout of acknowledgements, which clients sometimes miss."""


class Seats(NamedTuple):
    """A durable, and the settings of its clients."""

    kind: str
    backoff: Backoff | None = None
    window: int | None = None
    """Size of the window; None: random."""
    ack_timeout_ms: int = 0


SEATS = {
    ("chores", "team"): Seats("shared", BACKOFF),
    ("chores", "line"): Seats("serial", BACKOFF, window=1),
    ("chores", "any"): Seats("shared"),
    ("chores", "quick"): Seats("shared", ack_timeout_ms=TIMEOUT_MS),
    ("chores", "strict"): Seats("serial", BACKOFF, window=1, ack_timeout_ms=TIMEOUT_MS),
    ("errands", ""): Seats("queue", BACKOFF),
}


class Waits:
    """Times until which events have to wait, as far as the clients of one durable know."""

    def __init__(self, backoff: Backoff | None, *, in_order: bool) -> None:
        self.backoff = backoff
        self.in_order = in_order
        self.rejecting: set[int] = set()
        """Events whose rejection was requested (SEM T11)."""
        self.rejected: set[int] = set()
        """Events whose rejection was answered."""
        self._until_us: dict[int, int] = {}
        self._counts: dict[int, int] = {}

    def check_delivery(self, arrived: Arrived, now_us: int) -> None:
        """Check a delivery: no event before its time, and none before an earlier one that waits."""
        for event_id in arrived.ids:
            assert event_id not in self.rejected, f"event {event_id} is dead, and came again"
            early_us = self._until_us.pop(event_id, now_us) - now_us
            assert early_us <= 0, f"event {event_id} came {early_us / 1e6} s before its time"
            self._counts[event_id] = arrived.counts.get(event_id, 0)
            passed = [i for i, us in self._until_us.items() if i < event_id and us > now_us]
            assert not (self.in_order and passed), f"event {event_id} came before {passed}"

    def wait_us(self, event_id: int, delay_ms: int | None) -> int:
        """Return how long an event has to wait if it is rolled back now, in µs."""
        if delay_ms is not None:
            return delay_ms * 1_000
        count = self._counts.get(event_id, 0) + 1
        return 0 if self.backoff is None else self.backoff.wait_us(count, event_id)

    def note_rollback(self, ids: list[int], delay_ms: int | None, since_us: int) -> None:
        """Record that a rollback requested at ``since_us`` was answered."""
        for event_id in ids:
            self._until_us[event_id] = since_us + self.wait_us(event_id, delay_ms)


class Recalling(Outlet):
    """An outlet that returns the events the realm takes back, and reports them."""

    def __init__(self, session: str, on_recall: Callable[[IdSet], None]) -> None:
        super().__init__(session)
        self._on_recall = on_recall

    def recall(self, spans: Spans) -> None:
        recalled = IdSet(spans)
        waiting = [self.inbox.get_nowait() for _ in range(self.inbox.qsize())]
        self.arrived = []
        for delivery in waiting:
            rows = [row for row, event_id in enumerate(delivery.ids) if event_id not in recalled]
            if rows:
                ids, datas = (
                    [delivery.ids[row] for row in rows],
                    [delivery.datas[row] for row in rows],
                )
                self.arrived.append(Arrived(ids, datas, delivery.counts, batch=delivery.batch))
                self.inbox.put_nowait(self.arrived[-1])
        self._on_recall(recalled)


class Patient(Worker):
    """Gives events back with a delay or by the backoff; with a timeout it is sometimes too late."""

    def __init__(self, waits: Waits, timeout_ms: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waits = waits
        self._timeout_ms = timeout_ms
        self._recalled: set[int] = set()
        """Ids that the realm took back and has not delivered here again."""
        self._extended_us: dict[int, int] = {}
        """Times until which requested extensions last. If an event was redelivered while the
        request was under way, the extension is that of the later delivery."""
        self._is_rolling_back = False
        """Whether it is giving back the events that it settles."""
        self.inspect = self._check

    def _new_outlet(self, session: str) -> Outlet:
        self._recalled, self._extended_us = set(), {}
        return Recalling(session, self._recall) if self._timeout_ms else Outlet(session)

    def _recall(self, ids: IdSet) -> None:
        self._recalled.update(ids)
        self.receipts.rollback_requested(ids)
        self.world.realm.subscriptions.recall_seen(self._subscription)
        self.world.note(f"taken back from {self.receipts.name} {list(ids)}")

    def _check(self, arrived: Arrived) -> None:
        self._recalled.difference_update(arrived.ids)
        if not self.world.is_dark:
            self._waits.check_delivery(arrived, self.world.lived_us)

    async def settle(self, ids: list[int]) -> None:
        is_late = bool(self._timeout_ms) and not self._quiet and await self._take_time(ids)
        ids = [event_id for event_id in ids if event_id not in self._recalled]
        if not ids:
            return
        self._is_rolling_back = False
        try:
            if self._quiet or self.world.random.random() > 0.1 or not await self._reject(ids):
                # the realm may have taken them back while it refused to bury them
                await self._settle_kept(
                    [event_id for event_id in ids if event_id not in self._recalled]
                )
        except IllegalState:
            assert self._timeout_ms, "it has taken its time, and nothing goes back by itself"
            self.world.note(f"too late for {self.receipts.name} {ids}")
        else:  # the sweep may wait for room on the disk, so that the timeout comes later
            has_room = self.world.disk.free_bytes is None
            # events that were taken back may also be given back
            is_kept = not self._is_rolling_back
            too_late = is_late and is_kept and has_room
            assert not too_late, f"{ids} were settled too late, and that was taken"

    async def _settle_kept(self, ids: list[int]) -> None:
        if ids:
            await super().settle(ids)

    async def _take_time(self, ids: list[int]) -> bool:
        """Wait, perhaps longer than allowed, perhaps after an extension. Return whether it was too
        long."""
        random, clock = self.world.random, self.world.clock
        holding, since_us = self.world.realm.subscriptions.holding, clock.now_us()
        is_extended = random.random() < 0.3
        if is_extended:
            try:
                await holding.extend(self._subscription, IdSet.from_ids(ids).spans, 4 * TIMEOUT_MS)
            except IllegalState:
                return False
            until_us = clock.now_us() + 4_040 * TIMEOUT_MS
            self._extended_us.update(dict.fromkeys(ids, until_us))
        await pass_time(random.uniform(0, 2.5 * TIMEOUT_MS / 1_000))
        now_us = clock.now_us()
        if now_us - since_us <= 1_020 * TIMEOUT_MS:
            return False
        return any(self._extended_us.get(event_id, 0) < now_us for event_id in ids)

    async def _reject(self, ids: list[int]) -> bool:
        """Return whether the events are dead; their store may have no room for them."""
        self._waits.rejecting.update(ids)
        self.receipts.ack_requested(ids, self.world.now_us)
        holding, spans = self.world.realm.subscriptions.holding, IdSet.from_ids(ids).spans
        try:
            count = await holding.bury(self._subscription, spans, "unfit")
        except StorageFailed:
            return False
        assert count == len(ids), f"of {ids} only {count} were dead"
        self._waits.rejected.update(ids)
        self.receipts.ack_answered(ids, self.world.now_us)
        self.world.note(f"rejected {self.receipts.name} {ids}")
        return True

    async def _roll_back(self, ids: list[int]) -> None:
        self._is_rolling_back = True
        delay_ms = self.world.random.choice(DELAYS_MS)
        clock, since_us = self.world.clock, self.world.lived_us
        lowest_counts = self.receipts.rollback_requested(ids)
        await self._request_settle(ids, roll_back=True, delay_ms=delay_ms)
        self.receipts.rollback_answered(lowest_counts)
        if clock is self.world.clock:
            kept = [event_id for event_id in ids if event_id not in self._recalled]
            self._waits.note_rollback(kept, delay_ms, since_us)
        self.world.note(f"rolled back {self.receipts.name} {ids} for {delay_ms} ms")


class Breathing:
    def __init__(self, world: World) -> None:
        random = world.random
        type = random.choice(("persistent", "mixed", "paged"))
        self._world = world
        self._definitions = {
            "regrets": Definition(type="persistent"),
            "chores": Definition(
                type=type,
                dead_event_store="regrets",
                storage=spindles(type, random.choice((0, 9))),
            ),
            "errands": Definition(
                type=type, kind="queue", dead_event_store="regrets", backoff=BACKOFF
            ),
        }
        self._ledgers = {name: Ledger(name) for name in ("chores", "errands")}
        self._publishers = [
            Publisher(world, ledger, "p", compose=_events, publishes=8)
            for ledger in self._ledgers.values()
        ]
        self._receipts = {
            (store, name): Receipts(
                name or store, self._ledgers[store], remote=bool(seats.ack_timeout_ms)
            )
            for (store, name), seats in SEATS.items()
        }
        self._waits = {
            key: Waits(seats.backoff, in_order=seats.kind == "serial")
            for key, seats in SEATS.items()
        }

    async def prepare(self) -> None:
        for name, definition in self._definitions.items():
            await self._world.create(name, definition)
        for (store, name), seats in SEATS.items():
            if name:
                await self._world.create_durable(
                    store,
                    name,
                    seats.kind,
                    backoff=seats.backoff,
                    ack_timeout_ms=seats.ack_timeout_ms,
                )
        await self._check_dead_events()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        for (store, name), seats in SEATS.items():
            for _ in range(2):
                worker = Patient(
                    self._waits[store, name],
                    seats.ack_timeout_ms,
                    self._world,
                    self._receipts[store, name],
                    partial(self._is_done, store, name),
                    quiet=quiet,
                    durable=name,
                    window=seats.window or self._world.random.randint(1, 5),
                )
                group.create_task(worker.run())

    async def _is_done(self, store: str, name: str) -> bool:
        if not all(
            publisher.is_done for publisher in self._publishers if publisher.ledger.store == store
        ):
            return False
        return await self._world.is_consumed(store, name)

    async def _check_dead_events(self) -> None:
        """Check that each rejected event was buried once for each durable that rejected it, and no
        other."""
        buried: list[tuple[str, str, int]] = []
        for row in await stored(self._world, "regrets"):
            assert row.origin is not None, "it has died somewhere"
            assert row.origin["cause"] == "rejected: unfit"
            name = "".join(row.origin["durables"] or ())
            buried.append((row.origin["store"], name, row.origin["event_id"]))
        assert len(set(buried)) == len(buried), f"something has died twice: {sorted(buried)}"
        for (store, name), waits in self._waits.items():
            event_ids = {
                event_id
                for origin, durable, event_id in buried
                if (origin, durable) == (store, name)
            }
            assert waits.rejected <= event_ids, f"{sorted(waits.rejected - event_ids)} are nowhere"
            assert event_ids <= waits.rejecting, (
                f"{sorted(event_ids - waits.rejecting)} died by themselves"
            )

    async def check(self) -> None:
        """Check that every client received and settled every event, and that all events have
        left."""
        await self._check_dead_events()
        for (store, _), receipts in self._receipts.items():
            unsettled = set(self._ledgers[store].ids) - set(receipts.requested)
            assert not unsettled, (
                f"{receipts.name} has not settled {sorted(unsettled)}, and is done"
            )
            missed = set(self._ledgers[store].ids) - receipts.seen
            assert not missed, f"{receipts.name} of {store} was never given {sorted(missed)}"
        for store in ("chores", "errands"):
            kind = self._definitions[store].kind
            assert kind in ("channel", "queue")
            info = await self._world.realm.describe_channel(store, kind)
            assert (info.events, info.waiting) == (0, 0), "everything is acknowledged"


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 4))]
