"""Messages of several clients in one turn of the loop: what fails is one client's alone."""

from __future__ import annotations

from typing import Any

import pytest

from packages.mqtt.tests.hubs import hub
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import InvalidEvent, PenstockError
from penstock_mqtt.hub import MqttHub
from penstock_mqtt.json_payloads import FEW
from penstock_mqtt.messages import Gathered, GatheredTogether, Received
from penstock_mqtt.wire.packets import PublishPacket
from penstock_mqtt.wire.plain_messages import PlainMessage
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_server.runtime.realm import RunningRealm
from penstock_testing.loop import pass_time, simulated


class Publisher:
    """A client that publishes, and what it is answered."""

    def __init__(self, name: str) -> None:
        self.client_id = name
        self.stored_ids: list[int] = []
        self.refused: list[PenstockError] = []

    def stored(self, packet: PublishPacket) -> None:
        self.stored_ids.append(packet.packet_id)

    def stored_together(self, messages: list[PlainMessage]) -> None:
        self.stored_ids += [packet_id for _, _, packet_id in messages]

    def not_stored(self, packet: PublishPacket, error: PenstockError) -> None:
        self.refused.append(error)

    def publish(self, hub: MqttHub, topic: str, *payloads: bytes) -> None:
        for packet_id, payload in enumerate(payloads, 1):
            message = Received(
                topic, PublishPacket(topic, payload, 1, packet_id=packet_id), self.client_id
            )
            hub.mqtt.publisher.gather(self.client_id, Gathered(self, message))

    def publish_plain(self, hub: MqttHub, topic: str, payload: bytes) -> None:
        hub.mqtt.publisher.gather(self.client_id, GatheredTogether(self, [(topic, payload, 1)]))  # type: ignore[arg-type]


class Unreachable(Publisher):
    """A client that cannot be answered."""

    def stored(self, packet: PublishPacket) -> None:
        raise ValueError

    stored_together = stored  # type: ignore[assignment]


class FailingRealm(RunningRealm):
    """Publishes for all users except ``failing``."""

    def publish(self, *args: Any, publisher: str = "", **more: Any) -> None:
        if publisher == "failing":
            raise RuntimeError("a fault")
        super().publish(*args, publisher=publisher, **more)


@pytest.mark.spec("M14")
@simulated
@pytest.mark.parametrize("levels", [101, 1_000])
@pytest.mark.parametrize(
    ("opens", "closes"), [(b"[", b""), (b"[", b"]"), (b'{"b":', b""), (b'{"b":', b"}")]
)
async def test_a_payload_that_is_nested_too_deep_is_refused_by_itself(
    levels: int, opens: bytes, closes: bytes
) -> None:
    payload = b'{"a":' + opens * levels + b"1" + closes * levels + b"}"
    nested, second = Publisher("dev"), Publisher("other")
    async with hub(temps=Definition(topics=("t/#",), payload="json")) as made:
        nested.publish(made, "t/1", payload, *[b'{"b":1}'] * FEW)
        second.publish(made, "o", b"1")
        await pass_time(1)

        assert second.stored_ids == [1]
        assert nested.stored_ids == list(range(2, FEW + 2))
        (refusal,) = nested.refused
        assert isinstance(refusal, MqttViolation)
        assert refusal.reason == Reason.PAYLOAD_FORMAT_INVALID
        assert "at most 100 levels" in str(refusal)


@simulated
async def test_a_hundred_levels_are_taken_however_many_come_together() -> None:
    client = Publisher("dev")
    deep = b'{"a":' * 99 + b"1" + b"}" * 99
    async with hub(temps=Definition(topics=("t/#",), payload="json")) as made:
        client.publish(made, "t/1", *[deep] * FEW)
        await pass_time(1)

        assert client.stored_ids == list(range(1, FEW + 1))


@pytest.mark.parametrize("is_plain", [False, True])
@simulated
async def test_a_failure_of_the_realm_is_shared_by_nobody_else(is_plain: bool) -> None:
    failing, second = Publisher("failing"), Publisher("other")
    say = Publisher.publish_plain if is_plain else Publisher.publish
    async with hub(FailingRealm) as made:
        say(failing, made, "f", b"1")
        say(second, made, "o", b"1")
        await pass_time(1)

        assert (failing.stored_ids, second.stored_ids) == ([], [1])
        (refusal,) = failing.refused
        assert "incident" in str(refusal)
        assert made.listener.pending_bytes == 0


@pytest.mark.parametrize("is_plain", [False, True])
@simulated
async def test_a_client_that_cannot_be_answered_keeps_no_other_waiting(is_plain: bool) -> None:
    unreachable, second = Unreachable("gone"), Publisher("other")
    say = Publisher.publish_plain if is_plain else Publisher.publish
    async with hub() as made:
        for publisher in (unreachable, second):
            publisher.client_id = "same user"  # so that their messages are published together
            say(publisher, made, "a", b"1")
        await pass_time(1)

        assert second.stored_ids == [1]
        assert made.listener.pending_bytes == 0


@pytest.mark.spec("M6")
@simulated
async def test_an_entry_of_a_session_that_cannot_be_stored_is_refused_by_itself() -> None:
    answers: dict[str, PenstockError | None] = {}
    async with hub() as made:
        made.mqtt.store.write([("session/wrong\ud800", b"1")], lambda e: answers.update(wrong=e))
        huge = b"1" * (made.realm.limits.event_bytes_max + 1)
        made.mqtt.store.write([("session/huge", huge)], lambda e: answers.update(huge=e))
        made.mqtt.store.write([("session/right", b"1")], lambda e: answers.update(right=e))
        await pass_time(1)

        assert answers["right"] is None
        assert answers["wrong"] is not None
        assert answers["huge"] is not None
        assert not isinstance(answers["huge"], InvalidEvent)
