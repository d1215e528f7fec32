"""Engine servers in memory, with the records of two nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock_cluster.owning.register_records import ClaimRecord, MemberRecord
from penstock_core.vocabulary.ports import VersionedRecord
from penstock_server.runtime.writer.clock import SystemClock
from penstock_testing.engine import EngineServers, MemoryInspector

ENGINE = "nats://a,b,c"


SETTINGS = {"access.mode": "mandatory", "cluster.lease_s": "6.0"}


class Renewing(MemoryInspector):
    """Each look finds every node renewed, but for those whose record says that they do not."""

    looks = 0

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        found = await super().records(prefix)
        if prefix != "node/":
            return found
        self.looks += 1
        wall_us = SystemClock().now_us()
        return {
            key: record if is_silent(record) else _renewed(record, self.looks, wall_us)
            for key, record in found.items()
        }


def is_silent(record: VersionedRecord) -> bool:
    """Whether the node of a record renews nothing."""
    return msgspec.json.decode(record.value).get("renews") is False


def _renewed(record: VersionedRecord, counter: int, wall_us: int) -> VersionedRecord:
    member = msgspec.json.decode(record.value, type=MemberRecord)
    renewed = msgspec.structs.replace(member, counter=counter, wall_us=wall_us)
    return VersionedRecord(record.version, msgspec.json.encode(renewed))


async def fill(servers: EngineServers, **more: Any) -> None:
    """Two nodes, of which the first one owns."""
    for name in ("n1", "n2"):
        record = MemberRecord(name, f"{name}!", serves={}, version="1.0", settings=SETTINGS, **more)
        await servers.records.cas(f"node/{name}", 0, msgspec.json.encode(record))
    claim = ClaimRecord("n1", "n1!", 4, format=1, confirmed=1, settings=SETTINGS)
    await servers.records.cas("shard/0", 0, msgspec.json.encode(claim))
    await servers.records.cas("cluster/format", 0, b"1")
