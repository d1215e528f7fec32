"""Blobs on NATS JetStream: chunks, heads, and what interrupted writers leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from penstock_cluster.storage.jetstream.blobs import CHUNK_BYTES, StreamBlobs
from penstock_cluster.storage.jetstream.connection import NatsConnection
from penstock_core.vocabulary.errors import Conflict, Damaged, NameDoesNotExist
from penstock_server.runtime.writer.clock import SystemClock
from penstock_testing.engine_contracts import FATES, Fates
from penstock_testing.nats_servers import NatsServers
from tests.contract.jetstream import Nodes, ignore
from tests.loops import on_a_loop

pytestmark = pytest.mark.process

HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with NatsServers(tmp_path_factory.mktemp("nats")) as running:
        yield running


@on_a_loop
async def tell(servers: NatsServers, what: Callable[[Nodes], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        await what(Nodes(servers, stack, 1 << 20))


class LaterClock(SystemClock):
    """Shows a time that is ahead."""

    ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


def test_ranges_of_a_blob_of_several_chunks(servers: NatsServers) -> None:
    async def run(nodes: Nodes) -> None:
        blobs = await (await nodes.engine()).blobs(0)
        data = b"".join(n.to_bytes(4, "big") for n in range(CHUNK_BYTES))
        size, edge = len(data), CHUNK_BYTES
        await blobs.put("segments/large", [data[:7], data[7:]])

        for begin, end in (
            (0, size),
            (edge, edge),
            (edge - 1, edge + 1),
            (edge, 2 * edge),
            (edge - 3, 3 * edge + 3),
            (size - 1, size),
            (size, size),
        ):
            read = await blobs.get("segments/large", begin, end - begin)
            assert bytes(read) == data[begin:end], (begin, end)

    tell(servers, run)


def test_a_blob_without_an_answer_is_stored_once(servers: NatsServers) -> None:
    async def run(nodes: Nodes) -> None:
        fates = Fates()
        blobs = await (await nodes.engine(fates)).blobs(0)
        other_blobs = await (await nodes.engine()).blobs(0)
        for number, drawn in enumerate(FATES):
            name, data = f"segments/{number}", b"%d" % number * CHUNK_BYTES * 2
            fates.draw(drawn)
            await blobs.put(name, [data])
            assert bytes(await other_blobs.get(name)) == data, drawn
            fates.draw(drawn)
            await blobs.put(name, [data])
            fates.draw(drawn)
            await blobs.delete(name)
            assert await other_blobs.list() == [], drawn
            await other_blobs.put(name, [b"again"])
            assert bytes(await blobs.get(name)) == b"again", drawn
            await other_blobs.delete(name)

    tell(servers, run)


def test_of_two_writers_of_a_name_one_wins(servers: NatsServers) -> None:
    async def run(nodes: Nodes) -> None:
        stores = [await (await nodes.engine()).blobs(0) for _ in range(2)]

        async def put(store: StreamBlobs, name: str, data: bytes) -> bytes | None:
            try:
                await store.put(name, [data])
            except Conflict:
                return None
            return data

        for number in range(20):
            name = f"segments/{number}"
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(put(store, name, data))
                    for store, data in zip(stores, (b"a" * 500, b"b" * 500), strict=True)
                ]
            (won,) = [task.result() for task in tasks if task.result() is not None]
            assert bytes(await stores[0].get(name)) == won

    tell(servers, run)


def test_nothing_of_a_deleted_blob_stays(servers: NatsServers) -> None:
    async def run(nodes: Nodes) -> None:
        blobs = await (await nodes.engine()).blobs(0)
        await blobs.put("segments/a", [b"x" * CHUNK_BYTES * 2])
        with pytest.raises(Conflict):
            await blobs.put("segments/a", [b"other"])
        await blobs.delete("segments/a")

        assert (await blobs.stream.info()).state.messages == 0
        with pytest.raises(NameDoesNotExist):
            await blobs.get("segments/a")

    tell(servers, run)


def test_chunks_of_an_interrupted_writer_are_removed_an_hour_later(servers: NatsServers) -> None:
    async def run(nodes: Nodes) -> None:
        blobs = await (await nodes.engine()).blobs(0)
        await blobs.put("segments/whole", [b"whole"])
        for number in range(2):
            await blobs.stream.publish(f"{blobs.stream.name}.chunk.left.{number}", b"left", {})

        connection = await NatsConnection.open(servers.urls, ignore)
        clock = LaterClock()
        subject_counts = []
        for ahead_us in (0, 2 * HOUR_US):
            clock.ahead_us = ahead_us
            opened = await StreamBlobs(connection, blobs.stream.name, clock).open()
            subject_counts.append(
                len(await opened.stream.subjects(f"{blobs.stream.name}.chunk.left.*"))
            )
        await connection.close()

        assert subject_counts == [2, 0]
        assert bytes(await blobs.get("segments/whole")) == b"whole"

    tell(servers, run)


@pytest.mark.parametrize("wrong", [None, b"other bytes of a chunk"])
def test_a_chunk_that_is_not_what_was_written_is_not_served(
    servers: NatsServers, wrong: bytes | None
) -> None:
    async def run(nodes: Nodes) -> None:
        engine = await nodes.engine()
        blobs = await engine.blobs(0)
        await blobs.put("segments/a", [b"x" * CHUNK_BYTES * 2])
        (subject,) = await blobs.stream.subjects(f"{blobs.stream.name}.chunk.*.1")
        if wrong is None:
            await blobs.stream.purge(subject=subject)
        else:
            await blobs.stream.publish(subject, wrong, {})

        with pytest.raises(Damaged) as refused:
            await blobs.get("segments/a")

        assert all(f"server n{number}: chunk 1" in str(refused.value) for number in range(3))
        assert bytes(await blobs.get("segments/a", 0, 9)) == b"x" * 9
        assert len((await engine.health()).damage) == 3

    tell(servers, run)
