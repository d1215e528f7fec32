"""An engine is looked at from outside: what is wrong is named with the line to change, and nothing
is made or changed by looking."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import nats
import pytest

from penstock_cluster.storage.jetstream.engine import JetStreamEngine
from penstock_cluster.storage.jetstream.inspection import JetStreamInspector
from penstock_cluster.storage.postgres.engine import PostgresEngine
from penstock_cluster.storage.postgres.inspection import PostgresInspector
from penstock_core.vocabulary.errors import Unavailable
from penstock_core.vocabulary.ports import EngineInspector
from penstock_server.runtime.writer.clock import SystemClock
from penstock_testing.nats_servers import NatsServers
from tests.contract.postgres_servers import PostgresServers, missing
from tests.loops import on_a_loop

pytestmark = [pytest.mark.process, pytest.mark.slow]

T = TypeVar("T")
Look = Callable[[EngineInspector], Awaitable[T]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with NatsServers(tmp_path_factory.mktemp("engine")) as running:
        yield running


def on_nats(servers: NatsServers, look: Look[T], name: str = "look") -> T:
    inspector = JetStreamInspector(
        servers.urls,
        name=name,
        monitors=servers.monitors,
        clock=SystemClock(),
        offload=asyncio.to_thread,
    )
    return asyncio.run(_inspect(inspector, look))


async def _inspect(inspector: EngineInspector, look: Look[T]) -> T:
    try:
        return await look(inspector)
    finally:
        await inspector.close()


def wrong(inspector: EngineInspector) -> Awaitable[dict[str, str]]:
    """Return a coroutine for the findings of the checks that fail, by the name of the check."""

    async def failed_checks() -> dict[str, str]:
        checks = await inspector.checks(0)
        assert len({check.name for check in checks}) >= 1
        return {check.name: check.finding for check in checks if not check.is_ok}

    return failed_checks()


@on_a_loop
async def streams(servers: NatsServers) -> list[tuple[str, int, int]]:
    """Every stream, and what is in it."""
    connection = await nats.connect(servers.urls[0])
    try:
        infos = await connection.jetstream().streams_info()
    finally:
        await connection.close()
    return sorted((i.config.name or "", i.state.messages, i.state.last_seq) for i in infos)


@on_a_loop
async def fill(servers: NatsServers, name: str) -> None:
    """A journal with blocks, a register with records and a place for blobs."""
    engine = JetStreamEngine(
        servers.urls,
        name=name,
        monitors=servers.monitors,
        clock=SystemClock(),
        offload=asyncio.to_thread,
    )
    await engine.open()
    try:
        registry = await engine.registry()
        await registry.cas("node/n1", 0, b"one")
        await registry.cas("shard/0", 0, b"claim")
        journal = await engine.journal(0, 1)
        for number in range(20):
            await journal.append(number, [b"block"])
        await engine.blobs(0)
    finally:
        await engine.close()


def test_a_sound_engine_is_found_well_and_left_as_it_is(servers: NatsServers) -> None:
    fill(servers, "look")
    before = streams(servers)

    assert on_nats(servers, wrong) == {}

    records = on_nats(servers, lambda inspector: inspector.records("node/"))
    assert {key: record.value for key, record in records.items()} == {"node/n1": b"one"}
    assert len(on_nats(servers, lambda inspector: inspector.records())) == 2
    health = on_nats(servers, lambda inspector: inspector.health())
    assert (health.kind, health.has_quorum, health.sync) == ("jetstream", True, "always")
    assert (health.present, health.servers, health.damage) == (3, 3, ())
    servers_seen = on_nats(servers, lambda inspector: inspector.servers())
    assert sorted(server.name for server in servers_seen) == ["n0", "n1", "n2"]
    assert [server.name for server in servers_seen if server.leads] == [health.leader]
    assert all(server.room for server in servers_seen)
    assert sorted(health.rooms) == ["n0", "n1", "n2"]
    assert health.room in health.rooms.values()
    assert streams(servers) == before


def test_where_there_is_no_cluster_none_is_made(servers: NatsServers) -> None:
    before = streams(servers)

    assert on_nats(servers, lambda inspector: inspector.records(), "nobody") == {}
    assert on_nats(servers, wrong, "nobody") == {}
    assert on_nats(servers, lambda inspector: inspector.health(), "nobody").has_quorum

    assert streams(servers) == before


@on_a_loop
async def lessen_the_replicas(servers: NatsServers, stream: str) -> None:
    connection = await nats.connect(servers.urls[0])
    config = (await connection.jetstream().stream_info(stream)).config
    config.num_replicas = 1
    await connection.jetstream().update_stream(config)
    await connection.close()


def test_a_stream_with_other_settings_is_named_with_the_command(servers: NatsServers) -> None:
    fill(servers, "edited")
    lessen_the_replicas(servers, "edited-shard-0")
    checks = on_nats(servers, wrong, "edited")

    assert set(checks) == {"streams"}
    assert "num_replicas is 1, not 3" in checks["streams"]
    assert "To fix: nats stream edit edited-shard-0" in checks["streams"]


def test_a_stream_that_is_gone_is_told(servers: NatsServers) -> None:
    fill(servers, "gone")

    async def remove(stream: str) -> None:
        connection = await nats.connect(servers.urls[0])
        await connection.jetstream().delete_stream(stream)
        await connection.close()

    asyncio.run(remove("gone-shard-0"))
    assert "stream gone-shard-0 is missing" in on_nats(servers, wrong, "gone")["history"]

    fill(servers, "lost")
    asyncio.run(remove("KV_lost"))
    assert "the register of cluster 'lost' is missing" in on_nats(servers, wrong, "lost")["history"]


def test_a_server_that_syncs_now_and_then_is_named(tmp_path: Path) -> None:
    with NatsServers(tmp_path, sync={1: "2m"}) as running:
        names = on_nats(running, _settled)

    assert set(names) == {"sync"}
    assert "server n1" in names["sync"]
    assert "To fix: set sync_interval: always within jetstream" in names["sync"]


def test_servers_that_are_away_are_told_and_not_waited_for(tmp_path: Path) -> None:
    with NatsServers(tmp_path) as running:
        fill(running, "look")
        running.kill(0)
        running.kill(1)
        checks = on_nats(running, wrong)
        assert "a majority has to (" in checks["servers"]
        health = on_nats(running, lambda inspector: inspector.health())
        assert (health.has_quorum, health.present) == (False, 1)
        running.kill(2)
        assert {"servers", "connection"} <= set(on_nats(running, wrong))
        with pytest.raises(Unavailable, match="no server of the engine answers"):
            on_nats(running, lambda inspector: inspector.records())


async def _settled(inspector: EngineInspector) -> dict[str, str]:
    """What is wrong, once the servers have found each other."""
    while True:
        checks = await wrong(inspector)
        if "servers" not in checks and "streams" not in checks:
            return checks


# --- PostgreSQL ---------------------------------------------------------------------------

needs_postgres = pytest.mark.skipif(bool(missing()), reason=missing() or "PostgreSQL is there")


def on_postgres(urls: list[str], look: Look[T]) -> T:
    return asyncio.run(_inspect(PostgresInspector(urls), look))


@needs_postgres
def test_postgresql_is_looked_at_without_a_change() -> None:
    with PostgresServers() as running:
        assert on_postgres(running.urls, wrong) == {}
        assert on_postgres(running.urls, lambda inspector: inspector.records()) == {}
        assert asyncio.run(_tables(running)) == 0

        asyncio.run(_fill_postgres(running))
        records = on_postgres(running.urls, lambda inspector: inspector.records("node/"))
        assert {key: record.value for key, record in records.items()} == {"node/n1": b"one"}
        health = on_postgres(running.urls, lambda inspector: inspector.health())
        assert (health.kind, health.has_quorum, health.present) == ("postgresql", True, 3)
        servers_seen = on_postgres(running.urls, lambda inspector: inspector.servers())
        assert [server.leads for server in servers_seen] == [True, False, False]

        running.sql(0, "ALTER SYSTEM SET synchronous_commit = 'local'")
        running.sql(0, "SELECT pg_reload_conf()")
        running.kill(2)
        checks = on_postgres(running.urls, wrong)
        assert set(checks) == {"servers", "commit"}
        assert "set synchronous_commit = on in its postgresql.conf" in checks["commit"]

        running.kill(0)
        with pytest.raises(Unavailable, match="no PostgreSQL server takes writes"):
            on_postgres(running.urls, lambda inspector: inspector.records())
        assert set(on_postgres(running.urls, wrong)) == {"servers", "primary"}


async def _tables(running: PostgresServers) -> Any:
    connection = await asyncpg.connect(running.urls[0])
    try:
        return await connection.fetchval(
            "SELECT count(*) FROM pg_class WHERE relname LIKE 'penstock%'"
        )
    finally:
        await connection.close()


async def _fill_postgres(running: PostgresServers) -> None:
    engine = PostgresEngine(running.urls)
    registry = await engine.registry()
    await registry.cas("node/n1", 0, b"one")
    await engine.close()
