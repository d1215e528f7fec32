"""What a cluster has stored, as its newest snapshot that can be read and the files it names show
it: for reading while the engine has no quorum (SEM N10).

Nothing of it is written anywhere. It is a realm of its own, recovered from the snapshot without a
journal, in which nothing happens but that events expire.
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
"""The operations that change nothing, take nothing, and do not depend on what is outstanding."""


class HistoryNames(StoreNames):
    """No store is made in sealed history."""

    asks = True

    @asynccontextmanager
    async def making(self, name: str, definition: Definition) -> AsyncIterator[None]:
        """Raises ``NoQuorum``."""
        raise NoQuorum(f"{name} cannot be made: the cluster has no quorum")
        yield


class HistoryAccess(AccessControl):
    """Refuses whatever is not reading with ``NoQuorum``, whoever asks; for reading the rights of
    the cluster count, as they were last known."""

    shown: str = "sealed history"
    """What is shown, for the text of a refusal."""

    @property
    def checks_nothing(self) -> bool:
        """Requests are checked also where everybody may do everything."""
        return False

    def admit(self, request: Request[Any]) -> None:
        """See :meth:`AccessControl.admit`: to subscribe may take events, and a transaction is
        there to change something."""
        is_taking = isinstance(request, Subscribe) and not request.browse
        if is_taking or isinstance(request, BeginTransaction | CommitTransaction):
            raise self._refusal(type(request).__name__)

    def require(
        self, principal: Principal, operation: str, name: str = "", *, by_number: bool = False
    ) -> None:
        """See :meth:`AccessControl.require`. Raises ``NoQuorum``."""
        if operation not in READS:
            raise self._refusal(operation)
        super().require(principal, operation, name, by_number=by_number)

    def allows(
        self, principal: Principal, operation: str, name: str = "", *, by_number: bool = False
    ) -> bool:
        """See :meth:`AccessControl.allows`."""
        is_reading = operation in READS
        return is_reading and super().allows(principal, operation, name, by_number=by_number)

    def _refusal(self, asked: str) -> NoQuorum:
        return NoQuorum(
            f"{asked} has to wait: the cluster has no quorum, and here is its {self.shown}, of "
            "which events can be browsed and located only; the newest events are not in it"
        )


class SealedHistory:
    """Opened by :meth:`open`, run by :meth:`run` until cancelled."""

    def __init__(self, realm: RunningRealm, missing: Mapping[str, int]) -> None:
        self.realm = realm
        self.missing = missing
        """By store, how many events are not shown because a file with some of them, or with later
        ones, cannot be read from here."""

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
        """Recover what the newest readable snapshot tells. ``journal`` is empty and in memory, as
        are ``pages``. Raises ``NameDoesNotExist`` where no snapshot can be read, ``NewerFormat``,
        ``Unavailable``."""
        if not await blobs.list(SNAPSHOTS):
            raise NameDoesNotExist("there is no snapshot that could be read from here")
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
        there = {info.name for info in await blobs.list(SEGMENTS)}
        missing = _leave_out(recovered.state, there)
        for channel in recovered.state.channels.values():
            # What expires here leaves: where it goes to has its ids from the realm alone.
            channel.state.moves_dead = False
        realm.name = f"{name}, sealed history as of {_time(recovered.newest_us)}"
        realm.name_with(HistoryNames())
        return cls(realm, missing)

    @property
    def as_of_us(self) -> int:
        """When what is shown was true, in microseconds since 1970."""
        return self.realm.recovered.newest_us

    async def run(self) -> None:
        """Answer, and let events expire (SEM T1), until cancelled or stopped."""
        async with asyncio.TaskGroup() as tasks:
            shard = self.realm.shard
            timers = tasks.create_task(run_again(self.realm.incidents, EXPIRY, shard.timers.run))
            try:
                await shard.run()
            finally:
                timers.cancel()

    async def close(self) -> None:
        """End it."""
        self.realm.shard.stop()
        await self.realm.release()


def _leave_out(state: RealmState, there: Collection[str]) -> dict[str, int]:
    """Have each store begin behind the newest of its files that is not ``there``, so that what is
    shown has no holes; gives how many events are left out, by store."""
    missing: dict[str, int] = {}
    for channel_id, channel in state.channels.items():
        ends = [file.span.end for file in state.stores[channel_id].files if file.name not in there]
        if not ends:
            continue
        stored = channel.state.stored
        through = stored.spans[-1].end if channel.state.engine.merges and stored else max(ends)
        gone = stored.within(Span(0, through))
        if gone:
            missing[channel.state.name] = len(gone)
            state.apply(channel_id, Removed(IdSet(gone.spans).spans, Cause.DROPPED))
    return missing


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
