"""An unmodified paho-mqtt, the MQTT client of Python, against `penstock serve --mqtt-port`."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import paho.mqtt.client
import pytest
from paho.mqtt.packettypes import PacketTypes

import penstock
from penstock_testing.process import ServerProcess

mqtt: Any = paho.mqtt.client
"""Its type information leaves out what its pages tell to use."""
WAIT_S = 30.0
MESSAGES = 500
WAITING = 50


@pytest.mark.process
@pytest.mark.slow
def test_paho_publishes_and_subscribes_in_both_versions(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--mqtt-port", "0") as server:
        (listening,) = server.logged("mqtt.listening")
        port = int(listening["url"].rpartition(":")[2])
        for version in (mqtt.MQTTv311, mqtt.MQTTv5):
            _talk(port, version)
            _retain(port, version)
            _last(port, version)
        with penstock.connect(f"penstock://127.0.0.1:{server.port}") as session:
            events = list(session.channels.get("mqtt").browse(selector="topic MATCHES 'plant/#'"))
        assert server.terminate() == 0

    assert len(events) == 2 * (MESSAGES + 2 + WAITING)


def _talk(port: int, version: int) -> None:
    got: queue.Queue[Any] = queue.Queue()
    subscribed = threading.Event()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"paho-{version}", protocol=version)
    client.on_connect = lambda *_: client.subscribe("plant/+/temp", qos=1)
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _, __, m: got.put((m.topic, m.payload, m.qos))
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        assert subscribed.wait(WAIT_S)
        client.publish("plant/0/temp", b"quick", qos=0)
        sent = [client.publish("plant/1/temp", b"%d" % n, qos=1) for n in range(MESSAGES)]
        for message in sent:
            message.wait_for_publish(WAIT_S)

        assert got.get(timeout=WAIT_S) == ("plant/0/temp", b"quick", 0)
        heard = [got.get(timeout=WAIT_S) for _ in sent]
        assert heard == [("plant/1/temp", b"%d" % n, 1) for n in range(MESSAGES)]
    finally:
        client.disconnect()
        client.loop_stop()


def _retain(port: int, version: int) -> None:
    """What one client retains another gets, which comes when the first is gone."""
    got: queue.Queue[Any] = queue.Queue()
    sent = threading.Event()
    device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"device-{version}", protocol=version)
    device.on_publish = lambda *_: sent.set()
    device.on_connect = lambda *_: device.publish(f"plant/{version}/state", b"on", 1, retain=True)
    late = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"late-{version}", protocol=version)
    late.on_connect = lambda *_: late.subscribe(f"plant/{version}/#", qos=1)
    late.on_message = lambda _, __, m: got.put((m.topic, m.payload, m.qos, m.retain))
    try:
        device.connect("127.0.0.1", port)
        device.loop_start()
        assert sent.wait(WAIT_S)
        device.disconnect()
        late.connect("127.0.0.1", port)
        late.loop_start()
        assert got.get(timeout=WAIT_S) == (f"plant/{version}/state", b"on", 1, True)
    finally:
        for client in (device, late):
            client.disconnect()
            client.loop_stop()


def _last(port: int, version: int) -> None:
    """What is published with QoS 2 while a client is away, it gets once when it is back."""
    got: queue.Queue[Any] = queue.Queue()
    sleeper = _sleeper(version, got)
    subscribed = threading.Event()
    sleeper.on_connect = lambda *_: sleeper.subscribe(f"plant/{version}/jobs/#", qos=2)
    sleeper.on_subscribe = lambda *_: subscribed.set()
    _connect(sleeper, port, version)
    assert subscribed.wait(WAIT_S)
    sleeper.disconnect()
    sleeper.loop_stop()
    boss = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"boss-{version}", protocol=version)
    boss.connect("127.0.0.1", port)
    boss.loop_start()
    sent = [boss.publish(f"plant/{version}/jobs/1", b"%d" % n, qos=2) for n in range(WAITING)]
    for message in sent:
        message.wait_for_publish(WAIT_S)
    boss.disconnect()
    boss.loop_stop()
    assert got.empty()
    again = _sleeper(version, got)
    present: queue.Queue[bool] = queue.Queue()
    again.on_connect = lambda _, __, flags, *___: present.put(flags.session_present)
    _connect(again, port, version)
    assert present.get(timeout=WAIT_S)
    heard = [got.get(timeout=WAIT_S) for _ in sent]
    again.disconnect()
    again.loop_stop()
    assert heard == [(b"%d" % n, 2) for n in range(WAITING)]


def _sleeper(version: int, got: queue.Queue[Any]) -> Any:
    """A client whose session lasts."""
    clean = {} if version == mqtt.MQTTv5 else {"clean_session": False}
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, f"sleeper-{version}", protocol=version, **clean
    )
    client.on_message = lambda _, __, m: got.put((m.payload, m.qos))
    return client


def _connect(client: Any, port: int, version: int) -> None:
    connect_fields: dict[str, Any] = {}
    if version == mqtt.MQTTv5:
        lasting = mqtt.Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = 3_600
        connect_fields = {"clean_start": False, "properties": lasting}
    client.connect("127.0.0.1", port, **connect_fields)
    client.loop_start()
