"""Looks at a cluster from outside: its register for as long as it takes to know who is there, its
engine, and the ports of its nodes. Nothing is changed, and nobody becomes a member."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from penstock_cluster.nodes.node import orders_of
from penstock_cluster.nodes.probing import failure_at, is_refused
from penstock_cluster.owning.observing import ClusterSeen, MemberSeen, Observer
from penstock_cluster.owning.orders import ORDERS_KEY
from penstock_cluster.owning.register_records import (
    FORMAT_KEY,
    MEMBERS,
    SHARDS,
    ClaimRecord,
    RegisterLook,
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

LOOK_S: Final = 0.2
COMMON: Final = "cluster/"
"""Where the register has what all nodes share: the format, and what people ask of them."""
PORT_S: Final = 3.0
"""How long a port may take to accept a connection."""


class ClusterState(Struct, frozen=True, kw_only=True):
    """A cluster and its engine at a moment."""

    seen: ClusterSeen | None
    """None: there is no cluster of that name on the engine."""
    health: EngineHealth
    servers: Sequence[EngineServer]


class PortReached(Struct, frozen=True):
    """A port that a node serves, and whether it could be reached from here."""

    node: str
    url: str
    failure: str
    """Empty where it accepts connections."""


class ClusterExamined(Struct, frozen=True, kw_only=True):
    """All that can be wrong with a cluster, looked at."""

    seen: ClusterSeen | None
    failure: str
    """Why the register could not be read; empty where it could."""
    checks: Sequence[EngineCheck]
    ports: Sequence[PortReached]
    servers: Sequence[EngineServer] = ()
    clusters: Sequence[str] = ()
    """The names of all clusters on the engine."""


async def observe(
    inspector: EngineInspector, clock: Clock, lease_s: float, *, only: str = ""
) -> ClusterSeen | None:
    """Look at the register until it is clear who is there, or whether ``only`` this node is, which
    takes as long as a lease at most; None: there is no cluster. Raises ``Unavailable``,
    ``Damaged``."""
    observer = Observer(lease_s)
    while True:
        began_us = clock.steady_us()
        records: dict[str, VersionedRecord] = {}
        for prefix in (COMMON, SHARDS, MEMBERS):
            records |= await inspector.records(prefix)
        look = _look(records, began_us, clock)
        if not (look.members or look.claims or look.format):
            return None
        observer.looked(look)
        for member in list(observer.unseen()):
            if member.address and await is_refused(member.address):
                observer.refused(member)
        now_us = clock.steady_us()
        if observer.is_settled(now_us) or (only and observer.is_known(only)):
            return observer.seen(clock.steady_us())
        await asyncio.sleep(LOOK_S)


async def state_of(inspector: EngineInspector, clock: Clock, lease_s: float) -> ClusterState:
    """The cluster and its engine, for people. Raises ``Unavailable``, ``Damaged``."""
    seen = await observe(inspector, clock, lease_s)
    servers = await inspector.servers()
    return ClusterState(seen=seen, health=await inspector.health(), servers=servers)


async def examine(inspector: EngineInspector, clock: Clock, lease_s: float) -> ClusterExamined:
    """Look at everything that could be wrong, also where something is."""
    async with asyncio.TaskGroup() as tasks:  # where servers are down each of them takes its time
        checking = tasks.create_task(inspector.checks(SHARD))
        observing = tasks.create_task(_observed(inspector, clock, lease_s))
        serving = tasks.create_task(inspector.servers())
    seen, failure = observing.result()
    clusters: Sequence[str] = ()
    if not failure:
        with suppress(PenstockError):  # a user of the engine may not be allowed to list them
            clusters = await inspector.clusters()
    return ClusterExamined(
        seen=seen,
        failure=failure,
        checks=checking.result(),
        ports=[] if seen is None else await _reach(seen.members),
        servers=serving.result(),
        clusters=clusters,
    )


async def _observed(
    inspector: EngineInspector, clock: Clock, lease_s: float
) -> tuple[ClusterSeen | None, str]:
    """The cluster, and why its register could not be read; empty: it could."""
    try:
        return await observe(inspector, clock, lease_s), ""
    except (Unavailable, Damaged) as error:
        return None, f"{error}"


async def claim_in(inspector: EngineInspector) -> ClaimRecord | None:
    """The newest claim of the realm; None: there has been none. Raises ``Unavailable``,
    ``Damaged``."""
    key = f"{SHARDS}{SHARD}"
    found = (await inspector.records(key)).get(key)
    return None if found is None else read_record(key, found, ClaimRecord)


def _look(records: Mapping[str, VersionedRecord], began_us: int, clock: Clock) -> RegisterLook:
    claim, format = records.get(f"{SHARDS}{SHARD}"), records.get(FORMAT_KEY)
    if format is not None and not format.value.isdigit():
        raise Damaged(f"{FORMAT_KEY} in the register is {format.value!r}; it has to be a number")
    return RegisterLook(
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


async def _reach(members: Sequence[MemberSeen]) -> list[PortReached]:
    """Connect to every port of the members that are there."""
    places = [(each.node, url) for each in members if each.is_alive for url in each.serves.values()]
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(_failure_at(url)) for _, url in places]
    return [
        PortReached(node, url, task.result())
        for (node, url), task in zip(places, asked, strict=True)
    ]


async def _failure_at(url: str) -> str:
    """Why nobody can be reached there; empty: somebody can."""
    parts = urlsplit(url)
    failure = await failure_at(parts.hostname or "", parts.port or 0, PORT_S)
    if isinstance(failure, TimeoutError):
        return f"no answer for {PORT_S:.0f} s"
    return "" if failure is None else f"{failure.strerror or failure}"
