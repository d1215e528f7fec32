"""PostgreSQL as a queue: ``FOR UPDATE SKIP LOCKED``, ``COPY``, asyncpg."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.ledger import Ledger
from bench.processes import server_process, without_client
from bench.shape import BATCH, WINDOW, Broker, Client, Missing, Server
from bench.workload import Events
from penstock_testing.ports import free_port

STREAM = "orders"
COLUMNS = ("data", "sku", "price", "quantity")
NOBODY = "postgres"
"""The user that runs the server, which refuses to run as root."""
WAIT_S = 1.0
"""Seconds that a consumer waits for a notification before it queries the table."""


class Postgres:
    name = "postgres"

    def missing(self) -> str:
        if _program("postgres") is None:
            return "PostgreSQL is not installed: apt-get install postgresql"
        if reason := without_client("asyncpg"):
            return reason
        if os.geteuid() == 0 and not _has_user(NOBODY):
            return f"it does not run as root, and there is no user {NOBODY}: adduser {NOBODY}"
        return ""

    def version(self) -> str:
        answer = subprocess.run(
            [_program("postgres") or "", "--version"], capture_output=True, text=True, check=True
        )
        return f"{answer.stdout.split()[2]} (asyncpg {version('asyncpg')})"

    @contextmanager
    def serve(self, directory: Path, durability: str) -> Iterator[Server]:
        """Serve PostgreSQL. D2: the write-ahead log is synced before a commit is answered; D1: it
        is written (``fsync=off``; ``synchronous_commit=off`` would not even write it)."""
        port = free_port()
        user = NOBODY if os.geteuid() == 0 else None
        cluster = directory / "cluster"
        if not cluster.exists():
            if user:
                for folder in (directory.parent, directory):
                    folder.chmod(0o711)
                shutil.chown(directory, user)
            subprocess.run(
                [_program("initdb") or "", "-D", str(cluster), "-U", "bench", "-A", "trust", "-N"],
                user=user,
                cwd=directory,
                check=True,
                capture_output=True,
            )
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on" if durability == "D2" else "off",
            "shared_buffers": "512MB",
            "max_wal_size": "4GB",
        }
        command = [_program("postgres") or "", "-D", str(cluster), "-p", str(port)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        url = f"postgresql://bench@127.0.0.1:{port}/postgres"
        with server_process(
            command, port, url, directory=directory, user=user, stop=signal.SIGINT
        ) as server:
            yield server

    async def connect(self, url: str) -> Broker:
        return await PostgresBroker.connected(url)


class PostgresBroker:
    """A stream is a table; a row is consumed when its column ``done`` is set."""

    def __init__(self, pool: Any, url: str) -> None:
        self._pool = pool
        self._url = url
        self._stream = STREAM
        self._unsent: list[tuple[Any, ...]] = []
        self._consumer: PostgresConsumer | None = None

    @classmethod
    async def connected(cls, url: str) -> PostgresBroker:
        """Connect; wait while the server reports that it is starting."""
        import asyncpg

        while True:
            try:
                return cls(await asyncpg.create_pool(url, min_size=1, max_size=4), url)
            except asyncpg.CannotConnectNowError:
                await asyncio.sleep(0.01)

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        await self.prepare_streams(durability, [STREAM])
        await self.attach(STREAM, consumes=consumes)

    async def prepare_streams(self, durability: str, names: Sequence[str]) -> None:
        for name in names:
            await self._pool.execute(
                f'CREATE TABLE "{name}" (id bigserial PRIMARY KEY, data bytea, sku text,'
                " price float8, quantity int8, tries int NOT NULL DEFAULT 0,"
                " done bool NOT NULL DEFAULT false)"
            )
            await self._pool.execute(f'CREATE INDEX ON "{name}" (id) WHERE NOT done')

    async def prepare_durables(
        self, durability: str, names: Sequence[str], kind: str, clients: int, mode: str
    ) -> None:
        if kind != "shared" or len(names) > 1:
            raise Missing("the table is one queue that serves all clients at once")
        await self.prepare_streams(durability, [STREAM])

    async def client(self, durable: str) -> Client:
        consumer = PostgresConsumer(STREAM)
        await consumer.open(self._url)
        return consumer

    async def attach(self, stream: str, *, consumes: bool = True) -> None:
        self._stream = stream
        if consumes:
            self._consumer = PostgresConsumer(stream)
            await self._consumer.open(self._url)

    async def prepare_keyed(self, durability: str, keys: Mapping[str, int]) -> None:
        if list(keys.values()) != [1]:
            raise Missing("an upsert keeps one row per value")
        ((self._key, _),) = keys.items()
        await self._pool.execute(
            f'CREATE TABLE "{STREAM}" (data bytea, sku text, price float8, quantity int8,'
            f' PRIMARY KEY ("{self._key}"))'
        )

    async def publish_keyed(self, events: Events, api: str) -> None:
        """Send only the last change of each value in a batch: one statement can change a row only
        once."""
        newest = {row[COLUMNS.index(self._key)]: row for row in _rows(events)}
        # In sorted order: two transactions then never wait for each other in a ring
        rows = [newest[value] for value in sorted(newest)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        await self._pool.execute(
            f'INSERT INTO "{STREAM}" (data, sku, price, quantity)'
            " SELECT * FROM unnest($1::bytea[], $2::text[], $3::float8[], $4::int8[])"
            f' ON CONFLICT ("{self._key}") DO UPDATE SET data = excluded.data,'
            " price = excluded.price, quantity = excluded.quantity",
            *columns,
        )

    async def stored(self) -> int:
        count: int = await self._pool.fetchval(f'SELECT count(*) FROM "{STREAM}"')
        return count

    async def publish_batch(self, events: Events, api: str) -> None:
        await self._copy(_rows(events), self._stream)

    async def publish_to(self, stream: str, events: Events) -> None:
        await self._copy(_rows(events), stream)

    async def fill(self, stream: str, batches: Sequence[Events], rounds: int) -> None:
        rows = [row for batch in batches for row in _rows(batch)]
        for _ in range(rounds):
            await self._copy(rows, stream)
        await self._pool.execute(f'VACUUM ANALYZE "{stream}"')

    async def _copy(self, rows: list[tuple[Any, ...]], stream: str) -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.copy_records_to_table(stream, records=rows, columns=COLUMNS)
            await connection.execute(f'NOTIFY "{stream}"')

    async def send(self, events: Events, row: int) -> None:
        """Collect the event for the next flush: asyncpg has no call that does not wait."""
        self._unsent.append(_row(events, row))
        if len(self._unsent) == BATCH:
            await self.flush()

    async def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.executemany(_insert(self._stream), unsent)
                await connection.execute(f'NOTIFY "{self._stream}"')

    async def publish_one(self, events: Events, row: int) -> None:
        await self._pool.execute(_insert(self._stream), *_row(events, row))

    async def consume(self, count: int, api: str) -> tuple[int, float]:
        assert self._consumer is not None, "it is attached"
        ledger = Ledger(1, flaw=float("nan"))
        while not ledger.acked:
            await self._consumer.take(min(count, WINDOW), ledger)
        return ledger.acked, ledger.price

    async def settled(self) -> None:
        """Do nothing: each acknowledgement was answered."""

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()
        await self._pool.close()


class PostgresConsumer:
    """Locks rows while it works on them; the commit that ends the work marks them as done."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._is_told = asyncio.Event()
        self._connection: Any = None

    async def open(self, url: str) -> None:
        import asyncpg

        self._connection = await asyncpg.connect(url)
        await self._connection.add_listener(self._stream, lambda *_: self._is_told.set())

    async def work(self, ledger: Ledger, api: str) -> None:
        while True:
            await self.take(WINDOW, ledger)

    async def take(self, count: int, ledger: Ledger) -> None:
        """Lock some rows, or none if the table has none for a while."""
        self._is_told.clear()
        async with self._connection.transaction():
            rows = await self._connection.fetch(
                f'SELECT id, data, sku, price, quantity, tries FROM "{self._stream}"'
                f" WHERE NOT done ORDER BY id LIMIT {count} FOR UPDATE SKIP LOCKED"
            )
            price, done, flawed = 0.0, [], []
            for number, data, _, worth, _, tries in rows:
                assert data, "every event has data"
                if worth == ledger.flaw and not tries:
                    flawed.append(number)
                else:
                    price += worth
                    done.append(number)
            for what, ids in (("done = true", done), ("tries = tries + 1", flawed)):
                if ids:
                    await self._connection.execute(
                        f'UPDATE "{self._stream}" SET {what} WHERE id = ANY($1::int8[])', ids
                    )
        if rows:
            ledger.add(len(done), price, len(flawed))
            return
        try:
            async with asyncio.timeout(WAIT_S):
                await self._is_told.wait()
        except TimeoutError:
            return

    async def hold(self) -> None:
        await self._connection.execute("BEGIN")
        await self._connection.fetch(
            f'SELECT id FROM "{self._stream}" WHERE NOT done ORDER BY id LIMIT {WINDOW}'
            " FOR UPDATE SKIP LOCKED"
        )

    async def settled(self) -> None:
        """Do nothing: each acknowledgement was answered."""

    async def close(self) -> None:
        self._connection.terminate()


def _insert(stream: str) -> str:
    return f'INSERT INTO "{stream}" (data, sku, price, quantity) VALUES ($1, $2, $3, $4)'


def _row(events: Events, row: int) -> tuple[Any, ...]:
    properties = events.properties[row]
    return events.datas[row], properties["sku"], properties["price"], properties["quantity"]


def _rows(events: Events) -> list[tuple[Any, ...]]:
    return [_row(events, row) for row in range(len(events))]


def _has_user(name: str) -> bool:
    return any(entry.pw_name == name for entry in pwd.getpwall())


def _program(name: str) -> str | None:
    """Return the newest of the installed programs; Debian's are in no folder of ``PATH``."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_number, reverse=True)
    folders = [*(str(place) for place in places), os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(folders))


def _number(place: Path) -> int:
    return int(place.parent.name) if place.parent.name.isdigit() else 0


PEER = Postgres()
