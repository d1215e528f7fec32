"""The engine on NATS JetStream when its servers fail, lie, or are changed behind its back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import pytest

from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.connection import JetStreamRefusal, NatsConnection
from penstock_cluster.storage.jetstream.engine import FRAME_BYTES_MAX, Connect, JetStreamEngine
from penstock_cluster.storage.jetstream.guard import read_server
from penstock_cluster.storage.jetstream.journal import JetStreamJournal
from penstock_cluster.storage.jetstream.stream import NatsStream
from penstock_core.vocabulary.errors import (
    Damaged,
    Deposed,
    StorageFailed,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock_core.vocabulary.ports import Block, DamagedBlock, EngineHealth
from penstock_server.runtime.writer.clock import SystemClock
from penstock_testing.contracts import blocks_of
from penstock_testing.nats_servers import SERVERS, NatsServers
from tests.contract.jetstream import ignore
from tests.loops import on_a_loop

pytestmark = pytest.mark.process

_numbers: Final = count(1)
BLOCKS: Final = 100
LARGE: Final = 100_000
SMALL_FRAMES: Final = 4 << 10
"""With these a server keeps the blocks in two files, and does not mend the older one by itself."""
ALREADY_LEADS: Final = 10005
MESSAGES: Final = "$JS.API.STREAM.MSG.GET."
"""Beginning of the subjects of requests for messages."""
OnAsk: TypeAlias = Callable[[str, bytes], Awaitable[None]]
"""A function that is called with the subject and the data of a request."""
UNANSWERED_US: Final = 2_500_000
"""After so long an append has been sent a second time."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    """All of them run when a test begins, and when it ends."""
    with NatsServers(tmp_path_factory.mktemp("nats")) as running:
        yield running


class Story:
    """An engine of its own name, and a connection to look behind its back."""

    def __init__(self, engine: JetStreamEngine, name: str, connection: NatsConnection) -> None:
        self.engine = engine
        self.stream = NatsStream(connection, f"{name}-shard-0")
        self._connection = connection

    async def ask(self, what: str, request: object = None) -> None:
        """Ask JetStream something about the stream of shard 0."""
        subject = f"$JS.API.STREAM.{what}.{self.stream.name}"
        while True:
            try:
                await self._connection.ask(subject, msgspec.json.encode(request or {}))
            except Unanswered:
                continue
            except JetStreamRefusal as refusal:
                if refusal.number != ALREADY_LEADS:
                    raise
            return

    async def led_by(self, number: int) -> None:
        """Wait until a server has everything, and leads."""
        while True:
            peers = (await self.stream.info()).cluster
            if peers.leader == f"n{number}":
                return
            if any(peer.name == f"n{number}" and peer.current for peer in peers.replicas):
                await self.ask("LEADER.STEPDOWN", {"placement": {"preferred": f"n{number}"}})

    async def leader(self) -> int:
        while True:
            if leader := (await self.stream.info()).cluster.leader:
                return int(leader.removeprefix("n"))


class WatchedConnection(NatsConnection):
    """A connection whose requests are announced."""

    on_ask: OnAsk

    async def ask(
        self, subject: str, request: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        await self.on_ask(subject, request)
        return await super().ask(subject, request, headers)


def watching(on_ask: OnAsk) -> Connect:
    """Return a way to connect an engine that calls ``on_ask`` before each request."""

    async def connect(
        servers: Sequence[str], on_reconnect: Callable[[], Awaitable[None]]
    ) -> NatsConnection:
        connection = await WatchedConnection.open(servers, on_reconnect)
        assert isinstance(connection, WatchedConnection)
        connection.on_ask = on_ask
        return connection

    return connect


def read_by(request: bytes) -> int | None:
    """Return the sequence that a request reads; None if it reads none."""
    sequence: int | None = msgspec.json.decode(request or b"{}").get("seq")
    return sequence


@asynccontextmanager
async def story(
    servers: NatsServers, frame_bytes: int = FRAME_BYTES_MAX, **options: Any
) -> AsyncIterator[Story]:
    name = f"test{next(_numbers)}"
    connection = await NatsConnection.open(servers.urls, ignore)
    engine = JetStreamEngine(
        servers.urls,
        name=name,
        monitors=servers.monitors,
        clock=SystemClock(),
        offload=asyncio.to_thread,
        frame_bytes_max=frame_bytes,
        **options,
    )
    try:
        await engine.open()
        yield Story(engine, name, connection)
    finally:
        await engine.close()
        await connection.close()


@on_a_loop
async def tell(
    servers: NatsServers,
    what: Callable[[Story], Awaitable[None]],
    frame_bytes: int = FRAME_BYTES_MAX,
    **options: Any,
) -> None:
    async with story(servers, frame_bytes, **options) as story_run:
        await what(story_run)


async def filled(engine: JetStreamEngine, blocks: int, size: int = 100) -> JetStreamJournal:
    journal = await engine.journal(0, 1)
    for number in range(blocks):
        await journal.append(number, [content(number + 1, size)])
    return journal


def content(block: int, size: int = 100) -> bytes:
    return block.to_bytes(4, "big") * (size // 4)


def damage(path: Path, at: tuple[float, ...] = (0.3, 0.5, 0.7)) -> None:
    """Change a bit at some places of a file."""
    raw = bytearray(path.read_bytes())
    for part in at:
        raw[int(len(raw) * part)] ^= 4
    path.write_bytes(raw)


# What is refused


@on_a_loop
async def refusal(servers: NatsServers) -> str:
    with pytest.raises(Unavailable) as caught:
        async with story(servers):
            pass
    return str(caught.value)


def test_servers_that_sync_now_and_then_are_refused(tmp_path: Path) -> None:
    """A majority is enough to start; so that each has one of them, two are wrong."""
    with NatsServers(tmp_path, sync={1: "2m", 2: "2m"}) as running:
        text = refusal(running)

    assert "server n1" in text or "server n2" in text
    assert "sync_interval: always within jetstream { ... } of its nats-server.conf" in text


def test_a_single_server_is_refused(tmp_path: Path) -> None:
    with NatsServers(tmp_path, servers=1) as running:
        text = refusal(running)

    assert "cluster { name: NAME" in text


@on_a_loop
async def test_servers_that_are_not_there_are_named() -> None:
    with pytest.raises(Unavailable, match=r"nats://127\.0\.0\.1:1: .*Connect call failed"):
        await NatsConnection.open(["nats://127.0.0.1:1"], ignore, timeout_s=5.0)


def test_a_stream_on_one_server_is_refused(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        name = story_run.stream.name
        alone = {"name": name, "subjects": [f"{name}.frames"], "num_replicas": 1}
        await story_run.ask("CREATE", {**alone, "storage": "file"})

        with pytest.raises(Unavailable) as refused:
            await story_run.engine.journal(0, 1)

        assert "num_replicas is 1, not 3" in str(refused.value)
        assert f"nats stream edit {name} --discard=new --replicas=3" in str(refused.value)

    tell(servers, run)


def test_a_stream_that_is_gone_or_was_made_anew_is_refused(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, 2)
        await journal.close()
        config = (await story_run.stream.info()).config
        await story_run.ask("DELETE")

        with pytest.raises(Unavailable, match="is missing"):
            await story_run.engine.journal(0, 2)

        config["metadata"] = {}
        await story_run.ask("CREATE", config)
        with pytest.raises(Unavailable, match="was re-created"):
            await story_run.engine.journal(0, 2)

    tell(servers, run)


def test_an_older_copy_of_a_stream_is_refused(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, 3)
        config = (await story_run.stream.info()).config
        early = [await story_run.stream.message(sequence) for sequence in (1, 2)]
        await journal.trim(1)
        await journal.close()
        await story_run.ask("DELETE")
        await story_run.ask("CREATE", config)
        for message in early:
            assert message is not None
            await story_run.stream.publish(message.subject, message.data, {})

        with pytest.raises(Unavailable, match="is an older copy: it ends at sequence 2"):
            await story_run.engine.journal(0, 2)

    tell(servers, run)


def test_settings_that_are_changed_under_an_owner_stop_it(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, 2)
        config = (await story_run.stream.info()).config
        await story_run.ask("UPDATE", {**config, "max_age": 3_600_000_000_000})
        await story_run.engine.health()

        with pytest.raises(Unavailable, match="--max-age=0"):
            await journal.append(2, [b"expires"])

    tell(servers, run)


def test_no_room_is_told_before_anything_is_decided(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, 1)

        with pytest.raises(StorageFailed, match="max_file_store"):
            await journal.reserve(1 << 50)
        await journal.reserve(1 << 20)
        health = await story_run.engine.health()
        assert health.room
        assert (len(health.rooms), health.room in health.rooms.values()) == (3, True)

    tell(servers, run)


def test_health_is_told_while_a_stream_is_still_to_be_made(servers: NatsServers) -> None:
    healths: list[EngineHealth] = []
    stories: list[Story] = []

    async def make(subject: str, _: bytes) -> None:
        for story_run in stories:
            if subject == f"$JS.API.STREAM.CREATE.{story_run.stream.name}" and not healths:
                healths.append(await story_run.engine.health())

    async def run(story_run: Story) -> None:
        stories.append(story_run)
        journal = await story_run.engine.journal(0, 1)

        assert [(health.has_quorum, health.damage) for health in healths] == [(True, ())]
        assert await journal.append(0, [b"one"]) == 1

    tell(servers, run, connect=watching(make))


# Owners that meet


def test_a_deposed_owner_does_not_trim(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        old = await filled(story_run.engine, 4)
        new = await story_run.engine.journal(0, 2)

        with pytest.raises(Deposed):
            await old.trim(3)

        assert len(await blocks_of(new, 1)) == 4

    tell(servers, run)


def test_an_owner_that_trims_while_the_next_one_reads_is_no_damage(servers: NatsServers) -> None:
    owners: list[JetStreamJournal] = []
    trimmed: list[int] = []

    async def message(subject: str, request: bytes) -> None:
        if owners and MESSAGES in subject and read_by(request) == 20 and not trimmed:
            trimmed.append(20)
            await owners[0].trim(30)

    async def run(story_run: Story) -> None:
        owners.append(await filled(story_run.engine, 50))
        new = await story_run.engine.journal(0, 2)

        assert trimmed == [20]
        assert (new.info().floor, new.info().tail) == (30, 50)
        assert (await story_run.engine.health()).damage == ()

    tell(servers, run, connect=watching(message))


def test_what_somebody_else_trimmed_is_trimmed_and_not_damaged(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        old = await filled(story_run.engine, 6)
        new = await story_run.engine.journal(0, 2)
        await new.trim(4)

        with pytest.raises(Trimmed):
            await old.read(2, 1)

        assert old.info().floor == 4
        assert await blocks_of(old, 5) == [(5, content(5)), (6, content(6))]

    tell(servers, run)


def test_what_opening_has_read_is_not_read_again(servers: NatsServers) -> None:
    """The newest blocks are kept, up to a limit, until something is appended."""
    read: set[int] = set()  # a request without an answer is sent again

    async def message(subject: str, request: bytes) -> None:
        sequence = read_by(request) if MESSAGES in subject else None
        if sequence is not None:
            read.add(sequence)

    async def run(story_run: Story) -> None:
        await filled(story_run.engine, 30)
        journal = await story_run.engine.journal(0, 2)
        read.clear()
        assert await blocks_of(journal, 11) == [(n, content(n)) for n in range(11, 31)]
        assert read == set()

        assert len(await blocks_of(journal, 1)) == 30
        assert len(read) == 30
        again = await story_run.engine.journal(0, 3)
        await again.append(30, [b"more"])
        read.clear()
        assert len(await blocks_of(again, 11)) == 21
        assert len(read) == 21

    tell(servers, run, connect=watching(message), cached_bytes_max=20 * 100)


# Servers that fail


def test_a_damaged_copy_that_leads_steps_down_and_another_is_read(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, BLOCKS, LARGE)
        await journal.close()
        victim = (await story_run.leader() + 1) % SERVERS
        servers.kill(victim)
        damage(servers.files(victim, story_run.stream.name)[0])
        servers.start(victim)
        await story_run.led_by(victim)

        reopened = await story_run.engine.journal(0, 2)

        assert await blocks_of(reopened, 1) == [
            (n, content(n, LARGE)) for n in range(1, BLOCKS + 1)
        ]
        assert await reopened.append(BLOCKS, [b"goes on"]) == BLOCKS + 1
        (told_of,) = (await story_run.engine.health()).damage
        assert f"on server n{victim}" in told_of

    tell(servers, run, SMALL_FRAMES)


def test_a_copy_damaged_under_its_owner_is_read_around(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, BLOCKS, LARGE)
        victim = (await story_run.leader() + 1) % SERVERS
        servers.kill(victim)
        damage(servers.files(victim, story_run.stream.name)[0])
        servers.start(victim)
        await story_run.led_by(victim)

        blocks = await journal.read(1, BLOCKS)

        assert [(block.seq, bytes(block.data)) for block in blocks if isinstance(block, Block)] == [
            (n, content(n, LARGE)) for n in range(1, BLOCKS + 1)
        ]
        assert any(f"on server n{victim}" in finding for finding in journal.stream.damage.values())

    tell(servers, run, SMALL_FRAMES)


def test_without_a_whole_copy_nothing_is_served(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, BLOCKS, LARGE)
        # A frame that was overwritten on every server, as far as JetStream can tell.
        for number in range(SERVERS):
            servers.kill(number)
        for number in range(SERVERS):
            damage(servers.files(number, story_run.stream.name)[0], (0.5,))
        for number in range(SERVERS):
            servers.start(number)

        with pytest.raises(Damaged) as refused:
            await story_run.engine.journal(0, 2)

        assert all(f"server n{number}: " in str(refused.value) for number in range(SERVERS))
        blocks = await journal.read(1, BLOCKS)
        assert len(blocks) == BLOCKS
        assert 1 <= sum(isinstance(block, DamagedBlock) for block in blocks) < BLOCKS

    tell(servers, run, SMALL_FRAMES)


def test_without_a_majority_an_append_waits_and_is_stored_once(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, 2)
        for number in (0, 1):
            servers.freeze(number)
        async with asyncio.TaskGroup() as group:
            append = group.create_task(journal.append(2, [b"x" * (3 << 20)]))
            while journal.info().waiting_us < UNANSWERED_US:
                await asyncio.to_thread(read_server, servers.monitors[2])
            assert not append.done()
            health = await story_run.engine.health()
            assert (health.has_quorum, health.servers, health.present) == (False, 3, 1)
            for number in (0, 1):
                servers.thaw(number)

        assert append.result() == 3
        assert journal.info().waiting_us == 0
        assert journal.info().ambiguous == {
            "stored": 1, "deposed": 0, "refused": 0, "unknown": 0
        }  # fmt: skip
        reopened = await story_run.engine.journal(0, 2)
        assert (await blocks_of(reopened, 3)) == [(3, b"x" * (3 << 20))]

    tell(servers, run)


def test_appends_go_on_when_the_leader_is_killed(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, 5)
        leader = await story_run.leader()
        servers.kill(leader)
        try:
            for number in range(5, 10):
                assert await journal.append(number, [content(number + 1)]) == number + 1
            health = await story_run.engine.health()
            assert (health.servers, health.present, health.has_quorum) == (3, 2, True)
        finally:
            servers.start(leader)
        reopened = await story_run.engine.journal(0, 2)
        assert await blocks_of(reopened, 1) == [(n, content(n)) for n in range(1, 11)]

    tell(servers, run)


def test_a_server_restarted_with_another_setting_stops_its_owners(tmp_path: Path) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, 1)
        for number in range(SERVERS):
            running.kill(number)
            running.configure(number, "2m")
        for number in range(SERVERS):
            running.start(number)

        async def append_until_refused() -> None:
            while True:
                await journal.append(journal.info().tail, [b"more"])

        with pytest.raises((Unavailable, Unknown)):
            await append_until_refused()
        with pytest.raises(Unavailable, match="sync_interval: always"):
            await journal.append(journal.info().tail, [b"more"])
        with pytest.raises(Unavailable, match="sync_interval: always"):
            await story_run.engine.journal(0, 2)

    with NatsServers(tmp_path) as running:
        tell(running, run)


def test_blocks_go_to_the_server_that_leads_wherever_that_is(servers: NatsServers) -> None:
    async def run(story_run: Story) -> None:
        journal = await filled(story_run.engine, 1)
        for number in range(SERVERS):
            await story_run.led_by(number)
            while journal.stream.nearest != f"n{number}":
                await story_run.engine.health()
                tail = journal.info().tail
                assert await journal.append(tail, [content(tail + 1)]) == tail + 1

        tail = journal.info().tail
        reopened = await story_run.engine.journal(0, 2)
        assert await blocks_of(reopened, 1) == [(n, content(n)) for n in range(1, tail + 1)]

    tell(servers, run)
