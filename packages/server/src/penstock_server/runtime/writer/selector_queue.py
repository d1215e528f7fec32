"""Holds publishes with expensive selectors while a thread evaluates these on their events.

The selectors of durables, readers and joins are evaluated on every published event. If that takes
long, the publish waits in this queue, with all later publishes to the same channel behind it; other
channels are still served. A thread evaluates slice after slice, in round-robin order of the
waiting publishes, and stores the results with the bodies. The single writer uses them when it
decides, so that no match is missed and the order of publishes is kept.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import cast

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.schema.layout import DELIVERY_TIME
from penstock_core.columns.selectors import EventFrame, selector_of
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.columns.selectors.outcomes import PredicateOutcomes
from penstock_core.columns.selectors.patterns import Check
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import RealmStopping
from penstock_server.runtime.delivery.selection import Choosing, SelectorLimits
from penstock_server.runtime.delivery.selector_worker import SelectorWorker
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

_log = logger("penstock.shard")

Slices = Generator[Callable[[], None], None, None]
"""The steps of an evaluation that a thread runs, one in each turn."""


class _HeldWork(Struct, eq=False):
    """A publish that waits, or other work that needs evaluations before it is decided."""

    work: ShardRequest
    channel_ids: frozenset[int]
    """The channels on which later work waits behind it."""
    blocks: bool
    """Whether all later requests for these channels wait behind it, and not only publishes."""
    slices: Slices | None
    """The evaluation that the work waits for; None if it waits only for earlier work."""

    def __lt__(self, other: _HeldWork) -> bool:
        return self.work.order < other.work.order


class SelectorQueue:
    """The publishes that wait for their selectors, and the thread that evaluates these."""

    def __init__(self, state: RealmState, choosing: Choosing, on_ready: Callable[[], None]) -> None:
        self._state = state
        self._choosing = choosing
        self._on_ready = on_ready
        self._held: set[_HeldWork] = set()
        self._lines: dict[int, deque[_HeldWork]] = {}
        """Held work by channel, in order of arrival."""
        self._blocked_from: dict[int, int] = {}
        """The order of the first held work that blocks a channel. No request for the channel,
        publish or not, overtakes it."""
        self.ready: list[ShardRequest] = []
        """Work that may be decided now."""
        self._worker = SelectorWorker()
        self._spent = 0
        self.ahead = MatchCache()
        """Results for events that move, and for merged states."""
        self.slices = 0
        """Number of slices that the thread has evaluated so far."""

    @property
    def is_idle(self) -> bool:
        """Whether no publish waits."""
        return not (self._held or self.ready)

    # --- holding and releasing------------------------------------------------------------

    def begin_group(self, waiting: list[ShardRequest]) -> list[ShardRequest]:
        """Return the work that may be decided in this group: the work that was ready, and the work
        in ``waiting`` that needs no evaluation. The rest is held in this queue."""
        self._spent = 0
        if self.ready:
            waiting = self._with_ready(waiting)
        free: list[ShardRequest] = []
        quiet: dict[int, bool] = {}
        """Whether no selector is evaluated on publishes, by channel. This is the usual case, and
        :meth:`holds` would then cost more than the publish."""
        for work in waiting:
            if self._held:
                is_quiet = False  # it may have to wait behind a held publish
            elif isinstance(work, PublishBatches):
                if work.channel_id not in quiet:
                    quiet[work.channel_id] = not self._may_have_selectors(work.channel_id)
                is_quiet = quiet[work.channel_id]
            else:
                is_quiet = isinstance(work, RunCommand | RunAction)
            if is_quiet or not self.holds(work):
                free.append(work)
        return free

    def _with_ready(self, waiting: list[ShardRequest]) -> list[ShardRequest]:
        """Return ``waiting`` with each ready work inserted behind all work that arrived earlier.

        ``waiting`` itself keeps its order: requests that are decided before all others are first.
        """
        ready, self.ready = sorted(self.ready, key=lambda work: work.order), []
        merged: list[ShardRequest] = []  # from the last to the first
        for work in reversed(waiting):
            while ready and ready[-1].order > work.order:
                merged.append(ready.pop())
            merged.append(work)
        return [*ready, *reversed(merged)]

    def holds(self, work: ShardRequest) -> bool:
        """Hold a publish if its selectors take long, or if an earlier publish to one of its
        channels is held. Return whether it is held."""
        if self._blocked_from and self._waits_behind(work):
            return True
        try:
            offered = work.offered
            if not (
                self._held or any(self._may_have_selectors(channel_id) for channel_id, _ in offered)
            ):
                return False
            missing, cost = self._missing(offered)
        except Exception:  # noqa: BLE001  deciding the work raises it again and answers the client
            return False
        is_behind = any(
            channel_id in self._lines and self._lines[channel_id][0].work.order < work.order
            for channel_id, _ in offered
        )
        limits = self._choosing.limits
        is_much = cost > limits.thread_above or self._spent + cost > limits.slice_cost
        if not (is_behind or is_much):
            self._spent += cost
            return False
        slices = self._slices(missing) if missing else None
        self._hold(work, [channel_id for channel_id, _ in offered], slices)
        return True

    def hold_until_evaluated(self, work: ShardRequest, evaluation: NeedsEvaluation) -> None:
        """Hold undone work until the evaluation it needs is done. All later requests for its
        channels wait behind it."""
        channel_ids = (evaluation.channel_id, *_channels_of(work))
        self._hold(work, channel_ids, self._slices_ahead(evaluation), blocks=True)

    def sweep_after(self, evaluation: NeedsEvaluation) -> None:
        """Evaluate selectors on due events, and then sweep the channel. No request waits for this,
        because due events are hidden already."""
        channel_id = evaluation.channel_id
        work = RunAction(lambda group: group.sweep(channel_id), sweeps=(channel_id,))
        self._hold(work, (), self._slices_ahead(evaluation))

    def _hold(
        self,
        work: ShardRequest,
        channel_ids: Sequence[int],
        slices: Slices | None,
        *,
        blocks: bool = False,
    ) -> None:
        """Hold work in the lines of these channels, until its ``slices`` are evaluated and the work
        is first in each line."""
        held = _HeldWork(work, frozenset(channel_ids), blocks=blocks, slices=slices)
        self._held.add(held)
        for channel_id in held.channel_ids:
            # Work that was ready before, and needs another evaluation, goes back to its place.
            insort(self._lines.setdefault(channel_id, deque()), held)
            if blocks:
                blocked_from = self._blocked_from.get(channel_id, work.order)
                self._blocked_from[channel_id] = min(blocked_from, work.order)
        if slices is not None:
            self._worker.submit(held, partial(self._evaluate_slice, held))

    def _waits_behind(self, work: ShardRequest) -> bool:
        """Hold work behind other work that blocks one of its channels. Return whether it is
        held."""
        channel_ids, order = _channels_of(work), work.order
        if not any(self._blocked_from.get(channel_id, order) < order for channel_id in channel_ids):
            return False
        self._hold(work, channel_ids, None, blocks=True)
        return True

    def _may_have_selectors(self, channel_id: int) -> bool:
        """Whether selectors may be evaluated on the publishes of a channel."""
        channel = self._state.channels.get(channel_id)
        if channel is None:
            return False
        state = channel.state
        chooses = state.engine.needs_interest and bool(state.subscribers)
        return bool(
            state.durables or chooses or channel_id in self._state.directory.joins.by_source
        )

    def drained(self) -> list[ShardRequest]:
        """Stop the thread and return the work that still waits and will not be served."""
        self._worker.close()
        unserved = [held.work for held in sorted(self._held)] + self.ready
        self._held, self.ready = set(), []
        self._lines.clear()
        self._blocked_from.clear()
        return unserved

    # --- evaluating -------------------------------------------------------------------------

    def _missing(
        self, offered: Sequence[tuple[int, Sequence[Body]]]
    ) -> tuple[list[tuple[Body, dict[SelectorKey, int]]], int]:
        """Return the selectors not evaluated yet, by body, and the cost of evaluating them."""
        missing, cost = [], 0
        for channel_id, bodies in offered:
            if not self._may_have_selectors(channel_id):
                continue
            for body in bodies:
                # Scheduled events wait on a store that has no selectors.
                if DELIVERY_TIME in body.names:
                    continue
                selectors = selectors_of_body(self._state, channel_id, body)
                unknown = {
                    key: work for key, work in selectors.items() if key not in body.evaluated
                }
                if unknown:
                    missing.append((body, unknown))
                    cost += evaluation_cost(unknown, body.rows, body.weight)
        return missing, cost

    def _slices(self, missing: Sequence[tuple[Body, dict[SelectorKey, int]]]) -> Slices:
        """Yield the evaluations of selectors on bodies, one slice after the other."""
        for body, selectors in missing:
            try:
                yield from _evaluations(body, selectors, self._check, limits=self._choosing.limits)
            # Also after a failure: deciding the publish evaluates again and reports the failure.
            finally:
                body.evaluated |= selectors.keys()

    def _slices_ahead(self, evaluation: NeedsEvaluation) -> Slices:
        """Yield the slices of an evaluation that other work needs, then keep its results."""
        try:
            yield from self._slices(evaluation.evaluations)
        finally:
            evaluation.keep()

    def _check(self) -> None:
        """Raise ``RealmStopping`` if the realm was closed during an evaluation."""
        if self._worker.is_closed:
            raise RealmStopping("the realm is closed")

    async def _evaluate_slice(self, held: _HeldWork) -> bool:
        """Evaluate the next slice of held work. Return False after the last one; the work is then
        released."""
        assert held.slices is not None, "released work has no turn"
        try:
            if (step := next(held.slices, None)) is not None:
                self.slices += 1
                await self._choosing.run_in_thread(step)
                return True
        except Exception:  # noqa: BLE001
            _log.exception("work.failed", work=type(held.work).__name__)
            # The step failed outside the generator, whose `finally` has to run.
            held.slices.close()
        held.slices = None
        self._release(held)
        return False

    def _release(self, evaluated: _HeldWork) -> None:
        """Release evaluated work, unless earlier work still waits for one of its channels. Then do
        the same for the work that is now the first of a channel."""
        candidates = [evaluated]
        while candidates:
            held = candidates.pop()
            if not self._may_go(held):
                continue
            self._held.remove(held)
            self.ready.append(held.work)
            for channel_id in held.channel_ids:
                line = self._lines[channel_id]
                line.popleft()
                if held.blocks:
                    self._unblock(channel_id)
                if line:
                    candidates.append(line[0])
                else:
                    del self._lines[channel_id]
        if self.ready:
            self._on_ready()

    def _may_go(self, held: _HeldWork) -> bool:
        """Whether held work is evaluated, and first in the lines of all its channels."""
        return (
            held in self._held
            and held.slices is None
            and all(self._lines[channel_id][0] is held for channel_id in held.channel_ids)
        )

    def _unblock(self, channel_id: int) -> None:
        """Let requests overtake the work in the line of a channel, up to the next that blocks."""
        del self._blocked_from[channel_id]
        for held in self._lines[channel_id]:
            if held.blocks:
                self._blocked_from[channel_id] = held.work.order
                break


def _channels_of(work: ShardRequest) -> Sequence[int]:
    """Return the channels that work is known to concern."""
    if isinstance(work, RunCommand | GrantRoom):
        return (work.channel_id,)
    if isinstance(work, RunAction):
        return work.sweeps or ()
    return [channel_id for channel_id, _ in work.offered]


def _evaluations(
    body: Body, selectors: Mapping[SelectorKey, int], check: Check, limits: SelectorLimits
) -> Slices:
    """Yield the slices of one body. Each evaluates some selectors on some of its events."""
    batch = body.batch
    rows = max(1, batch.num_rows * limits.part_bytes // max(1, body.weight))
    parts: list[PredicateOutcomes] = []
    for first in range(0, batch.num_rows, rows):
        part, frames = batch.slice(first, rows), _Frames(PredicateOutcomes(), check)
        parts.append(frames.outcomes)
        rows_here = part.num_rows
        size = body.weight * rows_here // batch.num_rows
        keys: list[SelectorKey] = []
        cost = 0
        for key, work in selectors.items():
            keys.append(key)
            cost += evaluation_cost({key: work}, rows_here, size)
            if cost >= limits.slice_cost:
                yield partial(frames.evaluate, part, keys)
                keys, cost = [], 0
        if keys:
            yield partial(frames.evaluate, part, keys)
    if body.outcomes is None:
        body.outcomes = PredicateOutcomes()
    body.outcomes.add_parts(parts)


class _Frames:
    """The frames of one part of a body: one for each way to read messages in it. They share the
    outcomes of predicates."""

    def __init__(self, outcomes: PredicateOutcomes, check: Check) -> None:
        self.outcomes = outcomes
        self._check = check
        self._by_messages: dict[object, EventFrame] = {}

    def evaluate(self, part: pa.RecordBatch, keys: Sequence[SelectorKey]) -> None:
        for messages, text in keys:
            frame = self._by_messages.get(messages)
            if frame is None:
                reader = cast("MessageAccess | None", messages)  # selectors_of() made the key
                frame = EventFrame(part, 0, reader, check=self._check, outcomes=self.outcomes)
                self._by_messages[messages] = frame
            selector_of(text).mask_in(frame)
