"""The MQTT hub of a realm in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from packages.server.tests.runtime.living import living
from penstock_core.vocabulary.definitions import Definition
from penstock_mqtt.hub import MqttHub
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.runtime.realm import RunningRealm
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal


@asynccontextmanager
async def hub(
    realm_class: type[RunningRealm] = RunningRealm, **channels: Definition
) -> AsyncIterator[MqttHub]:
    async with living(MemoryJournal(), MemoryBlobs(), realm_class=realm_class) as realm:
        listener, ready = NativeListener(realm, "1", NativeLimits()), asyncio.Event()
        running = asyncio.get_running_loop().create_task(listener.run(ready))
        await ready.wait()
        for name, definition in channels.items():
            await realm.create_channel(name, definition)
        made = MqttHub(listener, "mqtt")
        await made.mqtt.open_channel()
        await made.sessions.load()
        yield made
        await listener.close()
        running.cancel()
