"""Errors that end a call to PostgreSQL, for each error of the driver."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from penstock_cluster.storage.postgres.registry import PostgresWatch
from penstock_cluster.storage.postgres.servers import OutcomeUnknown, Servers
from penstock_core.vocabulary.errors import StorageFailed, Unavailable
from penstock_testing.loop import simulated

UNCLEAR = [
    asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
    asyncpg.exceptions.ProtocolError("unexpected message"),
    asyncpg.InterfaceError("the connection is closed"),
    asyncpg.ConnectionDoesNotExistError("the connection was closed in the middle of operation"),
    asyncpg.CannotConnectNowError("the database system is starting up"),
    asyncpg.AdminShutdownError("terminating connection"),
    asyncpg.CrashShutdownError("terminating connection because of a crash"),
    asyncpg.QueryCanceledError("canceling statement"),
    asyncpg.ReadOnlySQLTransactionError("cannot execute UPDATE in a read-only transaction"),
    asyncpg.DeadlockDetectedError("deadlock detected"),
    asyncpg.TooManyConnectionsError("too many clients already"),
    asyncpg.OutOfMemoryError("out of memory"),
    asyncpg.PostgresIOError("could not read block"),
    asyncpg.InternalServerError("cache lookup failed"),
    ConnectionResetError("reset"),
    TimeoutError("no answer"),
]
REFUSED = [
    asyncpg.DiskFullError("could not extend file"),
    asyncpg.UndefinedTableError('relation "penstock_head" does not exist'),
    asyncpg.UniqueViolationError("duplicate key"),
    asyncpg.InsufficientPrivilegeError("permission denied"),
    asyncpg.InvalidCatalogNameError("no such database"),
]


class Driver:
    """A connection of the driver whose calls fail."""

    is_gone = False

    def is_closed(self) -> bool:
        return self.is_gone  # false while another operation is in progress

    def terminate(self) -> None:
        self.is_gone = True


class FailingDriver(Driver):
    """One that fails with an error as soon as it is asked anything; without, it never answers."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def fetchval(self, *_: object) -> None:
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()

    add_listener = fetchval


class OneServer(Servers):
    def __init__(self) -> None:
        super().__init__(["postgres://127.0.0.1:1/penstock"])
        self.drivers: list[Driver] = []

    async def _connected(self) -> Any:
        self.drivers.append(Driver())
        return self.drivers[-1]

    async def fail_with(self, error: Exception) -> None:
        async def call(_: Any) -> None:
            raise error

        await self.try_once(call)

    async def succeed(self) -> str:
        async def call(_: Any) -> str:
            return "done"

        return await self.try_once(call)


@pytest.mark.parametrize("error", UNCLEAR, ids=lambda error: type(error).__name__)
@simulated
async def test_what_says_nothing_of_the_outcome_is_asked_again_on_a_new_connection(
    error: Exception,
) -> None:
    servers = OneServer()

    with pytest.raises(OutcomeUnknown):
        await servers.fail_with(error)

    assert servers.drivers[0].is_gone
    assert await servers.succeed() == "done"
    assert len(servers.drivers) == 2


@pytest.mark.parametrize("error", REFUSED, ids=lambda error: type(error).__name__)
@simulated
async def test_what_the_server_refuses_is_told_as_such(error: Exception) -> None:
    servers = OneServer()

    with pytest.raises(StorageFailed, match="PostgreSQL refuses"):
        await servers.fail_with(error)

    assert await servers.succeed() == "done"


@pytest.mark.parametrize("error", [Unavailable("a block is missing"), asyncpg.DataCorruptedError()])
@simulated
async def test_what_a_call_says_itself_keeps_the_connection(error: Exception) -> None:
    servers = OneServer()

    with pytest.raises(type(error)):
        await servers.fail_with(error)

    assert await servers.succeed() == "done"
    assert len(servers.drivers) == 1


@simulated
async def test_a_mistake_in_a_call_leaves_no_connection_in_the_middle_of_an_answer() -> None:
    servers = OneServer()

    with pytest.raises(KeyError):
        await servers.fail_with(KeyError("size"))

    assert servers.drivers[0].is_gone


@pytest.mark.parametrize("error", [None, *UNCLEAR], ids=lambda error: type(error).__name__)
@simulated
async def test_the_next_server_is_tried_whatever_one_does_once_it_is_connected(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that freezes between its welcome and its first answer is not waited for."""
    drivers = {"frozen": FailingDriver(error), "next": FailingDriver(ConnectionResetError())}

    async def connect(url: str, **_: object) -> FailingDriver:
        return drivers[url.rpartition("@")[2].partition(":")[0]]

    monkeypatch.setattr(asyncpg, "connect", connect)
    servers = Servers(["postgresql://ann@frozen:5432/p", "postgresql://ann@next:5432/p"])

    async with asyncio.timeout(60):
        with pytest.raises(OutcomeUnknown, match="next:5432: ConnectionResetError"):
            await servers.try_once(lambda _: asyncio.sleep(0))

    assert all(driver.is_gone for driver in drivers.values())


class Deaf(OneServer):
    """Its connections cannot be listened on, and its calls give nothing."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    async def _connected(self) -> Any:
        self.drivers.append(FailingDriver(self._error))
        return self.drivers[-1]

    async def try_once(self, call: Any, *, size: int = 0) -> Any:
        return [{"key": "shard/0", "version": len(self.drivers), "value": b"n1"}]


@pytest.mark.parametrize("error", [None, *UNCLEAR, *REFUSED], ids=lambda e: type(e).__name__)
@simulated
async def test_changes_are_found_although_nobody_can_listen(error: Exception | None) -> None:
    servers = Deaf(error)
    watch = PostgresWatch(servers, "penstock", "shard/")

    async with asyncio.timeout(60):
        key, record = await anext(watch)

    assert key == "shard/0"
    assert record is not None
    assert len(servers.drivers) > 1, "it has tried to listen again"
    assert all(driver.is_gone for driver in servers.drivers)
    await servers.close()
