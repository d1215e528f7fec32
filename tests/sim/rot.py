"""A disk that decays between two lives: ``make sim SEED=… ARGS=--rot``.

After some lives, one bit of a file is flipped, or the file's end is cut off. A copy of the disk
without the damage shows the expected content. With the damage a realm must serve everything that
the damage does not touch, unchanged, and report what is missing; or it must refuse to start, with a
reason (SEM S1). ``store verify`` and ``store repair`` are run on the same directory.
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
from tests.sim.world import World, no_incidents

ROOT = "/realm"
SCENES = ("durables", "joined", "keyed", "memory", "passing", "queues", "transfers", "travel")
"""Scenes in which nothing moves by itself, so that the same events have the same ids in every
life."""
LATER_S = 1_000.0
"""Time before the damaged disk is opened."""

Rows = Mapping[int, tuple[Any, ...]]
"""Stored events by id, as tuples that begin with their data."""
Content = Mapping[str, Rows]
"""Rows by name of the channel or queue."""


class Damage(NamedTuple):
    path: str
    """Relative to the data directory."""
    offset: int
    bit: int | None
    """The flipped bit; None: the file is cut off there."""

    @property
    def part(self) -> str:
        """The top folder of the file: its kind."""
        return self.path.partition("/")[0]

    @property
    def is_of_one_channel(self) -> bool:
        """Whether the file belongs to a single channel."""
        return self.part in ("segments", "pages")

    def belongs_to(self, name: str, number: ChannelId) -> bool:
        folder = self.path.split("/")[1]
        return folder.partition(".")[0] == (name if self.part == "segments" else str(number))

    def do(self, disk: FaultyDisk) -> None:
        if self.bit is None:
            disk.shorten(f"{ROOT}/{self.path}", self.offset)
        else:
            disk.flip(f"{ROOT}/{self.path}", self.offset, bit=self.bit)


class Rotten(NamedTuple):
    """A world whose disk was damaged."""

    damage: Damage
    outcome: str
    """The number of lost events, or the reason why no realm starts."""


class Served(NamedTuple):
    """The content and reports of a realm on some disk."""

    content: Content
    numbers: Mapping[str, int]
    reports: list[str]
    """Reports of damage."""


def rot_of(seed: int, directory: Path, part: str = "") -> Rotten:
    """Damage a disk and check the consequences. Raises the error of a failed check.

    ``directory`` is empty and used for this seed only; ``part`` is the folder of the realm to
    damage.
    """
    world = World(seed, Random(seed).sample(SCENES, 2))
    simulate(world.play_failing_lives(1 + seed % 3), world.random)
    world.disk.on_halt = None  # from here on only the disk is used
    world.disk.power_cut()
    world.disk.fail_syncs(0)
    world.disk.free_bytes = None
    simulate(_remove_leftovers(world), world.random)
    intact = _serve(world, copy.deepcopy(world.disk))
    assert not intact.reports, f"nothing is damaged yet: {intact.reports}"
    damage = _draw_damage(world.disk, Random(f"rot/{seed}"), part)
    damage.do(world.disk)
    try:
        return Rotten(damage, _check_damage(world, damage, intact, directory=directory))
    except BaseException as error:
        error.add_note(f"{damage}")
        raise


def _check_damage(world: World, damage: Damage, intact: Served, directory: Path) -> str:
    damaged_disk = copy.deepcopy(world.disk)
    report = _verify(damaged_disk, directory / "verified")
    try:
        served = _serve(world, damaged_disk)
    except PenstockError as error:
        refusal = error
    else:
        return _compare(
            world,
            damage,
            intact,
            served=served,
            report=report,
            damaged_disk=damaged_disk,
            directory=directory,
        )
    assert str(refusal), "a realm that does not start says why"
    assert damage.part == "registry" or report, f"verify found nothing, but {refusal}"
    return type(refusal).__name__


def _compare(
    world: World,
    damage: Damage,
    intact: Served,
    served: Served,
    report: StoreReport | None,
    damaged_disk: FaultyDisk,
    directory: Path,
) -> str:
    lost = _lost(intact.content, served.content)
    if lost:
        assert served.reports, f"{lost} are lost, and nothing is said of it"
        assert report is not None, f"a realm opens, and verify does not; {lost} are lost"
        assert report.findings, f"{lost} are lost, and verify finds nothing"
        _check_confined(damage, intact, lost, report=report)
        _check_kept(damage, lost, intact.content, before=world.disk, after=damaged_disk)
    findings, repaired = _repair(world, directory / "repaired")
    for name, missing in _lost(served.content, repaired).items():
        missing.discard_all(_unreadable(findings, name))
        assert not missing, f"{missing.spans} of {name} were served, and are gone after the repair"
    _lost(intact.content, repaired)
    return f"{sum(map(len, lost.values()))} lost, {len(served.reports)} reports"


def _lost(intact: Content, served: Content) -> dict[str, IdSet]:
    """Return the missing events by channel. Raises ``AssertionError`` if an existing one has
    changed."""
    lost = {}
    for name, rows in intact.items():
        remaining = served.get(name, {})
        for event_id in rows.keys() & remaining.keys():
            was, now = rows[event_id], remaining[event_id]
            assert was == now, f"event {event_id} of {name} has changed: {was} to {now}"
        if missing := rows.keys() - remaining.keys():
            lost[name] = IdSet.from_ids(sorted(missing))
    return lost


def _check_confined(
    damage: Damage, intact: Served, lost: Mapping[str, IdSet], report: StoreReport
) -> None:
    """Check that damage in a file of one channel affects only this channel, and only the events
    that verify names."""
    assert damage.part != "registry", f"{lost} are lost with {damage}"
    if not damage.is_of_one_channel:
        return
    assert all(damage.belongs_to(name, ChannelId(intact.numbers[name])) for name in lost), (
        f"{lost} are lost"
    )
    for name, missing in lost.items():
        unnamed = missing.copy()
        unnamed.discard_all(_unreadable(report.findings, name))
        if damage.part == "segments":
            assert not unnamed, f"verify does not name {unnamed.spans} of {name}"


def _unreadable(findings: Sequence[Finding], channel: str) -> IdSet:
    """Return the events of a channel that findings list as unreadable."""
    event_ids = IdSet()
    for finding in findings:
        if finding.channel == channel:
            event_ids.add_all(IdSet(finding.events))
    return event_ids


def _check_kept(
    damage: Damage,
    lost: Mapping[str, IdSet],
    intact: Content,
    before: FaultyDisk,
    after: FaultyDisk,
) -> None:
    """Check that events that are not served are still on the disk, in place or in quarantine."""
    bytes_before, bytes_after = _bytes_of(before), _bytes_of(after)
    if damage.is_of_one_channel:  # old copies in the journal may be removed
        bytes_before = before.content(f"{ROOT}/{damage.path}")
    for name, ids in lost.items():
        datas = {event_id: intact[name][event_id][0] for event_id in ids}
        deleted = [
            event_id
            for event_id, data in datas.items()
            if data in bytes_before and data not in bytes_after
        ]
        assert not deleted, f"events {deleted} of {name} were on the disk, and have been deleted"


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


def _draw_damage(disk: FaultyDisk, random: Random, part: str) -> Damage:
    """Draw any place of any file, with the same chance for each kind of file."""
    parts: dict[str, list[str]] = {}
    for path in _files(disk):
        if disk.content(f"{ROOT}/{path}"):
            parts.setdefault(path.partition("/")[0], []).append(path)
    drawn = random.choice(sorted(parts))
    path = random.choice(parts[part if part in parts else drawn])
    content = disk.content(f"{ROOT}/{path}")
    used = len(content.rstrip(b"\0")) or 1  # files are allocated longer than their content
    offset = random.randrange(used)
    return Damage(path, offset, None if random.random() < 0.2 else random.randrange(8))


def _write_files(disk: FaultyDisk, directory: Path) -> None:
    for path in _files(disk):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(disk.content(f"{ROOT}/{path}"))


def _read_files(directory: Path) -> FaultyDisk:
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


# --- what realm and tools make of a disk ------------------------------------------------


def _verify(disk: FaultyDisk, directory: Path) -> StoreReport | None:
    """Verify a directory and check that this changes nothing. Return None if verify refuses,
    too."""
    _write_files(disk, directory)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    try:
        return asyncio.run(verify_store(directory))
    except PenstockError:
        return None
    finally:
        assert all(path.read_bytes() == content for path, content in before.items())


def _repair(world: World, directory: Path) -> tuple[Sequence[Finding], Content]:
    """Repair a directory and check that verify finds nothing afterwards. Return the findings and
    the content that a realm serves then."""
    _write_files(world.disk, directory)
    repaired = asyncio.run(repair_store(directory))
    findings = asyncio.run(verify_store(directory)).findings
    assert not findings, f"after a repair verify finds {findings}"
    served = _serve(world, _read_files(directory))
    assert not served.reports, f"after a repair a realm reports {served.reports}"
    return repaired.findings, served.content


def _serve(world: World, disk: FaultyDisk) -> Served:
    """Return what a realm serves from this disk after a while, and check that a restart keeps
    it."""
    world.disk, before = disk, world.disk
    try:
        with no_incidents():
            first = simulate(_serve_for_a_while(world), Random(world.seed))
            restarted = simulate(_serve_for_a_while(world), Random(world.seed))
        assert not _lost(first.content, restarted.content), "a restart later something is gone"
        return first
    finally:
        world.disk = before


async def _remove_leftovers(world: World) -> None:
    """Remove deleted files that a power cut has brought back."""
    store = world.open_store()
    await store.pages.close()
    await store.journal.close()


async def _serve_for_a_while(world: World) -> Served:
    await pass_time(LATER_S)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    realm = await world.open_realm(world.open_store())
    running = loop.create_task(realm.run())
    try:
        first = await _everything(realm)
        await pass_time(1.0)  # time to seal, maintain and take snapshots
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
        events = [event for arrived in outlet.arrived for event in _events(arrived.batch)]
        content[channel.state.name] = dict(events)
    return content


def _events(batch: pa.RecordBatch) -> Iterator[tuple[int, tuple[Any, ...]]]:
    rows = EventRows(batch)
    for row in range(batch.num_rows):
        event = Event.received(rows, row)
        assert event.event_id is not None, "it is stored"
        content = (event.data, event.tag, event.properties, event.published, event.ttl)
        yield event.event_id, content
