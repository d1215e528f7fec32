"""The JMS engine in a realm: connected subscribers cost no disk, and no owed event is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from packages.server.tests.runtime.lives import ENDS, LATE, End, Lives, Outlet, Worker, datas, named
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import MemoryLimit
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.runtime.writer.placement import MemoryLimits
from penstock_testing.disk import FaultyDisk
from penstock_testing.loop import pass_time, simulate, simulated
from tests.spindles import spindles

TYPES = ("mixed", "persistent", "paged", "reliable", "off_heap", "simple")
DISK = ("mixed", "persistent", "paged")
SINGLE = Storage(events_per_spindle=0)


def run(life: Coroutine[Any, Any, None], seed: int = 1) -> None:
    simulate(life, Random(seed))


class WatchedDisk(FaultyDisk):
    """A disk that counts its writes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.changes: Counter[str] = Counter()

    def pwrite(self, *arguments: Any) -> None:
        self.changes["pwrite"] += 1
        super().pwrite(*arguments)

    def datasync(self, *arguments: Any) -> None:
        self.changes["datasync"] += 1
        super().datasync(*arguments)

    def allocate(self, *arguments: Any) -> None:
        self.changes["allocate"] += 1
        super().allocate(*arguments)

    def open(self, path: str, *, create: bool = False, private: bool = False) -> int:
        self.changes["create"] += create
        return super().open(path, create=create, private=private)


def watched(**options: Any) -> tuple[Lives, WatchedDisk]:
    lives = Lives(**options)
    lives.disk = disk = WatchedDisk(1)
    return lives, disk


async def create(lives: Lives, type: str, **attributes: Any) -> None:
    await lives.create("orders", type, engine="jms", **attributes)


def state_of(lives: Lives) -> Any:
    return lives.realm.directory.channels[lives.number("orders")].state


# --- J4: nothing is written -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spec("J4")
@pytest.mark.parametrize("type", [*TYPES, "transient"])
@simulated
async def test_thousands_of_publishes_to_live_subscribers_touch_no_disk(type: str) -> None:
    lives, disk = watched(sealing=EAGER)
    async with lives.life():
        await create(lives, type)
        followers = [await lives.follow("orders", session=f"f{n}") for n in range(2)]
        picky = await lives.follow("orders", "tag = 'a'", session="picky")
        await lives.put("orders", *named("first", tag="b"))  # a schema, and a reserve of ids
        blocks, changes = lives.realm.shard.groups, disk.changes.total()

        for n in range(3_000):
            await lives.put("orders", Event(f"{n}".encode(), tag="a" if n % 3 else "b"))
        await picky.has(2_000)

        assert (lives.realm.shard.groups, disk.changes.total()) == (blocks, changes)
        for follower in followers:
            assert datas(await follower.has(3_001))[1:] == [f"{n}" for n in range(3_000)]
        info = await lives.info("orders")
        assert (info.events, info.storage.tail_bytes) == (0, 0)
        assert (await lives.realm.describe("1")).memory_bytes == 0
        counters = state_of(lives).counters
        assert counters.dropped + counters.relayed == counters.published == 3_001
        await lives.conserved()


@pytest.mark.spec("J4", "J2")
@pytest.mark.parametrize("type", TYPES)
@simulated
async def test_what_waits_for_a_slow_subscriber_waits_in_memory(type: str) -> None:
    lives, disk = watched(sealing=EAGER)
    async with lives.life():
        await create(lives, type)
        slow = Outlet("slow")
        opened = await lives.realm.subscriptions.subscribe(
            ChannelId(lives.number("orders")), FromEarliest(), slow, credit=1
        )
        await lives.put("orders", *named("0"))
        await slow.has(1)
        changes = disk.changes.total()
        for n in range(1, 60):
            await lives.put("orders", *named(str(n)))
        await pass_time(1)
        assert disk.changes.total() == changes
        assert (await lives.info("orders")).events == 59

        lives.realm.subscriptions.credit(opened.number, 100)
        assert datas(await slow.has(60)) == [str(n) for n in range(60)]
        assert (await lives.info("orders")).events == 0
        await lives.conserved()


@pytest.mark.spec("C6", "J4")
@pytest.mark.parametrize("type", TYPES)
@simulated
async def test_what_waits_in_memory_is_limited_and_what_nobody_wants_is_not(type: str) -> None:
    lives = Lives(limits=Limits(memory=MemoryLimits(20_000, 20_000, 20_000)))
    async with lives.life():
        await create(lives, type)
        for _ in range(10):
            await lives.put("orders", Event(bytes(6_000)))
        await lives.realm.subscriptions.subscribe(
            ChannelId(lives.number("orders")), FromEarliest(), Outlet("slow"), credit=0
        )
        for _ in range(3):
            await lives.put("orders", Event(bytes(6_000)))
        with pytest.raises(MemoryLimit):
            await lives.put("orders", Event(bytes(6_000)))
        assert (await lives.info("orders")).events == 3
        await lives.conserved()


# --- J2, J3, J6 in a realm ------------------------------------------------------------------


@pytest.mark.spec("J2", "J6", "D4")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("type", DISK)
@simulated
async def test_events_still_wanted_by_durables_survive(type: str, end: End) -> None:
    lives = Lives(sealing=EAGER)
    async with lives.life(end):
        await create(lives, type)
        await lives.durable("orders", "all", "shared")
        await lives.durable("orders", "odd", "serial", selector="tag = 'odd'")
        events = [Event(str(n).encode(), tag="odd" if n % 2 else "even") for n in range(10)]
        await lives.put("orders", *events)
        worker = await lives.attach("orders", "all", window=100)
        await worker.has(10)
        await worker.settle(*range(8))
        await lives.conserved()
    async with lives.life():
        stored = await lives.stored("orders")
        assert [event.event_id for event in stored] == [1, 3, 5, 7, 8, 9]
        assert datas(stored) == ["1", "3", "5", "7", "8", "9"]
        odd = await lives.attach("orders", "odd", window=100)
        assert datas(await odd.has(5)) == ["1", "3", "5", "7", "9"]
        await odd.settle(1, 3, 5, 7, 9)
        await pass_time(2)
        assert [event.event_id for event in await lives.stored("orders")] == [8, 9]
        span = await lives.put("orders", *named("next"))
        assert span.first >= 10
        await lives.conserved()


@pytest.mark.spec("J3", "E6")
@simulated
async def test_a_subscriber_is_told_where_it_begins() -> None:
    lives = Lives()
    async with lives.life():
        await create(lives, "persistent")
        await lives.durable("orders", "d")
        await lives.put("orders", *named("a", "b", "c"))
        outlet = Outlet()
        opened = await lives.realm.subscriptions.subscribe(
            ChannelId(lives.number("orders")), FromEarliest(), outlet, credit=100
        )
        assert opened.first_id == 3
        await lives.put("orders", *named("d"))
        assert datas(await outlet.has(1)) == ["d"]
        await lives.durable("orders", "late")
        about = await lives.realm.subscriptions.durable(ChannelId(lives.number("orders")), "late")
        assert about.outstanding == 0


@pytest.mark.spec("J2", "T5", "T7")
@simulated
async def test_what_a_durable_waited_for_in_vain_is_dead_and_what_was_dropped_is_not() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("dead")
        await create(lives, "persistent", dead_event_store="dead", ttl=1_000)
        await lives.put("orders", *named("nobody"))
        await lives.durable("orders", "d")
        await lives.put("orders", *named("missed"))
        await pass_time(3)
        assert datas(await lives.stored("dead")) == ["missed"]
        counters = state_of(lives).counters
        assert (counters.dropped, counters.dead) == (1, 1)
        await lives.conserved()


@pytest.mark.spec("J2", "T5")
@simulated
async def test_a_dead_event_store_may_be_on_the_jms_engine() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("dead", engine="jms")
        await lives.create("orders", ttl=1_000, dead_event_store="dead")
        follower = await lives.follow("dead")
        await lives.put("orders", *named("a", "b"))
        assert datas(await follower.has(2)) == ["a", "b"]
        await lives.conserved()


# --- J7 ------------------------------------------------------------------------------------


@pytest.mark.spec("J7")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("sealing", [LATE, EAGER])
@pytest.mark.parametrize("type", DISK)
@simulated
async def test_what_a_client_has_not_acknowledged_as_it_leaves_is_on_disk(
    type: str, sealing: SealingLimits, end: End
) -> None:
    lives = Lives(sealing=sealing)
    async with lives.life(end):
        await create(lives, type)
        await lives.durable("orders", "d", "exclusive")
        client = await lives.attach("orders", "d", auto_ack=True)
        await lives.put("orders", *named("a", "b", "c"))
        await client.has(3)
        await client.settle(0, 1)
        lives.realm.subscriptions.stall("worker", stalled=True)
        await lives.put("orders", *named("d", "e"))
        await client.leave()
        await lives.put("orders", *named("f"))
        await pass_time(0.1)
        assert datas(await lives.stored("orders")) == ["c", "d", "e", "f"]
    async with lives.life():
        client = await lives.attach("orders", "d", auto_ack=True)
        events = await client.has(4)
        assert datas(events) == ["c", "d", "e", "f"]
        assert [event.redelivery_count for event in events] == [0] * 4
        assert client.outlet.publishers == ["me@here"] * 4
        await client.settle(2, 3, 4, 5)
        await pass_time(2)
        assert await lives.stored("orders") == []
        await lives.conserved()


@pytest.mark.slow
@pytest.mark.spec("J7")
@simulated
async def test_on_a_full_disk_it_waits_in_memory_until_there_is_room() -> None:
    lives = Lives()
    async with lives.life():
        await create(lives, "persistent")
        await lives.durable("orders", "d", "exclusive")
        client = await lives.attach("orders", "d", auto_ack=True)
        await lives.put("orders", *named("first"))
        for _ in range(40):
            await lives.put("orders", Event(bytes(1_000_000)))
        await client.has(41)
        lives.disk.free_bytes = 0
        await client.leave()
        await pass_time(3)
        assert len(state_of(lives).unwritten) == 41
        lives.disk.free_bytes = None
        await pass_time(3)
        assert len(state_of(lives).unwritten) == 0
    async with lives.life():
        assert len(await lives.stored("orders")) == 41


class Owed:
    """A durable that is fed from memory, and one that wants some of the events."""

    def __init__(self, lives: Lives, random: Random) -> None:
        self.lives = lives
        self.random = random
        self.fed: dict[int, bytes] = {}
        self.some: dict[int, bytes] = {}

    async def create(self, type: str, storage: Storage) -> None:
        await create(self.lives, type, storage=storage)
        await self.lives.durable("orders", "fed", "exclusive")
        await self.lives.durable("orders", "some", "shared", selector="tag = 'x'")

    async def publish(self) -> None:
        tags = self.random.choices("xy", k=self.random.randint(1, 6))
        events = [Event(self.random.randbytes(4), tag=tag) for tag in tags]
        span = await self.lives.put("orders", *events)
        for event_id, event in zip(range(*span), events, strict=True):
            self.fed[event_id] = event.data
            if event.tag == "x":
                self.some[event_id] = event.data

    async def settle(self, fed: Worker, some: Worker) -> None:
        got = [event_id for event_id in fed.outlet.ids if event_id in self.fed]
        if got and self.random.random() < 0.6:
            last = self.random.choice(got)
            await fed.settle(last)
            self.fed = {i: data for i, data in self.fed.items() if i > last}
        done = [i for i in some.outlet.ids if i in self.some and self.random.random() < 0.5]
        if done:
            await some.settle(*done)
            self.some = {i: data for i, data in self.some.items() if i not in done}

    async def live(self) -> None:
        """Publish with both clients connected; the fed one leaves in an orderly way."""
        stored = {event.event_id: event.data for event in await self.lives.stored("orders")}
        assert stored == self.fed | self.some
        fed = await self.lives.attach("orders", "fed", auto_ack=True)
        some = await self.lives.attach("orders", "some", window=10_000)
        for _ in range(self.random.randint(1, 6)):
            self.lives.realm.subscriptions.stall("worker", stalled=self.random.random() < 0.5)
            await self.publish()
            await pass_time(0.05)
            await self.settle(fed, some)
        await fed.leave()
        await pass_time(self.random.choice([0, 0.2]))
        if self.random.random() < 0.3:
            await self.lives.realm.snapshot()
        await self.lives.conserved()

    async def consume(self) -> None:
        """Check that both get exactly the events that they are owed."""
        fed = await self.lives.attach("orders", "fed", auto_ack=True)
        some = await self.lives.attach("orders", "some", window=10_000, session="other")
        for worker, owed in ((fed, self.fed), (some, self.some)):
            assert {e.event_id: e.data for e in await worker.has(len(owed))} == owed
            if owed:
                await worker.settle(*owed)
        await pass_time(2)
        assert await self.lives.stored("orders") == []
        await self.lives.conserved()


async def _many_lives(seed: int, type: str, storage: Storage) -> None:
    random = Random(seed)
    lives = Lives(seed, sealing=random.choice([LATE, EAGER]))
    owed = Owed(lives, random)
    async with lives.life("closed"):
        await owed.create(type, storage)
    for _ in range(5):
        async with lives.life(random.choice(ENDS)):
            await owed.live()
    async with lives.life():
        await owed.consume()


@pytest.mark.spec("J7", "J6", "D4")
@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 12))]
)
@pytest.mark.parametrize("rows", [50_000, 0])
@pytest.mark.parametrize("type", DISK)
def test_over_many_lives_nothing_owed_is_lost_and_nothing_consumed_returns(
    type: str, rows: int, seed: int
) -> None:
    run(_many_lives(seed, type, spindles(type, rows)), seed)
