"""The members of a cluster and the shards they own, decided from the contents of the register.

This module does no I/O: :meth:`Claims.apply_poll` gets the records that were read,
:meth:`Claims.due` returns the writes to make, and :meth:`Claims.wrote` gets their answers. Every
written value names its writer. So if an answer is lost, or a write is refused because an earlier
attempt succeeded, the next poll of the register shows the outcome.

Two rules ensure that no two nodes rely on one shard at the same time, as long as clocks run equally
fast up to the margin of a lease:

* A node that waits for the end of a lease reads the claims first and the members' counters after
that, and writes a claim on top of exactly the version it has read.

* A node whose lease has run out renews it and then rewrites its claims, so that a node that has
seen the end can no longer succeed. Until that write is answered the claims do not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from penstock_cluster.owning.agreement import disagreement
from penstock_cluster.owning.clocks import (
    APART_US_MAX,
    Incarnation,
    MemberClocks,
    farthest_offset,
    median_offset,
)
from penstock_cluster.owning.lease import Lease
from penstock_cluster.owning.operator_orders import MoveOrder, Orders
from penstock_cluster.owning.register_records import (
    MEMBERS,
    SHARDS,
    ClaimRecord,
    MemberRecord,
    RegisterPoll,
    RegisterWrite,
)
from penstock_core.vocabulary.node_figures import NodeFigures, Why
from penstock_core.vocabulary.ports import VersionedRecord


class Owned(NamedTuple):
    """A shard that this node has claimed."""

    epoch: int
    term: int
    """Term of the lease at the time of the claim."""


class _PendingWrite(NamedTuple):
    """A write that was sent and not answered yet."""

    write: RegisterWrite
    began_us: int
    """Time when it was sent, on the steady clock."""
    term: int
    """Term of the lease when it was sent."""


class _Watched(NamedTuple):
    """The latest renewal of a process that this node has seen."""

    counter: int
    since_us: int
    """Time when this value of the counter was seen first, on the steady clock."""


class Claims:
    """One node's view of the owners of shards, and its own claims."""

    def __init__(self, me: MemberRecord, shards: Sequence[int], lease: Lease) -> None:
        self.me = msgspec.structs.replace(me, lease_us=lease.length_us)
        self.lease = lease
        self.owned: dict[int, Owned] = {}
        """Shards that this node owns according to the register, by shard."""
        self.is_replaced = False
        """Whether another process has taken this node's name; this process owns nothing then."""
        self.rival: MemberRecord | None = None
        """An earlier process with this node's name that still renews its lease; this one does not
        join."""
        self._rival_renewals = 0
        self.members: dict[str, MemberRecord] = {}
        self.claims: dict[int, ClaimRecord] = {}
        self.reasons: dict[int, Why] = {}
        """Reason for this node's latest claim, by shard."""
        self.format = 0
        """Format that all nodes write; 0 before the first poll."""
        self.orders = Orders()
        """Orders of operators to the nodes."""
        self._ordered_us: dict[int, int] = {}
        """Time when the order to move a shard was seen first, by shard."""
        self._clocks = MemberClocks()
        self._shards = list(shards)
        self._versions: dict[str, int] = {}
        """Newest version of each record in the register, by key; a write replaces this version."""
        self._pending: dict[str, _PendingWrite] = {}
        """Unanswered writes, by key."""
        self._watched: dict[Incarnation, _Watched] = {}
        self._refused_us: dict[Incarnation, int] = {}
        """Time at which the address of a process refused a connection."""
        self._free_since_us: dict[int, int] = {}
        """Time from which a shard was seen without an owner, by shard."""
        self._giving_up: set[int] = set()
        """Owned shards whose release is due or being written."""
        self._given_up: set[int] = set()
        """Shards that this node has released; other nodes are preferred for them."""
        self._has_joined = False
        """Whether a renewal of this process was stored."""
        self._renewal_began_us: int | None = None
        """Time when the latest renewal was sent; None if a renewal is due immediately."""
        self._polled_us: int | None = None
        """Start of the latest poll; its contents are at least as new."""

    # --- owned shards --------------------------------------------------------------------

    def holds(self, shard: int, steady_us: int) -> bool:
        """Return whether this node owns a shard and no other node can own it at this moment."""
        owned = self.owned.get(shard)
        if owned is None or shard in self._giving_up:
            return False
        if self.orders.moves and self._is_taken_away(shard, steady_us):
            return False
        # A claim of an earlier term has to be confirmed before it holds.
        return owned.term == self.lease.term and self.lease.holds(steady_us)

    def owner(self, shard: int, now_us: int) -> MemberRecord | None:
        """Return the process that serves a shard, as far as this node knows. None if no node serves
        it, or if its owner has died or its lease has run out."""
        claim = self.claims.get(shard)
        member = None if claim is None else self.members.get(claim.owner)
        if claim is None or member is None or member.nonce != claim.nonce:
            return None
        incarnation = claim.owner, claim.nonce
        watched = self._watched.get(incarnation)
        is_silent = watched is None or now_us - watched.since_us >= self._lease_us(member)
        is_gone = incarnation != self._process and (is_silent or incarnation in self._refused_us)
        return None if is_gone else member

    def present(self, now_us: int) -> list[MemberRecord]:
        """Return the live processes that are not leaving, as far as this node knows, sorted by
        node."""
        present = []
        for member in self.members.values():
            incarnation = member.node, member.nonce
            watched = self._watched.get(incarnation)
            is_silent = watched is None or now_us - watched.since_us >= self._lease_us(member)
            is_gone = is_silent or incarnation in self._refused_us
            if incarnation == self._process or not (is_gone or member.leaving):
                present.append(member)
        return sorted(present, key=lambda member: member.node)

    def writes(self, shard: int) -> int:
        """Return the format of an owned shard's records. It is the one in its claim, because
        a node that does not know that format cannot claim the shard."""
        claim = self.claims.get(shard)
        return self.me.format if claim is None else min(claim.format, self.me.format)

    def nodes_behind(self, format: int) -> tuple[str, ...]:
        """Return the nodes that do not know ``format``, each with its version. Silent nodes are
        included: they may be frozen, and wake up."""
        older = (member for member in self.members.values() if member.format < format)
        return tuple(
            f"{member.node} ({member.version or 'version unknown'}, format {member.format})"
            for member in sorted(older, key=lambda member: member.node)
            if not (member.removed or member.leaving)
        )

    def give_up(self, shard: int) -> None:
        """Release a shard that this node no longer serves, so that another node can claim it at
        once."""
        if shard in self.owned:
            self._giving_up.add(shard)

    def to_hand_over(self, now_us: int) -> Iterator[int]:
        """Yield owned shards that orders assign to another node, if that node can take them."""
        for shard, owned in self.owned.items():
            others = self._able_processes(self.claims.get(shard), now_us)
            move = self.orders.move_of(shard, owned.epoch)
            is_moved = move is not None and not move.by_force and move.process in others
            if is_moved or (others and self.orders.is_drained(self._process)):
                yield shard

    def _is_taken_away(self, shard: int, now_us: int) -> bool:
        """Return whether another process is about to claim an owned shard by force."""
        claim = self.claims.get(shard)
        move = self._move_of(shard, claim)
        return (
            move is not None
            and move.by_force
            and move.process in self._able_processes(claim, now_us)
        )

    def waiting_us(self, now_us: int) -> int:
        """Return how long the oldest unanswered write has waited, in microseconds; 0 without
        one."""
        return max((now_us - pending.began_us for pending in self._pending.values()), default=0)

    def leave(self) -> None:
        """Claim no more shards. The caller still has to give up the owned shards."""
        self.me = msgspec.structs.replace(self.me, leaving=True)
        # The change is published immediately, by a renewal that is due now.
        self._renewal_began_us = None

    def disagreement(self, shard: int) -> str:
        """Return why this node's settings keep it from claiming a shard; empty if they do not."""
        claim = self.claims.get(shard)
        is_owner = claim is not None and (claim.owner, claim.nonce) == self._process
        return "" if is_owner else self._disagreement(self.me, claim)

    def unfit(self, member: MemberRecord, shard: int) -> str:
        """Return why a member could not serve a shard; empty if it could."""
        claim = self.claims.get(shard)
        if claim is not None and (claim.owner, claim.nonce) == (member.node, member.nonce):
            return member.unfit
        return member.unfit or self._disagreement(member, claim)

    def _disagreement(self, member: MemberRecord, claim: ClaimRecord | None) -> str:
        return disagreement(member, claim, [*self.members.values(), self.me])

    def note_unfit(self, reason: str) -> None:
        """Publish why this node cannot serve, and claim nothing until ``reason`` is empty again."""
        self.me = msgspec.structs.replace(self.me, unfit=reason)
        self._renewal_began_us = None

    def note_damages(self, count: int) -> None:
        """Publish the number of damages found in the realm that this node serves."""
        if count != self.me.damages:
            self.me = msgspec.structs.replace(self.me, damages=count)
            self._renewal_began_us = None

    def withdraw(self, write: RegisterWrite) -> None:
        """Forget a write that was due but was not sent."""
        pending = self._pending.get(write.key)
        if pending is not None and pending.write == write:
            del self._pending[write.key]

    def record_refusal(self, node: str, nonce: str, now_us: int) -> None:
        """Record that nothing listens at the address of a process, so that its lease counts as
        ended."""
        self._refused_us.setdefault((node, nonce), now_us)

    def late_owners(self) -> Iterator[MemberRecord]:
        """Yield owners that have not renewed for a while. Probing them costs little, and a killed
        owner is replaced sooner."""
        for claim in self.claims.values():
            member = self.members.get(claim.owner)
            if member is None or (claim.owner, claim.nonce) == self._process:
                continue
            watched = self._watched.get((claim.owner, claim.nonce))
            late_us = self.lease.length_us // 6
            is_silent = watched is not None and self._age_us(watched.since_us) >= late_us
            if is_silent and member.nonce == claim.nonce and member.address:
                yield member

    # --- clocks --------------------------------------------------------------------------

    @property
    def clock_apart_us(self) -> int:
        """Offset of the most distant member's clock from this node's; negative if behind."""
        return farthest_offset(self._clocks.ahead_us(self._others()))

    @property
    def clock_off_us(self) -> int:
        """Offset of the members' clocks from this node's; negative if behind; 0 if this clock
        is one of the middle ones."""
        return median_offset(self._clocks.ahead_us(self._others()))

    def _others(self) -> Iterator[Incarnation]:
        """Yield the other live processes."""
        for member in self.members.values():
            process = member.node, member.nonce
            if process == self._process:
                continue
            if self._age_us(self._watched[process].since_us) < self._lease_us(member):
                yield process

    # --- contents of the register --------------------------------------------------------

    def apply_poll(self, poll: RegisterPoll) -> None:
        """Apply the records of one poll. Records older than those already seen are ignored."""
        self._apply_members(poll)
        # The members come first, because their times are compared with the poll before this one.
        self._polled_us = poll.began_us
        self.format = max(self.format, poll.format)
        for shard, move in poll.orders.moves.items():
            if self.orders.moves.get(shard) != move:
                self._ordered_us[shard] = poll.ended_us
        self.orders = poll.orders
        self._apply_claims(poll)

    def _apply_members(self, poll: RegisterPoll) -> None:
        for node, record in poll.members.items():
            if self._is_newer(MEMBERS + node, record):
                self._apply_member(msgspec.json.decode(record.value, type=MemberRecord), poll)
            self._settle_pending(MEMBERS + node, record, poll.ended_us)

    def _apply_claims(self, poll: RegisterPoll) -> None:
        for shard, record in poll.claims.items():
            claim = msgspec.json.decode(record.value, type=ClaimRecord)
            if self._is_newer(f"{SHARDS}{shard}", record):
                self._apply_claim(shard, claim, poll)
            self._settle_pending(f"{SHARDS}{shard}", record, poll.ended_us)
        for shard in self._shards:
            if shard not in poll.claims:
                self._free_since_us.setdefault(shard, poll.ended_us)

    def _is_newer(self, key: str, record: VersionedRecord) -> bool:
        """Return False for a record that is older than one seen before, because polls and answers
        of writes may overtake each other. Otherwise remember its version."""
        if record.version < self._versions.get(key, 0):
            return False
        self._versions[key] = record.version
        return True

    def _apply_member(self, member: MemberRecord, poll: RegisterPoll) -> None:
        """Apply a member's record: note a renewal, compare its clock, and detect another process
        with this node's name."""
        self.members[member.node] = member
        incarnation = member.node, member.nonce
        watched = self._watched.get(incarnation)
        if watched is None:
            self._forget_former(member, poll.ended_us)
        elif watched.counter not in {member.counter, -1}:
            assert self._polled_us is not None, "an earlier poll has seen the process"
            # The renewal was written after the start of the poll before this one.
            age_us = poll.ended_us - self._polled_us
            self._clocks.compare(incarnation, member.wall_us, poll.wall_us, age_us=age_us)
        if watched is None or watched.counter != member.counter:
            self._watched[incarnation] = _Watched(member.counter, poll.ended_us)
            # A process that renews is alive, whatever its port has answered.
            self._refused_us.pop(incarnation, None)
        if member.node == self.me.node and incarnation != self._process:
            if self._has_joined:
                self.is_replaced = True
                self.owned.clear()
            elif watched is not None and watched.counter != member.counter:
                self._note_rival(member)

    def _note_rival(self, member: MemberRecord) -> None:
        """Record that another process with this node's name has renewed. One renewal may have been
        the last, delayed write of a killed process."""
        self._rival_renewals += 1
        if self._rival_renewals > 1 and not member.leaving:
            self.rival = member

    def _may_join(self) -> bool:
        """Return whether no other process uses this node's name, as far as the register tells: a
        live process renews every third of its lease."""
        before = self.members.get(self.me.node)
        if self._has_joined or before is None or before.nonce == self.me.nonce:
            return True
        if self.rival is not None:
            return False
        since_us = self._watched[before.node, before.nonce].since_us
        is_over = before.leaving or before.removed
        # Half of a lease is longer than the time between two renewals of a live process.
        return is_over or self._age_us(since_us) >= self._lease_us(before) // 2

    def _forget_former(self, member: MemberRecord, now_us: int) -> None:
        """Stop watching processes that had this name before. They renew no more, and their last
        renewal was overwritten, maybe before it was seen."""
        for node, nonce in self._watched:
            if node == member.node:
                self._watched[node, nonce] = _Watched(-1, now_us)

    def _apply_claim(self, shard: int, claim: ClaimRecord, poll: RegisterPoll) -> None:
        """Apply the newest claim of a shard: the shard is free, owned by this process or owned by
        another one."""
        self.claims[shard] = claim
        incarnation = claim.owner, claim.nonce
        if claim.owner:
            self._free_since_us.pop(shard, None)
            # No record has this counter, so that the next one of this process counts as a renewal.
            self._watched.setdefault(incarnation, _Watched(-1, poll.ended_us))
        else:
            self._free_since_us.setdefault(shard, poll.ended_us)
        if incarnation != self._process:
            self.owned.pop(shard, None)
            self._giving_up.discard(shard)
            if claim.owner:
                self._given_up.discard(shard)
        elif shard not in self.owned and not self.is_replaced:
            # No lease has this term, so that the claim has to be confirmed before it holds.
            self.owned[shard] = Owned(claim.epoch, -1)

    def _settle_pending(self, key: str, record: VersionedRecord, now_us: int) -> None:
        """Settle a write whose answer did not arrive, from the record that was read."""
        pending = self._pending.get(key)
        if pending is None or record.version <= pending.write.expected:
            return
        if record.value == pending.write.value:
            self.wrote(pending.write, record.version, now_us)
        else:
            del self._pending[key]

    # --- writes to make ------------------------------------------------------------------

    def due(
        self,
        now_us: int,
        wall_us: int = 0,
        figures: Callable[[], NodeFigures | None] = lambda: None,
    ) -> list[RegisterWrite]:
        """Return the writes to make now. ``wall_us`` is the wall clock; a renewal contains the
        ``figures`` of the process.

        Each write is returned once, until :meth:`wrote` or a poll settles it. After a ``Conflict``
        the caller polls the register again.
        """
        if self._polled_us is None or self.is_replaced or not self._may_join():
            return []
        writes = [*self._renewal_writes(now_us, wall_us, figures)]
        if self.lease.holds(now_us):
            for shard in self._shards:
                writes += self._claim_writes(shard, now_us)
        for write in writes:
            self._pending[write.key] = _PendingWrite(write, now_us, self.lease.term)
        return writes

    def failed(self, write: RegisterWrite) -> None:
        """Forget a write that the register has refused with an error; it is due again."""
        pending = self._pending.get(write.key)
        if pending is not None and pending.write == write:
            del self._pending[write.key]

    def wrote(self, write: RegisterWrite, version: int, now_us: int) -> None:
        """Record that a write was answered, or was seen in the register."""
        pending = self._pending.get(write.key)
        if pending is None or pending.write != write:  # a poll has settled it
            return
        del self._pending[write.key]
        self._versions[write.key] = max(version, self._versions.get(write.key, 0))
        if write.key == self._member_key:
            written = msgspec.json.decode(write.value, type=MemberRecord)
            self.me = msgspec.structs.replace(
                self.me, counter=written.counter, figures=written.figures
            )
            self.members[self.me.node] = self.me
            if not self._has_joined:
                # An earlier process of this node has not renewed since its record was read, because
                # this record replaced exactly that version.
                self._watched[self._process] = _Watched(self.me.counter, now_us)
                self._has_joined = True
            self.lease.record_renewal(pending.began_us, now_us)
            return
        shard = int(write.key.removeprefix(SHARDS))
        claim = msgspec.json.decode(write.value, type=ClaimRecord)
        self.claims[shard] = claim
        if claim.owner:
            self.owned[shard] = Owned(claim.epoch, pending.term)
            self._given_up.discard(shard)
            self._free_since_us.pop(shard, None)
        else:
            self.owned.pop(shard, None)
            self._giving_up.discard(shard)
            self._given_up.add(shard)
            self._free_since_us[shard] = now_us

    def _renewal_writes(
        self, now_us: int, wall_us: int, figures: Callable[[], NodeFigures | None]
    ) -> Iterator[RegisterWrite]:
        """Yield the renewal of this node's record if a third of the lease has passed."""
        began_us, period_us = self._renewal_began_us, self.lease.length_us // 3
        if self._member_key in self._pending or (
            began_us is not None and now_us - began_us < period_us
        ):
            return
        self._renewal_began_us = now_us
        counter = self.me.counter + 1
        renewed = msgspec.structs.replace(
            self.me, counter=counter, wall_us=wall_us, figures=figures()
        )
        yield self._write(self._member_key, renewed)

    def _claim_writes(self, shard: int, now_us: int) -> Iterator[RegisterWrite]:
        """Yield the write that is due for a shard: the release or confirmation of an owned shard,
        or a claim of a free one."""
        key, claim = f"{SHARDS}{shard}", self.claims.get(shard)
        if key in self._pending:
            return
        owned, counter = self.owned.get(shard), self.me.counter
        if claim is not None and owned is not None:
            if shard in self._giving_up:
                yield self._write(key, msgspec.structs.replace(claim, owner="", confirmed=counter))
            # A new term begins after the lease has run out; another node may be about to claim.
            elif owned.term != self.lease.term or claim.format < self._format_to_write:
                format = max(claim.format, self._format_to_write)
                confirmed = msgspec.structs.replace(
                    claim,
                    confirmed=counter,
                    format=format,
                    settings=self.me.settings,
                    lease_us=self.me.lease_us,
                )
                yield self._write(key, confirmed)
        elif self.may_claim(shard, claim, now_us):
            self.reasons[shard] = self._claim_reason(shard, claim)
            epoch = 1 if claim is None else claim.epoch + 1
            me = self.me
            claim_record = ClaimRecord(
                me.node,
                me.nonce,
                epoch,
                format=self._format_to_write,
                confirmed=counter,
                settings=me.settings,
                lease_us=me.lease_us,
            )
            yield self._write(key, claim_record)._replace(is_claim=True)

    def _claim_reason(self, shard: int, claim: ClaimRecord | None) -> Why:
        """Return why this node may claim the shard now."""
        move = self._move_of(shard, claim)
        if move is not None and move.by_force and move.process == self._process:
            return "forced"
        if claim is None:
            return "first"
        if not claim.owner:
            return "released"
        return "refused" if (claim.owner, claim.nonce) in self._refused_us else "silent"

    @property
    def _format_to_write(self) -> int:
        """Newest format that all nodes know and this one can write."""
        return min(self.format or self.me.format, self.me.format)

    def may_claim(self, shard: int, claim: ClaimRecord | None, now_us: int) -> bool:
        """Return whether this node may claim a shard whose claim is ``claim``."""
        me, length_us = self.me, self.lease.length_us
        newest = max(self.format, 0 if claim is None else claim.format)
        if me.leaving or newest > me.format or abs(self.clock_off_us) > APART_US_MAX:
            return False
        if me.unfit or self._disagreement(me, claim):
            return False
        if self.orders.is_drained(self._process):
            return False
        move = self._move_of(shard, claim)
        if move is not None and move.by_force and move.process == self._process:
            # By then an owner that polls the register has seen the order and stopped serving.
            return self._age_us(self._ordered_us[shard]) >= length_us // 6
        # The preferred node claims immediately. The others wait, so that their claims do not
        # collide.
        wait_us = 0 if self._is_preferred(shard, claim, now_us) else length_us // 2
        if claim is None or not claim.owner:
            if shard in self._given_up:  # other nodes go first
                wait_us = length_us
            # No second poll is needed: the claim replaces exactly the version that was read.
            return not wait_us or self._age_us(self._free_since_us[shard]) >= wait_us
        incarnation = claim.owner, claim.nonce
        refused_us = self._refused_us.get(incarnation)
        if refused_us is not None:
            return now_us - refused_us >= wait_us
        # The owner may have been started with a longer lease.
        length_us = max(length_us, claim.lease_us)
        return self._age_us(self._watched[incarnation].since_us) >= length_us + wait_us

    def _is_preferred(self, shard: int, claim: ClaimRecord | None, now_us: int) -> bool:
        """Return whether this node is the first choice for a shard among all nodes that could take
        it.

        An operator's order decides first. Otherwise each shard ranks the nodes differently, so that
        few shards move when a node joins or leaves.
        """
        able = {self._process, *self._able_processes(claim, now_us)}
        move = self._move_of(shard, claim)
        if move is not None and move.process in able:
            return move.process == self._process
        return max(able, key=lambda process: _rank(shard, process[0])) == self._process

    def _move_of(self, shard: int, claim: ClaimRecord | None) -> MoveOrder | None:
        """Return the order to move a shard that applies to its newest claim; None without one."""
        return self.orders.move_of(shard, 0 if claim is None else claim.epoch)

    def _able_processes(self, claim: ClaimRecord | None, now_us: int) -> set[Incarnation]:
        """Return the other processes that could claim a shard whose newest claim is ``claim``. A
        process that has released the shard is not one of them."""
        format_min = max(self.format, 0 if claim is None else claim.format)
        able = set[Incarnation]()
        for member in self.members.values():
            process = member.node, member.nonce
            if member.node == self.me.node:
                continue
            is_silent = now_us - self._watched[process].since_us >= self._lease_us(member)
            is_gone = is_silent or process in self._refused_us or self.orders.is_drained(process)
            has_released = claim is not None and not claim.owner and claim.nonce == member.nonce
            is_unable = member.leaving or member.unfit or member.format < format_min
            is_unable = is_unable or self._disagreement(member, claim)
            if not (is_gone or has_released or is_unable):
                able.add(process)
        return able

    def _lease_us(self, member: MemberRecord) -> int:
        """Return the longer of this node's lease and the member's, in microseconds."""
        return max(self.lease.length_us, member.lease_us)

    def _age_us(self, since_us: int) -> int:
        """Return how long a state has lasted for certain: up to the latest poll, not up to now."""
        assert self._polled_us is not None, "the state was seen in a poll"
        return self._polled_us - since_us

    def _write(self, key: str, record: MemberRecord | ClaimRecord) -> RegisterWrite:
        return RegisterWrite(key, self._versions.get(key, 0), msgspec.json.encode(record))

    @property
    def _process(self) -> Incarnation:
        return self.me.node, self.me.nonce

    @property
    def _member_key(self) -> str:
        return MEMBERS + self.me.node


def _rank(shard: int, node: str) -> bytes:
    """Return the rank of a node for a shard; the highest one is preferred."""
    # All nodes have to compute the same ranks, but Python's `hash` differs between processes.
    return sha256(f"{shard}/{node}".encode()).digest()
