"""Runs a realm for a test: on any store, on a simulated loop, with limits that seal everything at
once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import PenstockError, StorageFailed
from penstock_core.vocabulary.formats import FORMAT
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Blobs, Clock, Journal, inline
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.bootstrap import rules
from penstock_server.runtime.delivery.delivery import Redeliveries
from penstock_server.runtime.delivery.owner_lease import ENDLESS
from penstock_server.runtime.realm import Limits, RunningRealm
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.upkeep.compaction import MaintenanceLimits
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.storage.memory import MemoryJournal, MemoryPages
from penstock_testing.loop import SimLoop, pass_time

SINGLE = Definition(
    type="persistent",
    retain_consumed=True,
    storage=Storage(events_per_spindle=0, auto_maintenance=False),
)
EAGER = SealingLimits(
    segment_bytes_max=1, interval_s=0.01, retry_s=0.01, maintenance=MaintenanceLimits(retry_s=0.01)
)
"""Limits that seal every publish into a separate file at the sealer's next turn."""


def body(datas: Sequence[bytes], **properties: Any) -> Body:
    """Return a body of events with this data, which all have the same properties."""
    batch = body_of_columns(datas, properties=[properties] * len(datas) if properties else None)
    return Body(batch_bytes(batch), batch, schema_bytes(batch.schema))


class Owning:
    """The lease of an owner that always believes that it holds it."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.format = FORMAT

    def nodes_behind(self, format: int) -> tuple[str, ...]:
        return ()

    def holds(self) -> bool:
        return True

    async def held(self) -> None:
        """Return at once: the lease holds."""


@asynccontextmanager
async def living(
    journal: Journal,
    blobs: Blobs,
    *,
    sealing: SealingLimits = EAGER,
    offload: Callable[..., Any] = inline,
    realm_class: type[RunningRealm] = RunningRealm,
    orderly: bool = True,
    breaks: type[BaseException] | None = None,
    epoch: int = 0,
    clock: Clock | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[RunningRealm]:
    """Run a realm. At the end it is closed, or only stopped; or it must have ended with the error
    ``breaks``."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    realm = await realm_class.open(
        journal,
        blobs,
        MemoryPages(),
        rules(),
        clock or loop,
        offload,
        identity="i",
        limits=limits,
        sealing=sealing,
        lease=Owning(epoch) if epoch else ENDLESS,
    )
    running = loop.create_task(realm.run())
    try:
        yield realm
        if orderly and breaks is None:
            await realm.close()
    finally:
        running.cancel()
        await asyncio.wait([running])
    if breaks is not None:
        with pytest.RaisesGroup(breaks):
            running.result()
    elif not orderly and not running.cancelled():
        try:
            running.result()
        except* StorageFailed:
            pass


async def publish(realm: RunningRealm, number: ChannelId, *bodies: Body) -> Span:
    done: asyncio.Future[Span] = asyncio.get_running_loop().create_future()

    def reply(span: Span, error: BaseException | None) -> None:
        if error is None:
            done.set_result(span)
        else:
            done.set_exception(error)

    realm.publish(number, list(bodies), "", sequence=0, reply=reply, publisher="me@here")
    return await done


async def sealed(realm: RunningRealm, name: str) -> None:
    """Wait until all events of a channel are in files."""
    while (await realm.describe_channel(name)).storage.tail_bytes:
        await pass_time(0.01)


class Reader:
    """An outlet that keeps its events."""

    session = "reader"
    selector: Selector | None = None
    is_writable = True

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.publishers: list[Any] = []
        self.at_end = asyncio.Event()

    def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
        self.batches.append(rows.batch)
        self.publishers.append(rows.publishers)

    @property
    def ids(self) -> list[int]:
        return [event_id for batch in self.batches for event_id in ids_of(batch).tolist()]

    def recall(self, spans: Spans) -> None:
        raise AssertionError(f"no durable here orders strictly: {spans}")

    def finished(self) -> None:
        self.at_end.set()

    def closed(self, reason: PenstockError) -> None:
        self.at_end.set()


async def events(realm: RunningRealm, number: ChannelId) -> dict[int, bytes]:
    """Return the stored events by id."""
    reader = Reader()
    subscribe = realm.subscriptions.subscribe
    await subscribe(number, FromEarliest(), reader, credit=1 << 30, browse=True)
    await reader.at_end.wait()
    data_by_id: dict[int, bytes] = {}
    for batch in reader.batches:
        datas = batch.column("data").to_pylist()
        data_by_id |= dict(zip(ids_of(batch).tolist(), datas, strict=True))
    return data_by_id


class SlowJournal(MemoryJournal):
    """A journal whose appends take a second once the test says so."""

    is_slow = False

    async def append(self, *arguments: Any, **options: Any) -> Any:
        if self.is_slow:
            await pass_time(1.0)
        return await super().append(*arguments, **options)
