"""One node: looks at the register, claims shards, takes them over, serves them and gives them up.

Who may own what is decided by :class:`~penstock_cluster.owning.claims.Claims`; this is the shell
that reads, writes and waits. A shard is taken over in a fixed order: its journal is opened for the
new epoch, which fences every owner before, and only then anything is recovered, written or removed.
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
from penstock_cluster.owning.orders import ORDERS_KEY, Orders
from penstock_cluster.owning.register_records import (
    FORMAT_KEY,
    MEMBERS,
    SHARDS,
    ClaimRecord,
    MemberRecord,
    RegisterLook,
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
"""How often a recovery is begun anew because an owner before was still removing what it needs."""

LEAVE_S: Final = 3.0
"""How long a node that leaves waits for an engine that says nothing: its end has others take over
at least as soon as what it would write there."""

_ENDS: Final = (PenstockError,)
"""What ends a node: another process is this node, or the cluster writes a newer format."""

ClockSaid = Literal["right", "is apart", "claims nothing", "owns nothing"]
"""What a node has said of its clock, and what it does about it."""

_log = logger("penstock.cluster")


class ShardServer(Protocol):
    """Makes realms of shards, and serves them to clients."""

    async def open(
        self, shard: int, journal: Journal, blobs: Blobs, lease: OwnerLease
    ) -> RunningRealm:
        """Recover a shard whose journal has been opened for this owner."""
        ...

    async def serve(self, realm: RunningRealm, stopping: asyncio.Event) -> None:
        """Let clients come until ``stopping`` is set, and close the realm then. Raises what has
        ended the realm."""
        ...


class _Tenure(Struct):
    """A shard this node has claimed, as long as it looks after it."""

    epoch: int
    stopping: asyncio.Event
    task: asyncio.Task[None] | None = None
    realm: RunningRealm | None = None
    preparing: asyncio.Task[None] | None = None
    """Its orderly end has begun: what is written before clients are told."""


class ShardLease:
    """The lease of one shard, as its writer asks for it."""

    def __init__(self, node: ClusterNode, shard: int, epoch: int) -> None:
        self._node = node
        self._shard = shard
        self.epoch = epoch

    def holds(self) -> bool:
        """Whether nobody else can be the owner at this moment."""
        return self._node.holds(self._shard)

    @property
    def format(self) -> int:
        """The format in which the shard is written."""
        return self._node.claims.writes(self._shard)

    def behind(self, format: int) -> tuple[str, ...]:
        """The nodes that do not know ``format``, each with its version."""
        return self._node.claims.behind(format)

    async def held(self) -> None:
        """Come back once it holds. Raises ``Deposed`` when it never will again."""
        while not self.holds():
            owned = self._node.claims.owned.get(self._shard)
            if owned is None or owned.epoch != self.epoch:
                raise Deposed(f"shard {self._shard} is owned by another node, or another epoch")
            await self._node.changed()


class ClusterNode:
    """Run by :meth:`run`; ended by :meth:`leave`, or by being cancelled."""

    def __init__(
        self,
        engine: StorageEngine,
        me: MemberRecord,
        server: ShardServer,
        clock: Clock,
        *,
        shards: int = 1,
        lease_s: float = 6.0,
        opens_door: bool = True,
        figures: Callable[[], NodeFigures | None] = lambda: None,
    ) -> None:
        """The process listens at the member's address as long as it lives; unless the node
        ``opens_door``, somebody else has seen to it. ``figures`` are those of the process, which
        the owner shows to those who ask for them at this node."""
        self.claims = Claims(me, range(shards), Lease(lease_s))
        self.incidents = Incidents()
        """What background tasks of the node could not do, beside those of a realm."""
        self.tenures = TenureCounts(dict.fromkeys(WHYS, 0))
        self._engine = engine
        self._server = server
        self._clock = clock
        self._shards = shards
        self._turn_s = lease_s / 12
        self._opens_door = opens_door
        self._figures = figures
        self._tenures: dict[int, _Tenure] = {}
        self._clock_said: ClockSaid = "right"
        self._look_failure = ""
        """Why the register could not be read at the last look, once it has been logged."""
        self._unreadable: set[str] = set()
        """Keys of members' records that could not be decoded, which have been logged."""
        self._changed = asyncio.Event()
        """Set, and exchanged for another, with every change of what is owned."""
        self._wakes = asyncio.Event()
        self._looks = asyncio.Event()
        """Set when there is something to see in the register."""
        self._writing: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup
        self._places: BlobPlaces
        self._fitness: NodeFitness
        self._left = asyncio.Event()

    def holds(self, shard: int) -> bool:
        return self.claims.holds(shard, self._clock.steady_us())

    def has_quorum(self) -> bool:
        """Whether the engine has answered in time, as an owner would need it."""
        return self.claims.lease.holds(self._clock.steady_us())

    def owner(self, shard: int) -> MemberRecord | None:
        """The process that serves a shard, as far as is known here."""
        return self.claims.owner(shard, self._clock.steady_us())

    def present(self) -> list[MemberRecord]:
        """The nodes that are there, as far as is known here."""
        return self.claims.present(self._clock.steady_us())

    async def changed(self) -> None:
        """Wait for something that may change who owns what, or for how long."""
        await self._changed.wait()

    async def run(self) -> None:
        """Be a member, and serve what is owned, until :meth:`leave` has done its work.

        Raises ``IllegalState`` when another process lives under this node's name, ``Deposed`` when
        one has taken it while this one gave no sign of life, and ``NewerFormat`` when
        the cluster writes what this version does not know.
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
        door = await self._open_door() if self._opens_door else None
        try:
            async with asyncio.TaskGroup() as self._tasks:
                own = [
                    self._tasks.create_task(self._look_forever(registry)),
                    self._tasks.create_task(self._write_forever(registry)),
                    self._tasks.create_task(self._hear(registry)),
                    self._tasks.create_task(self._fitness.watch()),
                ]
                await self._left.wait()
                for task in (*own, *self._writing):
                    task.cancel()
        finally:
            self._places.stop()
            if door is not None:
                door.close()  # the last of all: whoever finds it closed takes this process for dead

    async def leave(self) -> None:
        """Hand over what is served, in order, and let others have it at once. An engine that says
        nothing is not waited for: the realm is cut then, as by a crash."""
        self.claims.leave()
        for shard in list(self._tenures):
            self.hand_over(shard)
        self._wakes.set()
        while self._tenures or self.claims.owned:
            if self._is_forsaken:
                self._abandon()
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(self._turn_s):
                    await self.changed()
        self._left.set()

    @property
    def _is_forsaken(self) -> bool:
        """Whether the engine has said nothing for too long to wait for it at the end."""
        waiting_us = self.claims.waiting_us(self._clock.steady_us())
        for tenure in self._tenures.values():
            if tenure.realm is not None:
                waiting_us = max(waiting_us, tenure.realm.journal_info.waiting_us)
        return waiting_us > LEAVE_S * SECOND_US

    def _abandon(self) -> None:
        _log.warning("node.abandoned", reason="the engine does not answer", waited_s=LEAVE_S)
        for shard, tenure in self._tenures.items():
            if tenure.task is not None:
                self._cut(shard, tenure)

    def hand_over(self, shard: int) -> None:
        """Have another node own a shard. Clients are served until what the next owner needs is
        written down; closing what is left takes no time then."""
        tenure = self._tenures.get(shard)
        if tenure is not None and tenure.preparing is None:
            tenure.preparing = self._tasks.create_task(_end(tenure, self.incidents))

    # --- the register --------------------------------------------------------------------

    async def _agree_on_format(self, registry: Registry) -> None:
        """Write what all nodes can read; the first node of a cluster says what that is."""
        known = self.claims.me.format
        if not await _format_in(registry):
            with suppress(Conflict):  # another node was the first
                await registry.cas(FORMAT_KEY, 0, str(known).encode())
        self._refuse_newer(await _format_in(registry))

    def _refuse_newer(self, wanted: int) -> None:
        known = self.claims.me.format
        if wanted > known:
            raise NewerFormat(
                f"the cluster writes format {wanted}, and this version of Penstock knows {known}; "
                f"start node {self.claims.me.node} with the version that the others have, or a "
                f"newer one"
            )

    async def _look_forever(self, registry: Registry) -> None:
        while True:
            try:
                await self._look(registry)
            except Exception as error:  # noqa: BLE001  the next look may succeed
                # A record that cannot be read, or an engine that refuses: without a look nothing is
                # claimed, and the lease ends.
                await self._look_failed(error)
                continue
            self._look_failure = ""
            with self.incidents.barrier("register", ends=_ENDS):
                await self._act_on_look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._turn_s):
                    await self._looks.wait()
            self._looks.clear()

    async def _act_on_look(self) -> None:
        """Do what the newest look calls for. Raises what ends the node."""
        if not self.claims.owned:  # what it still writes, all can read
            self._refuse_newer(self.claims.format)
        self._compare_clocks()
        self._fitness.compare_settings()
        self._follow()
        await self._probe()

    async def _look_failed(self, error: Exception) -> None:
        """Log once why the register was not read or written, and wait before it is tried again."""
        if not isinstance(error, PenstockError):
            self.incidents.report("register", error)
        elif str(error) != self._look_failure:
            self._look_failure = str(error)
            _log.error("register.not_read", reason=str(error))
        await asyncio.sleep(self._turn_s)

    async def _hear(self, registry: Registry) -> None:
        """Look at once when a node claims or releases a shard."""
        while True:
            try:
                async for _ in registry.watch(SHARDS):
                    self._looks.set()
            except Exception as error:  # noqa: BLE001  the next watch may succeed
                await self._look_failed(error)

    async def _look(self, registry: Registry) -> None:
        """Read all claims, and then all members: who claims relies on this order."""
        began_us = self._clock.steady_us()
        claims: dict[int, VersionedRecord] = {}
        for shard in range(self._shards):
            if (record := await registry.get(f"{SHARDS}{shard}")) is not None:
                if not _is_readable(record, ClaimRecord):
                    raise Damaged(f"{SHARDS}{shard} in the register is no record of an owner")
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
        self.claims.looked(
            RegisterLook(
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
        """Give up what is owned here if the clock is far from what most nodes show."""
        off_us = abs(self.claims.clock_off_us)
        said: ClockSaid = "right"
        if off_us > WRONG_US_MAX:
            said = "owns nothing"
            for shard in self._tenures:
                self.hand_over(shard)
        elif off_us > APART_US_MAX:
            said = "claims nothing"
        elif abs(self.claims.clock_apart_us) > APART_US_MAX:
            said = "is apart"
        if said != self._clock_said:
            ahead_s = -(self.claims.clock_off_us or self.claims.clock_apart_us) / SECOND_US
            _log.warning("clock.compared", ahead_s=round(ahead_s, 1), now=said)
            self._clock_said = said

    async def _write_forever(self, registry: Registry) -> None:
        while True:
            now_us, wall_us = self._clock.steady_us(), self._clock.now_us()
            with self.incidents.barrier("register writes", ends=_ENDS):
                for write in self.claims.due(now_us, wall_us, self._figures):
                    task = self._tasks.create_task(self._write(registry, write))
                    self._writing.add(task)
                    task.add_done_callback(self._writing.discard)
            self._wakes.clear()
            try:
                async with asyncio.timeout(self._turn_s):
                    await self._wakes.wait()
            except TimeoutError:
                continue

    async def _write(self, registry: Registry, write: RegisterWrite) -> None:
        if write.is_claim and not await self._fitness.may_claim(_shard_of(write)):
            self.claims.withdraw(write)
            return
        try:
            version = await registry.cas(write.key, write.expected, write.value)
        except Conflict:
            with suppress(Exception):  # the next look tells
                await self._look(registry)  # another node was faster: maybe this node itself
        except Exception as error:  # noqa: BLE001  the next write may succeed
            self.claims.failed(write)
            await self._look_failed(error)
        else:
            self.claims.wrote(write, version, self._clock.steady_us())
        with self.incidents.barrier("following", ends=_ENDS):
            self._follow()

    async def _probe(self) -> None:
        """Ask for owners that are late: a process that is gone has no lease to wait for."""
        for member in list(self.claims.doubted()):
            if await is_refused(member.address):
                self.claims.refused(member.node, member.nonce, self._clock.steady_us())
                self._wakes.set()

    async def _open_door(self) -> asyncio.AbstractServer:
        """Be there as long as the process is, whatever else listens."""
        host, _, port = self.claims.me.address.rpartition(":")
        return await asyncio.get_running_loop().create_server(_Doorstep, host, int(port))

    # --- what is owned -------------------------------------------------------------------

    def _follow(self) -> None:
        """Take over what is owned by now, and let go of what is not."""
        if (rival := self.claims.rival) is not None:
            raise IllegalState(
                f"node {rival.node} is there already: a process at {rival.address} renews its "
                f"lease under this name. Give each node a name of its own (--node, cluster.node), "
                f"or stop the other process first"
            )
        if self.claims.is_replaced:
            raise Deposed(f"another process is node {self.claims.me.node} now; give each its name")
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
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._wakes.set()

    def _begin(self, shard: int) -> None:
        tenure = _Tenure(self.claims.owned[shard].epoch, asyncio.Event())
        self._tenures[shard] = tenure
        _log.info("shard.claimed", shard=shard, epoch=tenure.epoch)
        tenure.task = self._tasks.create_task(self._own(shard, tenure))

    def _cut(self, shard: int, tenure: _Tenure) -> None:
        """Another node owns a shard: say nothing any more."""
        _log.warning("shard.lost", shard=shard, epoch=tenure.epoch)
        task, tenure.task = tenure.task, None
        if tenure.realm is not None:
            tenure.realm.cut()
        assert task is not None, "it is cut once"
        task.cancel()

    async def _own(self, shard: int, tenure: _Tenure) -> None:
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
        except Exception as failure:  # noqa: BLE001  the node lives on: another one may serve
            reason = f"{type(failure).__name__}: {failure}"
            _log.exception("shard.not_served", shard=shard, epoch=tenure.epoch, reason=reason)
            self._note_failure(tenure, reason)
        finally:
            if tenure.preparing is not None:
                tenure.preparing.cancel()
            del self._tenures[shard]
            self.claims.give_up(shard)
            self._tell()
        _log.info("shard.given_up", shard=shard, epoch=tenure.epoch)

    def _note_failure(self, tenure: _Tenure, reason: str) -> None:
        if tenure.realm is None:
            self._fitness.not_recovered(f"the realm could not be recovered here: {reason}")

    async def _serve(self, shard: int, tenure: _Tenure) -> None:
        began_us, why = self._clock.steady_us(), self.claims.why.get(shard)
        tenure.realm = realm = await self._taken_over(shard, tenure.epoch)
        if why is not None:
            self.tenures.claims[why] += 1
            self.tenures.takeover_us = self._clock.steady_us() - began_us
        self._fitness.recovered()
        self.claims.note_damages(len(realm.recovered.damage))
        try:
            if not realm.recovered.damage:
                me = self.claims.me
                await self._places.mark(shard, token_of(me.node, me.nonce, tenure.epoch))
            await self._server.serve(realm, tenure.stopping)
        finally:
            self.claims.note_damages(0)
            await realm.release()

    async def _taken_over(self, shard: int, epoch: int) -> RunningRealm:
        """Fence, and recover then. An owner before may still be removing what its own snapshot has
        made superfluous: what is gone in the middle of a recovery is in that snapshot."""
        lease = ShardLease(self, shard, epoch)
        for attempt in count(1):
            journal = await self._engine.journal(shard, epoch)
            try:
                blobs = await self._places.opened_anew(shard)
                return await self._server.open(shard, journal, blobs, lease)
            except BaseException as failure:
                await journal.close()
                if not isinstance(failure, Trimmed | NameDoesNotExist) or attempt == OPENINGS_MAX:
                    raise
        raise AssertionError("it counts on")


def _is_readable(record: VersionedRecord, kind: type[Struct]) -> bool:
    try:
        msgspec.json.decode(record.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


async def _format_in(registry: Registry) -> int:
    """The format that the nodes of a cluster write; 0: nobody has said yet. Raises ``Damaged``."""
    record = await registry.get(FORMAT_KEY)
    if record is None:
        return 0
    if not record.value.isdigit():
        raise Damaged(f"{FORMAT_KEY} in the register is {record.value!r}; it has to be a number")
    return int(record.value)


async def orders_in(registry: Registry) -> Orders:
    """What people ask of the nodes of a cluster. Raises ``Damaged``."""
    return orders_of(await registry.get(ORDERS_KEY))


def orders_of(record: VersionedRecord | None) -> Orders:
    """What a record of the register says. Raises ``Damaged``."""
    if record is None:
        return Orders()
    return read_record(ORDERS_KEY, record, Orders, what="record of orders")


def _shard_of(write: RegisterWrite) -> int:
    return int(write.key.removeprefix(SHARDS))


async def _end(tenure: _Tenure, incidents: Incidents) -> None:
    """The orderly end of a tenure: first what can be done while clients are served."""
    with incidents.barrier("hand-over", ends=()), suppress(PenstockError):
        if tenure.realm is not None:  # what keeps it from being written ends the tenure by itself
            await tenure.realm.prepare_to_close()
    tenure.stopping.set()


class _Doorstep(asyncio.Protocol):
    """Whoever comes learns that somebody is there, and no more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
