"""Unmodified MQTT clients of others against `penstock serve --mqtt-port`: each does what its users
do with it, in MQTT 5, and where it has it in 3.1.1."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiomqtt
import paho.mqtt.client
import pytest
from paho.mqtt.packettypes import PacketTypes

from penstock_testing.process import ServerProcess
from tests.interop.programs import (
    Tell,
    program,
    run_go,
    run_java,
    run_node,
    run_python,
    run_rust,
)
from tests.loops import on_a_loop

pytestmark = [pytest.mark.process, pytest.mark.slow]

mqtt: Any = paho.mqtt.client
WAIT_S = 30.0
JOBS = 20
JS_TESTS = 8
GMQTT_TESTS = 5
HIVEMQ_TESTS = 11
PAHO_GO_TESTS = 6
RUMQTTC_TESTS = 11


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--mqtt-port", "0", "--http", "--http-port", "0")
    with ServerProcess(tmp_path_factory.mktemp("realm"), *options) as running:
        yield running


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    (listening,) = server.logged("mqtt.listening")
    return str(listening["url"])


@pytest.fixture(scope="module")
def port(url: str) -> int:
    return int(url.rpartition(":")[2])


# --- MQTT.js -----------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "websocket"])
def test_mqtt_js(server: ServerProcess, url: str, transport: str, tell: Tell) -> None:
    where = url if transport == "tcp" else server.http_url.replace("http", "ws").rstrip("/") + "/ws"
    outcome = run_node("mqttjs", "suite.mjs", where)

    tell(f"MQTT.js, {transport}", outcome)
    assert str(outcome) == f"{JS_TESTS} of {JS_TESTS} pass"


# --- aiomqtt -----------------------------------------------------------------------------


def _lasting() -> dict[str, Any]:
    properties = mqtt.Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 600
    return {"clean_start": False, "properties": properties}


def _aiomqtt(port: int, name: str, **options: Any) -> aiomqtt.Client:
    options = {"protocol": aiomqtt.ProtocolVersion.V5, "timeout": WAIT_S, **options}
    return aiomqtt.Client("127.0.0.1", port, identifier=f"aio-{name}", **options)


async def _next_messages(client: aiomqtt.Client, count: int) -> list[aiomqtt.Message]:
    messages: list[aiomqtt.Message] = []
    async with asyncio.timeout(WAIT_S):
        async for message in client.messages:
            messages.append(message)
            if len(messages) == count:
                break
    return messages


@on_a_loop
async def test_aiomqtt(port: int) -> None:
    await _aio_qos_and_retained(port)
    await _aio_session_and_will(port)
    await _aio_shared(port)
    await _aio_request(port)


async def _aio_qos_and_retained(port: int) -> None:
    async with _aiomqtt(port, "one") as client:
        await client.publish("aio/state", "off", qos=1, retain=True)
        await client.publish("aio/state", "on", qos=2, retain=True)
        await client.subscribe("aio/#", qos=2)
        (state,) = await _next_messages(client, 1)
        assert (state.payload, state.qos, state.retain) == (b"on", 2, True)
        for qos in range(3):
            await client.publish("aio/qos", b"%d" % qos, qos=qos)
        got = await _next_messages(client, 3)
        assert sorted((message.payload, message.qos) for message in got) == [
            (b"%d" % qos, qos) for qos in range(3)
        ]


async def _aio_session_and_will(port: int) -> None:
    last = aiomqtt.Will("aio/jobs/last", b"bye", qos=1)
    async with _aiomqtt(port, "sleeper", **_lasting()) as sleeper:
        await sleeper.subscribe("aio/jobs/#", qos=1)
    async with _aiomqtt(port, "boss", will=last) as boss:
        for n in range(JOBS):
            await boss.publish("aio/jobs/1", b"%d" % n, qos=1)
        line: Any = boss._client.socket()
        line.shutdown(2)  # lost, without a goodbye
        with pytest.raises(aiomqtt.MqttError):
            await _next_messages(boss, 1)
    async with _aiomqtt(port, "sleeper", **_lasting()) as sleeper:
        got = await _next_messages(sleeper, JOBS + 1)
        assert [message.payload for message in got] == [*(b"%d" % n for n in range(JOBS)), b"bye"]


async def _aio_shared(port: int) -> None:
    async with (
        _aiomqtt(port, "member-1") as one,
        _aiomqtt(port, "member-2") as two,
        _aiomqtt(port, "boss") as boss,
    ):
        got: list[bytes] = []
        all_there = asyncio.Event()

        async def work(member: aiomqtt.Client) -> None:
            async for message in member.messages:
                got.append(bytes(message.payload))
                if len(got) == JOBS:
                    all_there.set()

        for member in (one, two):
            await member.subscribe("$share/crew/aio/work", qos=1)
        async with asyncio.TaskGroup() as tasks:
            members = [tasks.create_task(work(member)) for member in (one, two)]
            for n in range(JOBS):
                await boss.publish("aio/work", b"%d" % n, qos=1)
            async with asyncio.timeout(WAIT_S):
                await all_there.wait()
            for task in members:
                task.cancel()

    assert sorted(map(int, got)) == list(range(JOBS))


async def _aio_request(port: int) -> None:
    async with _aiomqtt(port, "server") as replier, _aiomqtt(port, "asker") as asker:
        await replier.subscribe("aio/double", qos=1)
        await asker.subscribe("aio/answers/#", qos=1)
        properties = mqtt.Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic, properties.CorrelationData = "aio/answers/1", b"\x00\xff"
        properties.UserProperty = [("unit", "C")]
        await asker.publish("aio/double", b"21", qos=1, properties=properties)
        (request,) = await _next_messages(replier, 1)
        request_properties: Any = request.properties
        assert request_properties.UserProperty == [("unit", "C")]
        back = mqtt.Properties(PacketTypes.PUBLISH)
        back.CorrelationData = request_properties.CorrelationData
        await replier.publish(request_properties.ResponseTopic, b"42", qos=1, properties=back)
        (answer,) = await _next_messages(asker, 1)
        answer_properties: Any = answer.properties
        assert (answer.payload, answer_properties.CorrelationData) == (b"42", b"\x00\xff")


# --- gmqtt -------------------------------------------------------------------------------


def test_gmqtt(port: int, tell: Tell) -> None:
    outcome = run_python("gmqtt", "suite.py", str(port))

    tell("gmqtt", outcome)
    assert str(outcome) == f"{GMQTT_TESTS} of {GMQTT_TESTS} pass"


# --- HiveMQ's client, paho.golang, rumqttc -----------------------------------------------


@pytest.mark.usefixtures("java")
@pytest.mark.alone
def test_hivemq(port: int, tell: Tell) -> None:
    classes = [f"penstock.interop.{name}" for name in ("Mqtt3Test", "Mqtt5Test")]

    outcome = run_java("hivemq", classes, {"realm.mqtt": str(port)})

    tell("HiveMQ's client", outcome)
    assert str(outcome) == f"{HIVEMQ_TESTS} of {HIVEMQ_TESTS} pass"


def test_paho_golang(port: int, tell: Tell) -> None:
    outcome = run_go("pahogo", str(port))

    tell("paho.golang", outcome)
    assert str(outcome) == f"{PAHO_GO_TESTS} of {PAHO_GO_TESTS} pass"


def test_rumqttc(port: int, tell: Tell) -> None:
    outcome = run_rust("rumqttc", str(port))

    tell("rumqttc", outcome)
    assert str(outcome) == f"{RUMQTTC_TESTS} of {RUMQTTC_TESTS} pass"


# --- mosquitto_pub, mosquitto_sub, mosquitto_rr ------------------------------------------


def _tool(name: str) -> str:
    return program(name, "mosquitto-clients")


def _mosquitto(name: str, port: int, *options: str) -> str:
    done = subprocess.run(
        [_tool(name), "-h", "127.0.0.1", "-p", str(port), "-V", "mqttv5", *options],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, (name, options, done.stdout + done.stderr)
    return done.stdout


def test_mosquitto_publishes_and_subscribes(port: int) -> None:
    """Its session waits for what comes, so that nothing depends on who is faster."""
    lasting = ("-i", "mosquitto-qos", "-c", "-x", "600", "-q", "2", "-t", "mosquitto/qos/+")
    _mosquitto("mosquitto_sub", port, *lasting, "-E")
    for qos in "012":
        topic = f"mosquitto/qos/{qos}"
        _mosquitto("mosquitto_pub", port, "-t", topic, "-m", "hello", "-q", qos)

    got = _mosquitto("mosquitto_sub", port, *lasting, "-C", "3", "-W", "20", "-F", "%t %p %q")

    assert got.splitlines() == [f"mosquitto/qos/{qos} hello {qos}" for qos in "012"]


def test_mosquitto_keeps_and_waits(port: int) -> None:
    _mosquitto("mosquitto_pub", port, "-t", "mosquitto/state", "-m", "on", "-r", "-q", "1")
    got = _mosquitto(
        "mosquitto_sub", port, "-t", "mosquitto/state", "-C", "1", "-F", "%p %r", "-W", "20"
    )
    assert got == "on 1\n"
    lasting = ("-i", "mosquitto-sleeper", "-c", "-x", "600", "-q", "1", "-t", "mosquitto/jobs")
    _mosquitto("mosquitto_sub", port, *lasting, "-E")
    for n in range(3):
        _mosquitto("mosquitto_pub", port, "-t", "mosquitto/jobs", "-m", str(n), "-q", "1")
    assert _mosquitto("mosquitto_sub", port, *lasting, "-C", "3", "-W", "20") == "0\n1\n2\n"


@asynccontextmanager
async def _mosquitto_sub(
    port: int, name: str, *options: str
) -> AsyncIterator[asyncio.StreamReader]:
    """One that has subscribed, also to a topic of its own with something retained; gives what it
    prints afterwards. It is killed in the end."""
    greeting = ("-t", f"mosquitto/greeting/{name}", "-q", "1")
    await asyncio.to_thread(_mosquitto, "mosquitto_pub", port, *greeting, "-m", "hello", "-r")
    one = await asyncio.create_subprocess_exec(
        _tool("mosquitto_sub"),
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
        "-V",
        "mqttv5",
        *greeting,
        *options,
        stdout=asyncio.subprocess.PIPE,
    )
    assert one.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            assert await one.stdout.readline() == b"hello\n"
        yield one.stdout
    finally:
        one.kill()
        await one.wait()


@on_a_loop
async def test_mosquitto_leaves_a_will(port: int) -> None:
    watcher = ("-i", "mosquitto-watcher", "-c", "-x", "600", "-q", "1", "-t", "mosquitto/gone")
    await asyncio.to_thread(_mosquitto, "mosquitto_sub", port, *watcher, "-E")
    last = ("--will-topic", "mosquitto/gone", "--will-payload", "bye", "--will-qos", "1")
    async with _mosquitto_sub(port, "mortal", *last):
        pass  # it is killed
    options = ("-C", "1", "-W", "20", "-F", "%p %q")
    got = await asyncio.to_thread(_mosquitto, "mosquitto_sub", port, *watcher, *options)

    assert got == "bye 1\n"


@on_a_loop
async def test_mosquitto_shares_a_subscription(port: int) -> None:
    options = ("-t", "$share/crew/mosquitto/work")
    got: list[bytes] = []
    async with (
        _mosquitto_sub(port, "one", *options) as one,
        _mosquitto_sub(port, "two", *options) as two,
        _aiomqtt(port, "boss-of-mosquitto") as boss,
        asyncio.timeout(WAIT_S),
        asyncio.TaskGroup() as tasks,
    ):
        for n in range(JOBS):
            await boss.publish("mosquitto/work", b"%d" % n, qos=1)
        all_there = asyncio.Event()

        async def read(member: asyncio.StreamReader) -> None:
            async for line in member:
                got.append(line)
                if len(got) == JOBS:
                    all_there.set()

        members = [tasks.create_task(read(member)) for member in (one, two)]
        await all_there.wait()
        for task in members:
            task.cancel()

    assert sorted(map(int, got)) == list(range(JOBS))


@on_a_loop
async def test_mosquitto_asks_and_is_answered(port: int) -> None:
    async with _aiomqtt(port, "for-mosquitto") as replier:
        await replier.subscribe("mosquitto/ask", qos=1)
        options = ("-t", "mosquitto/ask", "-m", "21", "-e", "mosquitto/answer", "-q", "1")
        async with asyncio.TaskGroup() as tasks:
            call = asyncio.to_thread(_mosquitto, "mosquitto_rr", port, *options)
            asking = tasks.create_task(call)
            (request,) = await _next_messages(replier, 1)
            request_properties: Any = request.properties
            await replier.publish(request_properties.ResponseTopic, b"42", qos=1)
        assert asking.result().strip() == "42"
