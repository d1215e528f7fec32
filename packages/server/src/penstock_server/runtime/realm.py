"""A running realm: the operations that front ends call, and the tasks in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_core.api.channels import ChannelInfo, ChannelOpened, Maintained
from penstock_core.api.joins import Redriven
from penstock_core.api.realm import ClusterInfo, RealmInfo
from penstock_core.api.requests import Kind, Request
from penstock_core.channel.state import RealmRules
from penstock_core.columns.protobuf import checked_descriptors
from penstock_core.loggers import logger
from penstock_core.messages.definitions import ChannelCreated, Edit
from penstock_core.messages.publishing import PublishingPauseSet
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import IllegalState, StorageFailed
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.ports import Blobs, Clock, Journal, JournalInfo, Offload, Pages
from penstock_server.runtime.access.access import AccessControl
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.access.open_connections import OpenConnections
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.delivery.owner_lease import ENDLESS, OwnerLease
from penstock_server.runtime.store.bodies import Body, digest_of
from penstock_server.runtime.store.large_blocks import LargeBlocks
from penstock_server.runtime.store.message_fields import check_all
from penstock_server.runtime.store.sealed_file import SealedFile
from penstock_server.runtime.subscriptions import views
from penstock_server.runtime.subscriptions.leases import Leases
from penstock_server.runtime.subscriptions.pattern_durables import PatternDurableOperations
from penstock_server.runtime.subscriptions.realm_limits import Limits as Limits
from penstock_server.runtime.subscriptions.realm_view import RealmView
from penstock_server.runtime.subscriptions.subscriptions import Subscriptions
from penstock_server.runtime.subscriptions.watches import ChannelWatches
from penstock_server.runtime.transfer.backups import Backups
from penstock_server.runtime.transfer.exports import Exports
from penstock_server.runtime.transfer.imports import Imports
from penstock_server.runtime.upkeep.history import FlowHistory
from penstock_server.runtime.upkeep.recovery import (
    RecoveredRealm,
    clock_set_back,
    index_keys,
    keep_unknown,
    recover,
    remove_strays,
)
from penstock_server.runtime.upkeep.regular_work import RegularWork, Step, run_again
from penstock_server.runtime.upkeep.repair_growing_files import mend_files
from penstock_server.runtime.upkeep.reply_queues import ReplyQueues, StoreOperations
from penstock_server.runtime.upkeep.sealer import Sealer, SealingLimits
from penstock_server.runtime.writer.channel_timers import EXPIRY
from penstock_server.runtime.writer.clock import OwnerClock
from penstock_server.runtime.writer.dead_events import warn_if_not_kept
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.joins import JoinOperations
from penstock_server.runtime.writer.pattern_durables import check_new, make_own
from penstock_server.runtime.writer.placement import Placing
from penstock_server.runtime.writer.publish_selectors import parse_stored
from penstock_server.runtime.writer.redrive import MayPublish, Redriving
from penstock_server.runtime.writer.requests import PublishBatches, Reply
from penstock_server.runtime.writer.shard import Shard
from penstock_server.runtime.writer.stages import CommitStaged, Stages
from penstock_server.runtime.writer.store_names import StoreNames
from penstock_server.runtime.writer.transactions import TransactionOperations
from penstock_server.runtime.writer.with_files import with_open_files

if TYPE_CHECKING:  # a realm on its own loads nothing of a cluster
    from penstock_core.vocabulary.node_figures import TenureCounts

_log = logger("penstock.realm")


class RunningRealm:
    """A realm in this process: opened by :meth:`open`, served by :meth:`run`, ended by
    :meth:`close`."""

    cluster: Callable[[], ClusterInfo] = ClusterInfo
    """Returns the cluster that the realm is in, as its node sees it; empty outside a cluster."""
    tenures: TenureCounts | None = None
    """Counts of the node's tenures as owner; None outside a cluster."""
    trace_request: Callable[[Request[Any], Awaitable[Any]], Awaitable[Any]] | None = None
    """Records a request to fetch or settle events over HTTP, and returns its answer; None if
    requests are not recorded."""
    names = StoreNames()
    """Approves the names of new stores; see :meth:`name_with`."""
    scratch_folder: Path | None = None
    """Folder for files that can be made again, empty at the start; None if the realm has no local
    disk."""

    def __init__(
        self,
        recovered: RecoveredRealm,
        journal: Journal,
        blobs: Blobs,
        pages: Pages,
        clock: Clock,
        offload: Offload,
        *,
        identity: str,
        name: str,
        limits: Limits,
        sealing: SealingLimits,
        lease: OwnerLease,
    ) -> None:
        self.recovered = recovered
        self.identity, self.name = identity, name
        self.limits, self.clock, self.offload = limits, clock, offload
        self._state = recovered.state
        self._state.run = f"{clock.now_us():x}" + (f".{lease.epoch}" if lease.epoch else "")
        self._journal, self.blobs = journal, blobs
        self.dispatch = Dispatch(
            blobs,
            clock,
            offload,
            cache_bytes_max=sealing.cache_bytes_max,
            lease=lease,
            name_of=self._name_of,
            selectors=limits.selectors,
        )
        self.placing = Placing(pages)
        self.view = RealmView(self._state, pages, clock)
        self.shard = Shard(
            self._state,
            journal,
            clock,
            dispatch=self.dispatch,
            placing=self.placing,
            limits=limits.memory,
            sweep_interval_s=limits.sweep_interval_s,
        )
        if lease.epoch:
            # Only the log of a storage engine needs this: a local journal takes blocks of any size.
            self.shard.large_blocks = LargeBlocks(
                blobs, self._state.file_names, offload, bytes_max=limits.block_bytes_max
            )
        self.sealer = Sealer(
            self.shard,
            journal,
            blobs,
            dispatch=self.dispatch,
            offload=offload,
            limits=sealing,
            snapshot=recovered.snapshot,
            unsealed_bytes_max=limits.tail_bytes_max,
            keeps_journal=recovered.has_gaps,
        )
        self._journal_bytes_max = sealing.journal_bytes_max
        self.stages = Stages(clock, limits.stage_bytes_max)
        self.subscriptions = Subscriptions(self.shard, self.dispatch, clock)
        self.watches = ChannelWatches(self._state)
        self.leases = Leases(
            self.shard, self.subscriptions, clock, limits=limits.leases, watches=self.watches
        )
        self.exports = Exports(self.shard, blobs, clock, offload=offload, realm=identity)
        self.backups = Backups(self.shard, blobs, clock, offload=offload, realm=identity, name=name)
        self.imports = Imports(
            self.shard,
            blobs,
            clock,
            offload=offload,
            rules=self.directory.rules,
            limits=limits.memory,
        )
        self.transactions = TransactionOperations(self.shard, self.stages, limits.event_bytes_max)
        self.joins = JoinOperations(self.shard, self.dispatch, blobs, clock=clock)
        self.pattern_durables = PatternDurableOperations(
            self.shard, self.subscriptions, self.dispatch.choosing
        )
        self._redriving = Redriving(self.shard, self.dispatch)
        self.reply_queues = ReplyQueues(
            self._state,
            StoreOperations(self.create_channel, self.open_channel, self.delete_channel),
        )
        self.shard.is_congested = lambda: self.sealer.is_behind
        self.shard.on_deposed, self.shard.on_made = self.cut, self.watches.made
        self._on_deposed: list[Callable[[], None]] = []
        for channel_id, command in recovered.unreadable:
            # This is queued before the first request of a client.
            self.shard.quarantine(channel_id, command)
        self.access = AccessControl.off(clock)
        """Users and rights; replaced before the first client connects."""
        self.connections = OpenConnections()
        self.history = FlowHistory(
            self._state,
            self.dispatch.latencies,
            lambda: self.journal_info.syncs,
            clock=clock,
            incidents=self.incidents,
        )
        self.disk_space: Callable[[], tuple[int, int]] | None = None
        """Returns the free bytes and the total bytes of the realm's disk; None if the realm has no
        local disk."""
        self.pipeline_folders: tuple[str, ...] = ()
        """Folders with the checkpoints of pipelines, from the settings."""
        self._serving: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        journal: Journal,
        blobs: Blobs,
        pages: Pages,
        rules: RealmRules,
        clock: Clock,
        offload: Offload,
        *,
        identity: str,
        name: str = "penstock",
        limits: Limits | None = None,
        sealing: SealingLimits | None = None,
        lease: OwnerLease = ENDLESS,
    ) -> RunningRealm:
        """Recover the stored state and prepare to serve.

        ``journal`` has been opened for this owner alone. ``lease`` limits how long the owner may
        answer without an append. Names of files that the owner writes contain the epoch of the
        lease, if it has one. Raises ``IllegalState`` if the lease has an epoch and the blobs can
        grow, because a deposed owner could append to a file of its successor.
        """
        if lease.epoch and blobs.grows:
            raise IllegalState(
                "a realm on a storage engine needs blobs that do not grow: a deposed owner would "
                "write into a file of its successor"
            )
        recovered = await recover(journal, blobs, pages, rules=rules, epoch=lease.epoch)
        recovered.state.agreed = lease
        check_all(recovered.state.directory)
        if recovered.has_gaps:
            keep_unknown(recovered)
        await remove_strays(recovered, blobs)
        await mend_files(recovered.state, blobs, is_damaged=bool(recovered.damage))
        # Times of events must never go back. The next owner in a cluster continues at the time of
        # the last block, because clocks of machines differ. On one machine, an earlier time means
        # that the clock was set back, which the realm reports.
        if lease.epoch:
            clock = OwnerClock(clock, recovered.newest_us)
        elif recovered.last_us > (now_us := clock.now_us()):
            clock_set_back(recovered.state, recovered.last_us, now_us)
        realm = cls(
            recovered,
            journal,
            blobs,
            pages=pages,
            clock=clock,
            offload=offload,
            identity=identity,
            name=name,
            limits=limits or Limits(),
            sealing=sealing or SealingLimits(),
            lease=lease,
        )
        recovered.damage += await realm.dispatch.files.load(recovered.state, offload)
        await index_keys(recovered, realm.dispatch)
        await parse_stored(recovered.state, offload)
        return realm

    @property
    def directory(self) -> Directory:
        return self._state.directory

    @property
    def has_ended(self) -> bool:
        """Whether the realm no longer stores anything: it was closed, or its journal failed."""
        return self.shard.ended.is_set()

    @property
    def is_answering(self) -> bool:
        """Whether the answers of a group are being sent. Front ends buffer them and flush once, in
        :meth:`on_answered`."""
        return self.shard.is_answering

    def on_answered(self, flush: Callable[[], None]) -> None:
        """Register ``flush``, called after all answers of a group."""
        self.shard.on_answered = flush

    @property
    def journal_info(self) -> JournalInfo:
        """The size of the journal, and how long its syncs take."""
        return self._journal.info()

    def unsealed_s(self) -> float:
        """Return the seconds since the oldest change that no snapshot has; 0 if the newest
        snapshot has all changes."""
        return self.sealer.unsealed_s()

    def name_with(self, names: StoreNames) -> None:
        """Set the authority that approves the names of new stores."""
        self.names = self.imports.names = names

    def _name_of(self, number: int) -> str | None:
        channel = self._state.channels.get(number)
        return None if channel is None else channel.state.name

    @property
    def incidents(self) -> Incidents:
        """Failures of background tasks."""
        return self.dispatch.incidents

    # --- running -------------------------------------------------------------------------

    @cached_property
    def regular_steps(self) -> dict[str, Step]:
        """Regular work by name; packages may add steps."""
        return {
            "history": self.history.take_in_turns,
            "subscriptions": self.subscriptions.forget_places,
            "leases": self.leases.expire,
            "reply queues": lambda: self.reply_queues.remove_idle(self.access),
            "stages": self.stages.expire,
            "exports": self.exports.expire,
            "backups": self.backups.expire,
            "imports": self.imports.expire,
        }

    def background_tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return the tasks that run in parallel with the writer, by name."""
        return {
            "sealing": self.sealer.run,
            "regular work": RegularWork(
                self.incidents, interval_s=self.limits.sweep_interval_s, steps=self.regular_steps
            ).run,
            EXPIRY: self.shard.timers.run,
            "files of imports": self.imports.run,
        }

    def on_deposed(self, cut: Callable[[], None]) -> None:
        """Register ``cut``, called when another owner has taken over. It drops all connections, so
        that clients ask the new owner and get no outdated answers."""
        self._on_deposed.append(cut)

    def cut(self) -> None:
        """Drop all connections, because another owner has taken over: no later answer may reach a
        client."""
        for cut in self._on_deposed:
            cut()

    async def run(self) -> None:
        """Serve until :meth:`close`. Raises ``StorageFailed`` when the journal failed,
        ``Deposed`` when another owner has taken over, and ``Unknown`` when the outcome of an
        append is unknown."""
        self.access.on_changed(lambda: self.joins.check_owners(self.access))
        self.access.on_new_version = self.watches.rights_changed
        self.joins.check_owners(self.access)  # rights may have changed while the realm was stopped
        self.reply_queues.owners.restore(self.access.creator_of_reply_queue)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(run_again(self.incidents, name, work), name=name)
                for name, work in self.background_tasks().items()
            ]
            try:
                await self.shard.run()
            finally:
                # Background tasks do not end by themselves, and the group waits for all its tasks.
                for task in tasks:
                    task.cancel()

    async def prepare_to_close(self) -> None:
        """Write a snapshot while clients are still served, so that :meth:`close` is short."""
        await self.sealer.prepare_the_end()

    async def close(self) -> None:
        """Store the facts of a clean shutdown and a snapshot, and sync the journal. All
        acknowledged events are on disk already, except on channels with ``sync = "none"``: those
        are synced here."""
        try:
            await self.shard.act(self._store_closing)
            await self.sealer.snapshot_at_the_end(self._journal_bytes_max // 16)
        except StorageFailed as failure:
            # Nothing is lost without the snapshot: the next start reads more of the journal.
            _log.warning("snapshot.skipped", reason=str(failure))
        finally:
            self.shard.stop()
        await self.shard.ended.wait()
        # Pages first, because blocks of the journal refer to their slots.
        await self.placing.pages.flush()
        await self._journal.sync()

    async def wait_for_earlier(self) -> None:
        """Wait until all earlier requests have been decided and answered. Raises ``RealmStopping``,
        and the error that has ended the realm."""
        await self.shard.act(_nothing, sweeps=())

    def _store_closing(self, group: Group) -> None:
        for channel_id, channel in group.state.channels.items():
            with self.incidents.barrier("closing", channel_id):
                for fact in channel.closing():
                    group.realm_fact(channel_id, fact)

    async def snapshot(self) -> None:
        """Write a snapshot of the whole state, and trim the journal's blocks that it includes."""
        await self.sealer.snapshot()

    async def release(self) -> None:
        """Close everything that holds the data directory."""
        await self.access.close()
        await self.placing.pages.close()
        await self._journal.close()

    # --- channels ------------------------------------------------------------------------

    async def create_channel(
        self, name: str, definition: Definition, *, temporary: bool = False
    ) -> ChannelOpened:
        """Create a channel or queue. A ``temporary`` one belongs to a session (SEM R2)."""
        checked_descriptors(definition.descriptors)

        def decide() -> ChannelCreated:
            return self.directory.decide_create(name, definition, temporary=temporary)

        # Decided here first, so that an invalid request does not reserve the name in the cluster.
        if self.names.asks:
            await self.shard.act(lambda _: decide())

        def create(group: Group) -> ChannelOpened:
            # The decision is made again, because the state may have changed while the name was
            # being approved.
            fact = decide()
            pattern_durables = check_new(group, fact.name, fact.definition)
            group.realm_fact(0, fact)
            make_own(group, fact.number, pattern_durables)
            return group.state.opened(fact.number)

        async with self.names.making(destination_name(name), definition):
            opened: ChannelOpened = await self.shard.act(create, sweeps=())
        _log.info("store.created", name=opened.name, kind=definition.kind, type=definition.type)
        warn_if_not_kept(self.directory, opened)
        return opened

    def definition_of(self, name: str) -> Definition | None:
        """Return the attributes of a channel or queue; None if the name does not exist."""
        channel_id = self.directory.find(name)
        return None if channel_id is None else self.directory.channels[channel_id].state.definition

    async def open_channel(self, name: str, kind: Kind = "channel") -> ChannelOpened:
        def describe() -> ChannelOpened:
            return self._state.opened(self.directory.channel_id_of(name, kind))

        # Each publish over HTTP opens its channel, and a group takes as long as the publish.
        if self.shard.is_at_rest:
            return describe()
        opened: ChannelOpened = await self.shard.act(lambda _: describe(), sweeps=())
        return opened

    async def delete_channel(self, name: str, kind: Kind = "channel") -> None:
        def delete(group: Group) -> list[SealedFile]:
            files: list[SealedFile] = []
            for fact in self.directory.decide_delete(name, kind):
                files += self._state.stores[fact.number].files
                group.realm_fact(0, fact)
                group.touched[fact.number] = None  # so that the shard ends the subscriptions to it
                self.watches.deleted(fact.number)
            return files

        # Only after the fact is stored. Files that a crash leaves here are strays, which the next
        # start deletes.
        for file in await self.shard.act(delete):
            self.dispatch.files.close(file)
            await self.blobs.delete(file.name)
        self.names.deleted(destination_name(name))
        _log.info("store.deleted", name=destination_name(name), kind=kind)

    async def maintain(self, name: str, kind: Kind = "channel") -> Maintained:
        """Rewrite a single-file channel without its removed events (SEM S, maintain), and free the
        journal space of events that are in files or were removed.

        A channel of spindles is not rewritten, and the result has the reason. Raises
        ``NameDoesNotExist``, ``IllegalState`` if maintenance of the channel is already running,
        ``Damaged``, ``StorageFailed``.
        """
        channel_id = await self.shard.act(lambda _: self.directory.channel_id_of(name, kind))
        result = await self.sealer.maintainer.maintain(channel_id)
        await self.sealer.free_journal()
        return result

    async def edit_channel(self, name: str, definition: Definition) -> ChannelOpened:
        checked_descriptors(definition.descriptors)

        def find_channel(_: Group) -> ChannelId:
            return self.directory.channel_id_of(name, definition.kind)

        def edit(group: Group) -> ChannelOpened:
            # The id is looked up again: the channel may have been deleted since the first turn.
            channel_id = find_channel(group)
            store = group.state.stores[channel_id]
            store.require_open(store.files)  # a new capacity may move events in files (SEM T7)
            state = self.directory.channels[channel_id].state
            new_definition = self.directory.checked(state.name, definition)
            group.do(channel_id, Edit(new_definition))
            return group.state.opened(channel_id)

        channel_id = await self.shard.act(find_channel)
        opened: ChannelOpened = await with_open_files(
            self.shard, self.dispatch.files, channel_id, action=edit
        )
        warn_if_not_kept(self.directory, opened)
        return opened

    async def list_channels(self, kind: Kind = "channel") -> list[str]:
        names: list[str] = await self.shard.act(lambda _: self.directory.names(kind), sweeps=())
        return names

    async def describe_channel(self, name: str, kind: Kind = "channel") -> ChannelInfo:
        def describe(group: Group) -> ChannelInfo:
            channel_id = self.directory.channel_id_of(name, kind)
            group.sweep(channel_id)
            schedule = self.directory.schedule_of(channel_id)
            waiting = self.directory.channels[schedule].state.stored if schedule else ()
            return views.channel_info(
                self.directory.channels[channel_id].state,
                self._state.stores[channel_id],
                scheduled=len(waiting),
                paged_bytes=self.placing.pages.info(channel_id).size,
            )

        # Sweeping only this channel keeps the request cheap on a realm of thousands. A channel that
        # is created between this line and the writer's turn has nothing due.
        channel_id = self.directory.find(name)
        sweeps = None if channel_id is None else (channel_id,)
        info: ChannelInfo = await self.shard.act(describe, sweeps=sweeps)
        return info

    async def describe(self, version: str) -> RealmInfo:
        await self.dispatch.rely("answers")
        return RealmInfo(
            name=self.name,
            version=version,
            channels=len(self.directory.names("channel")),
            queues=len(self.directory.names("queue")),
            connections=len(self.connections),
            journal_bytes=self._journal.info().size,
            memory_bytes=self._state.meter.memory_bytes,
            memory_bytes_max=self.limits.memory.heap_bytes_max,
            off_heap_bytes=self.placing.off_heap_bytes,
            off_heap_bytes_max=self.limits.memory.off_heap_bytes_max,
            paged_bytes=self._state.meter.paged_bytes,
            paged_bytes_max=self.limits.memory.paged_bytes_max,
            publishing_paused=self.directory.publishing_paused,
            mqtt_channel=self.directory.internal.mqtt_channel,
        )

    async def schedule_of(self, channel_id: ChannelId) -> ChannelOpened | None:
        """Return the store of a channel's scheduled events (SEM X4); None if no event was ever
        scheduled on the channel."""

        def find(group: Group) -> ChannelOpened | None:
            group.channel(channel_id)
            schedule = self.directory.schedule_of(channel_id)
            return None if schedule is None else group.state.opened(schedule)

        opened: ChannelOpened | None = await self.shard.act(find, sweeps=(channel_id,))
        return opened

    async def redrive(
        self,
        source: str,
        destination: str,
        selector: str,
        *,
        dry_run: bool = False,
        may: MayPublish | None = None,
    ) -> Redriven:
        """Publish dead events again, each once (SEM T10). ``may`` is called with the kind and name
        of each destination, and raises ``AccessDenied`` if the client may not publish there."""
        return await self._redriving.redrive(
            source, destination, selector, dry_run=dry_run, may=may
        )

    async def pause(self, paused: bool) -> None:
        """Refuse publishes and commits of clients if ``paused``, otherwise accept them again (SEM
        X5)."""

        def pause(group: Group) -> None:
            if self.directory.publishing_paused != paused:
                group.realm_fact(0, PublishingPauseSet(paused))

        await self.shard.act(pause)

    # --- publishing ----------------------------------------------------------------------

    def publish(
        self,
        channel_id: ChannelId,
        bodies: Sequence[Body],
        producer: str,
        sequence: int,
        reply: Reply,
        *,
        publisher: str = "",
    ) -> None:
        """Queue a publish. ``reply`` is called with the span of ids once the events are stored, or
        with the error that refuses them. Raises ``EventTooLarge``."""
        work = PublishBatches(
            channel_id,
            self.digest(bodies),
            bodies,
            producer=producer,
            sequence=sequence,
            reply=reply,
            publisher=publisher,
        )
        self.shard.submit(work)

    def digest(self, bodies: Sequence[Body]) -> Digest:
        """Return what the core's rules need to know about these events. Raises
        ``EventTooLarge``."""
        return digest_of(bodies, self.limits.event_bytes_max)

    def commit(
        self,
        channel_id: ChannelId,
        stages: Sequence[str],
        producer: str,
        sequence: int,
        reply: Reply,
        *,
        publisher: str = "",
    ) -> None:
        """Publish staged batches in one step; ``reply`` is called with their span."""
        self.shard.submit(
            CommitStaged(
                channel_id,
                self.stages,
                stages,
                producer=producer,
                sequence=sequence,
                event_bytes_max=self.limits.event_bytes_max,
                reply=reply,
                publisher=publisher,
            )
        )

    @property
    def is_congested(self) -> bool:
        """Whether publishers should wait, because the sealer is behind."""
        return self.sealer.is_behind

    @property
    def waiting_bytes(self) -> int:
        """Bytes of stored events that wait to be sealed."""
        return self._state.meter.waiting_bytes


def _nothing(_: Group) -> None:
    """Change nothing. The request serves to wait until all earlier requests are decided."""
