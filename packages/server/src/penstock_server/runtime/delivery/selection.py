"""Selectors parsed, and put to stored events: in a thread where that takes long. Events are looked
at for a limited time, and only while somebody is there who wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa

from penstock_core.columns.events.batch import ids_of, runs_of
from penstock_core.columns.selectors import EventFrame, Selector, SelectorIndex
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.columns.selectors.patterns import Check
from penstock_core.ids.ids import IdSet
from penstock_core.tasks import leave_to_owner, start_task
from penstock_core.vocabulary.errors import LimitReached
from penstock_core.vocabulary.ports import Clock, Offload
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

BESIDE_ABOVE: Final = 16 << 20
"""Bytes to examine, times the selector's work, above which a thread does it: some hundredths of a
second."""
LOOK_BYTES: Final = 16 << 10
"""Bytes that a comparison reads in the time that it takes in any case, for however few events."""
IN_USE_CHARACTERS_MAX: Final = 4 << 20
"""Characters of all selectors that subscriptions and requests use at a time. Compiled, a character
can take 500 bytes."""
PARSED_BESIDE_ABOVE: Final = 1_024
"""Characters above which a thread parses a selector: some milliseconds."""
BUDGET_S: Final = 5.0
"""Seconds that a selector may take for one delivery."""
_MANY: Final = 64
"""With more gaps than this a set is made of ids, not of ranges."""

T = TypeVar("T")


def scan_cost(work: int, row_bytes: int, rows: int, size: int) -> int:
    """About what it takes to put selectors, with this ``work`` and ``row_bytes`` together, to
    ``rows`` events of ``size`` bytes together: bytes to examine, times the work."""
    return work * (size + LOOK_BYTES) + row_bytes * rows


def cost_of(selector: Selector, rows: int, size: int) -> int:
    """The :func:`scan_cost` of one selector."""
    return scan_cost(selector.work, selector.row_bytes, rows, size=size)


def patience(clock: Clock, first: int, spent_us: int = 0) -> Check:
    """A check that raises ``LimitReached`` once a selector has taken too long for the events from
    ``first`` on; it has ``spent_us`` on some of them before."""
    ends_us = clock.steady_us() + int(BUDGET_S * 1_000_000) - spent_us  # the other can be set

    def check() -> None:
        if clock.steady_us() > ends_us:
            raise LimitReached(
                f"the selector took longer than {BUDGET_S:g} s for some of the events from id "
                f"{first} on; simplify it: use fewer comparisons and wildcards"
            )

    return check


class Choosing:
    """Applies selectors, in a thread where that takes long."""

    def __init__(self, offload: Offload, clock: Clock) -> None:
        self._offload = offload
        self._clock = clock
        self._parses = asyncio.Lock()
        self._in_use: WeakValueDictionary[str, Selector] = WeakValueDictionary()
        self._characters = 0
        """At least those in use: what is used no more leaves the sum when it is taken anew."""

    async def parse(self, text: str) -> Selector:
        """The selector of a text from outside; the same one as long as anybody uses it. A long text
        is parsed in a thread, one after the other. Raises ``InvalidSelector``, and ``LimitReached``
        when all those in use are too long together."""
        found = self._in_use.get(text)
        if found is None:
            self._have_room(len(text))
            found = await self.for_text(text, lambda: Selector(text))
            self._in_use[text] = found
        return found

    def _have_room(self, characters: int) -> None:
        if self._characters + characters > IN_USE_CHARACTERS_MAX:
            self._characters = sum(map(len, tuple(self._in_use)))
            if self._characters + characters > IN_USE_CHARACTERS_MAX:
                raise LimitReached(
                    f"the selectors in use have {self._characters:,} characters together, and "
                    f"{IN_USE_CHARACTERS_MAX:,} are the most: use a shorter one than "
                    f"{characters:,} characters, or store it with a durable"
                )
        self._characters += characters

    async def for_text(self, text: str, work: Callable[[], T]) -> T:
        """Do something whose cost grows with a selector's text: in a thread for a long one."""
        if len(text) <= PARSED_BESIDE_ABOVE:
            return work()
        async with self._parses:
            running = start_task(self._in_thread(work), on_failure=leave_to_owner)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                # A thread cannot be stopped: who sends selectors and hangs up takes one, not all.
                await asyncio.wait([running])
                raise

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._offload(work)

    async def beside(self, look: Callable[[], T]) -> T:
        """Do what takes long beside the loop."""
        return await self._offload(look)

    async def mask(
        self,
        batch: pa.RecordBatch,
        selector: Selector,
        now_us: int,
        messages: MessageAccess | None,
        still: Check,
    ) -> pa.BooleanArray:
        """Which rows of a stored batch ``selector`` matches. Raises ``LimitReached`` if that takes
        too long, and whatever ``still`` raises when the result is no longer wanted."""
        check = self._check(int(batch.column("event_id")[0].as_py()), still)
        frame = EventFrame(batch, now_us, messages, check=check)
        check()
        if cost_of(selector, batch.num_rows, batch.nbytes) <= BESIDE_ABOVE:
            return selector.mask_in(frame)
        return await self._offload(lambda: selector.mask_in(frame))

    def _check(self, first: int, still: Check) -> Check:
        within = patience(self._clock, first)

        def check() -> None:
            still()
            within()

        return check


def matching_ids(batch: pa.RecordBatch, mask: pa.BooleanArray) -> IdSet:
    """The ids of the rows of a stored batch that a mask says match."""
    ids = ids_of(batch)[mask.to_numpy(zero_copy_only=False)]
    firsts, ends = runs_of(ids)
    if len(firsts) - 1 > _MANY:
        return IdSet.from_ids(ids.tolist())
    return IdSet.of_runs(firsts.tolist(), ends.tolist())


class _FollowersSelectors:
    """The selectors of the subscriptions that follow one channel."""

    __slots__ = ("index", "subscriptions")

    def __init__(self) -> None:
        self.index = SelectorIndex()
        self.subscriptions: dict[str, dict[int, None]] = {}
        """By the text of the selector."""


class Following:
    """Whose selectors are found by values, of all channels; others are put to every event."""

    def __init__(self) -> None:
        self._channels: dict[int, _FollowersSelectors] = {}
        self._selectors: dict[int, tuple[int, Selector]] = {}
        """The channel and selector of each subscription."""

    def add(self, channel_id: int, subscription: int, selector: Selector) -> bool:
        """Remember a subscription's selector; gives whether it is found by values."""
        known = self._channels.get(channel_id)
        if known is None:
            known = self._channels[channel_id] = _FollowersSelectors()
        text = selector.text
        if text not in known.index:
            known.index.add(text, selector)
        known.subscriptions.setdefault(text, {})[subscription] = None
        self._selectors[subscription] = channel_id, selector
        if not known.index.finds(text):
            self.remove(subscription)
            return False
        return True

    def remove(self, subscription: int) -> None:
        """Forget a subscription, if it is known."""
        held = self._selectors.pop(subscription, None)
        if held is None:
            return
        channel_id, selector = held
        known = self._channels[channel_id]
        own = known.subscriptions[selector.text]
        del own[subscription]
        if not own:
            del known.subscriptions[selector.text]
            known.index.remove(selector.text, selector)
        if not known.subscriptions:
            del self._channels[channel_id]

    def interested(
        self, channel_id: int, rows: Iterable[OutgoingBatch], messages: MessageAccess | None
    ) -> tuple[int, ...]:
        """The subscriptions whose selectors may match some of these events; none of the others
        does."""
        known = self._channels.get(channel_id)
        if known is None:
            return ()
        texts: dict[str, None] = {}
        for part in rows:
            found = known.index.found_in(EventFrame(part.batch, 0, messages))
            texts |= dict.fromkeys((*found.exact, *found.asked))
        return tuple(dict.fromkeys(each for text in texts for each in known.subscriptions[text]))
