"""Subscriptions whose own selectors take long: a thread applies these to the events that come next.

Where a selector takes next to no time, it is applied to granted events in the turn of the single
writer. Otherwise the events are withheld and examined here, one slice after the other, in turns for
all waiting sessions, and the results are kept by id. Then the core grants the events again, and the
turn that sends them finds the results. Everybody else is served meanwhile, and a subscription gets
its events in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.selectors import EventFrame, Selector
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.columns.selectors.patterns import Check
from penstock_core.ids.ids import IdSet, Span
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import LimitReached
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.delivery import selection
from penstock_server.runtime.delivery.selection import Choosing, cost_of, matching_ids, patience
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch, spans_in

TURN_BYTES: Final = 64 << 20
"""Bytes to examine, times the work of the selectors, in one turn of the writer for all
subscriptions together: about a tenth of a second."""
SLICE_BYTES: Final = 64 << 20
"""Bytes to examine in one slice of the thread, counted in the same way."""


class SelectorUse(Struct, frozen=True):
    """A selector as it is put to the events of one channel."""

    selector: Selector
    now_us: int
    messages: MessageAccess | None


class _Found(Struct):
    """What is known of the events that come next for a subscription."""

    looked: IdSet
    matched: IdSet


class _Chooser(Struct):
    """A subscription that waits here."""

    subscription: int
    session: str
    use: SelectorUse
    parts: deque[OutgoingBatch]
    """The rows that are left to examine, next ones first."""
    spent_us: int = 0


class Choosers:
    """The subscriptions that wait for their selectors, and what has been found out for them."""

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
        """Called when a subscription may be granted again what was withheld."""
        self._waiting: dict[int, int] = {}
        """The first id that is withheld, by subscription."""
        self._turns: dict[str, deque[_Chooser]] = {}
        """By session, the one whose turn is next first: its subscriptions that wait."""
        self._found: dict[int, _Found] = {}
        self.spent = 0
        """Bytes examined in this turn of the writer, which sets it to 0 as a turn begins: a little
        may be examined in each."""
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    # --- in the turn of the writer -------------------------------------------------------

    def has(self, subscription: int) -> bool:
        """Whether a subscription waits here, and gets nothing until it does not."""
        return subscription in self._waiting

    def waits_from(self, subscription: int) -> int | None:
        """The first id that is withheld from a subscription that waits here."""
        return self._waiting.get(subscription)

    def chosen(
        self,
        subscription: int,
        session: str,
        use: SelectorUse | None,
        rows: Sequence[OutgoingBatch],
    ) -> Iterator[tuple[OutgoingBatch, OutgoingBatch | None]]:
        """Yield rows one after the other with those that are chosen: the rows themselves if all
        are, None if none.

        Ends where the selector takes long: the subscription then waits (:meth:`waits_from`).
        """
        if use is None:
            for part in rows:
                yield part, part
            return
        for i, part in enumerate(rows):
            known, rest = self._known(subscription, part)
            if known is not None:
                matched = self._found[subscription].matched
                yield known, known.chosen_as(use.selector.text, matched)
            if rest is None:
                continue
            if not self._may_ask_now(rest, use.selector):
                self._wait(
                    _Chooser(subscription, session, use, parts=deque((rest, *rows[i + 1 :])))
                )
                return
            yield rest, rest.chosen(use.selector, use.now_us, use.messages)

    def mask_now(
        self, subscription: int, use: SelectorUse, batch: pa.RecordBatch
    ) -> pa.BooleanArray | None:
        """Which rows of a stored batch a selector matches, where that takes next to no time."""
        rows = OutgoingBatch((), batch=batch)
        if subscription in self._found or not self._may_ask_now(rows, use.selector):
            return None
        return use.selector.mask_in(EventFrame(batch, use.now_us, use.messages))

    def passed(self, subscription: int, end: int) -> None:
        """A subscription has got all that was for it below ``end``."""
        found = self._found.get(subscription)
        if found is not None:
            for ids in (found.looked, found.matched):
                ids.remove(Span(0, end))
            if not found.looked:
                self.forget(subscription)

    def forget(self, subscription: int) -> None:
        """Forget a subscription that has ended."""
        self._found.pop(subscription, None)

    def close(self) -> None:
        """End: no subscription is served any more."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()

    def _known(
        self, subscription: int, part: OutgoingBatch
    ) -> tuple[OutgoingBatch | None, OutgoingBatch | None]:
        """The first rows of ``part``, which were examined here, and the others."""
        found = self._found.get(subscription)
        if found is None:
            return None, part
        unknown = IdSet(part.spans)
        unknown.discard_all(found.looked)
        if not unknown:
            return part, None
        at = unknown.spans[0].first
        count = sum(max(0, min(span.end, at) - span.first) for span in part.spans)
        if not count:
            return None, part
        first, rest = part.batch.slice(0, count), part.batch.slice(count)
        return (
            OutgoingBatch(spans_in(first), batch=first, publishers=part.publishers),
            OutgoingBatch(spans_in(rest), batch=rest, publishers=part.publishers),
        )

    def _may_ask_now(self, part: OutgoingBatch, selector: Selector) -> bool:
        """Whether a selector may be put to rows in this very turn; if so, it counts."""
        if part.was_chosen(selector.text):
            return True
        cost = cost_of(selector, part.count, part.weight)
        if cost > selection.BESIDE_ABOVE or self.spent + cost > TURN_BYTES:
            return False
        self.spent += cost
        return True

    def _wait(self, chooser: _Chooser) -> None:
        self._waiting[chooser.subscription] = chooser.parts[0].spans[0].first
        self._turns.setdefault(chooser.session, deque()).append(chooser)
        if self._task is None and not self._is_over:
            self._task = start_task(self._look())

    # --- beside the loop -----------------------------------------------------------------

    async def _look(self) -> None:
        """Examine one slice for each waiting session, again and again, until none waits."""
        while self._turns:
            session, waiting = next(iter(self._turns.items()))
            del self._turns[session]
            chooser = waiting.popleft()
            if await self._needs_more(chooser):
                waiting.append(chooser)
            else:
                del self._waiting[chooser.subscription]
            if waiting:  # behind the others; some may have come to this session meanwhile
                self._turns[session] = waiting + self._turns.pop(session, deque())
            await asyncio.sleep(0)  # the loop serves others, also where nothing runs beside it
        self._task = None

    async def _needs_more(self, chooser: _Chooser) -> bool:
        """Whether there is more to examine for a session, after one slice."""
        subscription = chooser.subscription
        try:
            await self._look_at_slice(chooser)
        except Exception as failure:  # noqa: BLE001  it costs this one alone
            if self._is_open(subscription):
                self._on_failed(subscription, failure)
            return False
        if chooser.parts:
            return True
        if self._is_open(subscription):
            self.on_chosen(subscription)
        else:
            self.forget(subscription)
        return False

    async def _look_at_slice(self, chooser: _Chooser) -> None:
        """Put a selector to the next events of one part, unless it was for somebody else."""
        part, use = chooser.parts[0], chooser.use
        looked = part.looked_for(use.selector.text)
        if looked.rows < part.count:
            cost = max(1, cost_of(use.selector, part.count, part.weight))
            count = max(1, part.count * SLICE_BYTES // cost)
            rows = part.batch.slice(looked.rows, count)
            began_us = self._clock.steady_us()
            check = self._check(chooser, part)
            check()

            def put() -> pa.BooleanArray:
                return use.selector.mask_in(EventFrame(rows, use.now_us, use.messages, check=check))

            mask = await self._choosing.beside(put)
            looked.add(mask)
            chooser.spent_us += self._clock.steady_us() - began_us
        if looked.rows >= part.count:
            self._keep(chooser.subscription, part, looked.mask)
            chooser.parts.popleft()

    def _keep(self, subscription: int, part: OutgoingBatch, mask: pa.BooleanArray) -> None:
        if not self._is_open(subscription):
            return
        found = self._found.setdefault(subscription, _Found(IdSet(), IdSet()))
        found.matched.add_all(matching_ids(part.batch, mask))
        found.looked.add_all(IdSet(part.spans))

    def _check(self, chooser: _Chooser, part: OutgoingBatch) -> Check:
        within = patience(self._clock, part.spans[0].first, chooser.spent_us)

        def check() -> None:
            if self._is_over or not self._is_open(chooser.subscription):
                raise LimitReached("the subscription is over")
            within()

        return check
