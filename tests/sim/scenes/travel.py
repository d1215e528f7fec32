"""A channel or queue that is exported and imported again while it is used: the copy is complete, or
it does not exist (SEM C7)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock_core.columns.events.event import Event
from penstock_core.columns.files.exports import FORMAT, Manifest
from penstock_core.realm.exported_file import ExportedFile
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NameDoesNotExist, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_testing.loop import pass_time
from tests.sim.clients import Publisher, Worker, stored
from tests.sim.promises import Ledger, Receipts
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World


class Copy(NamedTuple):
    """An import whose commit was requested, answered or not."""

    name: str
    events: int
    outstanding_min: int
    outstanding_max: int


class Travel:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        type = random.choice(("persistent", "paged"))
        self._definition = Definition(
            type=type,
            retain_consumed=True,
            storage=spindles(type, random.choice((0, 8))),
        )
        self._ledger = Ledger("home")
        self._publishers = [
            Publisher(world, self._ledger, name, compose=_events, publishes=8)
            for name in ("p", "q")
        ]
        self._receipts = Receipts("team", self._ledger)
        self._copies: list[Copy] = []
        self._existing: set[str] = set()
        """Copies that have been seen, or whose import was answered."""

    async def prepare(self) -> None:
        await self._world.create("home", self._definition)
        await self._world.create_durable("home", "team")
        await self._check_copies()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        worker = Worker(
            self._world, self._receipts, self._is_done, quiet=quiet, durable="team", window=3
        )
        group.create_task(worker.run())
        group.create_task(self._traveller())

    async def _is_done(self) -> bool:
        published = all(publisher.is_done for publisher in self._publishers)
        return published and await self._world.is_consumed("home", "team")

    async def _traveller(self) -> None:
        world = self._world
        await pass_time(world.random.random())
        try:
            await self._copy(f"copy-{len(self._copies)}-{world.lives}")
        except PenstockError as error:
            world.note(f"no copy: {type(error).__name__}")

    async def _copy(self, name: str) -> None:
        realm, session = self._world.realm, "traveller"
        confirmed_count, acked_count = len(self._ledger.ids), len(self._receipts.acked)
        export = await realm.exports.begin(session, "home", "channel")
        requested_count = len(self._receipts.requested)
        assert export.events >= confirmed_count, (
            f"{confirmed_count} events were there, {export.events} in the export"
        )
        files = [await self._read(export.export, ChannelId(n)) for n in range(export.files + 1)]
        await realm.exports.end(session, export.export)
        manifest = Manifest(
            format=FORMAT,
            name="home",
            kind="channel",
            definition=export.definition,
            realm=export.realm,
            exported="",
            events=export.events,
            state=files[-1][0],
            files=tuple(file for file, _ in files[:-1]),
        )
        import_id = await realm.imports.begin(session, name, manifest.encoded())
        for n in (export.files, *range(export.files)):
            await realm.imports.put(
                session, import_id, n, offset=0, content=memoryview(files[n][1])
            )
        self._copies.append(
            Copy(
                name,
                export.events,
                export.events - requested_count,
                outstanding_max=export.events - acked_count,
            )
        )
        await realm.imports.commit(session, import_id)
        self._existing.add(name)
        self._world.note(f"copied {export.events} events to {name}")

    async def _read(self, export: str, number: ChannelId) -> tuple[ExportedFile, bytes]:
        content = b""
        while True:
            part = await self._world.realm.exports.read(
                "traveller", export, number, offset=len(content)
            )
            content += part.content
            if len(content) >= part.file.size:
                return part.file, content

    async def check(self) -> None:
        self._ledger.check_complete(
            [(row.event_id, row.data) for row in await stored(self._world, "home")]
        )
        await self._check_copies()

    async def _check_copies(self) -> None:
        for copy in self._copies:
            try:
                await self._world.realm.open_channel(copy.name)
            except NameDoesNotExist:
                assert copy.name not in self._existing, f"{copy.name} is gone"
                continue
            self._existing.add(copy.name)
            await self._world.create(copy.name, self._definition)
            rows = await stored(self._world, copy.name)
            ids = [row.event_id for row in rows]
            assert ids == list(range(copy.events)), f"{copy.name} has {ids}, of {copy.events}"
            for row in rows:
                self._ledger.check_content(row.event_id, row.data)
            number = self._world.numbers[copy.name]
            info = await self._world.realm.subscriptions.durable(ChannelId(number), "team")
            assert copy.outstanding_min <= info.outstanding <= copy.outstanding_max


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode() * draw.randint(1, 5)) for i in range(draw.randint(1, 4))]
