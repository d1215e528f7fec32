"""A client of MQTT that connects anew within moments, while the engine takes its time and one owner
follows the other: what it gets stays in order (MQTT 5, 4.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import pytest

from packages.cluster.tests.machines import NodeMachine, end, owner_and_others, until
from packages.cluster.tests.mqtt_clients import HOUR, SECRET, Client, reach, subscribe, welcome
from packages.cluster.tests.serving import HOST
from penstock import aio
from penstock_core.vocabulary.ports import Offload
from penstock_mqtt.wire.packets import (
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
)
from penstock_testing.engine import EngineServers
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop

EVENTS: Final = 30
TOGETHER_MAX: Final = 3
"""Most events that are published together."""
SLOW_S: Final = 0.2
"""Average duration of a slow request to the engine, in seconds."""
STAYS_S: Final = 0.2
"""Average lifetime of a connection, in seconds."""


class Visit:
    """One connection of the client, which hears what comes next and nothing else."""

    def __init__(self, client: Client, newest: int) -> None:
        """``newest`` is the newest event that it has had."""
        self.newest = newest
        self._client = client
        self._last: int | None = None
        """The newest event on this connection."""
        self._is_welcome = False

    def hear(self) -> None:
        while self._client.heard:
            match self._client.heard.pop(0):
                case ConnackPacket() | DisconnectPacket():
                    self._is_welcome = True
                case PublishPacket(_, payload, qos, packet_id):
                    self._take(int(payload))
                    packet_type = PubackPacket if qos == 1 else PubrecPacket
                    self._client.say(packet_type(packet_id))
                case PubrelPacket(packet_id):
                    self._client.say(PubcompPacket(packet_id))
                case other:
                    raise AssertionError(f"{other} comes")

    def _take(self, number: int) -> None:
        assert self._is_welcome, f"{number} comes before the CONNACK"
        assert number <= self.newest + 1, f"{number} comes, and {self.newest} was the newest"
        if self._last is not None:
            assert number == self._last + 1, f"{number} comes behind {self._last}"
        self._last, self.newest = number, max(number, self.newest)


async def storm(random: Random, machines: Sequence[NodeMachine]) -> None:
    """Connect anew within moments, by any node, until everything has come."""
    newest = -1
    while newest < EVENTS - 1:
        try:
            async with asyncio.timeout(1):
                client = await reach(random.choice(machines).mqtt)
        except TimeoutError:  # it has been killed
            continue
        client.say(ConnectPacket("reader", clean_start=False, properties=HOUR))
        visit = Visit(client, newest)
        until_s = the_loop().time() + random.expovariate(1 / STAYS_S)
        while the_loop().time() < until_s and not client.has_ended:
            await pass_time(0.01)
            visit.hear()
        client.transport.abort()
        newest = visit.newest


async def publish(random: Random, urls: str, qos: int) -> None:
    """Publish all events, each once, through all changes of the owner."""
    headers = {"mqtt": '{"qos":2}'} if qos == 2 else {}
    session = await aio.connect(urls)
    channel = await session.channels.get("mqtt")
    number = 0
    while number < EVENTS:
        count = min(random.randint(1, TOGETHER_MAX), EVENTS - number)
        events = [
            aio.Event(b"%d" % (number + n), properties={"topic": "t"}, headers=headers)
            for n in range(count)
        ]
        await channel.publish_many(events)
        number += count
        await pass_time(random.expovariate(1 / STAYS_S))
    await session.close()


async def change_owners(random: Random, machines: list[NodeMachine]) -> None:
    """Have one owner after the other killed, or hand over."""
    while len(machines) > 2:
        await pass_time(random.uniform(1, 4))
        await until(lambda: any(machine.serves for machine in machines))
        (owner,) = [machine for machine in machines if machine.serves]
        if random.random() < 0.5:
            owner.node.hand_over(0)
        else:
            machines.remove(owner)
            owner.kill()


def taking_its_time(random: Random) -> Offload:
    """Return a function that runs calls to the engine, some of them after a delay."""

    async def call(do: Any) -> Any:
        if random.random() < 0.3:
            await pass_time(random.expovariate(1 / SLOW_S))
        return do()

    return call


@pytest.mark.slow
@pytest.mark.spec("M6", "M7", "M13", "N4")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", [6, 14, 33])
@simulated
async def test_a_client_that_comes_again_within_moments_gets_everything_in_order(
    seed: int, qos: int
) -> None:
    random = Random(seed)
    call = taking_its_time(random)
    owner, others = await owner_and_others(EngineServers(), 4, call, secret=SECRET)
    machines = [owner, *others]
    for machine in machines:
        machine.relays.relays_max = 1_000
    urls = ",".join(f"{HOST}:{node_machine.native}" for node_machine in machines)
    first, _ = await welcome(owner.mqtt, "reader", properties=HOUR)
    await subscribe(first, "t", qos=qos)
    first.transport.abort()

    publishing = the_loop().create_task(publish(random, f"penstock://writer@{urls}", qos))
    changing = the_loop().create_task(change_owners(random, machines))
    await storm(random, machines)

    await publishing
    changing.cancel()
    await end(*machines)
