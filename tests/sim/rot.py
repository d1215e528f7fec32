"""A disk that rots while nobody looks: ``make sim SEED=… ARGS=--rot``.

Some lives are played; then a bit of one file is turned round, or its end is gone. The same disk
without the damage tells what there was. With it a realm serves all that the damage does not
touch, never something else, and says what is missing; or it refuses to start, and says why
(SEM S1). ``store verify`` and ``store repair`` see the same directory.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.rows import Rows as EventRows
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.bootstrap.stopped import repair_store, verify_store
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.upkeep.verification import Finding, StoreReport
from penstock_testing.disk import FaultyDisk
from penstock_testing.loop import SimLoop, pass_time, simulate
from tests.sim.clients import Outlet
from tests.sim.world import World, nothing_unforeseen

ROOT = "/realm"
SCENES = ("durables", "joined", "keyed", "memory", "passing", "queues", "transfers", "travel")
"""Scenes in which nothing moves by itself: what is there has the same ids in every life."""
LATER_S = 1_000.0
"""When the damaged disk is looked at."""

Rows = Mapping[int, tuple[Any, ...]]
"""Stored events by id: what they are, their data first."""
Content = Mapping[str, Rows]
"""By name of the channel or queue."""


class Damage(NamedTuple):
    path: str
    """In the data directory."""
    at: int
    bit: int | None
    """None: the file ends there."""

    @property
    def part(self) -> str:
        """The folder it lies in: what sort of file it is."""
        return self.path.partition("/")[0]

    @property
    def is_of_one(self) -> bool:
        """Whether only one channel has to do with the file."""
        return self.part in ("segments", "pages")

    def is_of(self, name: str, number: ChannelId) -> bool:
        folder = self.path.split("/")[1]
        return folder.partition(".")[0] == (name if self.part == "segments" else str(number))

    def do(self, disk: FaultyDisk) -> None:
        if self.bit is None:
            disk.shorten(f"{ROOT}/{self.path}", self.at)
        else:
            disk.flip(f"{ROOT}/{self.path}", self.at, bit=self.bit)


class Rotten(NamedTuple):
    """One world whose disk was damaged."""

    damage: Damage
    outcome: str
    """What became of it: how much is lost, or why no realm starts."""


class Served(NamedTuple):
    """What a realm made of a disk."""

    content: Content
    numbers: Mapping[str, int]
    reports: list[str]
    """Reports of damage."""


def rot_of(seed: int, directory: Path, part: str = "") -> Rotten:
    """What was damaged, and what became of it. Raises what went wrong.

    ``directory`` is empty, and for this seed alone; ``part`` is the folder of the realm to damage.
    """
    world = World(seed, Random(seed).sample(SCENES, 2))
    simulate(world.lives_before(1 + seed % 3), world.random)
    world.disk.on_halt = None  # from here on it is the disk alone
    world.disk.power_cut()
    world.disk.fail_syncs(0)
    world.disk.free_bytes = None
    simulate(_tidy(world), world.random)
    whole = _served(world, copy.deepcopy(world.disk))
    assert not whole.reports, f"nothing is damaged yet: {whole.reports}"
    damage = _drawn(world.disk, Random(f"rot/{seed}"), part)
    damage.do(world.disk)
    try:
        return Rotten(damage, _judged(world, damage, whole, directory=directory))
    except BaseException as error:
        error.add_note(f"{damage}")
        raise


def _judged(world: World, damage: Damage, whole: Served, directory: Path) -> str:
    spoilt = copy.deepcopy(world.disk)
    found = _verified(spoilt, directory / "verified")
    try:
        served = _served(world, spoilt)
    except PenstockError as error:
        refusal = error
    else:
        return _compared(
            world, damage, whole, served=served, found=found, spoilt=spoilt, directory=directory
        )
    assert str(refusal), "a realm that does not start says why"
    assert damage.part == "registry" or found, f"verify found nothing, but {refusal}"
    return type(refusal).__name__


def _compared(
    world: World,
    damage: Damage,
    whole: Served,
    served: Served,
    found: StoreReport | None,
    spoilt: FaultyDisk,
    directory: Path,
) -> str:
    lost = _lost(whole.content, served.content)
    if lost:
        assert served.reports, f"{lost} are lost, and nothing is said of it"
        assert found is not None, f"a realm opens, and verify does not; {lost} are lost"
        assert found.findings, f"{lost} are lost, and verify finds nothing"
        _check_confined(damage, whole, lost, found=found)
        _check_kept(damage, lost, whole.content, before=world.disk, after=spoilt)
    findings, repaired = _repaired(world, directory / "repaired")
    for name, gone in _lost(served.content, repaired).items():
        gone.discard_all(_named(findings, name))
        assert not gone, f"{gone.spans} of {name} were served, and are gone after the repair"
    _lost(whole.content, repaired)
    return f"{sum(map(len, lost.values()))} lost, {len(served.reports)} reports"


def _lost(whole: Content, served: Content) -> dict[str, IdSet]:
    """What is missing of the whole; nothing that is there may be something else."""
    lost = {}
    for name, rows in whole.items():
        there = served.get(name, {})
        for event_id in rows.keys() & there.keys():
            was, now = rows[event_id], there[event_id]
            assert was == now, f"event {event_id} of {name} has changed: {was} to {now}"
        if missing := rows.keys() - there.keys():
            lost[name] = IdSet.from_ids(sorted(missing))
    return lost


def _check_confined(
    damage: Damage, whole: Served, lost: Mapping[str, IdSet], found: StoreReport
) -> None:
    """Damage in a file of one channel touches nothing else, and of it what verify names."""
    assert damage.part != "registry", f"{lost} are lost with {damage}"
    if not damage.is_of_one:
        return
    assert all(damage.is_of(name, ChannelId(whole.numbers[name])) for name in lost), (
        f"{lost} are lost"
    )
    for name, missing in lost.items():
        unnamed = missing.copy()
        unnamed.discard_all(_named(found.findings, name))
        if damage.part == "segments":
            assert not unnamed, f"verify does not name {unnamed.spans} of {name}"


def _named(findings: Sequence[Finding], channel: str) -> IdSet:
    """Events of a channel that are said to be unreadable."""
    named = IdSet()
    for finding in findings:
        if finding.channel == channel:
            named.add_all(IdSet(finding.events))
    return named


def _check_kept(
    damage: Damage, lost: Mapping[str, IdSet], whole: Content, before: FaultyDisk, after: FaultyDisk
) -> None:
    """What is not served is there still, in its place or set aside, as far as it ever was."""
    had, has = _bytes_of(before), _bytes_of(after)
    if damage.is_of_one:  # old copies in the journal go their way
        had = before.content(f"{ROOT}/{damage.path}")
    for name, ids in lost.items():
        datas = {event_id: whole[name][event_id][0] for event_id in ids}
        gone = [event_id for event_id, data in datas.items() if data in had and data not in has]
        assert not gone, f"events {gone} of {name} were on the disk, and have been deleted"


def _bytes_of(disk: FaultyDisk) -> bytes:
    return b"\n".join(disk.content(f"{ROOT}/{path}") for path in _files(disk))


# --- disks -------------------------------------------------------------------------------


def _files(disk: FaultyDisk, folder: str = "") -> Iterator[str]:
    for entry in disk.list(f"{ROOT}/{folder}".rstrip("/")):
        path = f"{folder}{entry.name}"
        if entry.is_directory:
            yield from _files(disk, f"{path}/")
        elif entry.name != "LOCK":
            yield path


def _drawn(disk: FaultyDisk, random: Random, part: str) -> Damage:
    """Any place of any file, each sort of file as often as the others."""
    parts: dict[str, list[str]] = {}
    for path in _files(disk):
        if disk.content(f"{ROOT}/{path}"):
            parts.setdefault(path.partition("/")[0], []).append(path)
    drawn = random.choice(sorted(parts))
    path = random.choice(parts[part if part in parts else drawn])
    content = disk.content(f"{ROOT}/{path}")
    used = len(content.rstrip(b"\0")) or 1  # files are made longer than what is in them
    at = random.randrange(used)
    return Damage(path, at, None if random.random() < 0.2 else random.randrange(8))


def _put_down(disk: FaultyDisk, directory: Path) -> None:
    for path in _files(disk):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(disk.content(f"{ROOT}/{path}"))


def _taken_up(directory: Path) -> FaultyDisk:
    disk = FaultyDisk()
    disk.make_directory(ROOT)
    for path in sorted(directory.rglob("*")):
        name = f"{ROOT}/{path.relative_to(directory)}"
        if path.is_dir():
            disk.make_directory(name)
        elif path.name != "LOCK":
            file = disk.open(name, create=True)
            disk.pwrite(file, [path.read_bytes()], 0)
            disk.close(file)
    return disk


# --- what is made of them ----------------------------------------------------------------


def _verified(disk: FaultyDisk, directory: Path) -> StoreReport | None:
    """None: verify refuses, too. It changes nothing."""
    _put_down(disk, directory)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    try:
        return asyncio.run(verify_store(directory))
    except PenstockError:
        return None
    finally:
        assert all(path.read_bytes() == content for path, content in before.items())


def _repaired(world: World, directory: Path) -> tuple[Sequence[Finding], Content]:
    """What a repair found, and what is served after it; it leaves nothing to be found."""
    _put_down(world.disk, directory)
    repaired = asyncio.run(repair_store(directory))
    left = asyncio.run(verify_store(directory)).findings
    assert not left, f"after a repair verify finds {left}"
    served = _served(world, _taken_up(directory))
    assert not served.reports, f"after a repair a realm reports {served.reports}"
    return repaired.findings, served.content


def _served(world: World, disk: FaultyDisk) -> Served:
    """All there is in a realm on this disk, after some time; and once more after a restart."""
    world.disk, before = disk, world.disk
    try:
        with nothing_unforeseen():
            first = simulate(_look_around(world), Random(world.seed))
            again = simulate(_look_around(world), Random(world.seed))
        assert not _lost(first.content, again.content), "a restart later something is gone"
        return first
    finally:
        world.disk = before


async def _tidy(world: World) -> None:
    """What a power cut has brought back of files that were deleted goes again."""
    store = world.open_store()
    await store.pages.close()
    await store.journal.close()


async def _look_around(world: World) -> Served:
    await pass_time(LATER_S)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    realm = await world.open_realm(world.open_store())
    running = loop.create_task(realm.run())
    try:
        first = await _everything(realm)
        await pass_time(1.0)  # it seals, maintains, takes snapshots
        content = await _everything(realm)
        assert not _lost(first, content), "what was served is gone a moment later"
        await realm.close()
        await running
        await realm.release()
    finally:
        running.cancel()
        await asyncio.wait([running])
    reports = list(realm.recovered.damage)
    for store in realm.shard.state.stores.values():
        reports += store.quarantined
    channels = realm.directory.channels.items()
    numbers = {channel.state.name: number for number, channel in channels}
    return Served(content, numbers, reports)


async def _everything(realm: RunningRealm) -> Content:
    content = {}
    for number, channel in list(realm.directory.channels.items()):
        outlet = Outlet("auditor")
        await realm.subscriptions.subscribe(
            ChannelId(number), FromEarliest(), outlet, credit=1 << 20, browse=True
        )
        await outlet.end()
        found = [event for arrived in outlet.arrived for event in _events(arrived.batch)]
        content[channel.state.name] = dict(found)
    return content


def _events(batch: pa.RecordBatch) -> Iterator[tuple[int, tuple[Any, ...]]]:
    rows = EventRows(batch)
    for row in range(batch.num_rows):
        event = Event.received(rows, row)
        assert event.event_id is not None, "it is stored"
        content = (event.data, event.tag, event.properties, event.published, event.ttl)
        yield event.event_id, content
