"""Fifty failovers in one world: clients that had a seat get it back, and listeners miss nothing.

The owner is killed, frozen for longer than a lease, or hands over, again and again. Clients at an
exclusive, a priority and a serial durable, and listeners of the JMS engine, record their events.
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
from tests.sim.cluster_clients import connected, elsewhere, retried
from tests.sim.cluster_machines import FAILING, LEASE_S

FAILOVERS: Final = 50
KINDS: Final = ("exclusive", "priority", "serial")
ORDERS, PRICES, TRADES = "orders", "prices", "trades"
"""``prices`` and ``trades`` use the JMS engine; a durable on ``trades`` keeps every event
stored."""
SERVED_S_MAX: Final = 300.0
"""The longest time without an owner, even if many nodes freeze while they take over."""
THAWED_S: Final = 6 * LEASE_S
"""A frozen owner is awake after this time."""


class SeatOracle:
    """The clients that work on events of one durable, and the settled ids."""

    def __init__(self, world: FailoverWorld, kind: str) -> None:
        self._world = world
        self._kind = kind
        self._at_work: dict[str, aio.DeliveredBatch] = {}
        self._holder = ""
        self._has_left = True
        self._sent: set[int] = set()
        """Acknowledged ids, confirmed or not."""
        self._confirmed: set[int] = set()
        self._received: dict[tuple[str, int], set[int]] = defaultdict(set)
        """Ids by client and by its number of attaches."""
        self.changes = 0

    def begins(self, name: str, batch: aio.DeliveredBatch, ids: list[int]) -> None:
        """A client has received events and begins to work on them."""
        confirmed = sorted(self._confirmed.intersection(ids))
        assert not confirmed, (
            f"{self._kind}: {confirmed[:3]} came to {name} after they were confirmed"
        )
        for worker, held in self._at_work.items():
            assert held.is_stale, f"{self._kind}: {name} got {ids} while {worker} is at work"
        if self._kind != "serial" and name != self._holder:
            assert self._has_left, f"{self._kind}: {name} got {ids}, and {self._holder} is there"
            self._holder, self._has_left = name, False
            self.changes += 1
        mine = self._received[name, batch._generation]
        mine.update(ids)
        before = {stored for stored in self._world.promises.acked if stored < min(ids)}
        skipped = sorted(before - self._sent - mine)
        assert not skipped, f"{self._kind}: {ids} came to {name} before {skipped[:3]}"
        assert ids == sorted(ids), f"{self._kind}: {ids} came to {name}"
        self._at_work[name] = batch

    def sends(self, name: str, ids: list[int]) -> None:
        """A client has finished its work and acknowledges it."""
        self._sent.update(ids)
        self.ends(name)

    def confirmed(self, ids: list[int]) -> None:
        self._confirmed.update(ids)

    def ends(self, name: str) -> None:
        """A client no longer works on its events."""
        self._at_work.pop(name, None)

    def leaves(self, name: str) -> None:
        """A client closes its seat or ends."""
        self.ends(name)
        self._has_left = self._has_left or name == self._holder

    @property
    def is_done(self) -> bool:
        """Whether all published events were acknowledged and no more will follow."""
        promises = self._world.promises
        return promises.end.is_set() and promises.acked.keys() <= self._sent


class ListenerOracle:
    """The events that listeners of one channel received, compared with those published."""

    def __init__(self, channel: str, *, keeps_all: bool) -> None:
        self._channel = channel
        self._keeps_all = keeps_all
        self.begins: list[int] = []
        """The first id that each owner could assign."""
        self.acked: list[int] = []
        self.is_over = False
        """Whether publishing has ended. Events still waiting for an owner are published before."""
        self.received: dict[str, list[int]] = {}
        self.first: dict[str, int] = {}
        """The first id that each listener waits for."""

    def hears(self, name: str, ids: list[int]) -> None:
        mine = self.received[name]
        for event_id in ids:
            assert not mine or event_id > mine[-1], f"{name} got {event_id} after {mine[-1]}"
            mine.append(event_id)

    def listens(self, name: str, first_id: int) -> None:
        self.received[name], self.first[name] = [], first_id

    def is_done(self, name: str) -> bool:
        """Return whether a listener that gets every event has received the last one."""
        return self.is_over and (not self._keeps_all or self.received[name][-1:] >= self.acked[-1:])

    def check(self) -> None:
        """Check that no event is missing before the last one received from each owner; where all
        events are stored, that none is missing at all."""
        for name, ids in self.received.items():
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
    # events that are not stored are counted, but no fact records them (SEM J4)
    compares_log = False

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
        await retried(lambda: session.channels.create(ORDERS, type="persistent"))
        for name in self.heard:
            await retried(
                lambda name=name: session.channels.create(name, type="persistent", engine="jms")  # type: ignore[misc]
            )
        orders, trades = [await session.channels.get(name) for name in (ORDERS, TRADES)]
        for kind in KINDS:
            await retried(lambda kind=kind: orders.durables.create(kind, type=kind))  # type: ignore[misc]
        await retried(lambda: trades.durables.create("slow"))
        await session.close()

    def recovered(self, realm: RunningRealm) -> None:
        for name, oracle in self.heard.items():
            if (number := realm.directory.find(name)) is not None:
                oracle.begins.append(realm.directory.channels[number].state.next_id)

    async def trouble(self) -> None:
        """End the owner again and again, each time once it serves."""
        while self.takeovers < self._failovers:
            began_s = self.loop.time()
            await pass_time(self.random.uniform(0.5, 4.0))
            while not (
                serving := [machine for machine in self.machines.values() if machine.serves]
            ):
                await pass_time(0.1)
                assert self.loop.time() - began_s < SERVED_S_MAX, "nobody serves"
            takeovers_before = self.takeovers
            what, ended_s, stored = self._end(serving[0]), self.loop.time(), -1
            while self.takeovers == takeovers_before:
                await pass_time(0.1)
                if what == "frozen" and self.loop.time() - ended_s > THAWED_S:
                    stored = len(self.promises.acked) if stored < 0 else stored
                    if len(self.promises.acked) > stored:
                        # the owner continues: the other nodes were frozen in the meantime, too
                        break
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
        for listeners in self.heard.values():
            listeners.check()
        self.note(f"{sum(seat.changes for seat in self.seats.values())} holders")


Client = Callable[[ClusterWorld], Coroutine[Any, Any, None]]


async def _publisher(world: ClusterWorld, name: str) -> None:
    """Publish an event on each channel in turn."""
    assert isinstance(world, FailoverWorld)
    session = await connected()
    channels = [
        await session.channels.get(channel_name) for channel_name in (ORDERS, PRICES, TRADES)
    ]
    while not world.promises.end.is_set():
        for channel in channels:
            event_id = await channel.publish(name.encode())
            if channel.name == ORDERS:
                world.promises.acked[event_id] = name.encode()
            else:
                world.heard[channel.name].acked.append(event_id)
        await pass_time(world.pause_s(4))
    for listeners in world.heard.values():
        listeners.is_over = True
    await session.close()


async def _listener(world: ClusterWorld, name: str) -> None:
    """Listen to two channels with subscriptions that are never closed."""
    assert isinstance(world, FailoverWorld)
    session = await connected()
    subscriptions = {}
    for channel_name in world.heard:
        subscription = await (await session.channels.get(channel_name)).subscribe().open()
        world.heard[channel_name].listens(name, subscription.first_id)
        subscriptions[channel_name] = subscription
    heard = world.heard.values()
    while not all(listeners.is_done(name) for listeners in heard):
        for channel_name, subscription in subscriptions.items():
            batch = await subscription.next_batch(timeout=0.2)
            if batch is not None:
                world.heard[channel_name].hears(name, batch.event_ids.tolist())
    await session.close()


async def _comer(world: ClusterWorld, name: str) -> None:
    """Open subscriptions in turn with any owner, and close them again."""
    session = await connected()
    channels = [
        await session.channels.get(channel_name) for channel_name in (ORDERS, PRICES, TRADES)
    ]
    while not world.promises.end.is_set():
        async with AsyncExitStack() as opened:
            subscriptions = [
                await opened.enter_async_context(channel.subscribe()) for channel in channels
            ]
            for subscription in subscriptions:  # raises the error that ended the subscription
                await subscription.next_batch(timeout=world.random.uniform(0.1, 0.5))
        await pass_time(world.pause_s(2))
    await session.close()


def _seat_client(kind: str) -> Client:
    async def sit(world: ClusterWorld, name: str) -> None:
        """Take a seat at a durable, and leave it now and then."""
        assert isinstance(world, FailoverWorld)
        session, oracle, is_serial = await connected(), world.seats[kind], kind == "serial"
        durable = await (await session.channels.get(ORDERS)).durables.get(kind)
        while not oracle.is_done:
            leaves_at_s = world.loop.time() + world.random.expovariate(1 / 30)
            try:
                async with durable.subscribe(window=2 if is_serial else None) as seat:
                    try:
                        while not oracle.is_done and world.loop.time() < leaves_at_s:
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

    sit.__name__ = kind
    return elsewhere(sit)


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
    *(_seat_client(kind) for kind in KINDS for _ in range(3)),
    elsewhere(_comer),
)


def failovers_of(seed: int, failovers: int = FAILOVERS) -> FailoverWorld:
    """Return a world with this number of failovers at its end. Raises the error of a failed
    life."""
    world = FailoverWorld(seed, failovers)
    simulate(world.live(), world.random)
    return world
