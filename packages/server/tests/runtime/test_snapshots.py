"""A snapshot stands for everything before it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from packages.server.tests.runtime.living import SlowJournal
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Buffer, inline
from penstock_server.bootstrap import rules
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal, MemoryPages
from penstock_testing.loop import SimLoop, pass_time, simulated

DATA = b"the data of an event"


def _body(price: float) -> Body:
    batch = body_of_columns([DATA], properties=[{"price": price}])
    return Body(batch_bytes(batch), batch, schema_bytes(batch.schema))


async def _publish(realm: RunningRealm, price: float, channel: int = 1) -> Span:
    done: asyncio.Future[Span] = asyncio.get_running_loop().create_future()

    def reply(span: Span, error: BaseException | None) -> None:
        assert error is None
        done.set_result(span)

    realm.publish(ChannelId(channel), [_body(price)], "", sequence=0, reply=reply)
    return await done


async def _with_one_event(
    journal: MemoryJournal, blobs: MemoryBlobs, clock: SimLoop, sealing: SealingLimits
) -> tuple[RunningRealm, asyncio.Task[None]]:
    """A running realm with a channel ``orders`` and an event in it."""
    realm = await RunningRealm.open(
        journal, blobs, MemoryPages(), rules(), clock, inline, identity="i", sealing=sealing
    )
    running = clock.create_task(realm.run())
    await realm.create_channel("orders", Definition(type="persistent"))
    await _publish(realm, 1.0)
    return realm, running


@pytest.mark.spec("S1")
@simulated
async def test_events_after_a_snapshot_survive_if_their_schema_is_in_the_snapshot() -> None:
    journal, blobs, clock = MemoryJournal(), MemoryBlobs(), asyncio.get_running_loop()
    assert isinstance(clock, SimLoop)
    eager = SealingLimits(journal_bytes_max=0, snapshot_tail_bytes_max=0, interval_s=0.1)
    realm, running = await _with_one_event(journal, blobs, clock, sealing=eager)
    while not await blobs.list("snapshots/"):
        await pass_time(0.1)
    last = await _publish(realm, 2.0)
    running.cancel()
    await asyncio.wait([running])
    again = await RunningRealm.open(
        journal, blobs, MemoryPages(), rules(), clock, inline, identity="i"
    )
    assert (last, again.recovered.events, again.recovered.damage) == (Span(1, 2), 2, [])


class FreesSlowly(MemoryJournal):
    """A journal with large files on a file system that takes its time to delete them."""

    def __init__(self) -> None:
        super().__init__()
        self.freeing, self.may_end = asyncio.Event(), asyncio.Event()

    async def free(self) -> None:
        self.freeing.set()
        await self.may_end.wait()


@simulated
async def test_publishes_continue_while_files_replaced_by_a_snapshot_are_deleted() -> None:
    journal, blobs, clock = FreesSlowly(), MemoryBlobs(), asyncio.get_running_loop()
    assert isinstance(clock, SimLoop)
    realm, running = await _with_one_event(journal, blobs, clock, sealing=SealingLimits())
    snapshot = clock.create_task(realm.snapshot())
    await journal.freeing.wait()
    assert await _publish(realm, 2.0) == Span(1, 2)
    assert not snapshot.done()
    journal.may_end.set()
    await snapshot
    running.cancel()
    await asyncio.wait([running])


class BreaksOff(MemoryBlobs):
    """A disk that stores the first snapshot and then says it has failed."""

    broken = False

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        await super().put(name, chunks)
        if name.startswith("snapshots/") and not self.broken:
            self.broken = True
            raise StorageFailed("the disk broke off")


@pytest.mark.spec("S1")
@simulated
async def test_a_snapshot_succeeds_after_an_interrupted_one() -> None:
    journal, blobs, clock = MemoryJournal(), BreaksOff(), asyncio.get_running_loop()
    assert isinstance(clock, SimLoop)
    eager = SealingLimits(journal_bytes_max=0, interval_s=0.1, retry_s=0.1)
    realm, running = await _with_one_event(journal, blobs, clock, sealing=eager)
    await pass_time(1.0)  # tries again, with an image made at another time
    assert blobs.broken
    await realm.close()
    await asyncio.wait([running])
    again = await RunningRealm.open(
        journal, blobs, MemoryPages(), rules(), clock, inline, identity="i"
    )
    assert (again.recovered.events, again.recovered.damage) == (1, [])


class Slow(MemoryBlobs):
    """A disk on which a file of events takes a second."""

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        if name.startswith("segments/"):
            await pass_time(1.0)
        await super().put(name, chunks)


@pytest.mark.spec("S1")
@simulated
async def test_a_snapshot_waits_for_a_sealing_in_progress_and_does_not_copy_its_events() -> None:
    journal, blobs, clock = MemoryJournal(), Slow(), asyncio.get_running_loop()
    assert isinstance(clock, SimLoop)
    sealing = SealingLimits(segment_bytes_max=1, snapshot_tail_bytes_max=0, interval_s=0.1)
    realm, running = await _with_one_event(journal, blobs, clock, sealing=sealing)
    await pass_time(0.5)
    assert not await blobs.list("segments/"), "it is being written"

    await realm.snapshot()

    names = [
        info.name for folder in ("segments/", "snapshots/") for info in await blobs.list(folder)
    ]
    held = {name: bytes(await blobs.get(name)) for name in names}
    with_data = [name.partition("/")[0] for name, content in held.items() if DATA in content]
    assert with_data == ["segments"], "its event is in the file alone"
    assert [name for name in held if name.endswith(".snap")]
    running.cancel()
    await asyncio.wait([running])
    again = await RunningRealm.open(
        journal, blobs, MemoryPages(), rules(), clock, inline, identity="i"
    )
    assert (again.recovered.events, again.recovered.damage) == (1, [])


@pytest.mark.spec("S1")
@simulated
async def test_a_cancelled_snapshot_leaves_event_files_to_the_next_one() -> None:
    journal, blobs, clock = SlowJournal(), MemoryBlobs(), asyncio.get_running_loop()
    assert isinstance(clock, SimLoop)
    sealing = SealingLimits(snapshot_tail_bytes_max=0)
    realm, running = await _with_one_event(journal, blobs, clock, sealing=sealing)
    await realm.create_channel("others", Definition(type="persistent"))
    journal.is_slow = True
    busy = clock.create_task(_publish(realm, 2.0, channel=2))
    await pass_time(0.1)
    given_up = clock.create_task(realm.snapshot())
    await pass_time(0.1)
    made = [info.name for info in await blobs.list("segments/")]
    assert made, "its fact waits for the journal"
    given_up.cancel()
    await asyncio.wait([given_up])

    await realm.snapshot()

    await busy
    remaining = [info.name for info in await blobs.list("segments/")]
    assert set(remaining) > set(made), "that of the other channel came to it, and none has gone"
    running.cancel()
    await asyncio.wait([running])
    again = await RunningRealm.open(
        journal, blobs, MemoryPages(), rules(), clock, inline, identity="i"
    )
    assert (again.recovered.events, again.recovered.damage) == (2, [])
