"""MQTT clients of a run: paho-mqtt, which nobody here wrote, with sessions that last (SEM M6, M7).
One thing of it is mended, without which it is not exactly once itself: see :func:`keep_released`.

The publisher sends with QoS 2 and keeps what is in flight over lost connections, so what it sends
is stored exactly once as long as its process lives. It speaks 3.1.1, where what is refused ends the
connection and PUBCOMP leaves no doubt; in 5 paho passes over the reason of a PUBREC. Consumers
speak 5.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

from tests.faults.journals import Diary
from tests.faults.names import EXACTLY_ONCE, IN_HAND, MQTT_CONSUMERS, parsed

IS_HERE: Final = find_spec("paho") is not None
TOPIC: Final = "faults/mqtt"
FILTER: Final = "faults/#"
WAIT_S: Final = 5.0
"""For a server that is to answer; then the next address is tried: no one else says that a
connection is half-open."""
KEEPALIVE_S: Final = 5
BEGIN_S: Final = 60.0
_TURN_S: Final = 0.1
_REFUSED_PAUSE_S: Final = 0.25
_FOR_EVER: Final = 0xFFFF_FFFF
"""A session expiry: clocks jump here by days."""


class LastingClient:
    """One client and its session, at whichever address serves. All happens on the thread that
    takes its turns."""

    def __init__(self, addresses: str, client_id: str, *, is_newest: bool) -> None:
        """``addresses``: host and port of each, with commas between. ``is_newest``: MQTT 5."""
        paho = _paho()
        self._addresses = [each.rpartition(":") for each in addresses.split(",")]
        self._tried = 0
        own: dict[str, Any] = {} if is_newest else {"clean_session": False}
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id,
            protocol=paho.MQTTv5 if is_newest else paho.MQTTv311,
            **own,
        )
        keep_released(self.client)
        self.client.connect_timeout = WAIT_S
        self.client.on_connect = self._on_connect
        self._lasting = _lasting() if is_newest else {}
        self._is_begun = False
        """Whether there is a connection, or its CONNACK is waited for."""
        self.is_connected = False
        self.has_session = False
        """Whether the session was there when it connected last."""
        self._heard_s = 0.0
        self._pause = threading.Event()

    def turn(self, *, is_owed: bool = False) -> None:
        """Work for a moment, or connect at the next address where the last one does not serve, also
        if it ``is_owed`` an answer that does not come."""
        if not self._is_begun:
            self._begin()
            return
        code = self.client.loop(_TURN_S)
        waits = is_owed or not self.is_connected
        if code != 0 or (waits and _now_s() - self._heard_s > WAIT_S):
            self._is_begun = self.is_connected = False
            self._tried += 1
            self._pause.wait(_REFUSED_PAUSE_S)

    def heard(self) -> None:
        """Somebody is there: the answer to what is sent now may take its time again."""
        self._heard_s = _now_s()

    def _begin(self) -> None:
        host, _, port = self._addresses[self._tried % len(self._addresses)]
        self.heard()
        try:
            self.client.connect(host, int(port), KEEPALIVE_S, **self._lasting)
        except OSError:
            self._tried += 1
            self._pause.wait(_REFUSED_PAUSE_S)
        else:
            self._is_begun = True

    def _on_connect(self, _: Any, __: Any, flags: Any, reason: Any, ___: Any) -> None:
        if not reason.is_failure:
            self.heard()
            self.is_connected = True
            self.has_session = flags.session_present

    def subscribe(self, wanted: str, qos: int) -> None:
        """Returns once the session has it. Raises ``TimeoutError``."""
        done = threading.Event()
        self.client.on_subscribe = lambda *_: done.set()
        self._until(lambda: self.is_connected)
        self.client.subscribe(wanted, qos)
        self._until(done.is_set)

    def _until(self, is_so: Callable[[], bool]) -> None:
        began_s = _now_s()
        while not is_so():
            if _now_s() - began_s > BEGIN_S:
                raise TimeoutError("no server has answered")
            self.turn(is_owed=True)

    def close(self) -> None:
        """Take leave; the session stays."""
        self.client.disconnect()
        self.client.loop(_TURN_S)


class Sender:
    """Sends messages of QoS 2, a few at a time, and sees all of them through."""

    def __init__(self, addresses: str, life: int) -> None:
        """``life`` tells the processes of a publisher apart. Each has a session of its own: none
        knows which ids the one before has left open."""
        self._link = LastingClient(addresses, f"mqtt-{life}", is_newest=False)
        self._link.client.on_publish = self._on_publish
        self._open: set[int] = set()

    def send(self, datas: Sequence[bytes]) -> int:
        """Returns -1 once they are acknowledged, however long that takes: MQTT tells no id."""
        self._link.heard()
        for data in datas:
            self._open.add(self._link.client.publish(TOPIC, data, qos=2).mid)
        while self._open:
            self._link.turn(is_owed=True)
        return -1

    def _on_publish(self, _: Any, __: Any, packet_id: int, *___: Any) -> None:
        self._link.heard()
        self._open.discard(packet_id)

    def close(self) -> None:
        self._link.close()


class Receiver:
    """Has what is published, with QoS 1 or 2, and writes it down before it says so. The ids of its
    diary are the numbers of the publisher: MQTT tells no id."""

    def __init__(self, addresses: str, kind: str, number: int, diary: Diary) -> None:
        self._link = LastingClient(addresses, f"{kind}.{number}", is_newest=True)
        self._link.client.on_message = self._on_message
        self._diary = diary

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._link.turn()
            if self._link.is_connected and not self._link.has_session:
                raise AssertionError("its session is gone")
        self._link.close()

    def _on_message(self, _: Any, __: Any, message: Any) -> None:
        owner = parsed(message.payload)
        if owner is None or owner[0] != "mqtt" or message.topic != TOPIC:
            raise AssertionError(f"nobody published {message.payload!r} to {message.topic}")
        self._diary.got([owner[1]], [message.payload])


def subscribed(addresses: str, roles: Sequence[str]) -> None:
    """Make the session of each role that is a consumer over MQTT, so that it misses nothing."""
    for role in roles:
        kind = role.partition(".")[0]
        if kind not in MQTT_CONSUMERS:
            continue
        link = LastingClient(addresses, role, is_newest=True)
        link.subscribe(FILTER, 2 if kind == EXACTLY_ONCE else 1)
        link.close()


def keep_released(client: Any) -> None:
    """Have a client of paho know over any number of attempts to connect which messages were
    received (PUBREC). paho-mqtt 2.2.0 forgets it with the second one without a CONNACK, and sends
    such a message again (PUBLISH, without DUP) under an id that is free by then, which a client
    must not (MQTT-4.3.3-1) and a server stores a second time."""
    paho = _paho()
    reset = client._messages_reconnect_reset_out

    def resetting() -> None:
        messages = client._out_messages.values()
        released = [each for each in messages if each.state == paho.mqtt_ms_resend_pubrel]
        reset()
        for each in released:
            each.state = paho.mqtt_ms_resend_pubrel

    client._messages_reconnect_reset_out = resetting


def _paho() -> Any:
    """Its type information leaves out what its pages tell to use."""
    from paho.mqtt import client

    return client


def _lasting() -> Mapping[str, Any]:
    from paho.mqtt.packettypes import PacketTypes

    properties: Any = _paho().Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = _FOR_EVER
    properties.ReceiveMaximum = IN_HAND
    return {"clean_start": False, "properties": properties}


def _now_s() -> float:
    return time.monotonic_ns() / 1e9
