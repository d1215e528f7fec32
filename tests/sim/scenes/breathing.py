"""Events that were rolled back and wait before they come again (SEM D18), that were not
acknowledged in time (SEM D19), or are rejected (SEM T11), while the clock jumps and the realm dies:
never too early, never forgotten, never passed where order is kept, and dead once."""

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
"""Where clients have to acknowledge in time, and sometimes do not."""


class Seats(NamedTuple):
    """A durable, and how its clients sit there."""

    kind: str
    backoff: Backoff | None = None
    window: int | None = None
    """None: any."""
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
    """Until when events have to wait, as far as the clients of one durable were told."""

    def __init__(self, backoff: Backoff | None, *, in_order: bool) -> None:
        self.backoff = backoff
        self.in_order = in_order
        self.rejecting: set[int] = set()
        """Events that may have been rejected (SEM T11)."""
        self.rejected: set[int] = set()
        """Those of them whose rejection was answered."""
        self._until_us: dict[int, int] = {}
        self._counts: dict[int, int] = {}

    def came(self, arrived: Arrived, now_us: int) -> None:
        """Events were delivered: none before its time, and none past an earlier one that waits."""
        for event_id in arrived.ids:
            assert event_id not in self.rejected, f"event {event_id} is dead, and came again"
            early_us = self._until_us.pop(event_id, now_us) - now_us
            assert early_us <= 0, f"event {event_id} came {early_us / 1e6} s before its time"
            self._counts[event_id] = arrived.counts.get(event_id, 0)
            passed = [i for i, us in self._until_us.items() if i < event_id and us > now_us]
            assert not (self.in_order and passed), f"event {event_id} came before {passed}"

    def wait_us(self, event_id: int, delay_ms: int | None) -> int:
        """How long an event has to wait that is rolled back now."""
        if delay_ms is not None:
            return delay_ms * 1_000
        count = self._counts.get(event_id, 0) + 1
        return 0 if self.backoff is None else self.backoff.wait_us(count, event_id)

    def told(self, ids: list[int], delay_ms: int | None, since_us: int) -> None:
        """A rollback was answered that was asked for at ``since_us``."""
        for event_id in ids:
            self._until_us[event_id] = since_us + self.wait_us(event_id, delay_ms)


class Recalling(Outlet):
    """Gives up what the realm takes back, and says so."""

    def __init__(self, session: str, taken_back: Callable[[IdSet], None]) -> None:
        super().__init__(session)
        self._taken_back = taken_back

    def recall(self, spans: Spans) -> None:
        back = IdSet(spans)
        waiting = [self.inbox.get_nowait() for _ in range(self.inbox.qsize())]
        self.arrived = []
        for each in waiting:
            rows = [row for row, event_id in enumerate(each.ids) if event_id not in back]
            if rows:
                ids, datas = [each.ids[row] for row in rows], [each.datas[row] for row in rows]
                self.arrived.append(Arrived(ids, datas, each.counts, batch=each.batch))
                self.inbox.put_nowait(self.arrived[-1])
        self._taken_back(back)


class Patient(Worker):
    """Gives events back with a delay, or as the backoff says; with a timeout it is sometimes too
    late."""

    def __init__(self, waits: Waits, timeout_ms: int, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._waits = waits
        self._timeout_ms = timeout_ms
        self._back: set[int] = set()
        """Taken back by the realm, and not come again since: no business of this client."""
        self._extended_us: dict[int, int] = {}
        """Until when it may have what it has asked for more time for; with what came again as it
        asked, that is the later delivery."""
        self._gives_back = False
        """Whether it gives the events back that it is settling."""
        self.look = self._look

    def _new_outlet(self, session: str) -> Outlet:
        self._back, self._extended_us = set(), {}
        return Recalling(session, self._taken_back) if self._timeout_ms else Outlet(session)

    def _taken_back(self, ids: IdSet) -> None:
        self._back.update(ids)
        self.receipts.going_back(ids)
        self.world.realm.subscriptions.recall_seen(self._subscription)
        self.world.note(f"taken back from {self.receipts.name} {list(ids)}")

    def _look(self, arrived: Arrived) -> None:
        self._back.difference_update(arrived.ids)
        if not self.world.is_dark:
            self._waits.came(arrived, self.world.lived_us)

    async def settle(self, ids: list[int]) -> None:
        is_late = bool(self._timeout_ms) and not self._quiet and await self._take_time(ids)
        ids = [event_id for event_id in ids if event_id not in self._back]
        if not ids:
            return
        self._gives_back = False
        try:
            if self._quiet or self.world.random.random() > 0.1 or not await self._reject(ids):
                # they may have been taken back while the realm refused to bury them
                await self._settle_kept([each for each in ids if each not in self._back])
        except IllegalState:
            assert self._timeout_ms, "it has taken its time, and nothing goes back by itself"
            self.world.note(f"too late for {self.receipts.name} {ids}")
        else:  # what is due may have to wait for room on the disk
            has_room = self.world.disk.free_bytes is None
            is_taken = not self._gives_back  # what has gone back by itself may be given back, too
            too_late = is_late and is_taken and has_room
            assert not too_late, f"{ids} were settled too late, and that was taken"

    async def _settle_kept(self, ids: list[int]) -> None:
        if ids:
            await super().settle(ids)

    async def _take_time(self, ids: list[int]) -> bool:
        """Perhaps more than there is, which is told; perhaps after more was asked for, which is
        enough then."""
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
        """Whether they are dead now; there may be no room where they go."""
        self._waits.rejecting.update(ids)
        self.receipts.asking(ids, self.world.now_us)
        holding, spans = self.world.realm.subscriptions.holding, IdSet.from_ids(ids).spans
        try:
            count = await holding.bury(self._subscription, spans, "unfit")
        except StorageFailed:
            return False
        assert count == len(ids), f"of {ids} only {count} were dead"
        self._waits.rejected.update(ids)
        self.receipts.answered(ids, self.world.now_us)
        self.world.note(f"rejected {self.receipts.name} {ids}")
        return True

    async def _roll_back(self, ids: list[int]) -> None:
        self._gives_back = True
        delay_ms = self.world.random.choice(DELAYS_MS)
        clock, since_us = self.world.clock, self.world.lived_us
        atleast = self.receipts.going_back(ids)
        await self._ask(ids, roll_back=True, delay_ms=delay_ms)
        self.receipts.went_back(atleast)
        if clock is self.world.clock:
            mine = [event_id for event_id in ids if event_id not in self._back]
            self._waits.told(mine, delay_ms, since_us)
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
            at: Waits(seats.backoff, in_order=seats.kind == "serial") for at, seats in SEATS.items()
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
        await self._check_graves()

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
        if not all(each.is_done for each in self._publishers if each.ledger.store == store):
            return False
        return await self._world.is_consumed(store, name)

    async def _check_graves(self) -> None:
        """Each rejected event is there once for each who has rejected it, and no other."""
        found: list[tuple[str, str, int]] = []
        for row in await stored(self._world, "regrets"):
            assert row.origin is not None, "it has died somewhere"
            assert row.origin["cause"] == "rejected: unfit"
            name = "".join(row.origin["durables"] or ())
            found.append((row.origin["store"], name, row.origin["event_id"]))
        assert len(set(found)) == len(found), f"something has died twice: {sorted(found)}"
        for (store, name), waits in self._waits.items():
            there = {i for at, by, i in found if (at, by) == (store, name)}
            assert waits.rejected <= there, f"{sorted(waits.rejected - there)} are nowhere"
            assert there <= waits.rejecting, f"{sorted(there - waits.rejecting)} died by themselves"

    async def check(self) -> None:
        """All that was promised was given to everybody, and has left."""
        await self._check_graves()
        for (store, _), receipts in self._receipts.items():
            unasked = set(self._ledgers[store].ids) - set(receipts.asked)
            assert not unasked, f"{receipts.name} has not settled {sorted(unasked)}, and is done"
            missed = set(self._ledgers[store].ids) - receipts.seen
            assert not missed, f"{receipts.name} of {store} was never given {sorted(missed)}"
        for store in ("chores", "errands"):
            kind = self._definitions[store].kind
            assert kind in ("channel", "queue")
            info = await self._world.realm.describe_channel(store, kind)
            assert (info.events, info.waiting) == (0, 0), "everything is acknowledged"


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 4))]
