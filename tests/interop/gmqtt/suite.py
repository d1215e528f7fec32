"""Runs unmodified gmqtt against a realm: ``python suite.py PORT``. Prints the outcome of each test
in the same form as the other suites."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import gmqtt

WAIT_S = 30.0
JOBS = 20


class Client:
    """A gmqtt client and the messages it has received."""

    def __init__(self, name: str, **options: Any) -> None:
        self.client = gmqtt.Client(f"gmqtt-{name}", **options)
        self.got: asyncio.Queue[tuple[str, bytes, Any]] = asyncio.Queue()
        self.subscribed = asyncio.Event()
        self.client.on_message = self._message
        self.client.on_subscribe = lambda *_: self.subscribed.set()

    def _message(self, _: Any, topic: str, payload: bytes, __: int, properties: Any) -> int:
        self.got.put_nowait((topic, payload, properties))
        return 0

    async def connect(self, port: int) -> Client:
        async with asyncio.timeout(WAIT_S):
            await self.client.connect("127.0.0.1", port, version=5)
        return self

    async def subscribe(self, text: str, qos: int) -> None:
        self.subscribed.clear()
        self.client.subscribe(text, qos=qos)
        async with asyncio.timeout(WAIT_S):
            await self.subscribed.wait()

    async def take(self, count: int) -> list[tuple[str, bytes, Any]]:
        async with asyncio.timeout(WAIT_S):
            return [await self.got.get() for _ in range(count)]


async def each_qos(port: int) -> None:
    one = await Client("one").connect(port)
    await one.subscribe("gmqtt/qos", 2)
    for qos in range(3):
        one.client.publish("gmqtt/qos", b"%d" % qos, qos=qos, user_property=("unit", "C"))
    got = await one.take(3)
    assert sorted(payload for _, payload, _ in got) == [b"0", b"1", b"2"]
    assert got[0][2]["user_property"] == [("unit", "C")]
    await one.client.disconnect()


async def retained(port: int) -> None:
    one = await Client("device").connect(port)
    await one.subscribe("gmqtt/state", 1)
    one.client.publish("gmqtt/state", b"on", qos=1, retain=True)
    ((_, _, live),) = await one.take(1)
    late = await Client("late").connect(port)
    await late.subscribe("gmqtt/state", 1)
    ((_, payload, message_properties),) = await late.take(1)
    assert (payload, live["retain"], message_properties["retain"]) == (b"on", 0, 1)
    for subscriber in (one, late):
        await subscriber.client.disconnect()


async def session_and_answer(port: int) -> None:
    lasting = {"clean_session": False, "session_expiry_interval": 600}
    sleeper = await Client("sleeper", **lasting).connect(port)
    await sleeper.subscribe("gmqtt/jobs", 1)
    await sleeper.client.disconnect()
    boss = await Client("boss").connect(port)
    await boss.subscribe("gmqtt/answers", 1)
    for n in range(JOBS):
        boss.client.publish(
            "gmqtt/jobs", b"%d" % n, qos=1, response_topic="gmqtt/answers", correlation_data=b"7"
        )
    again = await Client("sleeper", **lasting).connect(port)
    jobs = await again.take(JOBS)
    assert [payload for _, payload, _ in jobs] == [b"%d" % n for n in range(JOBS)]
    request = jobs[0][2]
    again.client.publish(
        request["response_topic"][0],
        b"done",
        qos=1,
        correlation_data=request["correlation_data"][0],
    )
    ((_, payload, answered),) = await boss.take(1)
    assert (payload, answered["correlation_data"]) == (b"done", [b"7"])
    for subscriber in (again, boss):
        await subscriber.client.disconnect()


async def will(port: int) -> None:
    watcher = await Client("watcher").connect(port)
    await watcher.subscribe("gmqtt/gone", 1)
    last = gmqtt.Message("gmqtt/gone", b"bye", qos=1, user_property=("unit", "C"))
    mortal = await Client("mortal", will_message=last).connect(port)
    mortal.client.set_config({"reconnect_retries": 0})
    mortal.client._connection._transport.abort()  # without a DISCONNECT
    ((_, payload, properties),) = await watcher.take(1)
    assert (payload, properties["user_property"]) == (b"bye", [("unit", "C")])
    await watcher.client.disconnect()


async def shared(port: int) -> None:
    members = [await Client(f"member-{number}").connect(port) for number in (1, 2)]
    members[1].got = members[0].got
    for member in members:
        await member.subscribe("$share/crew/gmqtt/work", 1)
    boss = await Client("boss").connect(port)
    for n in range(JOBS):
        boss.client.publish("gmqtt/work", b"%d" % n, qos=1)
    got = await members[0].take(JOBS)
    assert sorted(int(payload) for _, payload, _ in got) == list(range(JOBS))
    for member in (*members, boss):
        await member.client.disconnect()


def main() -> None:
    failed = 0
    tests = (each_qos, retained, session_and_answer, will, shared)
    for test in tests:
        try:
            asyncio.run(test(int(sys.argv[1])))
        except Exception as error:  # noqa: BLE001  it is told, and the others are tried
            failed += 1
            sys.stdout.write(f"FAILED {test.__name__}: {error!r}"[:600] + "\n")
    sys.stdout.write(f"RAN {len(tests)} FAILED {failed} IGNORED 0\n")


main()
