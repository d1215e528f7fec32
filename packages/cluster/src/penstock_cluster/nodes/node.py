"""One node: polls the register, claims shards, takes them over, serves them and gives them up.

:class:`~penstock_cluster.owning.claims.Claims` decides which node may own a shard; this module
reads, writes and waits. A takeover has a fixed order: the journal is opened for the new epoch,
which fences every earlier owner, and only then is anything recovered, written or removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct

from penstock_cluster.nodes.blob_identity import BLOBS_SETTING, BlobPlaces, token_of
from penstock_cluster.nodes.fitness import NodeFitness
from penstock_cluster.nodes.probing import is_refused
from penstock_cluster.owning.claims import Claims
from penstock_cluster.owning.clocks import APART_US_MAX, SECOND_US, WRONG_US_MAX
from penstock_cluster.owning.lease import Lease
from penstock_cluster.owning.operator_orders import ORDERS_KEY, Orders
from penstock_cluster.owning.register_records import (
    FORMAT_KEY,
    MEMBERS,
    SHARDS,
    ClaimRecord,
    MemberRecord,
    RegisterPoll,
    RegisterWrite,
    read_record,
)
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    Conflict,
    Damaged,
    Deposed,
    IllegalState,
    NameDoesNotExist,
    NewerFormat,
    PenstockError,
    Trimmed,
    Unknown,
)
from penstock_core.vocabulary.node_figures import WHYS, NodeFigures, TenureCounts
from penstock_core.vocabulary.ports import (
    Blobs,
    Clock,
    Journal,
    Registry,
    StorageEngine,
    VersionedRecord,
)
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.delivery.owner_lease import OwnerLease
from penstock_server.runtime.realm import RunningRealm

OPENINGS_MAX: Final = 5
"""Largest number of attempts to recover a realm while an earlier owner is still removing files that
the recovery needs."""

LEAVE_S: Final = 3.0
"""Seconds that a leaving node waits for an engine that does not answer. Other nodes notice the end
of its process, so they take over no later than if the node had released its shards."""

_ENDS: Final = (PenstockError,)
"""Errors that end a node: another process has its name, or the cluster writes a newer format."""

ClockState = Literal["right", "is apart", "claims nothing", "owns nothing"]
"""State of this node's clock, as logged last: right, or what a wrong clock keeps the node from."""

_log = logger("penstock.cluster")


class ShardServer(Protocol):
    """Recovers the realms of shards, and serves them to clients."""

    async def open(
        self, shard: int, journal: Journal, blobs: Blobs, lease: OwnerLease
    ) -> RunningRealm:
        """Recover a shard whose journal has been opened for this owner."""
        ...

    async def serve(self, realm: RunningRealm, stopping: asyncio.Event) -> None:
        """Serve clients until ``stopping`` is set, then close the realm. Raises the error that has
        ended the realm."""
        ...


class _Tenure(Struct):
    """A shard that this node has claimed, until the node has given it up."""

    epoch: int
    stopping: asyncio.Event
    task: asyncio.Task[None] | None = None
    realm: RunningRealm | None = None
    preparing: asyncio.Task[None] | None = None
    """Task of an orderly end. It writes the data that the next owner needs, while clients are still
    served."""


class ShardLease:
    """The lease of one shard, for its writer."""

    def __init__(self, node: ClusterNode, shard: int, epoch: int) -> None:
        self._node = node
        self._shard = shard
        self.epoch = epoch

    def holds(self) -> bool:
        """Return whether no other node can be the owner at this moment."""
        return self._node.holds(self._shard)

    @property
    def format(self) -> int:
        """Format of the shard's records."""
        return self._node.claims.writes(self._shard)

    def nodes_behind(self, format: int) -> tuple[str, ...]:
        """Return the nodes that do not know ``format``, each with its version."""
        return self._node.claims.nodes_behind(format)

    async def held(self) -> None:
        """Wait until the lease holds. Raises ``Deposed`` once another owner or epoch has the shard,
        so that it never will."""
        while not self.holds():
            owned = self._node.claims.owned.get(self._shard)
            if owned is None or owned.epoch != self.epoch:
                raise Deposed(f"shard {self._shard} is owned by another node, or another epoch")
            await self._node.changed()


class ClusterNode:
    """A member of a cluster. :meth:`run` runs it; :meth:`leave` or cancelling ends it."""

    def __init__(
        self,
        engine: StorageEngine,
        me: MemberRecord,
        server: ShardServer,
        clock: Clock,
        *,
        shards: int = 1,
        lease_s: float = 6.0,
        listens: bool = True,
        figures: Callable[[], NodeFigures | None] = lambda: None,
    ) -> None:
        """The process listens at the member's address as long as it lives; with ``listens``
        false the caller listens there. ``figures`` returns the figures of the process, which the
        owner shows to clients of this node."""
        self.claims = Claims(me, range(shards), Lease(lease_s))
        self.incidents = Incidents()
        """Failures of the node's background tasks, without those of a realm."""
        self.tenures = TenureCounts(dict.fromkeys(WHYS, 0))
        self._engine = engine
        self._server = server
        self._clock = clock
        self._shards = shards
        self._pause_s = lease_s / 12
        """Pause between two polls of the register, and between two checks for due writes."""
        self._listens = listens
        self._figures = figures
        self._tenures: dict[int, _Tenure] = {}
        self._clock_state: ClockState = "right"
        self._poll_failure = ""
        """Reason why the latest poll failed, once it has been logged."""
        self._unreadable: set[str] = set()
        """Keys of members' records that could not be decoded and were logged."""
        self._changed = asyncio.Event()
        """Set, and replaced by a new asyncio.Event, with every change of the owned shards."""
        self._write_now = asyncio.Event()
        """Set when a write to the register may be due."""
        self._poll_now = asyncio.Event()
        """Set when the register may have changed."""
        self._writing: set[asyncio.Task[None]] = set()
        """Running writes to the register."""
        self._tasks: asyncio.TaskGroup
        self._places: BlobPlaces
        self._fitness: NodeFitness
        self._left = asyncio.Event()

    def holds(self, shard: int) -> bool:
        return self.claims.holds(shard, self._clock.steady_us())

    def has_quorum(self) -> bool:
        """Return whether the engine has answered within the time that an owner needs."""
        return self.claims.lease.holds(self._clock.steady_us())

    def owner(self, shard: int) -> MemberRecord | None:
        """Return the process that serves a shard, as far as this node knows."""
        return self.claims.owner(shard, self._clock.steady_us())

    def present(self) -> list[MemberRecord]:
        """Return the live nodes, as far as this node knows."""
        return self.claims.present(self._clock.steady_us())

    async def changed(self) -> None:
        """Wait for an event that may change the owner of a shard, or the end of its lease."""
        await self._changed.wait()

    async def run(self) -> None:
        """Take part in the cluster, and serve the owned shards, until :meth:`leave` has finished.

        Raises ``IllegalState`` if another process uses this node's name, ``Deposed`` if one has
        taken it while this node was silent, and ``NewerFormat`` if the cluster writes a format that
        this version does not know.
        """
        registry = await self._engine.registry()
        await self._agree_on_format(registry)
        self._places = BlobPlaces(
            self._engine, registry, self.claims.me.settings.get(BLOBS_SETTING, "")
        )
        self._fitness = NodeFitness(
            self.claims,
            self._places,
            self._shards,
            has_quorum=self.has_quorum,
            incidents=self.incidents,
        )
        life_sign = await self._listen() if self._listens else None
        try:
            async with asyncio.TaskGroup() as self._tasks:
                background = [
                    self._tasks.create_task(self._poll_forever(registry)),
                    self._tasks.create_task(self._write_forever(registry)),
                    self._tasks.create_task(self._watch_claims(registry)),
                    self._tasks.create_task(self._fitness.watch()),
                ]
                await self._left.wait()
                for task in (*background, *self._writing):
                    task.cancel()
        finally:
            self._places.stop()
            if life_sign is not None:
                # Last: other nodes take a process whose port refuses connections for dead.
                life_sign.close()

    async def leave(self) -> None:
        """Hand over the owned shards in an orderly way, so that others get them immediately. An
        engine that does not answer is not waited for: the realm is cut as in a crash."""
        self.claims.leave()
        for shard in list(self._tenures):
            self.hand_over(shard)
        self._write_now.set()
        while self._tenures or self.claims.owned:
            if self._is_engine_silent:
                self._abandon()
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self.changed()
        self._left.set()

    @property
    def _is_engine_silent(self) -> bool:
        """Whether the engine has been silent for too long to wait for it at the end."""
        waiting_us = self.claims.waiting_us(self._clock.steady_us())
        for tenure in self._tenures.values():
            if tenure.realm is not None:
                waiting_us = max(waiting_us, tenure.realm.journal_info.waiting_us)
        return waiting_us > LEAVE_S * SECOND_US

    def _abandon(self) -> None:
        """Stop serving all shards immediately, without the writes of an orderly end."""
        _log.warning("node.abandoned", reason="the engine does not answer", waited_s=LEAVE_S)
        for shard, tenure in self._tenures.items():
            if tenure.task is not None:
                self._cut(shard, tenure)

    def hand_over(self, shard: int) -> None:
        """Let another node own a shard. Clients are served until everything that the next owner
        needs is written; the rest of the closing is quick then."""
        tenure = self._tenures.get(shard)
        if tenure is not None and tenure.preparing is None:
            tenure.preparing = self._tasks.create_task(_prepare_end(tenure, self.incidents))

    # --- the register --------------------------------------------------------------------

    async def _agree_on_format(self, registry: Registry) -> None:
        """Write a format that all nodes can read. The first node of a cluster chooses it."""
        own_format = self.claims.me.format
        if not await _format_in(registry):
            with suppress(Conflict):  # another node was the first
                await registry.cas(FORMAT_KEY, 0, str(own_format).encode())
        self._refuse_newer(await _format_in(registry))

    def _refuse_newer(self, cluster_format: int) -> None:
        """Raise ``NewerFormat`` if this version does not know the format of the cluster."""
        own_format = self.claims.me.format
        if cluster_format > own_format:
            raise NewerFormat(
                f"the cluster writes format {cluster_format}, and this version of Penstock knows "
                f"{own_format}; start node {self.claims.me.node} with the version that the "
                f"others have, or a newer one"
            )

    async def _poll_forever(self, registry: Registry) -> None:
        """Poll the register and act on it, until cancelled. Raises the errors that end the node."""
        while True:
            try:
                await self._poll(registry)
            except Exception as error:  # noqa: BLE001  the next poll may succeed
                # A record that cannot be read, or an engine that refuses: without a poll nothing is
                # claimed, and the lease ends.
                await self._poll_failed(error)
                continue
            self._poll_failure = ""
            with self.incidents.barrier("register", ends=_ENDS):
                await self._act_on_poll()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._poll_now.wait()
            self._poll_now.clear()

    async def _act_on_poll(self) -> None:
        """Act on the newest poll. Raises the errors that end the node."""
        # An owned shard is still written in a format that all nodes can read.
        if not self.claims.owned:
            self._refuse_newer(self.claims.format)
        self._compare_clocks()
        self._fitness.compare_settings()
        self._follow()
        await self._probe()

    async def _poll_failed(self, error: Exception) -> None:
        """Log once why the register was not read or written, and wait before the next attempt."""
        if not isinstance(error, PenstockError):
            self.incidents.report("register", error)
        elif str(error) != self._poll_failure:
            self._poll_failure = str(error)
            _log.error("register.not_read", reason=str(error))
        await asyncio.sleep(self._pause_s)

    async def _watch_claims(self, registry: Registry) -> None:
        """Poll immediately when a node claims or releases a shard."""
        while True:
            try:
                async for _ in registry.watch(SHARDS):
                    self._poll_now.set()
            except Exception as error:  # noqa: BLE001  the next watch may succeed
                await self._poll_failed(error)

    async def _poll(self, registry: Registry) -> None:
        """Read all claims, and then all members: claims rely on this order."""
        began_us = self._clock.steady_us()
        claims: dict[int, VersionedRecord] = {}
        for shard in range(self._shards):
            if (record := await registry.get(f"{SHARDS}{shard}")) is not None:
                if not _is_readable(record, ClaimRecord):
                    raise Damaged(f"{SHARDS}{shard} in the register is not a record of an owner")
                claims[shard] = record
        members: dict[str, VersionedRecord] = {}
        for key in await registry.list(MEMBERS):
            if (record := await registry.get(key)) is None:
                continue
            if _is_readable(record, MemberRecord):
                members[key.removeprefix(MEMBERS)] = record
            elif key not in self._unreadable:
                self._unreadable.add(key)
                _log.error("register.not_read", reason=f"{key} is not the record of a node")
        format, orders = await _format_in(registry), await orders_in(registry)
        ended_us, wall_us = self._clock.steady_us(), self._clock.now_us()
        self.claims.apply_poll(
            RegisterPoll(
                claims,
                members,
                began_us,
                ended_us=ended_us,
                wall_us=wall_us,
                format=format,
                orders=orders,
            )
        )

    def _compare_clocks(self) -> None:
        """Hand over the owned shards if this clock is far from those of most nodes."""
        off_us = abs(self.claims.clock_off_us)
        clock_state: ClockState = "right"
        if off_us > WRONG_US_MAX:
            clock_state = "owns nothing"
            for shard in self._tenures:
                self.hand_over(shard)
        elif off_us > APART_US_MAX:
            clock_state = "claims nothing"
        elif abs(self.claims.clock_apart_us) > APART_US_MAX:
            clock_state = "is apart"
        if clock_state != self._clock_state:
            ahead_s = -(self.claims.clock_off_us or self.claims.clock_apart_us) / SECOND_US
            _log.warning("clock.compared", ahead_s=round(ahead_s, 1), now=clock_state)
            self._clock_state = clock_state

    async def _write_forever(self, registry: Registry) -> None:
        """Make the due writes, until cancelled. Each write is a task, so that a slow claim does not
        delay a renewal."""
        while True:
            now_us, wall_us = self._clock.steady_us(), self._clock.now_us()
            with self.incidents.barrier("register writes", ends=_ENDS):
                for write in self.claims.due(now_us, wall_us, self._figures):
                    task = self._tasks.create_task(self._write(registry, write))
                    self._writing.add(task)
                    task.add_done_callback(self._writing.discard)
            self._write_now.clear()
            try:
                async with asyncio.timeout(self._pause_s):
                    await self._write_now.wait()
            except TimeoutError:
                continue

    async def _write(self, registry: Registry, write: RegisterWrite) -> None:
        """Make one write to the register, and report the outcome to :attr:`claims`."""
        if write.is_claim and not await self._fitness.may_claim(_shard_of(write)):
            self.claims.withdraw(write)
            return
        try:
            version = await registry.cas(write.key, write.expected, write.value)
        except Conflict:
            # Another node was faster, or an earlier attempt of this node has succeeded. If this
            # poll fails, the next one shows which.
            with suppress(Exception):
                await self._poll(registry)
        except Exception as error:  # noqa: BLE001  the next write may succeed
            self.claims.failed(write)
            await self._poll_failed(error)
        else:
            self.claims.wrote(write, version, self._clock.steady_us())
        with self.incidents.barrier("following", ends=_ENDS):
            self._follow()

    async def _probe(self) -> None:
        """Probe owners that are late: a dead process has no lease to wait for."""
        for member in list(self.claims.late_owners()):
            if await is_refused(member.address):
                self.claims.record_refusal(member.node, member.nonce, self._clock.steady_us())
                self._write_now.set()

    async def _listen(self) -> asyncio.AbstractServer:
        """Listen at the member's address as long as the process lives, so that other nodes can see
        that it does. Every connection is closed immediately."""
        host, _, port = self.claims.me.address.rpartition(":")
        return await asyncio.get_running_loop().create_server(_SignOfLife, host, int(port))

    # --- the owned shards ----------------------------------------------------------------

    def _follow(self) -> None:
        """Take over the shards that this node owns by now, and stop serving the others."""
        if (rival := self.claims.rival) is not None:
            raise IllegalState(
                f"node {rival.node} is already running: a process at {rival.address} renews its "
                f"lease under this name. Give each node its own name (--node, cluster.node), "
                f"or stop the other process first"
            )
        if self.claims.is_replaced:
            raise Deposed(
                f"another process is node {self.claims.me.node} now; give each node its own name"
            )
        for shard, tenure in self._tenures.items():
            owned = self.claims.owned.get(shard)
            if (owned is None or owned.epoch != tenure.epoch) and tenure.task is not None:
                self.tenures.deposed += 1
                self._cut(shard, tenure)
        for shard in self.claims.owned:
            if shard not in self._tenures and self.holds(shard):
                self._begin(shard)
        for shard in self.claims.to_hand_over(self._clock.steady_us()):
            self.hand_over(shard)
        self._notify()

    def _notify(self) -> None:
        """Wake all tasks that wait in :meth:`changed`, and the task that writes to the register."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._write_now.set()

    def _begin(self, shard: int) -> None:
        """Start a task that takes a claimed shard over and serves it."""
        tenure = _Tenure(self.claims.owned[shard].epoch, asyncio.Event())
        self._tenures[shard] = tenure
        _log.info("shard.claimed", shard=shard, epoch=tenure.epoch)
        tenure.task = self._tasks.create_task(self._run_tenure(shard, tenure))

    def _cut(self, shard: int, tenure: _Tenure) -> None:
        """Stop serving a shard immediately, because another node owns it."""
        _log.warning("shard.lost", shard=shard, epoch=tenure.epoch)
        # `_run_tenure` recognizes by the missing task that the shard was cut.
        task, tenure.task = tenure.task, None
        if tenure.realm is not None:
            tenure.realm.cut()
        assert task is not None, "a shard is cut once"
        task.cancel()

    async def _run_tenure(self, shard: int, tenure: _Tenure) -> None:
        """Take a shard over, serve it, and give it up."""
        try:
            await self._serve(shard, tenure)
        except (Deposed, Unknown) as end:
            was_cut = tenure.task is None  # the register said so first, and it was counted then
            self.tenures.deposed += isinstance(end, Deposed) and not was_cut
            _log.warning("shard.lost", shard=shard, epoch=tenure.epoch, reason=str(end))
        except PenstockError as failure:
            _log.error("shard.not_served", shard=shard, epoch=tenure.epoch, reason=str(failure))
            self._note_failure(tenure, str(failure))
        except Exception as failure:  # noqa: BLE001  the node continues: another one may serve
            reason = f"{type(failure).__name__}: {failure}"
            _log.exception("shard.not_served", shard=shard, epoch=tenure.epoch, reason=reason)
            self._note_failure(tenure, reason)
        finally:
            if tenure.preparing is not None:
                tenure.preparing.cancel()
            del self._tenures[shard]
            self.claims.give_up(shard)
            self._notify()
        _log.info("shard.given_up", shard=shard, epoch=tenure.epoch)

    def _note_failure(self, tenure: _Tenure, reason: str) -> None:
        """Leave the realm to other nodes for a while if this node could not recover it."""
        if tenure.realm is None:
            self._fitness.record_failed_recovery(f"the realm could not be recovered here: {reason}")

    async def _serve(self, shard: int, tenure: _Tenure) -> None:
        """Take a shard over, and serve it until its tenure ends."""
        began_us, claim_reason = self._clock.steady_us(), self.claims.reasons.get(shard)
        tenure.realm = realm = await self._take_over(shard, tenure.epoch)
        if claim_reason is not None:
            self.tenures.claims[claim_reason] += 1
            self.tenures.takeover_us = self._clock.steady_us() - began_us
        self._fitness.record_recovery()
        self.claims.note_damages(len(realm.recovered.damage))
        try:
            # A damaged realm may come from a wrong place, which must not get an identity.
            if not realm.recovered.damage:
                me = self.claims.me
                await self._places.mark(shard, token_of(me.node, me.nonce, tenure.epoch))
            await self._server.serve(realm, tenure.stopping)
        finally:
            self.claims.note_damages(0)
            await realm.release()

    async def _take_over(self, shard: int, epoch: int) -> RunningRealm:
        """Fence earlier owners, then recover. An earlier owner may still be removing files that its
        own snapshot has superseded. If a file disappears during the recovery, that snapshot covers
        it, and the recovery begins again."""
        lease = ShardLease(self, shard, epoch)
        for attempt in count(1):
            journal = await self._engine.journal(shard, epoch)
            try:
                blobs = await self._places.open_for_owner(shard)
                return await self._server.open(shard, journal, blobs, lease)
            except BaseException as failure:
                await journal.close()
                if not isinstance(failure, Trimmed | NameDoesNotExist) or attempt == OPENINGS_MAX:
                    raise
        raise AssertionError("the loop returns or raises")


def _is_readable(record: VersionedRecord, kind: type[Struct]) -> bool:
    """Return whether a record of the register can be decoded."""
    try:
        msgspec.json.decode(record.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


async def _format_in(registry: Registry) -> int:
    """Return the format that the nodes of a cluster write; 0 if not recorded. Raises
    ``Damaged``."""
    record = await registry.get(FORMAT_KEY)
    if record is None:
        return 0
    if not record.value.isdigit():
        raise Damaged(f"{FORMAT_KEY} in the register is {record.value!r}; it must be a number")
    return int(record.value)


async def orders_in(registry: Registry) -> Orders:
    """Read the orders of operators from the register. Raises ``Damaged``."""
    return orders_of(await registry.get(ORDERS_KEY))


def orders_of(record: VersionedRecord | None) -> Orders:
    """Decode a record of orders; empty without a record. Raises ``Damaged``."""
    if record is None:
        return Orders()
    return read_record(ORDERS_KEY, record, Orders, description="record of orders")


def _shard_of(write: RegisterWrite) -> int:
    return int(write.key.removeprefix(SHARDS))


async def _prepare_end(tenure: _Tenure, incidents: Incidents) -> None:
    """End a tenure in an orderly way: write the data that the next owner needs while clients are
    still served, then stop serving."""
    with incidents.barrier("hand-over", ends=()), suppress(PenstockError):
        if tenure.realm is not None:  # a failure to write ends the tenure anyway
            await tenure.realm.prepare_to_close()
    tenure.stopping.set()


class _SignOfLife(asyncio.Protocol):
    """Closes every connection immediately. An accepted connection shows that the process lives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
