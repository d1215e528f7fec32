"""Measures what MQTT servers keep of QoS 2 when they are killed: ``python -m
tests.interop.mqtt_kills``.

A client publishes :data:`MESSAGES` messages for each of the states in :data:`STATES`, and leaves
them in it. Those of the last state come first, and another client with a persistent session
receives them. Then the server is killed (SIGKILL) and restarted, and both clients continue as the
standard requires. Messages that do not arrive are lost, those that arrive again are doubled."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from bench import mqtt_peers
from bench.mqtt_peers import MqttServer, served
from packages.mqtt.tests.clients import Hung, PacketClient
from penstock_mqtt.wire.packets import (
    MQTT_3,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
)

MESSAGES: Final = 20
STATES: Final = (
    "PUBCOMP came",
    "PUBREC came",
    "PUBREC came, and was lost",
    "delivered, up to PUBREL",
)
_TOPIC: Final = "kills"
_QUIET_S: Final = 2.0
SAVING: Final = "mosquitto, autosave_on_changes"
_SAVES_ALL: Final = "autosave_interval 1\nautosave_on_changes true\n"
CONTENDERS: Final = (*mqtt_peers.CONTENDERS[:2], SAVING, *mqtt_peers.CONTENDERS[2:])
"""The servers. mosquitto is measured twice: with ``persistence true`` alone, and also configured to
save after each message."""


class Outcome(Struct):
    """The outcome of the messages for one server."""

    lost: Counter[str]
    """Number of messages that did not arrive, by their state."""
    doubled: Counter[str]
    has_session: bool
    """Whether the receiver's session existed after the kill."""


def missing(name: str) -> str:
    """Return why a server cannot run here; empty if it can."""
    return mqtt_peers.missing(name.partition(",")[0])


def _served(name: str, directory: Path) -> AbstractContextManager[MqttServer]:
    more = _SAVES_ALL if name == SAVING else ""
    return served(name.partition(",")[0], directory, "D2", keeps=True, more=more)


def _client(server: MqttServer, client_id: str) -> tuple[PacketClient, bool]:
    client = PacketClient(f"mqtt://127.0.0.1:{server.port}", MQTT_3)
    answer = client.connect(client_id, clean_start=False, keep_alive_s=60)
    assert answer.reason == 0, answer
    return client, answer.session_present


def _heard(client: PacketClient, is_last: Callable[[Any], bool] = lambda _: False) -> list[Any]:
    """Return what a client receives until ``is_last`` is true of a packet, or nothing arrives for a
    while. Raises ``ConnectionError`` if the server disconnects."""
    client._line.settimeout(_QUIET_S)
    packets: list[Any] = []
    try:
        while not packets or not is_last(packets[-1]):
            packets.append(client.receive())
    except TimeoutError:
        pass
    except Hung as error:
        raise ConnectionError from error
    return packets


def kills(name: str, folder: Path) -> Outcome:
    """Kill a server, and return the outcome. Raises ``Missing`` if the server cannot run."""
    directory = folder / "data"
    directory.mkdir()
    with _served(name, directory) as server:
        receiver, _ = _client(server, "receiver")
        receiver.subscribe(_TOPIC, qos=2)
        sender, _ = _client(server, "sender")
        payloads = _delivered(sender, receiver)
        receiver.close()
        for number in range(3 * MESSAGES):
            packet_id = 1 + MESSAGES + number
            sender.send(_message(packet_id))
            assert sender.receive() == PubrecPacket(packet_id)
            if number < MESSAGES:
                sender.send(PubrelPacket(packet_id))
                assert sender.receive() == PubcompPacket(packet_id)
        os.kill(server.pid, signal.SIGKILL)
        sender.close()
    with _served(name, directory) as server:
        _go_on(server)
        receiver, has_session = _client(server, "receiver")
        if not has_session:
            receiver.subscribe(_TOPIC, qos=2)
        payloads += _receive_released(receiver)
        receiver.close()
    count = Counter(payloads)
    lost, doubled = Counter[str](), Counter[str]()
    for packet_id in range(1, 4 * MESSAGES + 1):
        # The first messages, which were delivered, have the last state.
        state = STATES[(packet_id - 1) // MESSAGES - 1]
        lost[state] += count[packet_id] == 0
        doubled[state] += max(count[packet_id] - 1, 0)
    return Outcome(lost, doubled, has_session)


def _message(packet_id: int, *, is_duplicate: bool = False) -> PublishPacket:
    return PublishPacket(
        _TOPIC, b"%d" % packet_id, 2, packet_id=packet_id, retain=False, is_duplicate=is_duplicate
    )


def _delivered(sender: PacketClient, receiver: PacketClient) -> list[int]:
    """Deliver messages to a connected receiver, which confirms them (PUBREC) but does not answer
    the release (PUBREL)."""
    payloads = []
    for packet_id in range(1, MESSAGES + 1):
        sender.send(_message(packet_id))
        assert sender.receive() == PubrecPacket(packet_id)
        sender.send(PubrelPacket(packet_id))
        assert sender.receive() == PubcompPacket(packet_id)
        message = receiver.receive()
        receiver.send(PubrecPacket(message.packet_id))
        assert receiver.receive() == PubrelPacket(message.packet_id)
        payloads.append(int(message.payload))
    return payloads


def _go_on(server: MqttServer) -> None:
    """Continue as a sender that has received PUBREC for all messages but the last ones. A server
    may disconnect when it gets a release that it does not know; the sender then reconnects and
    continues after it."""
    sender, _ = _client(server, "sender")
    for packet_id in range(2 * MESSAGES + 1, 4 * MESSAGES + 1):
        try:
            if packet_id > 3 * MESSAGES:
                sender.send(_message(packet_id, is_duplicate=True))
                _heard(sender, PubrecPacket(packet_id).__eq__)
            sender.send(PubrelPacket(packet_id))
            _heard(sender, lambda packet: isinstance(packet, PubcompPacket))
        except OSError:
            sender.close()
            sender, _ = _client(server, "sender")
    sender.close()


def _receive_released(receiver: PacketClient) -> list[int]:
    """Return the messages that a receiver gets, after releasing them."""
    held: dict[int, int] = {}
    payloads = []
    while packets := _heard(receiver, lambda _: True):
        for packet in packets:
            if isinstance(packet, PublishPacket):
                held[packet.packet_id] = int(packet.payload)
                receiver.send(PubrecPacket(packet.packet_id))
            elif isinstance(packet, PubrelPacket):
                if packet.packet_id in held:
                    payloads.append(held.pop(packet.packet_id))
                receiver.send(PubcompPacket(packet.packet_id))
    return [*payloads, *held.values()]


def main(names: Sequence[str]) -> None:
    """Write a table of the outcomes."""
    _say(f"| | session | {' | '.join(f'{state}: lost, doubled' for state in STATES)} |")
    _say(f"| --- | --- |{' ---: |' * len(STATES)}")
    for name in names or CONTENDERS:
        if reason := missing(name):
            sys.stderr.write(f"{name}: {reason}\n")
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = kills(name, Path(folder))
        version = mqtt_peers.version_of(name.partition(",")[0])
        cells = [f"{report.lost[state]}, {report.doubled[state]}" for state in STATES]
        session = "there" if report.has_session else "gone"
        _say(f"| {name} ({version}) | {session} | {' | '.join(cells)} |")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
