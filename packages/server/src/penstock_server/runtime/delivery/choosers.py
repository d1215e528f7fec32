"""Evaluates expensive subscription selectors in a thread, so that the writer serves others
meanwhile.

A cheap selector is evaluated on granted events in the turn of the single writer. For an expensive
one the events are withheld and examined here, slice by slice, in round-robin order of the waiting
sessions. The results are kept by event id. Then the core grants the events again, and the turn that
sends them uses the results. A subscription gets its events in order, because everything behind the
first withheld event also waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.selectors import EventFrame, Selector
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.columns.selectors.patterns import Check
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import LimitReached
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.delivery.selection import Choosing, cost_of, matching_ids
from penstock_server.runtime.delivery.selector_worker import SelectorWorker
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch, spans_in


class SelectorUse(Struct, frozen=True):
    """A selector with the time and the message fields that it is evaluated with on one channel."""

    selector: Selector
    now_us: int
    messages: MessageAccess | None


class _Results(Struct):
    """Selector results for the events that a subscription gets next."""

    examined: IdSet
    matched: IdSet


class _Chooser(Struct):
    """A subscription that waits for its selector."""

    subscription: int
    session: str
    use: SelectorUse
    parts: deque[OutgoingBatch]
    """The rows that still have to be examined, the next ones first."""
    spent_us: int = 0
    """Time in microseconds that the earlier slices of the first part have taken."""


class Choosers:
    """The subscriptions that wait for their selectors, and the results for them."""

    def __init__(
        self,
        choosing: Choosing,
        clock: Clock,
        is_open: Callable[[int], bool],
        on_failed: Callable[[int, Exception], None],
    ) -> None:
        self._choosing = choosing
        self._clock = clock
        self._is_open = is_open
        self._on_failed = on_failed
        self.on_chosen: Callable[[int], None] = lambda subscription: None
        """Called when the withheld events of a subscription may be granted again."""
        self._waiting: dict[int, int] = {}
        """The first withheld event id, by subscription."""
        self._results: dict[int, _Results] = {}
        self.spent = 0
        """Cost examined in this turn of the writer, up to ``turn_cost``. The writer sets it to 0
        at the beginning of each turn."""
        self._worker = SelectorWorker()

    # --- in the turn of the writer -------------------------------------------------------

    def has(self, subscription: int) -> bool:
        """Whether events of a subscription are being examined. Meanwhile the subscription gets no
        events."""
        return subscription in self._waiting

    @property
    def is_idle(self) -> bool:
        """Whether no subscription waits or has results, and the thread has no work."""
        return self._worker.is_idle and not (self._waiting or self._results)

    def waits_from(self, subscription: int) -> int | None:
        """Return the first id withheld from a subscription; None if it does not wait."""
        return self._waiting.get(subscription)

    def chosen(
        self,
        subscription: int,
        session: str,
        use: SelectorUse | None,
        rows: Sequence[OutgoingBatch],
    ) -> Iterator[tuple[OutgoingBatch, OutgoingBatch | None]]:
        """Yield each part of ``rows`` with its matching rows: the part itself if all match, None if
        none does.

        Stops where the selector takes long: the subscription then waits (:meth:`waits_from`).
        """
        if use is None:
            for part in rows:
                yield part, part
            return
        for i, part in enumerate(rows):
            known_rows, unexamined_rows = self._split_examined(subscription, part)
            if known_rows is not None:
                matched = self._results[subscription].matched
                yield known_rows, known_rows.chosen_as(use.selector.text, matched)
            if unexamined_rows is None:
                continue
            # Everything behind also waits, or the subscription would get events out of order.
            if not self._may_evaluate_now(unexamined_rows, use.selector):
                self._wait(
                    _Chooser(
                        subscription, session, use, parts=deque((unexamined_rows, *rows[i + 1 :]))
                    )
                )
                return
            yield unexamined_rows, unexamined_rows.chosen(use.selector, use.now_us, use.messages)

    def mask_now(
        self, subscription: int, use: SelectorUse, batch: pa.RecordBatch
    ) -> pa.BooleanArray | None:
        """Return which rows of a stored batch a selector matches. None if :meth:`chosen` has to
        decide: the selector takes long, or some of the rows have already been examined."""
        rows = OutgoingBatch((), batch=batch)
        if subscription in self._results or not self._may_evaluate_now(rows, use.selector):
            return None
        return use.selector.mask_in(EventFrame(batch, use.now_us, use.messages))

    def drop_results(self, subscription: int, end: int) -> None:
        """Drop the results for events below ``end``, which the subscription has got."""
        results = self._results.get(subscription)
        if results is not None:
            for ids in (results.examined, results.matched):
                ids.remove(Span(0, end))
            if not results.examined:
                self.forget(subscription)

    def forget(self, subscription: int) -> None:
        """Drop the results of a subscription that has ended."""
        self._results.pop(subscription, None)

    def close(self) -> None:
        """Stop the thread's work; subscriptions that wait are not served any more."""
        self._worker.close()

    def _split_examined(
        self, subscription: int, part: OutgoingBatch
    ) -> tuple[OutgoingBatch | None, OutgoingBatch | None]:
        """Split ``part`` into the leading rows that were examined, and the rest."""
        results = self._results.get(subscription)
        if results is None:
            return None, part
        unknown = IdSet(part.spans)
        unknown.discard_all(results.examined)
        if not unknown:
            return part, None
        first_unknown = unknown.spans[0].first
        count = sum(max(0, min(span.end, first_unknown) - span.first) for span in part.spans)
        if not count:
            return None, part
        first, rest = part.batch.slice(0, count), part.batch.slice(count)
        return (
            OutgoingBatch(spans_in(first), batch=first, publishers=part.publishers),
            OutgoingBatch(spans_in(rest), batch=rest, publishers=part.publishers),
        )

    def _may_evaluate_now(self, part: OutgoingBatch, selector: Selector) -> bool:
        """Whether a selector may be evaluated on rows in this turn; if so, the cost is counted."""
        if part.was_chosen(selector.text):
            return True
        cost = cost_of(selector, part.count, part.weight)
        limits = self._choosing.limits
        if cost > limits.thread_above or self.spent + cost > limits.turn_cost:
            return False
        self.spent += cost
        return True

    def _wait(self, chooser: _Chooser) -> None:
        self._waiting[chooser.subscription] = chooser.parts[0].spans[0].first
        self._worker.submit(chooser.session, partial(self._needs_more, chooser))

    # --- in the thread -------------------------------------------------------------------

    async def _needs_more(self, chooser: _Chooser) -> bool:
        """Examine one slice and return whether the subscription has more to examine. A failure of
        its selector ends this subscription alone."""
        subscription = chooser.subscription
        try:
            await self._examine_slice(chooser)
            if chooser.parts:
                return True
        except Exception as failure:  # noqa: BLE001  ends this subscription alone
            if self._is_open(subscription):
                self._on_failed(subscription, failure)
        else:
            if self._is_open(subscription):
                self.on_chosen(subscription)
            else:
                self.forget(subscription)
        del self._waiting[subscription]
        return False

    async def _examine_slice(self, chooser: _Chooser) -> None:
        """Evaluate the selector on the next rows of the first part. Rows that another subscription
        with the same selector has examined are skipped."""
        part, use = chooser.parts[0], chooser.use
        progress = part.partial_matches(use.selector.text)
        if progress.rows < part.count:
            cost = max(1, cost_of(use.selector, part.count, part.weight))
            count = max(1, part.count * self._choosing.limits.slice_cost // cost)
            rows = part.batch.slice(progress.rows, count)
            began_us = self._clock.steady_us()
            check = self._check(chooser, part)
            check()

            def evaluate() -> pa.BooleanArray:
                return use.selector.mask_in(EventFrame(rows, use.now_us, use.messages, check=check))

            mask = await self._choosing.run_in_thread(evaluate)
            progress.add(mask)
            chooser.spent_us += self._clock.steady_us() - began_us
        if progress.rows >= part.count:
            self._keep(chooser.subscription, part, progress.mask)
            chooser.parts.popleft()

    def _keep(self, subscription: int, part: OutgoingBatch, mask: pa.BooleanArray) -> None:
        """Keep the matching ids and the examined ids of a part for the subscription."""
        if not self._is_open(subscription):
            return
        results = self._results.setdefault(subscription, _Results(IdSet(), IdSet()))
        results.matched.add_all(matching_ids(part.batch, mask))
        results.examined.add_all(IdSet(part.spans))

    def _check(self, chooser: _Chooser, part: OutgoingBatch) -> Check:
        """Return a function that is called during an evaluation. It raises ``LimitReached`` if the
        subscription has ended, or if its selector has taken too long."""
        within = self._choosing.patience(part.spans[0].first, chooser.spent_us)

        def check() -> None:
            if self._worker.is_closed or not self._is_open(chooser.subscription):
                raise LimitReached("the subscription has ended")
            within()

        return check
