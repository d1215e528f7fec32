"""An unmodified paho-mqtt, the MQTT client of Python, against `penstock serve --mqtt-port`."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import paho.mqtt.client
import pytest

import penstock
from penstock.testing.process import ServerProcess

mqtt: Any = paho.mqtt.client
"""Its type information leaves out what its pages tell to use."""
WAIT_S = 30.0
MESSAGES = 500


@pytest.mark.process
@pytest.mark.slow
def test_paho_publishes_and_subscribes_in_both_versions(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--mqtt-port", "0") as server:
        (listening,) = server.logged("mqtt.listening")
        port = int(listening["url"].rpartition(":")[2])
        for version in (mqtt.MQTTv311, mqtt.MQTTv5):
            _talk(port, version)
            _retain(port, version)
        with penstock.connect(f"penstock://127.0.0.1:{server.port}") as session:
            found = list(session.channels.get("mqtt").browse(selector="topic MATCHES 'plant/#'"))
        assert server.terminate() == 0

    assert len(found) == 2 * (MESSAGES + 2)


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
        for each in sent:
            each.wait_for_publish(WAIT_S)

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
