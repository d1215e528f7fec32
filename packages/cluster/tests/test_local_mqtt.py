"""MQTT of the local channels of a node: its own channels need names of the cluster (SEM N8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from packages.cluster.tests.mqtt_clients import connect
from packages.cluster.tests.serving import HOST
from packages.server.tests.runtime.lives import Lives
from penstock_cluster.serving.local import serve_mqtt
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NameAlreadyBound, NoQuorum, PenstockError
from penstock_mqtt.hub import MqttHub
from penstock_mqtt.wire.reasons import Reason
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.runtime.writer.store_names import StoreNames
from penstock_testing.loop import simulated
from tests.loops import the_loop

PORT = 1_883


class Ruled(StoreNames):
    """Names that are refused before they are granted."""

    asks = True

    def __init__(self, *refusals: PenstockError) -> None:
        self._refusals = list(refusals)

    @asynccontextmanager
    async def making(self, name: str, definition: Definition) -> AsyncIterator[None]:
        if self._refusals:
            raise self._refusals.pop(0)
        yield


@asynccontextmanager
async def served(*refusals: PenstockError) -> AsyncIterator[MqttHub]:
    lives = Lives(local_to="n2")
    async with lives.life():
        lives.realm.name_with(Ruled(*refusals))
        listener = NativeListener(lives.realm, "1", NativeLimits())
        hub = MqttHub(listener, "mqtt-n2")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(listener.run(asyncio.Event()))
            await serve_mqtt(hub, HOST, PORT)
            yield hub
            await listener.close()
            running.cancel()


@pytest.mark.spec("N8", "M13")
@simulated
async def test_it_waits_for_a_majority_that_grants_the_names() -> None:
    began = the_loop().time()
    async with served(NoQuorum("nobody rules"), NoQuorum("nobody rules")) as hub:
        _, answer = await connect(PORT)

        assert the_loop().time() - began >= 2
        assert answer.reason == Reason.SUCCESS
        assert hub.realm.view.named("mqtt-n2") is not None
        assert all(hub.realm.view.internal(f"mqtt-n2{end}") is not None for end in ENDS[1:])


@pytest.mark.spec("N8", "M13")
@simulated
async def test_whose_names_others_have_is_not_served_and_says_so() -> None:
    async with served(NameAlreadyBound("mqtt-n2 already exists, and is cluster-wide")) as hub:
        _, answer = await connect(PORT)

        assert answer.reason == Reason.SERVER_UNAVAILABLE
        assert answer.properties.reason == str(hub.fault)
        assert "already exists, and is cluster-wide" in str(hub.fault)


ENDS = ("", "-retained", "-sessions")
