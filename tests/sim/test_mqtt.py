"""Sessions, QoS 1 and 2 and wills of MQTT, over power cuts, kills and a network that breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock_core.vocabulary.errors import PenstockError
from penstock_mqtt.in_flight import WaitingMessage
from penstock_mqtt.incoming import Incoming
from penstock_mqtt.messages import Gathered
from penstock_mqtt.outbox import Outbox
from penstock_mqtt.publishing import MessagePublisher
from penstock_mqtt.session import MqttSession
from penstock_mqtt.sessions import MqttSessions
from tests.sim.mqtt_world import devices_of

SEEDS = range(3)
LIVES_MAX = 30
"""Number of seeds within which a mistake is noticed."""


@pytest.mark.slow
@pytest.mark.spec("M2", "M6", "M7", "M8")
@pytest.mark.parametrize("seed", SEEDS)
def test_devices_get_what_they_were_promised(seed: int) -> None:
    devices_of(seed)


# --- mistakes ----------------------------------------------------------------------------


def forgotten_ids(patch: pytest.MonkeyPatch) -> None:
    """Keep the ids of received QoS 2 messages in memory only."""
    submit = MessagePublisher.submit

    def without(
        message_publisher: MessagePublisher, publisher: str, messages: list[Gathered]
    ) -> None:
        submit(
            message_publisher,
            publisher,
            [Gathered(message.publication, message.message) for message in messages],
        )

    patch.setattr(MessagePublisher, "submit", without)


def sent_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    """Send a message of QoS 2, and a release, before its id is on disk."""

    def at_once(session: MqttSession, entries: Any, then: Callable[[], None] | None = None) -> None:
        if then is not None:
            then()

    patch.setattr(MqttSession, "store", at_once)


def read_again_under_other_ids(patch: pytest.MonkeyPatch) -> None:
    """Forget at a start which messages were sent before."""
    patch.setattr(Outbox, "restore", lambda *_: None)


def acknowledged_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let a durable take a sent message for acknowledged."""
    write = Outbox.put

    def settled(outbox: Outbox, waiting: WaitingMessage, *more: Any, **fields: Any) -> bool:
        is_sent = write(outbox, waiting, *more, **fields)
        if waiting.source is not None:
            outbox.settle((waiting.source,))
        return is_sent

    patch.setattr(Outbox, "put", settled)


def repeated_wills(patch: pytest.MonkeyPatch) -> None:
    """Store the removal of a published will in another step."""
    publish = MqttSessions.publish_will

    async def apart(sessions: MqttSessions, session: Any, will: Any, entries: Any) -> None:
        await publish(sessions, session, will, entries=())
        try:
            await sessions.store.put(entries)
        except PenstockError:
            return

    patch.setattr(MqttSessions, "publish_will", apart)


def stored_twice(patch: pytest.MonkeyPatch) -> None:
    """Store a repeated message of QoS 2 again."""
    received = Incoming.received

    def forgetful(incoming: Incoming, packet: Any) -> None:
        if packet.qos == 2 and incoming._connection.client.received.get(packet.packet_id):
            del incoming._connection.client.received[packet.packet_id]
        received(incoming, packet)

    patch.setattr(Incoming, "received", forgetful)


def uncounted(patch: pytest.MonkeyPatch) -> None:
    """Do not count sessions as away when their connections end."""
    patch.setattr(MqttSessions, "_count", lambda *_: None)


MISTAKES = [
    forgotten_ids,
    sent_before_it_is_stored,
    read_again_under_other_ids,
    acknowledged_at_once,
    repeated_wills,
    stored_twice,
    uncounted,
]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)

    with pytest.raises(ExceptionGroup) as noticed:
        _live_until_noticed()

    assert noticed.group_contains(AssertionError)


def _live_until_noticed() -> None:
    for seed in range(LIVES_MAX):
        devices_of(seed)
