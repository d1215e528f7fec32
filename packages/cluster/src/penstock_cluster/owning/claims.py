"""The members of a cluster and the shards they own, decided from what the register shows.

Without I/O: :meth:`Claims.looked` takes in what was read, :meth:`Claims.due` gives out what is to
be written, :meth:`Claims.wrote` takes the answer. Every value that is written tells by whom: when
an answer is lost, or a write is refused because an earlier attempt was done, the next look shows
it.

Two rules make sure that no two nodes rely on one shard at once, as long as clocks run equally fast
up to the margin of a lease:

* Who waits for the end of a lease reads the claims first and the members' counters after that, and
  writes a claim on top of the very version it has read.
* Who has let its lease run out renews it and then writes its claims anew, so that nobody who has
  seen the end can still succeed. Until that is answered the claims do not hold.
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
    farthest,
    off_by,
)
from penstock_cluster.owning.lease import Lease
from penstock_cluster.owning.orders import MoveOrder, Orders
from penstock_cluster.owning.register_records import (
    MEMBERS,
    SHARDS,
    ClaimRecord,
    MemberRecord,
    RegisterLook,
    RegisterWrite,
)
from penstock_core.vocabulary.node_figures import NodeFigures, Why
from penstock_core.vocabulary.ports import VersionedRecord


class Owned(NamedTuple):
    """A shard that was claimed here."""

    epoch: int
    term: int
    """The term of the lease in which the claim was written."""


class _Asked(NamedTuple):
    write: RegisterWrite
    began_us: int
    term: int


class _Watched(NamedTuple):
    counter: int
    since_us: int
    """When the counter was seen for the first time."""


class Claims:
    """One node's view of who owns what, and its own part in it."""

    def __init__(self, me: MemberRecord, shards: Sequence[int], lease: Lease) -> None:
        self.me = msgspec.structs.replace(me, lease_us=lease.length_us)
        self.lease = lease
        self.owned: dict[int, Owned] = {}
        """By shard, what the register says is owned here, as far as is known."""
        self.is_replaced = False
        """Whether another process has taken this node's name: nothing is owned here any more."""
        self.rival: MemberRecord | None = None
        """A process that had this node's name before this one, and renews: this one does not join.
        """
        self._rival_renewals = 0
        self.members: dict[str, MemberRecord] = {}
        self.claims: dict[int, ClaimRecord] = {}
        self.why: dict[int, Why] = {}
        """By shard, why this node could claim it last."""
        self.format = 0
        """The format that all nodes write; 0: nothing was read yet."""
        self.orders = Orders()
        """What people ask of the nodes."""
        self._ordered_us: dict[int, int] = {}
        """By shard, when the order to move it was seen for the first time."""
        self._clocks = MemberClocks()
        self._shards = list(shards)
        self._versions: dict[str, int] = {}
        self._asked: dict[str, _Asked] = {}
        self._watched: dict[Incarnation, _Watched] = {}
        self._refused_us: dict[Incarnation, int] = {}
        """When nobody was found at the address of a process."""
        self._free_since_us: dict[int, int] = {}
        self._giving_up: set[int] = set()
        self._given_up: set[int] = set()
        """Shards this node has released: others come first."""
        self._has_joined = False
        self._renewal_began_us: int | None = None
        self._looked_us: int | None = None
        """When the latest look began; what it shows was so then, or later."""

    # --- what is owned -------------------------------------------------------------------

    def holds(self, shard: int, steady_us: int) -> bool:
        """Whether a shard is owned here, and nobody else can own it at this moment."""
        owned = self.owned.get(shard)
        if owned is None or shard in self._giving_up:
            return False
        if self.orders.moves and self._is_taken_away(shard, steady_us):
            return False
        return owned.term == self.lease.term and self.lease.holds(steady_us)

    def owner(self, shard: int, now_us: int) -> MemberRecord | None:
        """The process that serves a shard, as far as is known here; None: nobody, or one that is
        gone or has let its lease run out."""
        claim = self.claims.get(shard)
        member = None if claim is None else self.members.get(claim.owner)
        if claim is None or member is None or member.nonce != claim.nonce:
            return None
        incarnation = claim.owner, claim.nonce
        watched = self._watched.get(incarnation)
        is_silent = watched is None or now_us - watched.since_us >= self._lease_us(member)
        is_gone = incarnation != self._own and (is_silent or incarnation in self._refused_us)
        return None if is_gone else member

    def present(self, now_us: int) -> list[MemberRecord]:
        """The processes that are there and stay, as far as is known here, by the names of their
        nodes."""
        found = []
        for member in self.members.values():
            incarnation = member.node, member.nonce
            watched = self._watched.get(incarnation)
            is_silent = watched is None or now_us - watched.since_us >= self._lease_us(member)
            is_gone = is_silent or incarnation in self._refused_us
            if incarnation == self._own or not (is_gone or member.leaving):
                found.append(member)
        return sorted(found, key=lambda member: member.node)

    def writes(self, shard: int) -> int:
        """The format in which a shard that is owned here is written: the one its claim names, so
        that nobody who does not know it can claim the shard on top of that."""
        claim = self.claims.get(shard)
        return self.me.format if claim is None else min(claim.format, self.me.format)

    def behind(self, format: int) -> tuple[str, ...]:
        """The nodes that do not know ``format``, each with its version. One that is silent is among
        them: it may be frozen, and wake up."""
        older = (each for each in self.members.values() if each.format < format)
        return tuple(
            f"{each.node} ({each.version or 'version unknown'}, format {each.format})"
            for each in sorted(older, key=lambda each: each.node)
            if not (each.removed or each.leaving)
        )

    def give_up(self, shard: int) -> None:
        """Release a shard that is not served here any more; somebody else takes it at once."""
        if shard in self.owned:
            self._giving_up.add(shard)

    def to_hand_over(self, now_us: int) -> Iterator[int]:
        """Shards that are owned here, and that people want another node to have which is there."""
        for shard, owned in self.owned.items():
            others = self._able(self.claims.get(shard), now_us)
            move = self.orders.move_of(shard, owned.epoch)
            is_moved = move is not None and not move.by_force and move.process in others
            if is_moved or (others and self.orders.is_drained(self._own)):
                yield shard

    def _is_taken_away(self, shard: int, now_us: int) -> bool:
        """Whether another process is about to claim by force what is owned here."""
        claim = self.claims.get(shard)
        move = self._move_of(shard, claim)
        return move is not None and move.by_force and move.process in self._able(claim, now_us)

    def waiting_us(self, now_us: int) -> int:
        """For how long the oldest write has had no answer; 0: all have been answered."""
        return max((now_us - asked.began_us for asked in self._asked.values()), default=0)

    def leave(self) -> None:
        """Take no shard any more. What is owned here has to be given up by itself."""
        self.me = msgspec.structs.replace(self.me, leaving=True)
        self._renewal_began_us = None

    def disagreement(self, shard: int) -> str:
        """Why the settings of this node keep it from claiming a shard; empty: they do not."""
        claim = self.claims.get(shard)
        is_owner = claim is not None and (claim.owner, claim.nonce) == self._own
        return "" if is_owner else self._disagreement(self.me, claim)

    def unfit(self, member: MemberRecord, shard: int) -> str:
        """Why a member could not serve a shard; empty: it could."""
        claim = self.claims.get(shard)
        if claim is not None and (claim.owner, claim.nonce) == (member.node, member.nonce):
            return member.unfit
        return member.unfit or self._disagreement(member, claim)

    def _disagreement(self, member: MemberRecord, claim: ClaimRecord | None) -> str:
        return disagreement(member, claim, [*self.members.values(), self.me])

    def note_unfit(self, reason: str) -> None:
        """Claim nothing while this node could not serve, and let others know why; empty: it could
        again."""
        self.me = msgspec.structs.replace(self.me, unfit=reason)
        self._renewal_began_us = None

    def note_damages(self, count: int) -> None:
        """Let others know how much damage was found in the realm that is served here."""
        if count != self.me.damages:
            self.me = msgspec.structs.replace(self.me, damages=count)
            self._renewal_began_us = None

    def withdraw(self, write: RegisterWrite) -> None:
        """A write that was due was not sent."""
        asked = self._asked.get(write.key)
        if asked is not None and asked.write == write:
            del self._asked[write.key]

    def refused(self, node: str, nonce: str, now_us: int) -> None:
        """Nothing listens at the address of a process: it is gone, and its lease with it."""
        self._refused_us.setdefault((node, nonce), now_us)

    def doubted(self) -> Iterator[MemberRecord]:
        """Owners that have shown no sign of life for a while: are they there? To ask costs little,
        and one that was killed is replaced that much sooner."""
        for claim in self.claims.values():
            member = self.members.get(claim.owner)
            if member is None or (claim.owner, claim.nonce) == self._own:
                continue
            watched = self._watched.get((claim.owner, claim.nonce))
            late_us = self.lease.length_us // 6
            silent = watched is not None and self._age_us(watched.since_us) >= late_us
            if silent and member.nonce == claim.nonce and member.address:
                yield member

    # --- clocks --------------------------------------------------------------------------

    @property
    def clock_apart_us(self) -> int:
        """How far the clock of a member is ahead of this node's, of the one that is farthest;
        negative: behind."""
        return farthest(self._clocks.of(self._others()))

    @property
    def clock_off_us(self) -> int:
        """How far the members' clocks are ahead of this node's; negative: behind; 0: it is one of
        those in the middle."""
        return off_by(self._clocks.of(self._others()))

    def _others(self) -> Iterator[Incarnation]:
        """The other processes that are there."""
        for member in self.members.values():
            process = member.node, member.nonce
            if process == self._own:
                continue
            if self._age_us(self._watched[process].since_us) < self._lease_us(member):
                yield process

    # --- what the register shows ---------------------------------------------------------

    def looked(self, look: RegisterLook) -> None:
        """Take in what was read. Records older than what is known already are left out."""
        self._see_members(look)
        self._looked_us = look.began_us
        self.format = max(self.format, look.format)
        for shard, move in look.orders.moves.items():
            if self.orders.moves.get(shard) != move:
                self._ordered_us[shard] = look.ended_us
        self.orders = look.orders
        self._see_claims(look)

    def _see_members(self, look: RegisterLook) -> None:
        for node, record in look.members.items():
            if self._is_news(MEMBERS + node, record):
                self._see_member(msgspec.json.decode(record.value, type=MemberRecord), look)
            self._settle(MEMBERS + node, record, look.ended_us)

    def _see_claims(self, look: RegisterLook) -> None:
        for shard, record in look.claims.items():
            claim = msgspec.json.decode(record.value, type=ClaimRecord)
            if self._is_news(f"{SHARDS}{shard}", record):
                self._see_claim(shard, claim, look)
            self._settle(f"{SHARDS}{shard}", record, look.ended_us)
        for shard in self._shards:
            if shard not in look.claims:
                self._free_since_us.setdefault(shard, look.ended_us)

    def _is_news(self, key: str, record: VersionedRecord) -> bool:
        if record.version < self._versions.get(key, 0):
            return False
        self._versions[key] = record.version
        return True

    def _see_member(self, member: MemberRecord, look: RegisterLook) -> None:
        self.members[member.node] = member
        incarnation = member.node, member.nonce
        watched = self._watched.get(incarnation)
        if watched is None:
            self._succeed(member, look.ended_us)
        elif watched.counter not in {member.counter, -1}:
            assert self._looked_us is not None, "it has been seen before"
            age_us = look.ended_us - self._looked_us
            self._clocks.compared(incarnation, member.wall_us, look.wall_us, age_us=age_us)
        if watched is None or watched.counter != member.counter:
            self._watched[incarnation] = _Watched(member.counter, look.ended_us)
            self._refused_us.pop(incarnation, None)
        if member.node == self.me.node and incarnation != self._own:
            if self._has_joined:
                self.is_replaced = True
                self.owned.clear()
            elif watched is not None and watched.counter != member.counter:
                self._see_rival(member)

    def _see_rival(self, member: MemberRecord) -> None:
        """A process that has this node's name has renewed. Once may have been the last write of one
        that was killed, done late."""
        self._rival_renewals += 1
        if self._rival_renewals > 1 and not member.leaving:
            self.rival = member

    def _may_join(self) -> bool:
        """Whether no other process lives under this node's name, as far as can be told: one that
        does renews every third of its lease."""
        before = self.members.get(self.me.node)
        if self._has_joined or before is None or before.nonce == self.me.nonce:
            return True
        if self.rival is not None:
            return False
        since_us = self._watched[before.node, before.nonce].since_us
        is_over = before.leaving or before.removed
        return is_over or self._age_us(since_us) >= self._lease_us(before) // 2

    def _succeed(self, member: MemberRecord, now_us: int) -> None:
        """Processes that had this name before renew nothing any more; the last they renewed was
        written over, maybe before it was seen."""
        for node, nonce in self._watched:
            if node == member.node:
                self._watched[node, nonce] = _Watched(-1, now_us)

    def _see_claim(self, shard: int, claim: ClaimRecord, look: RegisterLook) -> None:
        self.claims[shard] = claim
        incarnation = claim.owner, claim.nonce
        if claim.owner:
            self._free_since_us.pop(shard, None)
            self._watched.setdefault(incarnation, _Watched(-1, look.ended_us))
        else:
            self._free_since_us.setdefault(shard, look.ended_us)
        if incarnation != self._own:
            self.owned.pop(shard, None)
            self._giving_up.discard(shard)
            if claim.owner:
                self._given_up.discard(shard)
        elif shard not in self.owned and not self.is_replaced:
            self.owned[shard] = Owned(claim.epoch, -1)

    def _settle(self, key: str, record: VersionedRecord, now_us: int) -> None:
        """What became of a write whose answer has not come."""
        asked = self._asked.get(key)
        if asked is None or record.version <= asked.write.expected:
            return
        if record.value == asked.write.value:
            self.wrote(asked.write, record.version, now_us)
        else:
            del self._asked[key]

    # --- what is to be written -----------------------------------------------------------

    def due(
        self,
        now_us: int,
        wall_us: int = 0,
        figures: Callable[[], NodeFigures | None] = lambda: None,
    ) -> list[RegisterWrite]:
        """What is to be written now, where the clock on the wall shows ``wall_us``, with the
        ``figures`` of the process at a renewal. Each write is asked once, until :meth:`wrote` or a
        look tells what became of it; who is told of a ``Conflict`` looks again."""
        if self._looked_us is None or self.is_replaced or not self._may_join():
            return []
        writes = [*self._renewal(now_us, wall_us, figures)]
        if self.lease.holds(now_us):
            for shard in self._shards:
                writes += self._claimed(shard, now_us)
        for write in writes:
            self._asked[write.key] = _Asked(write, now_us, self.lease.term)
        return writes

    def failed(self, write: RegisterWrite) -> None:
        """The register refused a write for sure; it is asked again when it is due."""
        asked = self._asked.get(write.key)
        if asked is not None and asked.write == write:
            del self._asked[write.key]

    def wrote(self, write: RegisterWrite, version: int, now_us: int) -> None:
        """A write was answered, or was seen to be done."""
        asked = self._asked.get(write.key)
        if asked is None or asked.write != write:  # a look has told before
            return
        del self._asked[write.key]
        self._versions[write.key] = max(version, self._versions.get(write.key, 0))
        if write.key == self._own_key:
            written = msgspec.json.decode(write.value, type=MemberRecord)
            self.me = msgspec.structs.replace(
                self.me, counter=written.counter, figures=written.figures
            )
            self.members[self.me.node] = self.me
            if not self._has_joined:
                # A process before has not renewed since it was seen: this was written on top.
                self._watched[self._own] = _Watched(self.me.counter, now_us)
                self._has_joined = True
            self.lease.renewed(asked.began_us, now_us)
            return
        shard = int(write.key.removeprefix(SHARDS))
        claim = msgspec.json.decode(write.value, type=ClaimRecord)
        self.claims[shard] = claim
        if claim.owner:
            self.owned[shard] = Owned(claim.epoch, asked.term)
            self._given_up.discard(shard)
            self._free_since_us.pop(shard, None)
        else:
            self.owned.pop(shard, None)
            self._giving_up.discard(shard)
            self._given_up.add(shard)
            self._free_since_us[shard] = now_us

    def _renewal(
        self, now_us: int, wall_us: int, figures: Callable[[], NodeFigures | None]
    ) -> Iterator[RegisterWrite]:
        began_us, each_us = self._renewal_began_us, self.lease.length_us // 3
        if self._own_key in self._asked or (began_us is not None and now_us - began_us < each_us):
            return
        self._renewal_began_us = now_us
        counter = self.me.counter + 1
        raised = msgspec.structs.replace(
            self.me, counter=counter, wall_us=wall_us, figures=figures()
        )
        yield self._write(self._own_key, raised)

    def _claimed(self, shard: int, now_us: int) -> Iterator[RegisterWrite]:
        key, claim = f"{SHARDS}{shard}", self.claims.get(shard)
        if key in self._asked:
            return
        owned, counter = self.owned.get(shard), self.me.counter
        if claim is not None and owned is not None:
            if shard in self._giving_up:
                yield self._write(key, msgspec.structs.replace(claim, owner="", confirmed=counter))
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
        elif self._may_claim(shard, claim, now_us):
            self.why[shard] = self._why(shard, claim)
            epoch = 1 if claim is None else claim.epoch + 1
            me = self.me
            wanted = ClaimRecord(
                me.node,
                me.nonce,
                epoch,
                format=self._format_to_write,
                confirmed=counter,
                settings=me.settings,
                lease_us=me.lease_us,
            )
            yield self._write(key, wanted)._replace(is_claim=True)

    def _why(self, shard: int, claim: ClaimRecord | None) -> Why:
        """Why it may be claimed here at this moment."""
        move = self._move_of(shard, claim)
        if move is not None and move.by_force and move.process == self._own:
            return "forced"
        if claim is None:
            return "first"
        if not claim.owner:
            return "released"
        return "refused" if (claim.owner, claim.nonce) in self._refused_us else "silent"

    @property
    def _format_to_write(self) -> int:
        """The newest format that all nodes know, as far as this one knows it."""
        return min(self.format or self.me.format, self.me.format)

    def _may_claim(self, shard: int, claim: ClaimRecord | None, now_us: int) -> bool:
        me, length_us = self.me, self.lease.length_us
        newest = max(self.format, 0 if claim is None else claim.format)
        if me.leaving or newest > me.format or abs(self.clock_off_us) > APART_US_MAX:
            return False
        if me.unfit or self._disagreement(me, claim):
            return False
        if self.orders.is_drained(self._own):
            return False
        move = self._move_of(shard, claim)
        if move is not None and move.by_force and move.process == self._own:
            # an owner that sees the register has seen the order by then, and says nothing more
            return self._age_us(self._ordered_us[shard]) >= length_us // 6
        wait_us = 0 if self._is_preferred(shard, claim, now_us) else length_us // 2
        if claim is None or not claim.owner:
            if shard in self._given_up:
                wait_us = length_us
            # whoever claims at once need not look again: it writes on top of what it has read
            return not wait_us or self._age_us(self._free_since_us[shard]) >= wait_us
        incarnation = claim.owner, claim.nonce
        refused_us = self._refused_us.get(incarnation)
        if refused_us is not None:
            return now_us - refused_us >= wait_us
        length_us = max(length_us, claim.lease_us)  # nodes with another lease are replaced, too
        return self._age_us(self._watched[incarnation].since_us) >= length_us + wait_us

    def _is_preferred(self, shard: int, claim: ClaimRecord | None, now_us: int) -> bool:
        """Whether of all who could take a shard this node comes first: the one that people want to
        have it, else each shard ranks the nodes in an order of its own, so that few shards move
        when a node comes or goes."""
        able = {self._own, *self._able(claim, now_us)}
        move = self._move_of(shard, claim)
        if move is not None and move.process in able:
            return move.process == self._own
        return max(able, key=lambda process: _rank(shard, process[0])) == self._own

    def _move_of(self, shard: int, claim: ClaimRecord | None) -> MoveOrder | None:
        return self.orders.move_of(shard, 0 if claim is None else claim.epoch)

    def _able(self, claim: ClaimRecord | None, now_us: int) -> set[Incarnation]:
        """The other processes that could take a shard with this claim."""
        least = max(self.format, 0 if claim is None else claim.format)
        able = set[Incarnation]()
        for member in self.members.values():
            process = member.node, member.nonce
            if member.node == self.me.node:
                continue
            is_silent = now_us - self._watched[process].since_us >= self._lease_us(member)
            is_gone = is_silent or process in self._refused_us or self.orders.is_drained(process)
            has_released = claim is not None and not claim.owner and claim.nonce == member.nonce
            is_unable = member.leaving or member.unfit or member.format < least
            is_unable = is_unable or self._disagreement(member, claim)
            if not (is_gone or has_released or is_unable):
                able.add(process)
        return able

    def _lease_us(self, member: MemberRecord) -> int:
        """How long a member may rely on a renewal, which it reckons with a lease of its own."""
        return max(self.lease.length_us, member.lease_us)

    def _age_us(self, since_us: int) -> int:
        """How long something is known to have been so: up to the latest look, not up to now."""
        assert self._looked_us is not None, "it was seen in a look"
        return self._looked_us - since_us

    def _write(self, key: str, record: MemberRecord | ClaimRecord) -> RegisterWrite:
        return RegisterWrite(key, self._versions.get(key, 0), msgspec.json.encode(record))

    @property
    def _own(self) -> Incarnation:
        return self.me.node, self.me.nonce

    @property
    def _own_key(self) -> str:
        return MEMBERS + self.me.node


def _rank(shard: int, node: str) -> bytes:
    return sha256(f"{shard}/{node}".encode()).digest()
