"""The stored history of a cluster, from its newest readable snapshot and that snapshot's files: for
reading while the engine has no quorum (SEM N10).

It is a separate realm, recovered from the snapshot without a journal. Nothing is written, and
nothing happens in it except that events expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock_core.access.rights import Principal
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Subscribe
from penstock_core.api.transactions import BeginTransaction, CommitTransaction
from penstock_core.channel.state import RealmRules
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.retention import Removed
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NameDoesNotExist, NoQuorum
from penstock_core.vocabulary.ports import Blobs, Clock, Journal, Offload, Pages
from penstock_server.runtime.access.access import AccessControl
from penstock_server.runtime.delivery.owner_lease import EndlessLease
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.file_names import SNAPSHOTS
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.subscriptions.realm_limits import Limits
from penstock_server.runtime.upkeep.regular_work import run_again
from penstock_server.runtime.writer.channel_timers import EXPIRY
from penstock_server.runtime.writer.store_names import StoreNames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SEGMENTS: Final = "segments/"
READS: Final = frozenset(
    {
        "session.open",
        "realm.describe",
        "realm.watch",
        "connection.list",
        "me.read",
        "durable.list",
        "durable.describe",
        "join.list",
        "pattern.list",
        *(f"{kind}.{verb}" for kind in ("channel", "queue") for verb in ("list", "open")),
        *(f"{kind}.{verb}" for kind in ("channel", "queue") for verb in ("describe", "columns")),
        "channel.subscribe",
        "queue.peek",
    }
)
"""Operations that neither change the realm nor consume events, and that do not depend on
outstanding events."""


class ReadOnlyStoreNames(StoreNames):
    """Names of stores in sealed history, which is read-only: no store can be created."""

    asks = True

    @asynccontextmanager
    async def making(self, name: str, definition: Definition) -> AsyncIterator[None]:
        """Raise ``NoQuorum``."""
        raise NoQuorum(f"{name} cannot be created: the cluster has no quorum")
        # Never reached: it makes this function the generator that asynccontextmanager requires.
        yield


class HistoryAccess(AccessControl):
    """Refuses every operation except reading with ``NoQuorum``, for all users. For reading, a user
    needs the rights that the cluster knew last."""

    history_name: str = "sealed history"
    """Name of the history, for the text of a refusal."""

    @property
    def checks_nothing(self) -> bool:
        """Whether requests are unchecked; False even if every user has every right."""
        return False

    def admit(self, request: Request[Any]) -> None:
        """Raise an error for subscriptions that take events, and for transactions, because they
        exist to change something (:meth:`AccessControl.admit`)."""
        is_taking = isinstance(request, Subscribe) and not request.browse
        if is_taking or isinstance(request, BeginTransaction | CommitTransaction):
            raise self._refusal(type(request).__name__)

    def require(
        self, principal: Principal, operation: str, name: str = "", *, by_number: bool = False
    ) -> None:
        """Raise ``AccessDenied`` if an operation is not allowed, and ``NoQuorum`` for every
        operation that is not in ``READS`` (:meth:`AccessControl.require`)."""
        if operation not in READS:
            raise self._refusal(operation)
        super().require(principal, operation, name, by_number=by_number)

    def allows(
        self, principal: Principal, operation: str, name: str = "", *, by_number: bool = False
    ) -> bool:
        """Return whether an operation is allowed; every operation that is not in ``READS`` is
        refused (:meth:`AccessControl.allows`)."""
        is_reading = operation in READS
        return is_reading and super().allows(principal, operation, name, by_number=by_number)

    def _refusal(self, operation: str) -> NoQuorum:
        """Return the error for an operation that sealed history does not perform."""
        return NoQuorum(
            f"{operation} has to wait: the cluster has no quorum. This is its {self.history_name}: "
            "events "
            "can only be browsed and located, and the newest events are missing"
        )


class SealedHistory:
    """A read-only realm with the sealed events of a cluster that has no quorum. :meth:`open`
    creates it; :meth:`run` runs it until cancelled."""

    def __init__(self, realm: RunningRealm, missing: Mapping[str, int]) -> None:
        self.realm = realm
        self.missing = missing
        """Number of events not shown, by store, because a file with these or with later events
        cannot be read from here."""

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
        name: str,
        limits: Limits,
    ) -> SealedHistory:
        """Recover the realm from the newest readable snapshot. ``journal`` is empty and in memory,
        as are ``pages``. Raises ``NameDoesNotExist`` if no snapshot can be read, ``NewerFormat``,
        ``Unavailable``."""
        if not await blobs.list(SNAPSHOTS):
            raise NameDoesNotExist("no snapshot can be read from here: none is stored")
        realm = await RunningRealm.open(
            journal,
            blobs,
            pages,
            rules,
            clock,
            offload,
            identity=identity,
            name=name,
            limits=limits,
            lease=EndlessLease(epoch=1),
        )
        recovered = realm.recovered
        if not recovered.newest_us:
            reasons = "; ".join(recovered.damage) or "it is empty"
            raise NameDoesNotExist(f"no snapshot can be read from here: {reasons}")
        readable = {info.name for info in await blobs.list(SEGMENTS)}
        missing = _leave_out(recovered.state, readable)
        for channel in recovered.state.channels.values():
            # Expired events are dropped: only the realm itself may give ids in a dead event store.
            channel.state.moves_dead = False
        realm.name = f"{name}, sealed history as of {_time(recovered.newest_us)}"
        realm.name_with(ReadOnlyStoreNames())
        return cls(realm, missing)

    @property
    def as_of_us(self) -> int:
        """Time of the history, in microseconds since 1970."""
        return self.realm.recovered.newest_us

    async def run(self) -> None:
        """Answer requests, and let events expire (SEM T1), until cancelled or stopped."""
        async with asyncio.TaskGroup() as tasks:
            shard = self.realm.shard
            timers = tasks.create_task(run_again(self.realm.incidents, EXPIRY, shard.timers.run))
            try:
                await shard.run()
            finally:
                timers.cancel()

    async def close(self) -> None:
        """Stop the realm and release it."""
        self.realm.shard.stop()
        await self.realm.release()


def _leave_out(state: RealmState, readable: Collection[str]) -> dict[str, int]:
    """Remove the events of each store up to the end of its newest unreadable file, so that the
    history has no holes. A merge channel with an unreadable file loses all its sealed events,
    because the states of its keys follow from all earlier events. Return the number of removed
    events, by the name of the store."""
    missing: dict[str, int] = {}
    for channel_id, channel in state.channels.items():
        ends = [
            file.span.end for file in state.stores[channel_id].files if file.name not in readable
        ]
        if not ends:
            continue
        stored = channel.state.stored
        removed_end = stored.spans[-1].end if channel.state.engine.merges and stored else max(ends)
        removed = stored.within(Span(0, removed_end))
        if removed:
            missing[channel.state.name] = len(removed)
            state.apply(channel_id, Removed(IdSet(removed.spans).spans, Cause.DROPPED))
    return missing


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
