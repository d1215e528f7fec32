"""Rights on sealed history: the last known rights of the cluster decide; without known rights
nobody may read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.living import Owning
from penstock_cluster.bootstrap.cluster import open_history, open_shard
from penstock_cluster.serving.history import LastKnownRights
from penstock_core.tasks import start_task
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    AccessDenied,
    AuthenticationFailed,
    NoQuorum,
    Unavailable,
)
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.settings import AccessSettings, ClusterSettings, Settings
from penstock_testing.engine import MemoryEngine
from tests.loops import on_a_loop

SETTINGS = Settings(
    access=AccessSettings(mode="mandatory", failure_delay_s=0, password_rounds=4_096),
    cluster=ClusterSettings(engine="nats://localhost", history_port=0),
)


@pytest.mark.spec("N10", "A3")
@on_a_loop
async def test_users_and_rights_are_those_that_were_known_last(tmp_path: Path) -> None:
    engine = MemoryEngine()
    registry = await engine.registry()
    realm = await open_shard(
        await engine.journal(0, 1),
        await engine.blobs(0),
        Owning(1),
        registry=registry,
        settings=SETTINGS,
        clock=SystemClock(),
        directory=tmp_path,
        identity="i",
    )
    access = realm.access
    await access.accounts.create_user("ann", "a long password")
    await access.accounts.grant("realm", "", "ann@*", rights=("access",))
    await access.accounts.grant("channel", "orders", "ann@*", rights=("subscribe",))
    running = start_task(realm.run(), name="realm")
    await realm.create_channel("orders", Definition(type="persistent"))
    await realm.create_channel("others", Definition(type="persistent"))
    await realm.snapshot()
    running.cancel()
    await asyncio.wait([running])
    await realm.release()
    last_known = LastKnownRights(registry)

    with pytest.raises(Unavailable, match="no users are known yet"):
        await open_history(
            SETTINGS, tmp_path, "i", rights=last_known.records, on_failure=lambda: None
        )
    await last_known.refresh()
    history = await open_history(
        SETTINGS, tmp_path, "i", rights=last_known.records, on_failure=lambda: None
    )
    shown = history.realm.access
    ann = await shown.password("ann", "a long password", "127.0.0.1", secure=True)
    with pytest.raises(AuthenticationFailed):
        await shown.password("ann", "another", "127.0.0.1", secure=True)
    shown.require(ann, "channel.subscribe", "orders")
    with pytest.raises(AccessDenied):
        shown.require(ann, "channel.subscribe", "others")
    for operation in ("channel.publish", "durable.create", "channel.purge", "user.change"):
        with pytest.raises(NoQuorum, match="sealed history as of"):
            shown.require(replace(ann, trusted=True), operation, "orders")
    await history.close()
