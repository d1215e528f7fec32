"""A running realm: what front ends ask for, and the tasks behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
from msgspec import Struct

from penstock.core.directory import Directory
from penstock.core.errors import StorageFailed
from penstock.core.messages import Definition, Digest, Edit
from penstock.core.ports import Blobs, Clock, Journal
from penstock.core.state import Rules
from penstock.runtime import views
from penstock.runtime.delivery import Dispatch
from penstock.runtime.recovery import Recovered, recover
from penstock.runtime.sealing import Sealer, SealingLimits
from penstock.runtime.shard import Shard
from penstock.runtime.stages import CommitStaged, Stages
from penstock.runtime.subscriptions import Subscriptions
from penstock.runtime.work import Body, Group, PublishBatches, Reply
from penstock.wire.native.answers import ChannelInfo, ChannelOpened, RealmInfo

Offload = Callable[[Callable[[], Any]], Awaitable[Any]]

_log = structlog.get_logger("penstock.realm")


class Limits(Struct, frozen=True):
    """What a realm allows itself."""

    event_bytes_max: int = 20 << 20
    memory_bytes_max: int = 1 << 30
    """For events that live in memory only (SEM C6)."""
    stage_bytes_max: int = 2 << 30
    backlog_bytes_max: int = 64 << 20
    """Bytes of publishes waiting; above it connections are not read until it shrinks."""
    tail_bytes_max: int = 512 << 20
    """Bytes not sealed yet; above it publishers wait for the sealing."""
    sweep_interval_s: float = 1.0
    """How often to look for expired events (SEM T1)."""


class RunningRealm:
    """Opened by :meth:`open`, run by :meth:`run`, ended by :meth:`close`."""

    def __init__(
        self,
        recovered: Recovered,
        journal: Journal,
        blobs: Blobs,
        clock: Clock,
        offload: Offload,
        *,
        identity: str,
        name: str,
        limits: Limits,
        sealing: SealingLimits,
    ) -> None:
        self.recovered = recovered
        self.identity = identity
        self.name = name
        self.limits = limits
        self.clock = clock
        self._state = recovered.state
        self._journal = journal
        self.blobs = blobs
        self.dispatch = Dispatch(blobs, clock)
        self.shard = Shard(
            self._state, journal, clock, self.dispatch, memory_bytes_max=limits.memory_bytes_max
        )
        self._sealer = Sealer(
            self.shard, journal, blobs, offload, sealing, snapshot=recovered.snapshot
        )
        self._journal_bytes_max = sealing.journal_bytes_max
        self.stages = Stages(clock, limits.stage_bytes_max)
        self.subscriptions = Subscriptions(self.shard, self.dispatch, clock)
        self.connections = 0
        self._serving: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        journal: Journal,
        blobs: Blobs,
        rules: Rules,
        clock: Clock,
        offload: Offload,
        *,
        identity: str,
        name: str = "penstock",
        limits: Limits | None = None,
        sealing: SealingLimits | None = None,
    ) -> RunningRealm:
        """Recover what is stored and make ready to serve."""
        recovered = await recover(journal, blobs, rules)
        if recovered.damage:
            _keep_unknown(recovered)
        else:
            await _remove_strays(recovered, blobs)
        return cls(
            recovered,
            journal,
            blobs,
            clock,
            offload,
            identity=identity,
            name=name,
            limits=limits or Limits(),
            sealing=sealing or SealingLimits(),
        )

    @property
    def directory(self) -> Directory:
        return self._state.directory

    # --- running -------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until :meth:`close`. Raises ``StorageFailed`` when the journal failed."""
        async with asyncio.TaskGroup() as group:
            sealing = group.create_task(self._sealer.run())
            sweeping = group.create_task(self._sweep_forever())
            try:
                await self.shard.run()
            finally:
                sealing.cancel()
                sweeping.cancel()

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self.limits.sweep_interval_s)
            now_us = self.clock.now_us()
            for number, channel in self._state.channels.items():
                if channel.needs_sweep(now_us):
                    self.shard.wake(number)
            self.stages.expire()

    async def close(self) -> None:
        """Store what an orderly end stores. Everything acknowledged is on disk already, except
        on channels that asked for ``sync = "none"``: that is synced here."""
        try:
            await self.shard.act(_store_closing)
            if self._sealer.grown_bytes > self._journal_bytes_max // 16:
                await self._sealer.snapshot()
        except StorageFailed as failure:
            _log.warning("snapshot.skipped", reason=str(failure))
        finally:
            self.shard.stop()
        await self.shard.ended.wait()
        await self._journal.sync()

    async def release(self) -> None:
        """Give the data directory back."""
        await self._journal.close()

    # --- channels ------------------------------------------------------------------------

    async def create_channel(self, name: str, definition: Definition) -> ChannelOpened:
        def create(group: Group) -> ChannelOpened:
            fact = self.directory.decide_create(name, definition)
            group.realm_fact(0, fact)
            return ChannelOpened(fact.number, fact.name, definition)

        opened: ChannelOpened = await self.shard.act(create)
        return opened

    async def open_channel(self, name: str) -> ChannelOpened:
        def look(_: Group) -> ChannelOpened:
            number = self.directory.number_of(name)
            state = self.directory.channels[number].state
            return ChannelOpened(number, state.name, state.definition)

        opened: ChannelOpened = await self.shard.act(look)
        return opened

    async def delete_channel(self, name: str) -> None:
        def delete(group: Group) -> list[str]:
            fact = self.directory.decide_delete(name)
            files = [file.name for file in self._state.stores[fact.number].files]
            group.realm_fact(0, fact)
            group.touched[fact.number] = None
            return files

        for file in await self.shard.act(delete):
            await self.blobs.delete(file)

    async def edit_channel(self, name: str, definition: Definition) -> ChannelOpened:
        def edit(group: Group) -> ChannelOpened:
            number = self.directory.number_of(name)
            group.do(number, Edit(definition))
            return ChannelOpened(number, self.directory.channels[number].state.name, definition)

        opened: ChannelOpened = await self.shard.act(edit)
        return opened

    async def list_channels(self) -> list[str]:
        def look(_: Group) -> list[str]:
            return sorted(channel.state.name for channel in self.directory.channels.values())

        names: list[str] = await self.shard.act(look)
        return names

    async def describe_channel(self, name: str) -> ChannelInfo:
        def look(group: Group) -> ChannelInfo:
            number = self.directory.number_of(name)
            group.sweep(number)
            return views.channel_info(
                self.directory.channels[number].state, self._state.stores[number]
            )

        info: ChannelInfo = await self.shard.act(look)
        return info

    async def describe(self, version: str) -> RealmInfo:
        return RealmInfo(
            name=self.name,
            version=version,
            channels=len(self.directory.channels),
            connections=self.connections,
            journal_bytes=self._journal.info().size,
            memory_bytes=self._state.meter.memory_bytes,
            memory_bytes_max=self.limits.memory_bytes_max,
        )

    # --- publishing ----------------------------------------------------------------------

    def publish(
        self,
        number: int,
        bodies: Sequence[Body],
        producer: str,
        sequence: int,
        reply: Reply,
        *,
        publisher: str = "",
    ) -> None:
        """Store events; ``reply`` gets their span. Raises ``Refused`` for an oversized event."""
        work = PublishBatches(
            number,
            self.digest(bodies),
            bodies,
            producer,
            sequence,
            reply=reply,
            publisher=publisher,
        )
        self.shard.submit(work)

    def digest(self, bodies: Sequence[Body]) -> Digest:
        """What the rules need to know of these events. Raises ``EventTooLarge``."""
        return views.digest_of(bodies, self.limits.event_bytes_max)

    def commit(
        self,
        number: int,
        stages: Sequence[str],
        producer: str,
        sequence: int,
        reply: Reply,
        *,
        publisher: str = "",
    ) -> None:
        """Publish staged batches in one step; ``reply`` gets their span."""
        self.shard.submit(
            CommitStaged(
                number,
                self.stages,
                stages,
                producer,
                sequence,
                self.limits.event_bytes_max,
                reply,
                publisher,
            )
        )

    @property
    def is_congested(self) -> bool:
        """Whether publishers should wait."""
        return self._state.meter.tail_bytes - self._state.meter.memory_bytes > (
            self.limits.tail_bytes_max
        )


def _store_closing(group: Group) -> None:
    for number, channel in group.state.channels.items():
        for fact in channel.closing():
            group.realm_fact(number, fact)


def _keep_unknown(recovered: Recovered) -> None:
    """Segments none of whose events are known: what is damaged may be their publish (SEM S1)."""
    for store in recovered.state.stores.values():
        for file in store.empty_files():
            store.keep_damaged(
                file, f"{file.name} is kept: the journal is damaged and knows none of its events"
            )


async def _remove_strays(recovered: Recovered, blobs: Blobs) -> None:
    """Segments that were written and never recorded: a crash came between.

    Their events are in the journal still. Where something is damaged, nothing is removed.
    """
    known = {file.name for store in recovered.state.stores.values() for file in store.files}
    for info in await blobs.list("segments/"):
        if info.name not in known:
            _log.info("segment.stray_removed", name=info.name)
            await blobs.delete(info.name)
