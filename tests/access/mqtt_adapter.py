"""The adapter of MQTT for the matrix of operations and rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

import penstock
from packages.mqtt.tests.clients import PacketClient
from penstock_core.api.operations import OPERATIONS
from penstock_core.vocabulary.errors import AccessDenied
from penstock_mqtt.wire.reasons import Reason
from tests.access.matrix import CHANNEL, Caller, register


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
    # MQTT can only publish and subscribe.
    without = frozenset(OPERATIONS.keys() - MqttCaller.operations)

    def __init__(self) -> None:
        self._urls: dict[penstock.Realm, str] = {}

    @contextmanager
    def signed_in(self, realm: penstock.Realm, user: str, password: str) -> Iterator[Caller]:
        if realm not in self._urls:
            # The channel of the matrix, with the rights that the realm was opened with.
            listen = replace(realm.settings.listen, mqtt_channel=CHANNEL)
            realm.settings = replace(realm.settings, listen=listen)
            self._urls[realm] = realm.listen_mqtt()
        with PacketClient(self._urls[realm]) as client:
            answer = client.connect(user=user, password=password.encode())
            if answer.reason:
                raise AccessDenied(f"'access' on the realm: {answer.properties.reason}")
            yield MqttCaller(client)


register(Mqtt)
