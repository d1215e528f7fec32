"""Publishes with much work for selectors wait here while a thread applies these to their events.

The selectors of durables, readers and joins are applied to everything that is published. If that is
much work, the publish waits here, and later publishes to the same channel behind it; everything
else goes on. A thread works on one slice after the other, in turns for all waiting publishes, and
stores the results with the events. The single writer finds them there when it decides: nothing is
missed, and the order stays.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, cast

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.schema.layout import DELIVERY_TIME
from penstock_core.columns.selectors import EventFrame, selector_of
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.columns.selectors.outcomes import PredicateOutcomes
from penstock_core.columns.selectors.patterns import Check
from penstock_core.loggers import logger
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import RealmStopping
from penstock_core.vocabulary.ports import Offload
from penstock_server.runtime.delivery.selection import BESIDE_ABOVE
from penstock_server.runtime.store.bodies import Body, SelectorKey
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.evaluation_ahead import evaluation_cost
from penstock_server.runtime.writer.match_cache import MatchCache, NeedsEvaluation
from penstock_server.runtime.writer.publish_selectors import selectors_of_body
from penstock_server.runtime.writer.requests import (
    GrantRoom,
    PublishBatches,
    RunAction,
    RunCommand,
    ShardRequest,
)

SLICE_BYTES: Final = 64 << 20
"""Bytes to read, times the selectors' work, in one slice: about a tenth of a second."""
PART_BYTES: Final = 1 << 20
"""Bytes of events that are examined together."""

_log = logger("penstock.shard")


class _WaitingPublish(Struct):
    """A publish that waits."""

    order: int
    work: ShardRequest
    numbers: frozenset[int]
    """The channels it is for."""
    slices: Iterator[Callable[[], None]]

    def __lt__(self, other: _WaitingPublish) -> bool:
        return self.order < other.order


class SelectorQueue:
    """Publishes that wait for their selectors, and the thread that applies these."""

    def __init__(self, state: RealmState, offload: Offload, on_ready: Callable[[], None]) -> None:
        self._state = state
        self._offload = offload
        self._on_ready = on_ready
        self.order: dict[int, tuple[int, ShardRequest]] = {}
        """Work that is not decided yet, with its position in the order of arrival; by ``id()`` of
        the work."""
        self._came = 0
        self._held: list[_WaitingPublish] = []
        """Waiting publishes, in order of arrival."""
        self._first: dict[int, int] = {}
        """The position of the first waiting publish, by channel."""
        self._turns: deque[_WaitingPublish] = deque()
        """Publishes whose events have not been read yet, next one first."""
        self.ready: list[ShardRequest] = []
        """Work that may be decided now."""
        self._task: asyncio.Task[None] | None = None
        self._spent = 0
        self._is_over = False
        self.ahead = MatchCache()
        """What is known of events that move, and of states."""
        self._stopped: dict[int, int] = {}
        """The position of the first work that waits for these, by channel: nothing that is asked
        of the channel overtakes it."""
        self.slices = 0
        """Number of slices so far."""

    @property
    def is_idle(self) -> bool:
        """Whether no publish waits."""
        return not (self._held or self.ready)

    # --- coming and going ----------------------------------------------------------------

    def begin_group(self, waiting: list[ShardRequest]) -> list[ShardRequest]:
        """The work that may be decided in this group: what was ready, and what in ``waiting`` waits
        for no selector."""
        self._spent = 0
        if self.ready:
            waiting = self._with_ready(waiting)
        if self.order:  # some may have been refused without being decided
            there = {*map(id, waiting), *(id(held.work) for held in self._held)}
            self.order = {each: order for each, order in self.order.items() if each in there}
        free: list[ShardRequest] = []
        quiet: dict[int, bool] = {}
        """By channel, whether nobody applies a selector to what is published: the usual case."""
        for work in waiting:
            if self._held:
                is_quiet = False  # a publish may wait before it
            elif isinstance(work, PublishBatches):
                if work.number not in quiet:
                    quiet[work.number] = not self._may_ask(work.number)
                is_quiet = quiet[work.number]
            else:
                is_quiet = isinstance(work, RunCommand | RunAction)
            if is_quiet or not self.holds(work):
                free.append(work)
        return free

    def _with_ready(self, waiting: list[ShardRequest]) -> list[ShardRequest]:
        """``waiting`` with the ready work, each behind what came earlier on its channel."""
        ready, self.ready = sorted(self.ready, key=self._order_of), []
        last, at = self._order_of(ready[-1]), 0
        for i, work in enumerate(waiting, start=1):
            if id(work) in self.order and self._order_of(work) < last:
                at = i
        return [*waiting[:at], *ready, *waiting[at:]]

    def holds(self, work: ShardRequest) -> bool:
        """Whether it waits here from now on."""
        if self._stopped and self._is_stopped(work):
            return True
        try:
            offered = work.offered
            if not (self._held or any(self._may_ask(number) for number, _ in offered)):
                return False
            missing, cost = self._missing(offered)
        except Exception:  # noqa: BLE001  whoever decides on it meets it again, and tells
            return False
        order = self._order_of(work)
        is_behind = any(self._first.get(number, order) < order for number, _ in offered)
        is_much = cost > BESIDE_ABOVE or self._spent + cost > SLICE_BYTES
        if not (is_behind or is_much):
            self._spent += cost
            return False
        self._hold(work, frozenset(number for number, _ in offered), self._slices(missing))
        return True

    def hold_until_evaluated(self, work: ShardRequest, look: NeedsEvaluation) -> None:
        """Hold work that was not done, until what it needs is known; whatever else is asked of the
        channel waits behind it."""
        numbers = frozenset((look.number, *_channels_of(work)))
        order = self._order_of(work)
        for number in numbers:
            self._stopped[number] = min(order, self._stopped.get(number, order))
        self._hold(work, numbers, self._slices_ahead(look))

    def sweep_after(self, look: NeedsEvaluation) -> None:
        """Look at due events, and let them move then; nobody waits behind them."""
        number = look.number
        work = RunAction(lambda group: group.sweep(number), sweeps=(number,))
        self._hold(work, frozenset(), self._slices_ahead(look))

    def _hold(
        self, work: ShardRequest, numbers: frozenset[int], slices: Iterator[Callable[[], None]]
    ) -> None:
        order = self._order_of(work)
        held = _WaitingPublish(order, work, numbers, slices=slices)
        insort(self._held, held)
        for number in held.numbers:
            self._first[number] = min(order, self._first.get(number, order))
        self._turns.append(held)
        if self._task is None:
            self._task = start_task(self._look())

    def _is_stopped(self, work: ShardRequest) -> bool:
        """Whether it waits behind work that needs to know more of the events of its channel."""
        numbers = _channels_of(work)
        order = self._order_of(work)
        if not any(self._stopped.get(number, order) < order for number in numbers):
            return False
        self._hold(work, frozenset(numbers), iter(()))
        return True

    def decided(self, work: ShardRequest) -> None:
        """Note that a publish was stored or refused."""
        self.order.pop(id(work), None)

    def _order_of(self, work: ShardRequest) -> int:
        if id(work) not in self.order:
            self._came += 1
            self.order[id(work)] = self._came, work
        return self.order[id(work)][0]

    def _may_ask(self, number: int) -> bool:
        """Whether anybody may apply a selector to what is published on a channel."""
        channel = self._state.channels.get(number)
        if channel is None:
            return False
        own = channel.state
        chooses = own.engine.needs_interest and bool(own.subscribers)
        return bool(own.durables or chooses or number in self._state.directory.joins.by_source)

    def drained(self) -> list[ShardRequest]:
        """The publishes that still wait at the end, and will not be served."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        left = [held.work for held in self._held] + self.ready
        self._held, self.ready = [], []
        self._first.clear()
        self._stopped.clear()
        self._turns.clear()
        return left

    # --- evaluating -------------------------------------------------------------------------

    def _missing(
        self, offered: Sequence[tuple[int, Sequence[Body]]]
    ) -> tuple[list[tuple[Body, dict[SelectorKey, int]]], int]:
        """The selectors, by body, that no thread has applied yet, and the bytes to read for
        them."""
        found, cost = [], 0
        for number, bodies in offered:
            if not self._may_ask(number):
                continue
            for body in bodies:
                if DELIVERY_TIME in body.names:  # a scheduled event is on a store without selectors
                    continue
                asked = selectors_of_body(self._state, number, body)
                left = {key: work for key, work in asked.items() if key not in body.evaluated}
                if left:
                    found.append((body, left))
                    cost += evaluation_cost(left, body.rows, body.weight)
        return found, cost

    def _slices(
        self, missing: Sequence[tuple[Body, dict[SelectorKey, int]]]
    ) -> Iterator[Callable[[], None]]:
        for body, asked in missing:
            try:
                yield from _looks(body, asked, self._check)
            finally:  # a failure occurs again where somebody is told of it
                body.evaluated |= asked.keys()

    def _slices_ahead(self, look: NeedsEvaluation) -> Iterator[Callable[[], None]]:
        try:
            yield from self._slices(look.evaluations)
        finally:
            look.keep()

    def _check(self) -> None:
        if self._is_over:
            raise RealmStopping("the realm is closed")

    async def _look(self) -> None:
        """Work on one slice of each waiting publish, again and again, until none waits."""
        while self._turns:
            held = self._turns.popleft()
            if await self._is_through(held):
                self._release()
            else:
                self._turns.append(held)
            await asyncio.sleep(0)  # serves others, even if no thread runs
        self._task = None

    async def _is_through(self, held: _WaitingPublish) -> bool:
        try:
            step = next(held.slices, None)
            if step is None:
                return True
            self.slices += 1
            await self._offload(step)
        except Exception:  # noqa: BLE001
            _log.exception("work.failed", work=type(held.work).__name__)
            held.slices.close()  # type: ignore[attr-defined]  # it is a generator
            return True
        return False

    def _release(self) -> None:
        """Release publishes whose events have been read, unless an earlier one still waits for the
        same channel."""
        unseen = {id(held) for held in self._turns}
        kept: list[_WaitingPublish] = []
        self._first.clear()
        stopped, self._stopped = self._stopped, {}
        for held in self._held:
            if id(held) in unseen or any(number in self._first for number in held.numbers):
                kept.append(held)
                for number in held.numbers:
                    self._first.setdefault(number, held.order)
                    if stopped.get(number, held.order + 1) <= held.order:
                        self._stopped.setdefault(number, held.order)
            else:
                self.ready.append(held.work)
        self._held = kept
        if self.ready:
            self._on_ready()


def _channels_of(work: ShardRequest) -> Sequence[int]:
    """The channels that a piece of work is known to be for."""
    if isinstance(work, RunCommand | GrantRoom):
        return (work.number,)
    if isinstance(work, RunAction):
        return work.sweeps or ()
    return [number for number, _ in work.offered]


def _looks(
    body: Body, asked: Mapping[SelectorKey, int], check: Check
) -> Iterator[Callable[[], None]]:
    """The slices of one body: some selectors put to some of its events."""
    batch = body.batch
    rows = max(1, batch.num_rows * PART_BYTES // max(1, body.weight))
    parts: list[PredicateOutcomes] = []
    for first in range(0, batch.num_rows, rows):
        part, frames = batch.slice(first, rows), _Frames(PredicateOutcomes(), check)
        parts.append(frames.outcomes)
        rows_here = part.num_rows
        size = body.weight * rows_here // batch.num_rows
        keys: list[SelectorKey] = []
        cost = 0
        for key, work in asked.items():
            keys.append(key)
            cost += evaluation_cost({key: work}, rows_here, size)
            if cost >= SLICE_BYTES:
                yield partial(frames.look, part, keys)
                keys, cost = [], 0
        if keys:
            yield partial(frames.look, part, keys)
    if body.outcomes is None:
        body.outcomes = PredicateOutcomes()
    body.outcomes.add_parts(parts)


class _Frames:
    """The frames of one part, one for each way to read messages in it."""

    def __init__(self, outcomes: PredicateOutcomes, check: Check) -> None:
        self.outcomes = outcomes
        self._check = check
        self._by_messages: dict[object, EventFrame] = {}

    def look(self, part: pa.RecordBatch, keys: Sequence[SelectorKey]) -> None:
        for messages, text in keys:
            frame = self._by_messages.get(messages)
            if frame is None:
                reader = cast("MessageAccess | None", messages)  # as selectors_of() gives it
                frame = EventFrame(part, 0, reader, check=self._check, outcomes=self.outcomes)
                self._by_messages[messages] = frame
            selector_of(text).mask_in(frame)
