"""Fifty failovers in one world: who had a seat has it again, and listeners miss nothing.

The owner is killed, frozen for longer than a lease, or hands over, one after the other. Clients at
an exclusive, a priority and a serial durable, and listeners of the JMS engine, write down what they
got.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

from penstock import aio
from penstock_core.vocabulary.errors import DurableInUse, Unavailable
from penstock_server.runtime.realm import RunningRealm
from penstock_testing.loop import pass_time, simulate
from tests.sim.cluster import ALONE, ClusterWorld
from tests.sim.cluster_clients import _again, connected, elsewhere
from tests.sim.cluster_machines import FAILING, LEASE_S

FAILOVERS: Final = 50
KINDS: Final = ("exclusive", "priority", "serial")
ORDERS, PRICES, TRADES = "orders", "prices", "trades"
"""The last two are on the JMS engine; on ``trades`` a durable has every event stored."""
SERVED_S_MAX: Final = 300.0
"""Longer than that nobody is without an owner, however many nodes freeze while they take over."""
THAWED_S: Final = 6 * LEASE_S
"""After that an owner that was frozen is awake again."""


class SeatOracle:
    """Who works on the events of one durable, and what was settled."""

    def __init__(self, world: FailoverWorld, kind: str) -> None:
        self._world = world
        self._kind = kind
        self._at_work: dict[str, aio.DeliveredBatch] = {}
        self._holder = ""
        self._has_left = True
        self._sent: set[int] = set()
        """Acknowledged, whether that was confirmed or not."""
        self._confirmed: set[int] = set()
        self._received: dict[tuple[str, int], set[int]] = defaultdict(set)
        """By client, and by how often it has been attached."""
        self.changes = 0

    def begins(self, name: str, batch: aio.DeliveredBatch, ids: list[int]) -> None:
        """A client has got events, and begins to work on them."""
        again = sorted(self._confirmed.intersection(ids))
        assert not again, f"{self._kind}: {again[:3]} came to {name} after they were confirmed"
        for other, its in self._at_work.items():
            assert its.is_stale, f"{self._kind}: {name} got {ids} while {other} is at work"
        if self._kind != "serial" and name != self._holder:
            assert self._has_left, f"{self._kind}: {name} got {ids}, and {self._holder} is there"
            self._holder, self._has_left = name, False
            self.changes += 1
        mine = self._received[name, batch._generation]
        mine.update(ids)
        before = {other for other in self._world.promises.acked if other < min(ids)}
        skipped = sorted(before - self._sent - mine)
        assert not skipped, f"{self._kind}: {ids} came to {name} before {skipped[:3]}"
        assert ids == sorted(ids), f"{self._kind}: {ids} came to {name}"
        self._at_work[name] = batch

    def sends(self, name: str, ids: list[int]) -> None:
        """The client has done its work, and acknowledges it."""
        self._sent.update(ids)
        self.ends(name)

    def confirmed(self, ids: list[int]) -> None:
        self._confirmed.update(ids)

    def ends(self, name: str) -> None:
        """The client does not work on what it got any more."""
        self._at_work.pop(name, None)

    def leaves(self, name: str) -> None:
        """The client closes its seat, or ends."""
        self.ends(name)
        self._has_left = self._has_left or name == self._holder

    @property
    def is_done(self) -> bool:
        """Whether nothing more comes."""
        promises = self._world.promises
        return promises.end.is_set() and promises.acked.keys() <= self._sent


class ListenerOracle:
    """What listeners of one channel got of what was published there."""

    def __init__(self, channel: str, *, keeps_all: bool) -> None:
        self._channel = channel
        self._keeps_all = keeps_all
        self.begins: list[int] = []
        """The first id that each owner may have given."""
        self.acked: list[int] = []
        self.is_over = False
        """Whether nothing more is published. What waits for a next owner is published by that."""
        self.got: dict[str, list[int]] = {}
        self.first: dict[str, int] = {}
        """The id from which on each listener waits."""

    def hears(self, name: str, ids: list[int]) -> None:
        mine = self.got[name]
        for event_id in ids:
            assert not mine or event_id > mine[-1], f"{name} got {event_id} after {mine[-1]}"
            mine.append(event_id)

    def listens(self, name: str, first_id: int) -> None:
        self.got[name], self.first[name] = [], first_id

    def is_done(self, name: str) -> bool:
        """Whether nothing more comes to a listener that gets everything."""
        return self.is_over and (not self._keeps_all or self.got[name][-1:] >= self.acked[-1:])

    def check(self) -> None:
        """In the time of one owner nothing is missing before what came last; where everything is
        stored, nothing at all."""
        for name, ids in self.got.items():
            first = self.first[name]
            newest = {self._owner_of(event_id): event_id for event_id in ids}
            wanted = {
                event_id
                for event_id in self.acked
                if event_id >= first
                and (self._keeps_all or event_id < newest.get(self._owner_of(event_id), -1))
            }
            missing = sorted(wanted - set(ids))
            assert not missing, f"{name} has missed {missing[:3]} of {len(wanted)}"

    def _owner_of(self, event_id: int) -> int:
        return bisect_right(self.begins, event_id)


class FailoverWorld(ClusterWorld):
    heartbeat_s = LEASE_S / 3
    compares_log = False  # what only passes is counted, and no fact tells of it (SEM J4)

    def __init__(self, seed: int, failovers: int = FAILOVERS) -> None:
        super().__init__(seed, FAILING, ALONE)
        self._failovers = failovers
        self.seats = {kind: SeatOracle(self, kind) for kind in KINDS}
        self.heard = {
            PRICES: ListenerOracle(PRICES, keeps_all=False),
            TRADES: ListenerOracle(TRADES, keeps_all=True),
        }

    async def prepare(self) -> None:
        session = await connected()
        gives_up_s = session.connection.terms.dead_after_s
        assert gives_up_s <= LEASE_S, f"seats wait, and sessions stay for {gives_up_s} s"
        await _again(lambda: session.channels.create(ORDERS, type="persistent"))
        for name in self.heard:
            await _again(
                lambda name=name: session.channels.create(name, type="persistent", engine="jms")  # type: ignore[misc]
            )
        orders, trades = [await session.channels.get(name) for name in (ORDERS, TRADES)]
        for kind in KINDS:
            await _again(lambda kind=kind: orders.durables.create(kind, type=kind))  # type: ignore[misc]
        await _again(lambda: trades.durables.create("slow"))
        await session.close()

    def recovered(self, realm: RunningRealm) -> None:
        for name, oracle in self.heard.items():
            if (number := realm.directory.find(name)) is not None:
                oracle.begins.append(realm.directory.channels[number].state.next_id)

    async def trouble(self) -> None:
        """The owner ends, again and again, once it serves."""
        while self.takeovers < self._failovers:
            known, began_s = self.takeovers, self.loop.time()
            await pass_time(self.random.uniform(0.5, 4.0))
            while not (serving := [each for each in self.machines.values() if each.serves]):
                await pass_time(0.1)
                assert self.loop.time() - began_s < SERVED_S_MAX, "nobody serves"
            known = self.takeovers
            what, ended_s, stored = self._end(serving[0]), self.loop.time(), -1
            while self.takeovers == known:
                await pass_time(0.1)
                if what == "frozen" and self.loop.time() - ended_s > THAWED_S:
                    stored = len(self.promises.acked) if stored < 0 else stored
                    if len(self.promises.acked) > stored:
                        break  # it goes on: the others were frozen as well meanwhile
                assert self.loop.time() - began_s < SERVED_S_MAX, "nobody takes over"

    def _end(self, machine: Any) -> str:
        what = self.random.choice(("killed", "frozen", "handed over"))
        self.faults[what] += 1
        self.note(f"{machine.name} is {what}")
        match what:
            case "killed":
                self.kill(machine, self.random.uniform(0.3, 5.0))
            case "frozen":
                self.freeze(machine, self.random.uniform(2 * LEASE_S, 4 * LEASE_S))
            case _:
                machine.node.hand_over(0)
        return what

    async def check(self) -> None:
        for each in self.heard.values():
            each.check()
        self.note(f"{sum(each.changes for each in self.seats.values())} holders")


Client = Callable[[ClusterWorld], Coroutine[Any, Any, None]]


async def _publisher(world: ClusterWorld, name: str) -> None:
    """An event on one channel after the other."""
    assert isinstance(world, FailoverWorld)
    session = await connected()
    channels = [await session.channels.get(each) for each in (ORDERS, PRICES, TRADES)]
    while not world.promises.end.is_set():
        for channel in channels:
            event_id = await channel.publish(name.encode())
            if channel.name == ORDERS:
                world.promises.acked[event_id] = name.encode()
            else:
                world.heard[channel.name].acked.append(event_id)
        await pass_time(world.pause_s(4))
    for each in world.heard.values():
        each.is_over = True
    await session.close()


async def _listener(world: ClusterWorld, name: str) -> None:
    """Two subscriptions that are never closed."""
    assert isinstance(world, FailoverWorld)
    session = await connected()
    subscriptions = {}
    for each in world.heard:
        subscription = await (await session.channels.get(each)).subscribe().open()
        world.heard[each].listens(name, subscription.first_id)
        subscriptions[each] = subscription
    heard = world.heard.values()
    while not all(each.is_done(name) for each in heard):
        for each, subscription in subscriptions.items():
            batch = await subscription.next_batch(timeout=0.2)
            if batch is not None:
                world.heard[each].hears(name, batch.event_ids.tolist())
    await session.close()


async def _comer(world: ClusterWorld, name: str) -> None:
    """Opens some subscriptions one after the other, whoever serves, and closes them again."""
    session = await connected()
    channels = [await session.channels.get(each) for each in (ORDERS, PRICES, TRADES)]
    while not world.promises.end.is_set():
        async with AsyncExitStack() as opened:
            subscriptions = [
                await opened.enter_async_context(each.subscribe()) for each in channels
            ]
            for each in subscriptions:  # it raises what the subscription has ended with
                await each.next_batch(timeout=world.random.uniform(0.1, 0.5))
        await pass_time(world.pause_s(2))
    await session.close()


def _sitting(kind: str) -> Client:
    async def sitting(world: ClusterWorld, name: str) -> None:
        """Sit at a durable, and leave it now and then."""
        assert isinstance(world, FailoverWorld)
        session, oracle, is_serial = await connected(), world.seats[kind], kind == "serial"
        durable = await (await session.channels.get(ORDERS)).durables.get(kind)
        while not oracle.is_done:
            leaves_s = world.loop.time() + world.random.expovariate(1 / 30)
            try:
                async with durable.subscribe(window=2 if is_serial else None) as seat:
                    try:
                        while not oracle.is_done and world.loop.time() < leaves_s:
                            await _work(world, name, oracle, seat=seat)
                    finally:
                        oracle.leaves(name)
            except DurableInUse:
                await pass_time(0.3)
            except Unavailable as error:
                world.note(f"{name} is not answered: {error.code}")
                await pass_time(0.2)
            await pass_time(world.pause_s(2))
        await session.close()

    sitting.__name__ = kind
    return elsewhere(sitting)


async def _work(
    world: FailoverWorld, name: str, oracle: SeatOracle, seat: aio.DurableSubscription
) -> None:
    batch = await seat.next_batch(timeout=0.3)
    if batch is None or batch.is_stale:
        return
    ids = batch.event_ids.tolist()
    oracle.begins(name, batch, ids)
    await pass_time(world.random.expovariate(10))
    if batch.is_stale:
        oracle.ends(name)
        return
    oracle.sends(name, ids)
    await batch.ack()
    if not batch.is_stale:
        oracle.confirmed(ids)


FailoverWorld.clients = (
    elsewhere(_publisher),
    *(elsewhere(_listener) for _ in range(2)),
    *(_sitting(kind) for kind in KINDS for _ in range(3)),
    elsewhere(_comer),
)


def failovers_of(seed: int, failovers: int = FAILOVERS) -> FailoverWorld:
    """A world with so many failovers, at its end. Raises what went wrong."""
    world = FailoverWorld(seed, failovers)
    simulate(world.live(), world.random)
    return world
