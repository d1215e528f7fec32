"""Engine servers in memory, with the records of two nodes, that commands find as a kind of
engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock_cluster.bootstrap.storage_engines import GROUP, EngineKind
from penstock_cluster.owning.register_records import ClaimRecord, MemberRecord
from penstock_core.vocabulary.ports import Clock, VersionedRecord
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.settings import ClusterSettings
from penstock_testing.engine import EngineServers, MemoryEngine, MemoryInspector

ENGINE = "memory://a,b,c"


SETTINGS = {"access.mode": "mandatory", "cluster.lease_s": "6.0"}


class Renewing(MemoryInspector):
    """An inspector that shows every node as just renewed, except those whose record is marked as
    silent."""

    reads = 0

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        records = await super().records(prefix)
        if prefix != "node/":
            return records
        self.reads += 1
        wall_us = SystemClock().now_us()
        return {
            key: record if is_silent(record) else _renewed(record, self.reads, wall_us)
            for key, record in records.items()
        }


class InspectedKind(EngineKind):
    """The engine servers of a test as a kind of engine."""

    servers: EngineServers
    inspector_type: type[MemoryInspector]

    async def open(
        self, urls: Sequence[str], settings: ClusterSettings, clock: Clock
    ) -> MemoryEngine:
        return MemoryEngine(self.servers)

    def inspector(
        self, urls: Sequence[str], settings: ClusterSettings, clock: Clock
    ) -> MemoryInspector:
        return self.inspector_type(self.servers)


KIND = InspectedKind()


def register(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    servers: EngineServers,
    inspector_type: type[MemoryInspector],
) -> None:
    """Make commands find these servers at :data:`ENGINE`, as if a package with this kind of engine
    were installed."""
    KIND.servers, KIND.inspector_type = servers, inspector_type
    distribution = folder / "memory_engine-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Name: memory-engine\nVersion: 1.0\n")
    entry_points = f"[{GROUP}]\nmemory = {__name__}:KIND\n"
    (distribution / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(folder)


def is_silent(record: VersionedRecord) -> bool:
    """Whether the record marks its node as silent."""
    return msgspec.json.decode(record.value).get("renews") is False


def _renewed(record: VersionedRecord, counter: int, wall_us: int) -> VersionedRecord:
    member = msgspec.json.decode(record.value, type=MemberRecord)
    renewed = msgspec.structs.replace(member, counter=counter, wall_us=wall_us)
    return VersionedRecord(record.version, msgspec.json.encode(renewed))


async def fill(servers: EngineServers, **more: Any) -> None:
    """Add two nodes to the register, of which the first is the owner."""
    for name in ("n1", "n2"):
        record = MemberRecord(name, f"{name}!", serves={}, version="1.0", settings=SETTINGS, **more)
        await servers.records.cas(f"node/{name}", 0, msgspec.json.encode(record))
    claim = ClaimRecord("n1", "n1!", 4, format=1, confirmed=1, settings=SETTINGS)
    await servers.records.cas("shard/0", 0, msgspec.json.encode(claim))
    await servers.records.cas("cluster/format", 0, b"1")
