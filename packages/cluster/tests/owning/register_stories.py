"""A few nodes with a register, in virtual time, for tests of ownership."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock_cluster.owning.claims import Claims
from penstock_cluster.owning.clocks import SECOND_US
from penstock_cluster.owning.lease import Lease
from penstock_cluster.owning.operator_orders import Orders
from penstock_cluster.owning.register_records import (
    MEMBERS,
    SHARDS,
    ClaimRecord,
    MemberRecord,
    RegisterPoll,
    RegisterWrite,
)
from penstock_core.vocabulary.ports import VersionedRecord

LEASE_S = 6
NAMES = ("ann", "bob", "cem")


class Register:
    """Records that are changed by compare-and-set."""

    def __init__(self) -> None:
        self.records: dict[str, VersionedRecord] = {}

    def write(self, write: RegisterWrite) -> int | None:
        """Change a record; return its new version, or None if another node was faster."""
        held = self.records.get(write.key)
        if write.expected != (held.version if held else 0):
            return None
        self.records[write.key] = VersionedRecord(write.expected + 1, write.value)
        return write.expected + 1

    def claims(self) -> dict[int, VersionedRecord]:
        return {
            int(key.removeprefix(SHARDS)): record
            for key, record in self.records.items()
            if key.startswith(SHARDS)
        }

    def members(self) -> dict[str, VersionedRecord]:
        return {
            key.removeprefix(MEMBERS): record
            for key, record in self.records.items()
            if key.startswith(MEMBERS)
        }

    def claim(self, shard: int = 0) -> ClaimRecord:
        return msgspec.json.decode(self.records[f"{SHARDS}{shard}"].value, type=ClaimRecord)


class Cluster:
    """Nodes with one register, whose monotonic clocks show the same time."""

    def __init__(self, *names: str, shards: int = 1) -> None:
        self.now_us = 1_000 * SECOND_US
        self.register = Register()
        self.nodes: dict[str, Claims] = {}
        self.shards = shards
        self.ahead_s: dict[str, float] = {}
        """Seconds by which the wall clock of each node is ahead."""
        self.format = 0
        self.orders = Orders()
        self.settings: Mapping[str, str] = {}
        """Settings of nodes that are started without any."""
        for name in names:
            self.start(name)

    def start(
        self,
        name: str,
        nonce: str = "first",
        *,
        format: int = 1,
        settings: Mapping[str, str] | None = None,
        lease_s: float = LEASE_S,
    ) -> Claims:
        me = MemberRecord(
            name, nonce, address=f"{name}:1", format=format, settings=settings or self.settings
        )
        self.nodes[name] = Claims(me, range(self.shards), Lease(lease_s))
        return self.nodes[name]

    def read_register(self, name: str) -> None:
        register = self.register
        poll = RegisterPoll(
            register.claims(),
            register.members(),
            self.now_us,
            ended_us=self.now_us,
            wall_us=self.wall_us(name),
            format=self.format,
            orders=self.orders,
        )
        self.nodes[name].apply_poll(poll)

    def wall_us(self, name: str) -> int:
        return 10**15 + self.now_us + int(self.ahead_s.get(name, 0) * SECOND_US)

    def turn(self, *names: str) -> None:
        """Let each node read the register and write what is due, until nothing is due."""
        for name in names:
            node = self.nodes[name]
            self.read_register(name)
            while writes := node.due(self.now_us, self.wall_us(name)):
                for write in writes:
                    if not self.answer(name, write):
                        self.read_register(name)

    def ask(self, name: str) -> list[RegisterWrite]:
        """Return the write that is due at a node; it has not reached the register yet."""
        self.read_register(name)
        return self.nodes[name].due(self.now_us, self.wall_us(name))

    def answer(self, name: str, write: RegisterWrite) -> bool:
        """Let a write reach the register and its answer reach the node; return whether it
        succeeded."""
        version = self.register.write(write)
        if version is not None:
            self.nodes[name].wrote(write, version, self.now_us)
        return version is not None

    def join(self, *names: str) -> None:
        """Make all nodes members before any of them claims a shard."""
        for name in names:
            (renewal,) = self.ask(name)
            self.answer(name, renewal)

    def live(self, seconds: float, *names: str) -> None:
        """Let time pass; the named nodes have a turn every half second."""
        for _ in range(int(seconds * 2)):
            self.now_us += SECOND_US // 2
            self.turn(*names)

    def holders(self, shard: int = 0) -> list[str]:
        return [name for name, node in self.nodes.items() if node.holds(shard, self.now_us)]


def two() -> tuple[Cluster, str, str]:
    """Return a cluster of two nodes, its owner, and the other node."""
    cluster = Cluster("ann", "bob")
    cluster.join("ann", "bob")
    cluster.live(4, "ann", "bob")
    (owner,) = cluster.holders()
    return cluster, owner, "bob" if owner == "ann" else "ann"
