"""A group: all decisions of one turn of the single writer, between two appends. It becomes one
block with one sync, then all answers are sent.

The consequences of a decision on other channels (dead events, copies of joins, scheduled events)
are decided in the same group and so are in the same block: all of it is stored or nothing (SEM T7,
X1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.channel_type import Home
from penstock_core.channel.decided import Decided
from penstock_core.channel.state import ChannelState
from penstock_core.columns.merge.states import DELTA
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.definitions import ChannelCreated
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.kinds import Command
from penstock_core.messages.publishing import Appended, Publish
from penstock_core.messages.retention import PersistedLate, Removed, Replaced, Sweep
from penstock_core.messages.segments import SchemaSeen
from penstock_core.messages.settlements import Ack, Acked, AckPrevious, Buried
from penstock_core.messages.unions import AnyFact, StoredFact
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.formats import FORMAT
from penstock_core.vocabulary.ports import Buffer
from penstock_server.runtime.store import merging
from penstock_server.runtime.store.bodies import UNLIMITED, Body, digest_of, prepared
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.newer_facts import refuse_newer
from penstock_server.runtime.store.records import BodyRef, FactRecord
from penstock_server.runtime.store.schemas import Recorded
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.store.tail_batch import TailBatch
from penstock_server.runtime.writer import dead_events, evaluation_ahead, join_copies, persisting
from penstock_server.runtime.writer.following_publish import FollowingPublish, ReachedStores
from penstock_server.runtime.writer.match_cache import MatchCache, NeedsEvaluation
from penstock_server.runtime.writer.placement import (
    MemoryLimits,
    Placing,
    PublishHome,
    on_disk,
    room_for,
)
from penstock_server.runtime.writer.publish_keys import NO_KEYS, NO_LIMIT, PublishKeys
from penstock_server.runtime.writer.publish_selectors import completed, work_where_dead

DECIDED_MIN = 64
"""The time limit of a group counts only once it has decided this many requests."""
SWEEP_EVERY_US = 50_000
"""A channel without clients that could notice expired events is swept at most once in this time."""


class Group:
    """The requests decided together, with the records and bodies of their block."""

    sweeping = Sweep()
    """The command that sweeps a channel in this group."""
    has_moved = 0
    """Number of dead events that have moved in this group."""
    held_s = 0.0
    """Seconds that deciding the group blocked the event loop."""

    def __init__(
        self,
        state: RealmState,
        now_us: int,
        limits: MemoryLimits,
        placing: Placing,
        match_cache: MatchCache,
        turn_cost_max: int,
    ) -> None:
        self.state = state
        self.now_us, self.turn_cost_max = now_us, turn_cost_max
        self.limits = limits
        self.placing = placing
        self.publish_keys = PublishKeys(state, limits)
        self.records: list[FactRecord] = []
        self.bodies: list[Buffer] = []
        self.touched: dict[int, None] = {}
        """Channels, in order, that may have new events to deliver."""
        # Whether the block must be on disk before the answers are sent.
        self.must_sync = False
        self.must_close = False
        """Whether the group must end now, because a channel syncs each write (SEM S)."""
        self.began: dict[int, int] = {}
        """Next id of each touched channel before this group."""
        self.has_room = True
        """Whether the disk has room for events that move; if not, they stay hidden where they
        are."""
        self.may_move = True
        """Whether dead events may move in this group; if not, they stay as well, so that publishers
        get their share of the time."""
        self._changes = 0
        """Number of changes so far, in memory or in the block."""
        self._before_work = (0, 0)
        """Numbers of changes and of bodies when the current work began."""
        self.settled: dict[tuple[int, str], IdSet] = {}
        """Acknowledged ids that are not applied yet, by channel and durable."""
        self._waits: set[int] = set()
        """Channels that deliver nothing before the block is stored."""
        self.commanded: set[int] = set()
        """Channels with acknowledgements or other commands of clients in this group."""
        self._quiet: set[int] = set()
        """Channels that need no sweep: nothing was due when checked, and only plain publishes have
        happened since. It saves the check for each further publish of the group."""
        self._moved: set[int] = set()
        """Channels whose dead events have moved in this group; each may do so once in a group."""
        self.match_cache = match_cache
        self.evaluations: list[NeedsEvaluation] = []
        """Evaluations that due events wait for; these events do not move in this group."""
        self.made: list[tuple[int, str]] = []
        """Durables and channels that this group has created: the id of the channel and the name of
        the durable, which is empty for a channel."""
        # Cost of the selectors evaluated in this turn, and bytes of the events in the block.
        self._evaluated = self._size = 0
        # The lowest limit on these bytes, and the earliest end of a group in microseconds, among
        # the settings of the channels in the block.
        self._size_max = 1 << 62
        self._closes_us = 1 << 62

    # --- the group itself ----------------------------------------------------------------

    def channel(self, channel_id: int) -> ChannelMachine:
        """Return a channel that this group is going to change. Raises ``NameDoesNotExist``."""
        channel = self.state.channels.get(channel_id)
        if channel is None:
            raise NameDoesNotExist(
                f"channel number {channel_id} no longer exists; open the channel again"
            )
        self.touched[channel_id] = None
        self.began.setdefault(channel_id, channel.state.next_id)
        self._quiet.discard(channel_id)
        return channel

    def is_full(self, decided: int, now_us: int) -> bool:
        """Whether the group takes no further request (SEM S, group commit).

        The time limit counts only after ``DECIDED_MIN`` requests, or if it is 0. Otherwise a group
        that begins with moving many dead events would be over after its first publish, and each
        publish would cost a sync.
        """
        if self.must_close or self._size >= self._size_max:
            return True
        enough = decided >= DECIDED_MIN or self._closes_us == self.now_us
        return enough and now_us >= self._closes_us

    def offers_early(self) -> list[tuple[int, int]]:
        """Return the channels that may deliver before this group's block is stored, with the id
        below which they may.

        An acknowledgement frees room in a window, and the events that fill it were stored long ago:
        a power cut cannot undo them. Events of this group have higher ids and wait. Other facts,
        such as redelivery counts and new durables, are visible in deliveries, so their channels
        wait for the block.
        """
        early = self.commanded - self._waits
        if not (early and self.records):
            return []
        return [
            (channel_id, below) for channel_id, below in self.began.items() if channel_id in early
        ]

    def charge_evaluation(self, cost: int) -> bool:
        """Return whether evaluating selectors at ``cost`` still fits into this turn; if so, add the
        cost to that of the turn."""
        fits = self._evaluated + cost <= self.turn_cost_max
        self._evaluated += cost if fits else 0
        return fits

    # --- work that fails -----------------------------------------------------------------

    def begin_work(self) -> None:
        """Start a unit of work. All changes until the next call belong to it."""
        self._before_work = self._changes, len(self.bodies)
        self.publish_keys.begin_work()

    @property
    def is_half_done(self) -> bool:
        """Whether the current work has changed something. A failure can then not be confined to the
        work, because its changes cannot be undone."""
        return (self._changes, len(self.bodies)) != self._before_work

    def _independently(self, step: Callable[[], None]) -> None:
        """Run a step whose changes remain even if the current work fails later."""
        # If the work has changed nothing before this step, it still counts as unchanged after it.
        is_first = not self.is_half_done
        step()
        if is_first:
            self.begin_work()

    # --- deciding ------------------------------------------------------------------------

    def do(self, channel_id: int, command: Command, *, reason: str | None = None) -> Decided:
        """Decide ``command``, apply its facts, and update soft state. ``reason`` is a client's text
        for burying events."""
        channel = self.channel(channel_id)
        self.commanded.add(channel_id)
        decided = channel.decide(command, self.now_us)
        if channel.state.moves_dead and not isinstance(command, Sweep):
            evaluation_ahead.require_evaluation(self, channel_id, channel, facts=decided.facts)
        for fact in decided.facts:
            self._store(channel_id, channel, fact, reason=reason)
        if type(command) is AddDurable:
            self.made.append((channel_id, command.name))
        channel.attend(command, self.now_us)
        return decided

    def acknowledge(self, channel_id: int, command: Ack | AckPrevious) -> None:
        """Decide an acknowledgement. Its fact is not stored yet, but gathered with the next ones:
        a million single acknowledgements, in any order, become one fact for each run of ids."""
        channel = self.channel(channel_id)
        if channel.state.is_due(self.now_us):
            self.settle()
            self.sweep(channel_id)
        self.commanded.add(channel_id)
        for fact in channel.decide(command, self.now_us).facts:
            assert isinstance(fact, Acked), "an acknowledgement has no other fact"
            self._changes += 1
            self.settled.setdefault((channel_id, fact.durable), IdSet()).add_all(IdSet(fact.spans))
        channel.attend(command, self.now_us)

    def settle(self) -> None:
        """Apply the gathered acknowledgements. Must be called before any other decision, which has
        to see them."""
        if self.settled:
            self._independently(self._settle)

    def _settle(self) -> None:
        """Store the gathered acknowledgements, as one fact per durable."""
        # Clients get the answer that the acknowledgements are stored, so that a failure of the
        # work must not lose them.
        self._changes += 1
        settled, self.settled = self.settled, {}
        for (channel_id, durable), ids in settled.items():
            self._store(channel_id, self.channel(channel_id), Acked(durable, ids.spans))

    def sweep(self, channel_id: int) -> None:
        """Apply everything due on a channel, and remove consumed and excess events. Dead events
        move in small steps, one per group, so that a step never blocks the loop for long.

        Raises ``NameDoesNotExist``.
        """
        channel = self.state.channels.get(channel_id) or self.channel(channel_id)
        if not channel.needs_sweep(self.now_us):
            return
        if channel.state.overdue and (channel_id in self._moved or not self.may_move):
            return
        if channel.state.moves_dead:
            channel.gather(self.now_us)
            # The core limits a step by the work that its events cause in their next store.
            channel.state.dead_work, channel.state.dead_copies = work_where_dead(
                self.state, channel_id
            )
            # Due events that may not move now are hidden, so that clients never get them (SEM T1).
            if not (self.has_room and self.may_move and self._may_sweep(channel_id, channel)):
                channel.hold_back(self.now_us)
                if not self.has_room or channel.state.overdue or channel.state.excess:
                    return
            self._moved.add(channel_id)
        self._independently(lambda: self._sweep(channel_id))

    def _may_sweep(self, channel_id: int, channel: ChannelMachine) -> bool:
        return not channel.state.dead_work or evaluation_ahead.may_sweep(self, channel_id, channel)

    def _sweep(self, channel_id: int) -> None:
        """Sweep a channel and count the dead events that were moved."""
        for fact in self.do(channel_id, self.sweeping).facts:
            if isinstance(fact, Removed) and fact.dead:
                self.has_moved += sum([end - first for first, end in fact.dead])

    def sweep_if_due(self, channel_id: int, *, at_once: bool = False) -> bool:
        """Sweep a channel if needed, and return True if it needed no sweep.

        The channel is swept immediately with ``at_once``, and if a client could see due events or
        they take room that is needed; otherwise every :data:`SWEEP_EVERY_US`, because a sweep costs
        more than an event (SEM T1).
        """
        state = self.state.channels[channel_id].state
        if not state.needs_sweep(self.now_us):
            self._quiet.add(channel_id)
            return True
        soon = at_once or state.swept_us + SWEEP_EVERY_US <= self.now_us
        if soon or state.overdue or state.subscribers or state.seats or state.is_full:
            self.sweep(channel_id)
        return False

    def sweep_touched(self, failed: Callable[[str, Exception, int], None]) -> None:
        """Sweep the touched channels that are due. A sweep that fails before it changed anything is
        reported with ``failed``."""
        # This is a copy, because a sweep may touch further channels.
        for channel_id in list(self.touched):
            if channel_id in self._quiet or channel_id not in self.state.channels:
                continue
            self.begin_work()
            try:
                self.sweep_if_due(channel_id)
            except Exception as failure:
                if self.is_half_done:
                    raise
                failed("expiry", failure, channel_id)
            self.state.stores[channel_id].tidy_index(self.state.channels[channel_id].state.stored)
        self.state.moved.update(self.touched)

    def publish(
        self,
        channel_id: int,
        bodies: Sequence[Body],
        digest: Digest,
        *,
        producer: str = "",
        sequence: int = 0,
        overshoot: bool = False,
        forced: bool = False,
        in_journal: bool = False,
        publisher: str = "",
        reached: ReachedStores | None = None,
    ) -> Span:
        """Store events on a channel, with all consequences. Raises ``Refused``.

        ``forced`` events are not refused by limits, because they follow from a decision. With
        ``in_journal`` they are stored in the journal even on a paged channel, because no page
        slots were reserved for them (dead events, copies of joins). ``reached`` has the stores
        that these events have reached in this step.
        """
        is_quiet = channel_id in self._quiet
        channel = self.channel(channel_id)
        state, store = channel.state, self.state.stores[channel_id]
        if not is_quiet:  # after a merge, a delta of a due event is no longer a delta
            is_quiet = self.sweep_if_due(channel_id, at_once=state.engine.merges)
        first = state.next_id
        if state.adds_columns:
            bodies, fits = self._prepared(state, bodies, publisher)
            # The columns may not fit, for example with a long publisher name in each event.
            in_journal = in_journal or not fits
        # Plain publishes are the hot path. They skip all work for joins, selectors, keys and
        # limits.
        has_joins = channel_id in self.state.directory.joins.by_source
        selector_bodies, keyed, memory_left, index_left, index_growth = (
            bodies,
            NO_KEYS,
            NO_LIMIT,
            NO_LIMIT,
            0,
        )
        special = digest.volatile or not state.adds_only
        if special or has_joins or (state.durables and state.selectors):
            index_left = self.publish_keys.memory_left(channel_id, state, digest)
            bodies, digest = self._admitted(state, store, bodies, digest=digest, forced=forced)
            selector_bodies, digest = self._selector_form(
                channel_id, channel, store, bodies=bodies, digest=digest, has_joins=has_joins
            )
            digest, keyed = self.publish_keys.replacing(channel_id, state, digest, bodies=bodies)
            memory_left = self._memory_left(channel_id, digest)
            index_growth = store.index_growth(digest.size)
        command = Publish(
            digest,
            producer,
            sequence,
            overshoot=overshoot,
            memory_left=memory_left,
            index_growth=index_growth,
            index_left=index_left,
            forced=forced,
        )
        decided = channel.decide(command, self.now_us)
        if decided.is_retry:
            assert isinstance(decided.answer, Span), "the answer of a publish is a span"
            return decided.answer
        decided = self._check(channel_id, command, decided, bodies=bodies)
        for fact in decided.facts:
            if isinstance(fact, Appended):
                self._append(
                    channel_id,
                    channel,
                    fact,
                    bodies=bodies,
                    publisher=publisher,
                    decided=decided,
                    in_journal=in_journal,
                )
            else:
                self._store(channel_id, channel, fact)
        span = Span(first, first + digest.count)
        if decided.follows or has_joins:
            self.publish_keys.stored(channel_id, keyed, first)
            channel.attend(command, self.now_us)
            for copies in join_copies.copies(
                self.state,
                channel_id,
                span,
                bodies=selector_bodies,
                publisher=publisher,
                reached=reached,
                now_us=self.now_us,
            ):
                self._follow(copies)
        elif is_quiet:
            self._quiet.add(channel_id)
        return span

    def _follow(self, publish: FollowingPublish) -> None:
        """Store a publish that follows from a decision. No limit refuses it."""
        self.publish(
            publish.channel_id,
            publish.bodies,
            digest_of(publish.bodies, UNLIMITED),
            forced=True,
            in_journal=True,
            publisher=publish.publisher,
            reached=publish.reached,
        )

    def _admitted(
        self,
        state: ChannelState,
        store: ChannelStore,
        bodies: Sequence[Body],
        digest: Digest,
        *,
        forced: bool,
    ) -> tuple[Sequence[Body], Digest]:
        """Return the bodies and digest as a merge channel stores them."""
        if not forced:  # forced events have already been checked, or follow from a decision
            merging.refuse(state, store, bodies, digest=digest)
        return merging.admitted(state, store, bodies, digest=digest)

    def _check(
        self, channel_id: int, command: Publish, decided: Decided, bodies: Sequence[Body]
    ) -> Decided:
        """Check a decided publish and return its final decision. Raises ``Refused`` if a full
        outbox, property names or deltas forbid it, and ``NeedsEvaluation``."""
        state, store = self.state.channels[channel_id].state, self.state.stores[channel_id]
        if not command.forced:
            if self.state.directory.joins.by_outbox:
                join_copies.refuse_when_full(self.state, channel_id)
            store.names.check(state.name, bodies, self.limits.property_names_max)
            for body in bodies:  # runs for each publish: a generator would cost more
                if state.engine.merges or DELTA in body.names:
                    merging.refuse(state, store, bodies, digest=command.digest)
                    break
        if state.moves_dead and decided.follows:
            return evaluation_ahead.evicting(
                self, channel_id, command, decided=decided, bodies=bodies
            )
        return decided

    def _selector_form(
        self,
        channel_id: int,
        channel: ChannelMachine,
        store: ChannelStore,
        bodies: Sequence[Body],
        digest: Digest,
        *,
        has_joins: bool,
    ) -> tuple[Sequence[Body], Digest]:
        """Return the events in the form that selectors and joins evaluate (merged), and their
        digest with the matches of selectors."""
        if not (has_joins or channel.state.selectors):
            return bodies, digest
        selector_bodies = merging.merged_form(
            store, bodies, channel.state.next_id, at_us=self.now_us
        )
        if selector_bodies is not bodies:
            selector_bodies = evaluation_ahead.evaluated_states(self, channel_id, selector_bodies)
        return selector_bodies, completed(
            channel, store, digest, bodies=selector_bodies, now_us=self.now_us
        )

    def _prepared(
        self, state: ChannelState, received: Sequence[Body], publisher: str
    ) -> tuple[Sequence[Body], bool]:
        """Return the bodies with the columns that the channel adds, and whether they still fit the
        page slots reserved for them."""
        first = state.next_id
        bodies = prepared(
            received, state.definition.storage, first, at_us=self.now_us, publisher=publisher
        )
        return bodies, all(map(_has_room, received, bodies))

    def check(
        self,
        publishes: Mapping[int, tuple[Sequence[Body], Digest]],
        overshoot: Container[int] = frozenset(),
        *,
        evicts: bool = True,
    ) -> None:
        """Raise the error that any of these publishes would be refused with. They are given by
        channel and happen together or not at all, so all are checked before the first is stored.

        Publishes to channels in ``overshoot`` may exceed the capacity (SEM T4). With ``evicts``
        False, capacities are honoured: no event is evicted to make room.
        """
        claimed: Counter[Home] = Counter()
        index_claimed = 0
        for channel_id, (bodies, digest) in publishes.items():
            self.sweep(channel_id)
            join_copies.refuse_when_full(self.state, channel_id)
            channel = self.channel(channel_id)
            kind = channel.state.type
            store = self.state.stores[channel_id]
            if channel.state.engine.needs_interest:  # events without interest take no room
                digest = completed(channel, store, digest, bodies=bodies, now_us=self.now_us)
            store.names.check(channel.state.name, bodies, self.limits.property_names_max)
            index_left = self.publish_keys.memory_left(channel_id, channel.state, digest)
            merging.refuse(channel.state, store, bodies, digest=digest)
            digest, _ = self.publish_keys.replacing(
                channel_id, channel.state, digest, bodies=bodies
            )
            limited = kind.home if kind.home in ("off_heap", "pages") else "heap"
            memory_left = self._memory_left(channel_id, digest, claimed[limited])
            overshoots = channel_id in overshoot
            growth = store.index_growth(digest.size)
            command = Publish(
                digest,
                overshoot=overshoots,
                memory_left=memory_left,
                index_growth=growth,
                index_left=index_left - index_claimed,
                evicts=evicts,
            )
            index_claimed += growth
            decided = channel.decide(command, self.now_us)
            if channel.state.moves_dead:
                evaluation_ahead.evicting(self, channel_id, command, decided=decided, bodies=bodies)
            fleeting = kind.volatile(digest) or channel.state.engine.needs_interest
            if limited != "heap" or fleeting:
                claimed[limited] += digest.size

    def _memory_left(self, channel_id: int, digest: Digest, claimed: int = 0) -> int:
        """Return the bytes free for events of a channel (SEM C6, R4). Events of an interest channel
        in pages may pass through the heap, so the heap must also have room (SEM J4)."""
        state, meter = self.state.channels[channel_id].state, self.state.meter
        free_bytes = self.limits.free_bytes(state.type.home, digest, meter)
        if state.engine.needs_interest and state.type.home == "pages":
            free_bytes = min(free_bytes, self.limits.free_bytes("heap", digest, meter))
        if channel_id in self.state.directory.temporary:
            of_owner = self.limits.free_bytes_of_temporary(self.state.stores[channel_id], digest)
            return min(free_bytes - claimed, of_owner)
        return free_bytes - claimed

    # --- storing -------------------------------------------------------------------------

    def _store(
        self, channel_id: int, channel: ChannelMachine, fact: StoredFact, reason: str | None = None
    ) -> None:
        """Apply a fact and record it in the block. Dead events are published to their next store
        first, because they are read from this one (SEM T7)."""
        self._changes += 1
        if isinstance(fact, Buried) or (isinstance(fact, Removed) and fact.dead):
            for step in dead_events.move(
                self.state,
                channel_id,
                fact,
                match_cache=self.match_cache,
                now_us=self.now_us,
                reason=reason,
            ):
                if isinstance(step, FollowingPublish):
                    self._follow(step)
                else:
                    self.apply(channel_id, channel, step)
        elif isinstance(fact, PersistedLate):
            self._waits.add(channel_id)
            for late, ref, body in persisting.late_writes(self.state, channel_id, fact):
                if ref is not None:
                    self.record(channel_id, late, (ref,))
                    self.bodies.append(body)
                self.state.apply(channel_id, late)
        else:
            self.apply(channel_id, channel, fact)

    def apply(self, channel_id: int, channel: ChannelMachine, fact: StoredFact) -> None:
        """Apply a fact and record it in the block."""
        self._changes += 1
        recorded = channel.recorded(fact)
        if recorded is not None:
            self.record(channel_id, recorded)
        # Facts that only take events away cannot be seen in a delivery; all others can.
        if not isinstance(fact, Acked | Removed | Replaced):
            self._waits.add(channel_id)
        self.state.apply(channel_id, fact)

    def record(
        self, channel_id: int, fact: AnyFact, refs: tuple[BodyRef, ...] = (), *, sync: bool = True
    ) -> None:
        """Add a fact to the block, and tighten the group's limits to those of its channel. With
        ``sync`` False the block needs no sync for it."""
        if self.state.agreed.format < FORMAT:
            refuse_newer(fact, self.state.agreed)
        self._changes += 1
        self.records.append(FactRecord(channel_id, fact, refs))
        if not channel_id:
            self.must_sync = self.must_sync or sync
            return
        storage = self.state.channels[channel_id].state.definition.storage
        # The strictest channel decides for all, because the group is one block with one sync.
        if sync and storage.sync != "none":
            self.must_sync = True
            self.must_close = self.must_close or storage.sync_each_write
            self._size_max = min(self._size_max, storage.sync_max_batch_size)
            closes_us = self.now_us + storage.sync_batch_time * 1_000
            self._closes_us = min(self._closes_us, closes_us)

    def realm_fact(self, channel_id: int, fact: AnyFact, body: Buffer | None = None) -> None:
        """Record and apply a fact of the realm that no channel has decided."""
        refs = () if body is None else (BodyRef(0, len(body), 0),)
        bodies = [] if body is None else [body]
        self.record(channel_id, fact, refs)
        self.bodies += bodies
        self.state.apply(channel_id, fact, bodies=bodies)
        if type(fact) is ChannelCreated:
            self.made.append((fact.number, ""))

    def record_schema(self, schema: bytes) -> Recorded:
        """Return the number and schema of these bytes. Records a schema that has no number yet."""
        schemas = self.state.schemas
        if (recorded := schemas.recorded(schema)) is not None:
            return recorded
        schema_id = schemas.next_number()
        self.realm_fact(0, SchemaSeen(schema_id), schema)
        return schema_id, schemas.schema(schema_id)

    def _append(
        self,
        channel_id: int,
        channel: ChannelMachine,
        fact: Appended,
        bodies: Sequence[Body],
        publisher: str,
        decided: Decided,
        *,
        in_journal: bool,
    ) -> None:
        """Apply the events of a publish and add them to the block."""
        self._changes += 1
        follows = decided.follows
        recorded = channel.recorded(fact) if follows else fact
        tail_batches = []
        first = fact.span.first
        schemas = self.state.schemas
        rare = PublishHome(self.placing, channel.state.type.home, fact) if follows else None
        for body in bodies:
            recorded_schema = schemas.recorded(body.schema_bytes)
            is_new = recorded_schema is None
            # A new schema is recorded in the same block, before the events that refer to it.
            schema, arrow = recorded_schema or self.record_schema(body.schema_bytes)
            span = Span(first, first + body.rows)
            first = span.end
            tail_batch = TailBatch.published(
                body, span, fact.at_us, schema_id=schema, schema=arrow, publisher=publisher
            )
            if rare is None or rare.keeps(tail_batch):
                if is_new:
                    tail_batch.schema_weight = schemas.take_weight(schema)
                tail_batches.append(tail_batch)
                self._size += len(tail_batch.body)
        if isinstance(recorded, Appended):
            self._record_events(
                channel_id, channel, recorded, tail_batches=tail_batches, in_journal=in_journal
            )
        if follows:
            engine = channel.state.engine
            # On other channels a publish only adds ids, which early offers exclude.
            if engine.merges or engine.needs_interest or fact.relayed:
                self._waits.add(channel_id)
        self.state.appended(channel_id, fact, tail_batches)

    def _record_events(
        self,
        channel_id: int,
        channel: ChannelMachine,
        fact: Appended,
        tail_batches: Sequence[TailBatch],
        *,
        in_journal: bool,
    ) -> None:
        """Add events to the block, and those of paged channels to their pages."""
        absent = IdSet(fact.absent) if fact.absent else None
        # Page slots hold whole bodies. Events that only pass (SEM E8, J7) and deltas of merge
        # channels go into the journal.
        by_page = channel.state.type.home == "pages" and not (
            in_journal or absent is not None or channel.state.engine.merges
        )
        refs = []
        for tail_batch in tail_batches:
            body, rows = tail_batch.body, tail_batch.end - tail_batch.first
            if absent is not None:
                body, rows = on_disk(tail_batch, absent)
                if not rows:
                    continue
            place = self.placing.place(channel_id, tail_batch, body) if by_page else None
            refs.append(
                BodyRef(
                    tail_batch.schema_id,
                    len(body),
                    rows,
                    publisher=tail_batch.publisher,
                    place=place,
                )
            )
            if place is None:
                self.bodies.append(body)
        self.record(channel_id, fact, tuple(refs))


def _has_room(received: Body, stored: Body) -> bool:
    """Whether a body still fits its reserved page slot after columns were added."""
    return stored is received or len(stored.buffer) <= room_for(received)
