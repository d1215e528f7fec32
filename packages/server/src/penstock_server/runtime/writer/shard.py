"""The single writer: the only task that changes the realm's state.

It takes all waiting requests as one group, decides and applies them in order, appends one block to
the journal, and only then answers and delivers. So no client ever sees a change that a power cut
could undo.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock_core.channel.channel import ChannelMachine
from penstock_core.loggers import logger
from penstock_core.messages.retention import EndRelay, Quarantine, Sweep
from penstock_core.messages.seats import Detach
from penstock_core.messages.settlements import Ack, AckPrevious
from penstock_core.vocabulary.errors import (
    Deposed,
    PenstockError,
    RealmStopping,
    StorageFailed,
    Unknown,
)
from penstock_core.vocabulary.ports import Clock, Journal
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.store.large_blocks import LargeBlocks
from penstock_server.runtime.store.records import encode_block
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.channel_timers import ChannelTimers
from penstock_server.runtime.writer.dead_events import MovingPace
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.linger import Linger
from penstock_server.runtime.writer.match_cache import NeedsEvaluation
from penstock_server.runtime.writer.persisting import bytes_to_secure
from penstock_server.runtime.writer.placement import MemoryLimits, Placing, room_for
from penstock_server.runtime.writer.requests import (
    PublishBatches,
    Repeatable,
    Reply,
    RunAction,
    RunCommand,
    ShardRequest,
    expect_answer,
    outcome_of,
    send_answer,
    size_of,
    sizes_of,
    split_at,
)
from penstock_server.runtime.writer.room_forecast import (
    bytes_that_move,
    has_no_side_effects,
    side_effect_bytes,
    writes_nothing,
)
from penstock_server.runtime.writer.selector_queue import SelectorQueue

GROUP_BYTES_MAX = 16 << 20
"""Limit on the bytes of events in a group. Further requests go into the next group, so that memory
and the time until the first answer stay bounded."""

Outcome = tuple[Reply | None, Any, BaseException | None]
"""The outcome of one request: its reply, the answer, and the error that it was refused with."""

_log = logger("penstock.shard")


class Shard:
    """The single writer of a shard: its queue of requests, and the task that serves them."""

    is_congested: Callable[[], bool] = bool
    """Whether the sealer is behind, so that publishers wait and dead events do not move. False
    until it is set."""
    _arrivals = 0
    """Number of requests received so far."""
    observe: Callable[[ShardRequest], None] | None = None
    """Called with each request that is queued, before it has an order; may replace its reply. None
    if requests are not recorded."""

    def __init__(
        self,
        state: RealmState,
        journal: Journal,
        clock: Clock,
        dispatch: Dispatch,
        *,
        placing: Placing,
        limits: MemoryLimits,
        sweep_interval_s: float,
    ) -> None:
        self.state = state
        self.selector_queue = SelectorQueue(state, dispatch.choosing, self._rouse)
        """Holds publishes whose selectors take long to evaluate."""
        self.placing = placing
        self._limits = limits
        self._journal = journal
        self._clock = clock
        self._dispatch = dispatch
        self._ahead: list[ShardRequest] = []
        """Requests that are decided before all other waiting requests."""
        self._waiting: list[ShardRequest] = []
        self._serving: list[ShardRequest] = []
        """Requests of the current group; refused if the shard ends before it answers them. A
        request that this group has postponed is also in ``_waiting``, and one that it holds is also
        in ``selector_queue``."""
        # Calls to run between two groups, each with the future that ends with it.
        self._between: list[tuple[Callable[[], Awaitable[None]], asyncio.Future[None]]] = []
        # Ends the wait for the next request; None while the shard has work.
        self._idle: asyncio.Future[None] | None = None
        self.ended = asyncio.Event()
        """Set when :meth:`run` has ended. Nothing is written after that."""
        # Channels to sweep and to offer events of in the next group, in the order of waking.
        self._woken: dict[int, None] = {}
        self.timers = ChannelTimers(
            state.channels,
            self.wake,
            clock,
            incidents=dispatch.incidents,
            sweep_interval_s=sweep_interval_s,
        )
        self._pace = MovingPace(self.wake)
        self._has_room = True
        """Whether the disk has room for the follow-up writes of the next group."""
        self.changed = set(state.channels)
        """Channels changed since the sealer last took this set. It inspects only these."""
        # The error that ended the shard. Later requests are refused with it.
        self._failed: PenstockError | None = None
        self._stopping = False
        self.tail = journal.info().tail
        """Sequence of the newest block."""
        self.large_blocks: LargeBlocks | None = None
        """Stores bodies that are too large for the log of a storage engine; None if the journal is
        a local file, which has no such limit."""
        # Number of blocks appended so far.
        self.groups = 0
        self.on_made: Callable[[list[tuple[int, str]]], None] = lambda made: None
        """Called with the new channels and durables: pairs of a channel's id and a durable's name,
        which is empty for the channel itself."""
        self.on_deposed: Callable[[], None] = lambda: None
        """Called when another owner has taken over, before the waiting requests are refused."""
        self.linger: Linger | None = None
        """Keeps the loop awake between the requests of a client that waits for each answer; None
        if the loop always sleeps between requests."""
        self.is_answering = False
        self.on_answered: Callable[[], None] = lambda: None
        """Called after the answers of a group, and after early deliveries, to flush all buffered
        writes at once."""

    # --- requests ------------------------------------------------------------------------

    def submit(self, work: ShardRequest, *, first: bool = False) -> None:
        """Queue ``work``; with ``first``, ahead of all waiting requests. The reply of the work is
        called once its facts are stored, or with the error that refuses it."""
        if self._failed is not None or self._stopping:
            send_answer(work.reply, None, self._failed or RealmStopping("the realm is closing"))
            return
        if self.observe is not None:
            self.observe(work)
        self._arrivals = work.order = self._arrivals + 1
        (self._ahead if first else self._waiting).append(work)
        if self._idle is not None:
            self._rouse()

    async def ask(self, work: ShardRequest, *, first: bool = False) -> Any:
        """Queue ``work``, wait for its answer and return it. Raises the error that refuses the
        work."""
        answer = expect_answer(work)
        self.submit(work, first=first)
        try:
            return await answer
        finally:
            # An error in the future refers to this frame, and the frame to the future. Breaking
            # the cycle frees the request's events immediately and not at the next collection.
            del answer

    async def act(
        self,
        action: Callable[[Group], Any],
        *,
        first: bool = False,
        sweeps: Sequence[int] | None = None,
        room: int = 0,
    ) -> Any:
        """Run ``action(group)`` in the order of requests and return its result.

        The action may sweep only the channels in ``sweeps``; None means any channel. The action may
        write ``room`` bytes. Raises ``StorageFailed`` if the disk has no room for them.
        """
        return await self.ask(RunAction(action, sweeps=sweeps, room=room), first=first)

    @property
    def is_at_rest(self) -> bool:
        """Whether clients may see the state in memory now: every fact in it is stored, no request
        waits, and no other node can be the owner."""
        return self._idle is not None and self._failed is None and self._dispatch.lease.holds()

    def call_after_earlier(self, then: Callable[[], None]) -> None:
        """Call ``then`` once all earlier requests are answered, or refused because the realm has
        ended."""
        self.submit(RunAction(lambda _: None, reply=lambda *_: then(), sweeps=()))

    async def exclusively(self, call: Callable[[], Awaitable[None]]) -> None:
        """Run ``call`` between two groups, because a journal serves one caller at a time."""
        if self._failed is not None:
            raise self._failed
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._between.append((call, done))
        self._rouse()
        try:
            await done
        finally:
            del done  # breaks a reference cycle, as in `ask`

    def quarantine(self, channel_id: int, command: Quarantine) -> None:
        """Quarantine stored events that turned out to be unreadable (SEM S1). The channel is not
        swept before, as it would be for a command: the sweep would read expired events on their way
        to the dead event store, and fail on these again."""
        self.submit(RunAction(lambda group: group.do(channel_id, command), sweeps=(channel_id,)))

    def _read_ahead(self) -> None:
        """Prefetch predicted reads, unless requests have arrived since the shard became idle."""
        if not (self._waiting or self._ahead):
            self._dispatch.ahead.read(self.state)

    def _rouse(self) -> None:
        """Wake :meth:`run` if it waits for requests."""
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(None)

    def wake(self, channel_id: int) -> None:
        """Let the next group offer events of a channel, for example because of new credit or a
        drained connection."""
        self._woken[channel_id] = None
        self._rouse()

    # --- serving -------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled, stopped, deposed, or until the journal fails.

        A failed append ends the shard: its state has facts that are not stored, so it must not
        answer again. The state on disk is consistent; a new realm is recovered from it.
        """
        try:
            await self._serve()
        except StorageFailed as failure:
            self._failed = failure
            _log.error("journal.failed", reason=str(failure))
            self._refuse_waiting(failure)
            raise
        except (Deposed, Unknown) as end:
            self._failed = end
            _log.warning("shard.deposed", reason=str(end))
            raise
        except Exception as error:
            _log.exception("shard.broken", exc_info=not isinstance(error, PenstockError))
            # In a cluster the next owner has the stored state, so clients must ask it (SEM N4).
            if self._dispatch.lease.epoch:
                self._failed = Unknown(f"the owner failed ({error}); ask the next one")
            raise
        finally:
            self._failed = self._failed or RealmStopping("the realm is closed")
            if isinstance(self._failed, Deposed | Unknown):
                self.on_deposed()  # drops all connections first: no refusal may reach a client
            self._refuse_waiting(self._failed)
            self.ended.set()

    async def _serve(self) -> None:
        """Serve groups until the shard is stopped and has no work."""
        loop = asyncio.get_running_loop()
        while not (self._stopping and not self._has_work and self.selector_queue.is_idle):
            if not (self._has_work or self._woken or self._between):
                self._idle = loop.create_future()
                # Not called directly, so that the loop sends the queued answers before the reads.
                if self._dispatch.ahead.predicted:
                    loop.call_soon(self._read_ahead)
                if self.linger is not None:
                    self.linger.stay(self._idle)
                await self._idle
                if self.linger is not None:
                    self.linger.forget_after_idling()
            if self._between:
                await self._serve_between()
            began_s = loop.time()
            group = await self._serve_group()
            if group.has_moved:
                self._pace.adapt_step(group.has_moved, group.held_s)
                self._pace.rest(began_s)
            if self._woken:
                await asyncio.sleep(0)  # let connections drain before offering them more

    @property
    def _may_copy(self) -> bool:
        """Whether dead events may be copied. Otherwise they stay where they are, hidden."""
        return self._has_room and not self.is_congested()

    @property
    def _has_work(self) -> bool:
        return bool(self._ahead or self._waiting or self.selector_queue.ready)

    def stop(self) -> None:
        """Serve the waiting requests, then end :meth:`run`."""
        self._stopping = True
        self._rouse()

    def _refuse_waiting(self, failure: PenstockError) -> None:
        """Refuse all requests that were not answered, because the shard has ended."""
        waiting = self._serving + self._ahead + self._waiting + self.selector_queue.drained()
        each_once = {id(work): work for work in waiting}  # see `_serving`
        self._serving, self._ahead, self._waiting = [], [], []
        self._dispatch.choosers.close()
        for work in each_once.values():
            send_answer(work.reply, None, failure)
        between, self._between = self._between, []
        for _, done in between:
            if not done.done():
                done.set_exception(failure)

    async def _serve_between(self) -> None:
        """Run the calls of :meth:`exclusively`. A call is removed only after it has ended: if the
        shard ends during the call, its caller also gets the error."""
        while self._between:
            call, future = self._between[0]
            try:
                await call()
            except (Deposed, Unknown):
                raise  # the shard ends and refuses all waiting requests and this call
            except PenstockError as failure:
                if not future.done():
                    future.set_exception(failure)
            else:
                if not future.done():
                    future.set_result(None)
            del self._between[0]

    async def _serve_group(self) -> Group:
        """Serve one group of requests.

        The order of the steps carries the guarantees: room on disk is reserved before anything is
        decided, so that a full disk refuses and never breaks the shard; a block is stored before
        its answers and deliveries; answers go before deliveries, so that a client knows its
        subscription before the first event.
        """
        waiting, self._ahead, self._waiting = self._ahead + self._waiting, [], []
        waiting = self.selector_queue.begin_group(waiting)
        self._serving = waiting  # refused if the shard ends in this group
        if self.state.to_open:
            await self._open_files()
        waiting = self._serving = await self._with_room(waiting)
        ahead = self.selector_queue.ahead
        group = Group(
            self.state,
            self._clock.now_us(),
            self._limits,
            placing=self.placing,
            match_cache=ahead,
            turn_cost_max=self._dispatch.choosing.limits.thread_above,
        )
        # Nothing may await from here to the end of `sweep_touched`, except opening files, which
        # changes no state: decisions of one group see each other's effects and nothing else.
        group.has_room, group.may_move = self._may_copy, self._pace.resting is None
        group.sweeping = Sweep(may_write=self._has_room, moved_max=self._pace.events_max)
        group.touched |= self._woken
        self._woken, self._dispatch.choosers.spent = {}, 0
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        answers = self._decide(waiting, group)
        if self.state.to_open:
            await self._open_files()
        group.sweep_touched(self._dispatch.incidents.report)
        group.held_s = loop.time() - began_s
        for evaluation in group.evaluations:
            self.selector_queue.sweep_after(evaluation)
        # Deliveries that only need older blocks go out before the append: clients work during the
        # sync. Without an append only the lease proves that this is still the owner.
        has_moved = False
        early = group.offers_early() if group.commanded and self._dispatch.lease.holds() else ()
        for channel_id, below in early:
            has_moved |= await self._perform(channel_id, below)
        if group.records:
            if has_moved and group.must_sync:
                self.on_answered()
                await asyncio.sleep(0)  # lets the loop send the deliveries before the sync blocks
            await self.append(group)
        elif answers:
            await self._dispatch.rely("answers")
        self._serving = []
        self.answer(group, answers)
        self.changed.update(group.touched)
        await self.offer(list(group.touched))
        # After the offers, because a delivery may have a deadline.
        self.timers.touch(group.touched, group.now_us)
        if group.made:
            self.timers.touch([channel_id for channel_id, _ in group.made], group.now_us)
        if group.must_sync and (self.state.freed or self.state.dropped):
            await self._free_pages()
        return group

    def answer(self, group: Group, answers: Sequence[Outcome]) -> None:
        """Send the recalls of events, and then the answers: a client must know that events were
        recalled before it learns the outcome of a later request."""
        for channel_id in group.touched:
            channel = self.state.channels.get(channel_id)
            if channel is not None and channel.state.recalls:
                self._dispatch.recall(channel)
        self.is_answering = True
        for reply, result, error in answers:
            send_answer(reply, result, error)
        self.is_answering = False
        if group.made:
            self.on_made(group.made)
        self.on_answered()
        if self.linger is not None:
            self.linger.count_group(len(answers), group.bodies)

    def _decide(self, waiting: list[ShardRequest], group: Group) -> list[Outcome]:
        """Decide requests in order until the group is full, or until files must be opened for the
        next step. The remaining requests go into the next group."""
        answers: list[Outcome] = []
        # Set once a request was held, or may have changed the selectors of a later publish. From
        # then on the queue has to check each request again, although it let the request pass at the
        # start of the group.
        must_check = False
        for i, work in enumerate(waiting, start=1):
            if not (must_check and self.selector_queue.holds(work)):
                result, error = outcome_of(work, group)
                if type(error) is NeedsEvaluation:
                    self.selector_queue.hold_until_evaluated(work, error)
                    must_check = True
                else:
                    answers.append((work.reply, result, error))
                    must_check |= isinstance(work, RunAction)
            if i == len(waiting):
                break
            if group.is_full(i, self._clock.now_us()) or self.state.to_open:
                self._waiting = waiting[i:] + self._waiting
                self._rouse()
                break
        if group.settled:
            group.settle()
        return answers

    async def _open_files(self) -> None:
        """Open the files that a step may read, because a step cannot wait for a file (SEM T7)."""
        while self.state.to_open:
            store = self.state.stores.get(self.state.to_open.pop())
            if store is not None:
                await self._dispatch.files.pin(store.files)

    async def _free_pages(self) -> None:
        """Free page slots of removed events. Only after a sync: until the removal is on disk, a
        power cut would bring back the events, and their slots must still have them."""
        while self.state.freed:
            channel_id = self.state.freed.pop()
            freed = self.state.stores[channel_id].freed
            places, freed[:] = list(freed), []
            await self.placing.pages.release(channel_id, places)
        while self.state.dropped:
            await self.placing.pages.drop(self.state.dropped.pop())

    async def _with_room(self, waiting: list[ShardRequest]) -> list[ShardRequest]:
        """Reserve room on disk for the waiting requests, before anything is decided. Return the
        requests that have it."""
        try:
            return await self._cut_and_reserve(waiting)
        except Exception:  # noqa: BLE001  refuse the request that fails; another failure is raised
            # `_serving` and not `waiting`: the first attempt may have cut the group, and the
            # requests that it cut off wait already.
            waiting = self._serving = self._foreseeable(self._serving)
            return await self._cut_and_reserve(waiting)

    async def _cut_and_reserve(self, waiting: list[ShardRequest]) -> list[ShardRequest]:
        """Cut the group to ``GROUP_BYTES_MAX`` and reserve disk space for it."""
        size = sizes_of(waiting)
        if size > GROUP_BYTES_MAX and len(waiting) > 1:
            waiting, later = split_at(waiting, GROUP_BYTES_MAX)
            self._waiting = later + self._waiting
            self._serving = waiting
            self._rouse()
            size = sizes_of(waiting)
        self._has_room = True
        try:
            size += 4_096 * (1 + len(waiting))  # an upper bound for the facts of the block
            if self._has_no_side_effects(waiting):
                await self._journal.reserve(size)
            else:
                await self._journal.reserve(size + self._follow_up_bytes(waiting))
                await self._reserve_pages(waiting)
        except StorageFailed as failure:
            self._has_room = False
            return self._needing_no_room(waiting, failure)
        return waiting

    def _foreseeable(self, waiting: list[ShardRequest]) -> list[ShardRequest]:
        """Return the requests whose follow-up bytes can be forecast. The others are answered with
        their error here, so that one failing forecast does not affect other requests."""
        foreseeable = []
        for work in waiting:
            try:
                for channel_id, bodies in work.offered:
                    if not has_no_side_effects(self.state, channel_id):
                        side_effect_bytes(self.state, channel_id, bodies)
            except PenstockError as refusal:
                send_answer(work.reply, None, refusal)
            except Exception as failure:  # noqa: BLE001
                send_answer(work.reply, None, failure)
            else:
                foreseeable.append(work)
        return foreseeable

    def _has_no_side_effects(self, waiting: Sequence[ShardRequest]) -> bool:
        """Whether all requests are publishes or acknowledgements on channels where these write
        nothing else. This fast path saves the forecast for most groups."""
        if self._woken:
            return False
        for work in waiting:
            match work:
                case PublishBatches(channel_id) | RunCommand(channel_id, Ack() | AckPrevious()):
                    if not has_no_side_effects(self.state, channel_id):
                        return False
                case _:
                    return False
        return True

    def _needing_no_room(
        self, waiting: Sequence[ShardRequest], failure: StorageFailed
    ) -> list[ShardRequest]:
        """Return the requests that write at most a few bytes, such as acknowledgements. Answer the
        other requests with ``failure``."""
        light_requests: list[ShardRequest] = []
        ids: Counter[int] = Counter()
        for i, work in enumerate(waiting):
            is_decided = isinstance(work, Repeatable) and work.is_decided(self.state)
            if is_decided or not size_of(work):
                light_requests.append(work)
            elif not (isinstance(work, PublishBatches) and self._is_light(work, ids)):
                send_answer(work.reply, None, failure)
            # Together with an earlier request of the group, this publish may write something, so it
            # is decided alone in a later group.
            elif any(not size_of(before) for before in light_requests):
                self._waiting = [*waiting[i:], *self._waiting]
                self._rouse()
                break
            else:
                light_requests.append(work)
        self._serving = light_requests
        return light_requests

    def _is_light(self, work: PublishBatches, ids: Counter[int]) -> bool:
        """Whether a publish writes nothing to disk. ``ids`` is the number of ids that earlier
        publishes of the group take, by channel; the ids of this publish are added."""
        before = ids[work.channel_id]
        ids[work.channel_id] += work.digest.count
        return writes_nothing(
            self.state, work.channel_id, work.digest, bodies=work.bodies, before=before
        )

    def _follow_up_bytes(self, waiting: Sequence[ShardRequest]) -> int:
        """Forecast the bytes of copies and moved events that follow from the requests, or that are
        due."""
        channel_ids = {
            *self._woken,
            *(work.channel_id for work in waiting if isinstance(work, RunCommand)),
        }
        size = 0
        for work in waiting:
            for channel_id, bodies in work.offered:
                channel_ids.add(channel_id)
                size += side_effect_bytes(self.state, channel_id, bodies)
        for work in waiting:
            if isinstance(work, RunAction):
                channel_ids |= set(self.state.channels if work.sweeps is None else work.sweeps)
        for channel_id in channel_ids:
            size += self._bytes_to_secure(channel_id, waiting)
        return size + bytes_that_move(self.state, channel_ids, self._clock.now_us())

    def _bytes_to_secure(self, channel_id: int, waiting: Sequence[ShardRequest]) -> int:
        """Forecast the bytes of passing events that must be stored because their subscribers
        leave."""
        channel = self.state.channels.get(channel_id)
        if channel is None or not channel.state.unwritten:
            return 0
        leaves = any(
            isinstance(work, RunAction)  # any action may end a subscription
            or (
                isinstance(work, RunCommand)
                and work.channel_id == channel_id
                and isinstance(work.command, Detach)
            )
            for work in waiting
        )
        return bytes_to_secure(self.state, channel_id) if leaves or channel.state.has_left else 0

    async def _reserve_pages(self, waiting: Sequence[ShardRequest]) -> None:
        """Reserve page slots for the publishes to paged channels."""
        sizes: dict[int, list[int]] = {}
        for work in waiting:
            for channel_id, bodies in work.offered:
                channel = self.state.channels.get(channel_id)
                if (
                    channel is not None
                    and channel.state.type.home == "pages"
                    and not channel.state.engine.merges
                ):
                    sizes.setdefault(channel_id, []).extend(map(room_for, bodies))
        for channel_id, body_sizes in sizes.items():
            await self.placing.pages.reserve(channel_id, body_sizes)

    async def append(self, group: Group) -> None:
        """Append the block of a group to the journal. Pages are written first, because the block
        refers to their slots: a block must never name bytes that are not on disk."""
        if self.placing.placed:
            await self.placing.flush(sync=group.must_sync)
        records, bodies = group.records, group.bodies
        if self.large_blocks is not None:
            records, bodies = await self.large_blocks.move_bodies_out(
                self.tail + 1, records, bodies
            )
        chunks = encode_block(group.now_us, records, bodies, format=self._dispatch.lease.format)
        self.tail = await self._journal.append(self.tail, chunks, sync=group.must_sync)
        self.groups += 1

    async def offer(self, touched: Sequence[int]) -> None:
        """Deliver what the touched channels offer."""
        for channel_id in touched:
            channel = self.state.channels.get(channel_id)
            if channel is None:
                self._dispatch.channel_gone(channel_id)
                continue
            state = channel.state
            has_receivers = state.subscribers or state.seats or state.cancelled
            if not (has_receivers or state.may_pass or state.overdue):
                continue
            if channel.has_offers:
                await self._perform(channel_id)
            if state.relayed or state.passing or state.leaving:
                await self._relay(channel_id, channel)
            if channel.state.overdue and self._pace.resting is not None:
                self._pace.hold_back(channel_id)
            elif channel.state.overdue and channel_id in self.selector_queue.ahead.sweeping:
                continue  # swept once a thread has evaluated selectors on its due events
            elif channel.has_offers and (self._may_copy or not channel.state.overdue):
                # A channel whose events wait for disk space is not woken here: a later sweep wakes
                # it.
                self.wake(channel_id)

    async def _relay(self, channel_id: int, channel: ChannelMachine) -> None:
        """Deliver the events that the channel does not keep. Transient events and evicted ones go
        to connected clients with credit and are then removed (SEM E8, T3). Passing events are
        removed once they have reached all subscribers (SEM J4)."""
        state = channel.state
        while (state.relayed or state.leaving) and channel.has_offers and not state.overdue:
            # Without progress, the end of a client or a quarantine is in the queue and must be
            # decided first.
            if not await self._perform(channel_id):
                break
        if channel.state.overdue:  # expired events must move before any delivery (SEM T1)
            return
        for fact in channel.decide(
            EndRelay(spares=self._limits.are_half_free(self.state.meter)), self._clock.now_us()
        ).facts:
            self.state.apply(channel_id, fact)

    async def _perform(self, channel_id: int, below: int | None = None) -> bool:
        """Deliver what a channel offers. Return whether any subscriber made progress."""
        channel, store = self.state.channels.get(channel_id), self.state.stores.get(channel_id)
        if channel is None or store is None:
            return False
        return await self._dispatch.perform(
            channel_id, channel, store, quarantiner=self, below=below
        )
