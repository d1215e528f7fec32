"""MQTT in the matrix of operations and rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import penstock
from penstock.api.operations import OPERATIONS
from penstock.core.vocabulary.errors import AccessDenied
from penstock.frontends.mqtt.hub import MqttHub
from penstock.wire.mqtt.reasons import Reason
from tests.access.matrix import CHANNEL, Caller, register
from tests.frontends.mqtt.clients import PacketClient


class MqttCaller:
    operations = frozenset(("channel.publish", "channel.subscribe"))

    def __init__(self, client: PacketClient) -> None:
        self._client = client

    def try_(self, operation: str) -> None:
        if operation == "channel.publish":
            answer = self._client.publish("a")
            reasons = (answer.reason,)
        else:
            answer = self._client.subscribe("never/this")
            reasons = answer.reasons
        if Reason.NOT_AUTHORIZED in reasons:
            raise AccessDenied(answer.properties.reason)
        assert not reasons[0].is_failure, answer


class Mqtt:
    name = "mqtt"
    # Over MQTT there is only publishing and subscribing.
    without = frozenset(OPERATIONS.keys() - MqttCaller.operations)

    def __init__(self) -> None:
        self._urls: dict[penstock.Realm, str] = {}

    @contextmanager
    def signed_in(self, realm: penstock.Realm, user: str, password: str) -> Iterator[Caller]:
        if realm not in self._urls:
            self._urls[realm] = f"mqtt://127.0.0.1:{realm._loop.call(_listen(realm))}"
        with PacketClient(self._urls[realm]) as client:
            answer = client.connect(user=user, password=password.encode())
            if answer.reason:
                raise AccessDenied(f"'access' on the realm: {answer.properties.reason}")
            yield MqttCaller(client)


async def _listen(realm: penstock.Realm) -> int:
    return await MqttHub(realm._listener, CHANNEL).listen("127.0.0.1", 0)


register(Mqtt)
