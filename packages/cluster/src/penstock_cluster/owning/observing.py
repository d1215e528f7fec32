"""The members of a cluster, as somebody sees them who is none of them and writes nothing.

A record alone does not tell whether its node is alive: only a counter that changes does. So the
register is looked at several times, until every member has renewed, or has had the time of a lease
to do so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from penstock_cluster.owning.agreement import disagreement
from penstock_cluster.owning.clocks import SECOND_US, MemberClocks
from penstock_cluster.owning.lease import MARGIN_US
from penstock_cluster.owning.orders import Orders
from penstock_cluster.owning.register_records import (
    ClaimRecord,
    MemberRecord,
    RegisterLook,
    read_record,
)
from penstock_core.vocabulary.node_figures import SHARD

MemberCondition = Literal["owner", "stands by", "drained", "leaving", "left", "silent", "gone"]
"""``drained``: it is there, and takes nothing until it is started again; ``silent``: it does not
renew, and its port accepts; ``gone``: nobody is at its address; ``left``: it has stopped in
order."""


class MemberSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as far as it could be seen."""

    node: str
    nonce: str
    """Tells this start of its process from others."""
    condition: MemberCondition
    version: str
    format: int
    address: str
    serves: Mapping[str, str]
    clock_ahead_s: float | None
    """How far its clock is ahead of the clock of this machine, as little as it can be; negative:
    behind; None: it has not renewed meanwhile."""
    renewed_us: int = 0
    """What its clock showed when it renewed last, in microseconds since 1970; 0: it does not
    tell."""
    unfit: str = ""
    """Why it could not take the realm over; empty: it could."""
    settings: Mapping[str, str] = {}
    """The settings that all nodes need to have alike, as it has them."""
    damages: int = 0
    """How many pieces of damage it found when it recovered the realm that it serves."""
    secret_name: str = ""
    """What it calls the secret of the cluster; empty: it does not tell."""

    @property
    def is_alive(self) -> bool:
        return self.condition in ("owner", "stands by", "drained", "leaving")

    @property
    def may_own(self) -> bool:
        """Whether it owns the realm, or would take it."""
        return self.condition == "owner" or (self.condition == "stands by" and not self.unfit)

    @property
    def counts(self) -> bool:
        """Whether it may serve the realm, now or when it wakes up."""
        return self.is_alive or self.condition == "silent"


class ClusterSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, as far as it could be seen."""

    owner: str
    """The node that has claimed the realm; empty: nobody."""
    epoch: int
    format: int
    """The format that all nodes write; 0: none has said."""
    lease_left_s: float | None
    """How long the owner's lease holds without a further renewal; None: it has not renewed."""
    members: tuple[MemberSeen, ...]
    settings: Mapping[str, str] = {}
    """Settings with which the realm was served last; empty: not known."""

    def format_all_know(self) -> int:
        """The newest format that every node knows which is there, or may be there again: one that
        is silent may be frozen. 0: there is none."""
        return min((each.format for each in self.members if each.counts), default=0)


class Observer:
    """Takes in looks at the register, and tells what they show."""

    def __init__(self, lease_s: float) -> None:
        self._lease_us = int(lease_s * SECOND_US)
        self._members: dict[str, MemberRecord] = {}
        self._claim: ClaimRecord | None = None
        self._format = 0
        self._orders = Orders()
        self._clocks = MemberClocks()
        self._first_seen_us: dict[str, int] = {}
        self._renewed_us: dict[str, int] = {}
        self._refused: set[tuple[str, str]] = set()
        self._looked_us = 0

    def looked(self, look: RegisterLook) -> None:
        """Take in what was read. Raises ``Damaged`` for records that are none of a cluster."""
        claim = look.claims.get(SHARD)
        self._claim = None if claim is None else read_record("shard/0", claim, ClaimRecord)
        self._format = look.format
        self._orders = look.orders
        seen = {
            node: read_record(f"node/{node}", record, MemberRecord)
            for node, record in look.members.items()
        }
        for node, member in seen.items():
            known = self._members.get(node)
            if known is None or known.nonce != member.nonce:
                self._first_seen_us[node] = look.ended_us
                self._renewed_us.pop(node, None)
            elif known.counter != member.counter:
                self._renewed_us[node] = look.ended_us
                age_us = look.ended_us - self._looked_us
                process = node, member.nonce
                self._clocks.compared(process, member.wall_us, look.wall_us, age_us=age_us)
        self._members = {node: each for node, each in seen.items() if not each.removed}
        self._looked_us = look.began_us

    def unseen(self) -> Iterator[MemberRecord]:
        """Members of which nobody knows yet whether they are there."""
        for node, member in self._members.items():
            if node not in self._renewed_us and not self._is_refused(member):
                yield member

    def refused(self, member: MemberRecord) -> None:
        """Note that nothing listens at the address of a member."""
        self._refused.add((member.node, member.nonce))

    def is_known(self, node: str) -> bool:
        """Whether further looks would show nothing new about one node, or it is none."""
        return node not in {member.node for member in self.unseen()}

    def is_settled(self, now_us: int) -> bool:
        """Whether further looks would show nothing new about who is there."""
        return all(
            now_us - self._first_seen_us[member.node] >= max(self._lease_us, member.lease_us)
            for member in self.unseen()
        )

    def seen(self, now_us: int) -> ClusterSeen:
        """What there is to see."""
        claim = self._claim
        renewed_us = None if claim is None else self._renewed_us.get(claim.owner)
        left_s = None
        if claim is not None and renewed_us is not None:
            until_us = renewed_us + (claim.lease_us or self._lease_us) - MARGIN_US
            left_s = max(0.0, (until_us - now_us) / SECOND_US)
        return ClusterSeen(
            owner="" if claim is None else claim.owner,
            epoch=0 if claim is None else claim.epoch,
            format=self._format,
            lease_left_s=left_s,
            members=tuple(self._seen(self._members[node]) for node in sorted(self._members)),
            settings={} if claim is None else claim.settings,
        )

    def _seen(self, member: MemberRecord) -> MemberSeen:
        ahead = self._clocks.of([(member.node, member.nonce)])
        return MemberSeen(
            node=member.node,
            nonce=member.nonce,
            condition=self._condition(member),
            version=member.version,
            format=member.format,
            address=member.address,
            serves=member.serves,
            clock_ahead_s=ahead[0] / SECOND_US if ahead else None,
            renewed_us=member.wall_us,
            unfit=self._unfit(member),
            settings=member.settings,
            secret_name=member.secret_name,
            damages=member.damages,
        )

    def _unfit(self, member: MemberRecord) -> str:
        claim = self._claim
        if claim is not None and (claim.owner, claim.nonce) == (member.node, member.nonce):
            return member.unfit
        return member.unfit or disagreement(member, claim, self._members.values())

    def _condition(self, member: MemberRecord) -> MemberCondition:
        if member.node not in self._renewed_us:
            if not self._is_refused(member):
                return "silent"
            return "left" if member.leaving else "gone"
        claim = self._claim
        if claim is not None and (claim.owner, claim.nonce) == (member.node, member.nonce):
            return "owner"
        if self._orders.is_drained((member.node, member.nonce)):
            return "drained"
        return "leaving" if member.leaving else "stands by"

    def _is_refused(self, member: MemberRecord) -> bool:
        return (member.node, member.nonce) in self._refused
