"""Observe a cluster from outside. The observer reads the register until it knows which nodes are
live, reads the state of the engine, and tries to connect to the ports of the nodes. It changes
nothing and does not become a member."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from penstock_cluster.nodes.node import orders_of
from penstock_cluster.nodes.probing import failure_at, is_refused
from penstock_cluster.owning.member_view import ClusterSeen, MemberSeen, Observer
from penstock_cluster.owning.operator_orders import ORDERS_KEY
from penstock_cluster.owning.register_records import (
    FORMAT_KEY,
    MEMBERS,
    SHARDS,
    ClaimRecord,
    RegisterPoll,
    read_record,
)
from penstock_core.vocabulary.errors import Damaged, PenstockError, Unavailable
from penstock_core.vocabulary.node_figures import SHARD
from penstock_core.vocabulary.ports import (
    Clock,
    EngineCheck,
    EngineHealth,
    EngineInspector,
    EngineServer,
    VersionedRecord,
)

POLL_S: Final = 0.2
"""Pause between two polls of the register, in seconds."""
COMMON: Final = "cluster/"
"""Prefix of the keys that all nodes share: the format, and the orders of operators."""
PORT_S: Final = 3.0
"""Seconds within which a port has to accept a connection."""


class ClusterState(Struct, frozen=True, kw_only=True):
    """A cluster and its engine at a moment."""

    seen: ClusterSeen | None
    """The observed cluster; None if the engine has no cluster of that name."""
    health: EngineHealth
    servers: Sequence[EngineServer]


class PortReached(Struct, frozen=True):
    """A port that a node serves, and whether it could be reached from this machine."""

    node: str
    url: str
    failure: str
    """Reason why the port could not be reached; empty if it accepts connections."""


class ClusterExamined(Struct, frozen=True, kw_only=True):
    """The results of all checks of a cluster."""

    seen: ClusterSeen | None
    failure: str
    """Reason why the register could not be read; empty if it could."""
    checks: Sequence[EngineCheck]
    ports: Sequence[PortReached]
    servers: Sequence[EngineServer] = ()
    clusters: Sequence[str] = ()
    """Names of all clusters on the engine."""


async def observe(
    inspector: EngineInspector, clock: Clock, lease_s: float, *, only: str = ""
) -> ClusterSeen | None:
    """Poll the register until it shows which nodes are alive; with ``only``, until it shows whether
    that node is alive.

    Takes at most the time of one lease. Returns None if the cluster does not exist. Raises
    ``Unavailable``, ``Damaged``.
    """
    observer = Observer(lease_s)
    while True:
        began_us = clock.steady_us()
        records: dict[str, VersionedRecord] = {}
        for prefix in (COMMON, SHARDS, MEMBERS):
            records |= await inspector.records(prefix)
        poll = _register_poll(records, began_us, clock)
        if not (poll.members or poll.claims or poll.format):
            return None
        observer.apply_poll(poll)
        # A dead process is recognized immediately by its port, without waiting for its lease.
        for member in list(observer.without_sign_of_life()):
            if member.address and await is_refused(member.address):
                observer.record_refusal(member)
        now_us = clock.steady_us()
        if observer.is_complete(now_us) or (only and observer.is_known(only)):
            return observer.seen(clock.steady_us())
        await asyncio.sleep(POLL_S)


async def state_of(inspector: EngineInspector, clock: Clock, lease_s: float) -> ClusterState:
    """Return the state of a cluster and its engine. Raises ``Unavailable``, ``Damaged``."""
    seen = await observe(inspector, clock, lease_s)
    servers = await inspector.servers()
    return ClusterState(seen=seen, health=await inspector.health(), servers=servers)


async def examine(inspector: EngineInspector, clock: Clock, lease_s: float) -> ClusterExamined:
    """Check everything that could be wrong with a cluster, even if some checks fail."""
    # Concurrently, because each waits for servers that are down.
    async with asyncio.TaskGroup() as tasks:
        checks_task = tasks.create_task(inspector.checks(SHARD))
        observe_task = tasks.create_task(_try_to_observe(inspector, clock, lease_s))
        servers_task = tasks.create_task(inspector.servers())
    seen, failure = observe_task.result()
    clusters: Sequence[str] = ()
    if not failure:
        with suppress(PenstockError):  # a user of the engine may not be allowed to list them
            clusters = await inspector.clusters()
    return ClusterExamined(
        seen=seen,
        failure=failure,
        checks=checks_task.result(),
        ports=[] if seen is None else await _probe_ports(seen.members),
        servers=servers_task.result(),
        clusters=clusters,
    )


async def _try_to_observe(
    inspector: EngineInspector, clock: Clock, lease_s: float
) -> tuple[ClusterSeen | None, str]:
    """Return the cluster, and why its register could not be read (empty if it could)."""
    try:
        return await observe(inspector, clock, lease_s), ""
    except (Unavailable, Damaged) as error:
        return None, f"{error}"


async def claim_in(inspector: EngineInspector) -> ClaimRecord | None:
    """Return the newest claim of the realm; None before the first one. Raises ``Unavailable``,
    ``Damaged``."""
    key = f"{SHARDS}{SHARD}"
    record = (await inspector.records(key)).get(key)
    return None if record is None else read_record(key, record, ClaimRecord)


def _register_poll(
    records: Mapping[str, VersionedRecord], began_us: int, clock: Clock
) -> RegisterPoll:
    """Return records of the register as one poll that began at ``began_us``. Raises ``Damaged``."""
    claim, format = records.get(f"{SHARDS}{SHARD}"), records.get(FORMAT_KEY)
    if format is not None and not format.value.isdigit():
        raise Damaged(f"{FORMAT_KEY} in the register is {format.value!r}; it must be a number")
    return RegisterPoll(
        {} if claim is None else {SHARD: claim},
        {
            key.removeprefix(MEMBERS): record
            for key, record in records.items()
            if key.startswith(MEMBERS)
        },
        began_us,
        ended_us=clock.steady_us(),
        wall_us=clock.now_us(),
        format=0 if format is None else int(format.value),
        orders=orders_of(records.get(ORDERS_KEY)),
    )


async def _probe_ports(members: Sequence[MemberSeen]) -> list[PortReached]:
    """Connect to every port of the live members."""
    places = [
        (member.node, url)
        for member in members
        if member.is_alive
        for url in member.serves.values()
    ]
    async with asyncio.TaskGroup() as tasks:
        probes = [tasks.create_task(_failure_at(url)) for _, url in places]
    return [
        PortReached(node, url, task.result())
        for (node, url), task in zip(places, probes, strict=True)
    ]


async def _failure_at(url: str) -> str:
    """Return why a port cannot be reached; empty if it accepts connections."""
    parts = urlsplit(url)
    failure = await failure_at(parts.hostname or "", parts.port or 0, PORT_S)
    if isinstance(failure, TimeoutError):
        return f"no answer for {PORT_S:.0f} s"
    return "" if failure is None else f"{failure.strerror or failure}"
