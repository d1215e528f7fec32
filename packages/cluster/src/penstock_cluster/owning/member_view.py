"""The members of a cluster as seen by an observer that is not a member and writes nothing.

A record alone does not show whether its node is alive; only a counter that changes does. So the
observer polls the register until every member has renewed, or has had the time of a lease to do so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from penstock_cluster.owning.agreement import disagreement
from penstock_cluster.owning.clocks import SECOND_US, MemberClocks
from penstock_cluster.owning.lease import MARGIN_US
from penstock_cluster.owning.operator_orders import Orders
from penstock_cluster.owning.register_records import (
    ClaimRecord,
    MemberRecord,
    RegisterPoll,
    read_record,
)
from penstock_core.vocabulary.node_figures import SHARD

MemberCondition = Literal["owner", "stands by", "drained", "leaving", "left", "silent", "gone"]
"""``drained``: alive, and takes no shard until it is restarted; ``silent``: does not renew, but its
port accepts connections; ``gone``: its address refuses connections; ``left``: it has shut down in
an orderly way."""


class MemberSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as far as the register and its port show it."""

    node: str
    nonce: str
    """Identifies this start of the node's process."""
    condition: MemberCondition
    version: str
    format: int
    address: str
    serves: Mapping[str, str]
    clock_ahead_s: float | None
    """Smallest possible offset of the node's clock from this machine's; negative if behind. None if
    the node has not renewed its lease during the observation."""
    renewed_us: int = 0
    """Time of the node's latest lease renewal, by the node's clock, in microseconds since 1970; 0
    if unknown."""
    unfit: str = ""
    """Reason why the node could not take over the realm; empty if it could."""
    settings: Mapping[str, str] = {}
    """The node's values of the settings that must be equal on all nodes."""
    damages: int = 0
    """Number of pieces of damage that the node found when it recovered the realm that it serves."""
    secret_name: str = ""
    """Public name of the cluster secret that the node uses; empty if unknown."""

    @property
    def is_alive(self) -> bool:
        return self.condition in ("owner", "stands by", "drained", "leaving")

    @property
    def may_own(self) -> bool:
        """Whether the node owns the realm, or would take it over."""
        return self.condition == "owner" or (self.condition == "stands by" and not self.unfit)

    @property
    def may_serve(self) -> bool:
        """Whether the member may serve the realm, now or after a suspended process has resumed."""
        return self.is_alive or self.condition == "silent"


class ClusterSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cluster, as far as it can be derived from its register and from connection
    attempts to its nodes."""

    owner: str
    """Node that has claimed the realm; empty if none has."""
    epoch: int
    format: int
    """Format that all nodes write; 0 if not recorded."""
    lease_left_s: float | None
    """Seconds until the owner's lease ends without a further renewal; None if the owner has not
    renewed it."""
    members: tuple[MemberSeen, ...]
    settings: Mapping[str, str] = {}
    """Settings of the realm's last owner; empty if unknown."""

    def format_all_know(self) -> int:
        """Return the newest format known to all live and all silent (perhaps frozen) nodes; 0
        without any."""
        return min((member.format for member in self.members if member.may_serve), default=0)


class Observer:
    """Derives the state of a cluster from several polls of its register."""

    def __init__(self, lease_s: float) -> None:
        self._lease_us = int(lease_s * SECOND_US)
        self._members: dict[str, MemberRecord] = {}
        self._claim: ClaimRecord | None = None
        self._format = 0
        self._orders = Orders()
        self._clocks = MemberClocks()
        self._first_seen_us: dict[str, int] = {}
        """Time when the process of a node was seen first, by node."""
        self._renewed_us: dict[str, int] = {}
        """Time when a renewal of a node was seen, by node; absent before the first one."""
        self._refused: set[tuple[str, str]] = set()
        """Processes whose address has refused a connection."""
        self._polled_us = 0
        """Start of the latest poll."""

    def apply_poll(self, poll: RegisterPoll) -> None:
        """Apply the records of one poll. Raises ``Damaged`` for records that are not valid."""
        claim = poll.claims.get(SHARD)
        self._claim = None if claim is None else read_record("shard/0", claim, ClaimRecord)
        self._format = poll.format
        self._orders = poll.orders
        seen = {
            node: read_record(f"node/{node}", record, MemberRecord)
            for node, record in poll.members.items()
        }
        for node, member in seen.items():
            before = self._members.get(node)
            if before is None or before.nonce != member.nonce:
                self._first_seen_us[node] = poll.ended_us
                self._renewed_us.pop(node, None)
            elif before.counter != member.counter:
                self._renewed_us[node] = poll.ended_us
                age_us = poll.ended_us - self._polled_us
                process = node, member.nonce
                self._clocks.compare(process, member.wall_us, poll.wall_us, age_us=age_us)
        self._members = {node: member for node, member in seen.items() if not member.removed}
        self._polled_us = poll.began_us

    def without_sign_of_life(self) -> Iterator[MemberRecord]:
        """Yield members that have neither renewed nor refused a connection so far."""
        for node, member in self._members.items():
            if node not in self._renewed_us and not self._is_refused(member):
                yield member

    def record_refusal(self, member: MemberRecord) -> None:
        """Record that no process listens at the address of a member."""
        self._refused.add((member.node, member.nonce))

    def is_known(self, node: str) -> bool:
        """Return whether a node has shown that it is alive or dead, or is not a member: further
        polls cannot change this."""
        return node not in {member.node for member in self.without_sign_of_life()}

    def is_complete(self, now_us: int) -> bool:
        """Return whether further polls would show nothing new about the live nodes."""
        return all(
            now_us - self._first_seen_us[member.node] >= max(self._lease_us, member.lease_us)
            for member in self.without_sign_of_life()
        )

    def seen(self, now_us: int) -> ClusterSeen:
        """Return the state of the cluster as observed up to now."""
        claim = self._claim
        renewed_us = None if claim is None else self._renewed_us.get(claim.owner)
        remaining_s = None
        if claim is not None and renewed_us is not None:
            until_us = renewed_us + (claim.lease_us or self._lease_us) - MARGIN_US
            remaining_s = max(0.0, (until_us - now_us) / SECOND_US)
        return ClusterSeen(
            owner="" if claim is None else claim.owner,
            epoch=0 if claim is None else claim.epoch,
            format=self._format,
            lease_left_s=remaining_s,
            members=tuple(self._view_of(self._members[node]) for node in sorted(self._members)),
            settings={} if claim is None else claim.settings,
        )

    def _view_of(self, member: MemberRecord) -> MemberSeen:
        """Return a member as observed up to now."""
        ahead = self._clocks.ahead_us([(member.node, member.nonce)])
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
        """Return why a member could not take over the realm; empty if it could."""
        claim = self._claim
        # The owner's settings are those of the realm, so they are not compared.
        if claim is not None and (claim.owner, claim.nonce) == (member.node, member.nonce):
            return member.unfit
        return member.unfit or disagreement(member, claim, self._members.values())

    def _condition(self, member: MemberRecord) -> MemberCondition:
        """Return the condition of a member, from the records read so far and from refused
        connections."""
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
