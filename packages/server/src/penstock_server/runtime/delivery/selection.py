"""Parses selectors and evaluates them on stored events, in a thread if that takes long.

An evaluation has a limited time, and ends early if its result is no longer wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.events.batch import ids_of, runs_of
from penstock_core.columns.selectors import EventFrame, Selector, SelectorIndex
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.columns.selectors.index import VALUE_COST
from penstock_core.columns.selectors.patterns import Check
from penstock_core.ids.ids import IdSet
from penstock_core.tasks import leave_to_owner, start_task
from penstock_core.vocabulary.errors import LimitReached
from penstock_core.vocabulary.ports import Clock, Offload
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

COMPARISON_BYTES: Final = 16 << 10
"""Fixed cost of one comparison, as the number of bytes that could be compared in the same time."""
IN_USE_CHARACTERS_MAX: Final = 4 << 20
"""Limit on the characters of all selectors in use. Compiled, a character can take 500 bytes."""
PARSED_IN_THREAD_ABOVE: Final = 1_024
"""Characters above which a thread parses a selector. Parsing this many takes some milliseconds."""
SCAN_EVENTS: Final = 65_536
"""Stored events read in one step."""
_MANY: Final = 64
"""Number of runs of consecutive ids above which a set is built from the single ids, because that is
cheaper."""

T = TypeVar("T")


class SelectorLimits(Struct, frozen=True):
    """Limits of the evaluation of selectors. A cost is the number of bytes to examine, times the
    work of the selectors."""

    thread_above: int = 16 << 20
    """Cost above which a thread evaluates a selector. This cost takes some hundredths of a
    second."""
    turn_cost: int = 64 << 20
    """Limit on the cost in one turn of the writer, for all subscriptions together. This cost takes
    about a tenth of a second."""
    slice_cost: int = 64 << 20
    """Limit on the cost of one slice of the thread. This cost takes about a tenth of a second."""
    part_bytes: int = 1 << 20
    """Bytes of published events that are evaluated together."""
    scan_events: int = SCAN_EVENTS
    in_use_characters_max: int = IN_USE_CHARACTERS_MAX
    budget_s: float = 5.0
    """Seconds that a selector may take for one delivery."""
    passed_work: int = 32
    """Number of selector comparisons that one turn of the writer may spend on passing over events
    that no selector matches. After it the writer serves other channels first."""


DEFAULT_LIMITS: Final = SelectorLimits()


def scan_cost(work: int, row_bytes: int, rows: int, size: int) -> int:
    """Estimate the cost of evaluating selectors: bytes to examine, times the work.

    ``work`` and ``row_bytes`` are those of all selectors together, ``size`` is the size in bytes of
    all ``rows`` events.
    """
    return work * (size + COMPARISON_BYTES) + row_bytes * rows


def cost_of(selector: Selector, rows: int, size: int) -> int:
    """Return the :func:`scan_cost` of one selector."""
    return scan_cost(selector.work, selector.row_bytes, rows, size=size)


class Choosing:
    """Applies selectors, in a thread where that takes long."""

    def __init__(
        self, offload: Offload, clock: Clock, limits: SelectorLimits = DEFAULT_LIMITS
    ) -> None:
        self.offload = offload
        """Runs the expensive evaluations."""
        self.limits = limits
        self._clock = clock
        self._parses = asyncio.Lock()
        self._in_use: WeakValueDictionary[str, Selector] = WeakValueDictionary()
        self._characters = 0
        """Upper bound of the characters in use. Selectors that are no longer used leave it only
        when it is computed again."""

    async def parse(self, text: str) -> Selector:
        """Return the selector of a text from a client; texts in use share one selector.

        A long text is parsed in a thread, one text at a time. Raises ``InvalidSelector``, and
        ``LimitReached`` if all selectors in use are too long together.
        """
        selector = self._in_use.get(text)
        if selector is None:
            self._count_characters(len(text))
            selector = await self.for_text(text, lambda: Selector(text))
            self._in_use[text] = selector
        return selector

    def _count_characters(self, characters: int) -> None:
        """Count ``characters`` more characters of selectors in use. Raises ``LimitReached`` if they
        are too many."""
        characters_max = self.limits.in_use_characters_max
        if self._characters + characters > characters_max:
            self._characters = sum(map(len, tuple(self._in_use)))
            if self._characters + characters > characters_max:
                raise LimitReached(
                    f"the selectors in use have {self._characters:,} characters together; allowed "
                    f"are {characters_max:,}: use a selector shorter than "
                    f"{characters:,} characters, or store it with a durable"
                )
        self._characters += characters

    async def for_text(self, text: str, work: Callable[[], T]) -> T:
        """Run ``work``, whose cost grows with the length of ``text``: in a thread if it is long."""
        if len(text) <= PARSED_IN_THREAD_ABOVE:
            return work()
        async with self._parses:
            running = start_task(self.run_in_thread(work), on_failure=leave_to_owner)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                # A thread cannot be stopped. Keep the lock until it ends, so that a client that
                # sends selectors and disconnects occupies one thread and not all of them.
                await asyncio.wait([running])
                raise

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread."""
        return await self.offload(work)

    async def mask(
        self,
        batch: pa.RecordBatch,
        selector: Selector,
        now_us: int,
        messages: MessageAccess | None,
        still: Check,
    ) -> pa.BooleanArray:
        """Return which rows of a stored batch ``selector`` matches. ``still`` is called regularly,
        and raises an error once the result is no longer needed. Also raises ``LimitReached`` if the
        evaluation takes too long."""
        check = self._check(int(batch.column("event_id")[0].as_py()), still)
        frame = EventFrame(batch, now_us, messages, check=check)
        check()
        if cost_of(selector, batch.num_rows, batch.nbytes) <= self.limits.thread_above:
            return selector.mask_in(frame)
        return await self.run_in_thread(lambda: selector.mask_in(frame))

    def _check(self, first: int, still: Check) -> Check:
        within = self.patience(first)

        def check() -> None:
            still()
            within()

        return check

    def patience(self, first: int, spent_us: int = 0) -> Check:
        """Return a check that raises ``LimitReached`` once a selector has used up its budget for
        the events from id ``first`` on. Earlier slices of these events have taken ``spent_us``."""
        budget_s = self.limits.budget_s
        # The steady clock, because the wall clock may be set while a selector runs.
        ends_us = self._clock.steady_us() + int(budget_s * 1_000_000) - spent_us

        def check() -> None:
            if self._clock.steady_us() > ends_us:
                raise LimitReached(
                    f"the selector took longer than {budget_s:g} s for some of the events from id "
                    f"{first} on; simplify it: use fewer comparisons and wildcards"
                )

        return check


def matching_ids(batch: pa.RecordBatch, mask: pa.BooleanArray) -> IdSet:
    """Return the ids of the rows of a stored batch that ``mask`` selects."""
    ids = ids_of(batch)[mask.to_numpy(zero_copy_only=False)]
    firsts, ends = runs_of(ids)
    if len(firsts) - 1 > _MANY:
        return IdSet.from_ids(ids.tolist())
    return IdSet.of_runs(firsts.tolist(), ends.tolist())


class _FollowersSelectors:
    """The selectors of subscriptions that wait for new events of one channel."""

    __slots__ = ("index", "subscriptions")

    def __init__(self, value_cost: float) -> None:
        self.index = SelectorIndex(value_cost)
        self.subscriptions: dict[str, dict[int, None]] = {}
        """Subscriptions by the text of their selector."""


class Following:
    """Index of subscriptions whose selectors test property values, for all channels. All other
    selectors are evaluated on every event."""

    def __init__(self, value_cost: float = VALUE_COST) -> None:
        self._value_cost = value_cost
        self._channels: dict[int, _FollowersSelectors] = {}
        self._selectors: dict[int, tuple[int, Selector]] = {}
        """The channel and selector of each subscription."""

    def __len__(self) -> int:
        """Number of channels with subscriptions in the index."""
        return len(self._channels)

    def add(self, channel_id: int, subscription: int, selector: Selector) -> bool:
        """Add a subscription's selector and return True, if the index can find it by property
        values. Otherwise add nothing and return False."""
        followers = self._channels.get(channel_id)
        if followers is None:
            followers = self._channels[channel_id] = _FollowersSelectors(self._value_cost)
        text = selector.text
        # It is added before the check below, because only the index shows if it can find a
        # selector.
        if text not in followers.index:
            followers.index.add(text, selector)
        followers.subscriptions.setdefault(text, {})[subscription] = None
        self._selectors[subscription] = channel_id, selector
        if not followers.index.finds(text):
            self.remove(subscription)
            return False
        return True

    def remove(self, subscription: int) -> None:
        """Remove a subscription, if it is in the index."""
        entry = self._selectors.pop(subscription, None)
        if entry is None:
            return
        channel_id, selector = entry
        followers = self._channels[channel_id]
        subscriptions = followers.subscriptions[selector.text]
        del subscriptions[subscription]
        if not subscriptions:
            del followers.subscriptions[selector.text]
            followers.index.remove(selector.text, selector)
        if not followers.subscriptions:
            del self._channels[channel_id]

    def interested(
        self, channel_id: int, rows: Iterable[OutgoingBatch], messages: MessageAccess | None
    ) -> tuple[int, ...]:
        """Return the subscriptions whose selectors may match some of these events. The selectors of
        all other indexed subscriptions match none of them."""
        followers = self._channels.get(channel_id)
        if followers is None:
            return ()
        texts: dict[str, None] = {}
        for part in rows:
            matches = followers.index.candidates_in(EventFrame(part.batch, 0, messages))
            texts |= dict.fromkeys((*matches.exact, *matches.inexact))
        subscribers = followers.subscriptions
        return tuple(dict.fromkeys(follower for text in texts for follower in subscribers[text]))
