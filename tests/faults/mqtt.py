"""MQTT clients of a run: paho-mqtt, an independent implementation, with persistent sessions (SEM
M6, M7). One defect of it is repaired, without which it does not deliver exactly once itself: see
:func:`keep_released`.

The publisher sends with QoS 2 and keeps its messages in flight over lost connections, so each is
stored exactly once as long as its process lives. It uses MQTT 3.1.1, in which a refusal ends the
connection and PUBCOMP is unambiguous; with MQTT 5 paho ignores the reason of a PUBREC. Consumers
use MQTT 5.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

from tests.faults.journals import Diary
from tests.faults.names import EXACTLY_ONCE, IN_HAND, MQTT_CONSUMERS, publisher_of

IS_HERE: Final = find_spec("paho") is not None
TOPIC: Final = "faults/mqtt"
FILTER: Final = "faults/#"
WAIT_S: Final = 5.0
"""The longest wait for an answer before the next address is tried, because a connection may be
half-open without notice."""
KEEPALIVE_S: Final = 5
BEGIN_S: Final = 60.0
_TURN_S: Final = 0.1
_REFUSED_PAUSE_S: Final = 0.25
_FOR_EVER: Final = 0xFFFF_FFFF
"""Session expiry without end: clocks in a run jump by days."""


class PersistentClient:
    """A client with a persistent session, at any address that serves. Everything runs on the thread
    that calls :meth:`turn`."""

    def __init__(self, addresses: str, client_id: str, *, is_newest: bool) -> None:
        """``addresses``: host and port of each server, separated by commas. ``is_newest``: MQTT
        5."""
        paho = _paho()
        self._addresses = [address.rpartition(":") for address in addresses.split(",")]
        self._attempts = 0
        options: dict[str, Any] = {} if is_newest else {"clean_session": False}
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id,
            protocol=paho.MQTTv5 if is_newest else paho.MQTTv311,
            **options,
        )
        keep_released(self.client)
        self.client.connect_timeout = WAIT_S
        self.client.on_connect = self._on_connect
        self._connect_options = _session_options() if is_newest else {}
        self._is_connecting = False
        """Whether a connection exists or is being opened."""
        self.is_connected = False
        self.has_session = False
        """Whether the server had the session at the last connect."""
        self._last_answer_s = 0.0
        self._pause = threading.Event()

    def turn(self, *, expects_answer: bool = False) -> None:
        """Work for a moment. Connect to the next address if the current one does not serve, or if a
        server does not answer although it ``is_owed`` an answer."""
        if not self._is_connecting:
            self._begin()
            return
        code = self.client.loop(_TURN_S)
        is_waiting = expects_answer or not self.is_connected
        if code != 0 or (is_waiting and _now_s() - self._last_answer_s > WAIT_S):
            self._is_connecting = self.is_connected = False
            self._attempts += 1
            self._pause.wait(_REFUSED_PAUSE_S)

    def restart_timeout(self) -> None:
        """Restart the timeout of the next answer."""
        self._last_answer_s = _now_s()

    def _begin(self) -> None:
        host, _, port = self._addresses[self._attempts % len(self._addresses)]
        self.restart_timeout()
        try:
            self.client.connect(host, int(port), KEEPALIVE_S, **self._connect_options)
        except OSError:
            self._attempts += 1
            self._pause.wait(_REFUSED_PAUSE_S)
        else:
            self._is_connecting = True

    def _on_connect(self, _: Any, __: Any, flags: Any, reason: Any, ___: Any) -> None:
        if not reason.is_failure:
            self.restart_timeout()
            self.is_connected = True
            self.has_session = flags.session_present

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe, and return once the session has the subscription. Raises ``TimeoutError``."""
        done = threading.Event()
        self.client.on_subscribe = lambda *_: done.set()
        self._turn_until(lambda: self.is_connected)
        self.client.subscribe(topic_filter, qos)
        self._turn_until(done.is_set)

    def _turn_until(self, condition: Callable[[], bool]) -> None:
        began_s = _now_s()
        while not condition():
            if _now_s() - began_s > BEGIN_S:
                raise TimeoutError("no server has answered")
            self.turn(expects_answer=True)

    def close(self) -> None:
        """Disconnect; the session remains."""
        self.client.disconnect()
        self.client.loop(_TURN_S)


class Sender:
    """Sends messages with QoS 2, a few at a time, and waits until all are complete."""

    def __init__(self, addresses: str, life: int) -> None:
        """``life`` distinguishes the processes of a publisher. Each has its own session, because it
        does not know which packet ids the one before left in use."""
        self._client = PersistentClient(addresses, f"mqtt-{life}", is_newest=False)
        self._client.client.on_publish = self._on_publish
        self._open: set[int] = set()

    def send(self, datas: Sequence[bytes]) -> int:
        """Send events and return -1 once they are acknowledged, however long that takes: MQTT
        returns no ids."""
        self._client.restart_timeout()
        for data in datas:
            self._open.add(self._client.client.publish(TOPIC, data, qos=2).mid)
        while self._open:
            self._client.turn(expects_answer=True)
        return -1

    def _on_publish(self, _: Any, __: Any, packet_id: int, *___: Any) -> None:
        self._client.restart_timeout()
        self._open.discard(packet_id)

    def close(self) -> None:
        self._client.close()


class Receiver:
    """Receives messages with QoS 1 or 2, and records each before it acknowledges it. The ids in its
    record are the publisher's numbers, because MQTT has no ids."""

    def __init__(self, addresses: str, kind: str, number: int, diary: Diary) -> None:
        self._client = PersistentClient(addresses, f"{kind}.{number}", is_newest=True)
        self._client.client.on_message = self._on_message
        self._diary = diary

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._client.turn()
            if self._client.is_connected and not self._client.has_session:
                raise AssertionError("its session is lost")
        self._client.close()

    def _on_message(self, _: Any, __: Any, message: Any) -> None:
        owner = publisher_of(message.payload)
        if owner is None or owner[0] != "mqtt" or message.topic != TOPIC:
            raise AssertionError(f"no publisher sent {message.payload!r} to {message.topic}")
        self._diary.record_received([owner[1]], [message.payload])


def create_sessions(addresses: str, roles: Sequence[str]) -> None:
    """Create the session of each MQTT consumer among the roles, so that it misses nothing."""
    for role in roles:
        kind = role.partition(".")[0]
        if kind not in MQTT_CONSUMERS:
            continue
        client = PersistentClient(addresses, role, is_newest=True)
        client.subscribe(FILTER, 2 if kind == EXACTLY_ONCE else 1)
        client.close()


def keep_released(client: Any) -> None:
    """Let a paho client remember, over any number of connection attempts, which messages were
    received (PUBREC). paho-mqtt 2.2.0 forgets it at the second attempt without a CONNACK, and sends
    such a message again (PUBLISH, without DUP) under a packet id that is free by then, which a
    client must not do (MQTT-4.3.3-1) and a server stores a second time."""
    paho = _paho()
    reset = client._messages_reconnect_reset_out

    def reset_keeping_released() -> None:
        messages = client._out_messages.values()
        released = [message for message in messages if message.state == paho.mqtt_ms_resend_pubrel]
        reset()
        for message in released:
            message.state = paho.mqtt_ms_resend_pubrel

    client._messages_reconnect_reset_out = reset_keeping_released


def _paho() -> Any:
    """Import the module; its type information lacks names that its documentation recommends."""
    from paho.mqtt import client

    return client


def _session_options() -> Mapping[str, Any]:
    from paho.mqtt.packettypes import PacketTypes

    properties: Any = _paho().Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = _FOR_EVER
    properties.ReceiveMaximum = IN_HAND
    return {"clean_start": False, "properties": properties}


def _now_s() -> float:
    return time.monotonic_ns() / 1e9
