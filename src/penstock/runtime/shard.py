"""The single writer: the only place where the realm's state meets the world.

One task takes all that waits, decides and applies it in order, appends once, and only then
answers and delivers: nothing is seen that a power cut could unsay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from penstock.core.errors import PenstockError, RealmStopping, StorageFailed
from penstock.core.messages import Quarantine
from penstock.core.ports import Clock, Journal
from penstock.runtime.delivery import Dispatch
from penstock.runtime.records import encode_block
from penstock.runtime.state import RealmState
from penstock.runtime.work import Act, Do, Group, Reply, Work

GROUP_BYTES_MAX = 16 << 20
"""A group closes at this many bytes of events: what waits longer goes into the next."""

_log = structlog.get_logger("penstock.shard")


class Shard:
    def __init__(
        self,
        state: RealmState,
        journal: Journal,
        clock: Clock,
        dispatch: Dispatch,
        *,
        memory_bytes_max: int,
    ) -> None:
        self.state = state
        self._journal = journal
        self._clock = clock
        self._dispatch = dispatch
        self._memory_bytes_max = memory_bytes_max
        self._waiting: list[Work] = []
        self._serving: list[Work] = []
        self._between: list[tuple[Callable[[], Awaitable[None]], asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self.ended = asyncio.Event()
        """Set when :meth:`run` is over: nothing is written any more."""
        self._woken: dict[int, None] = {}
        self._failed: PenstockError | None = None
        self._stopping = False
        self.tail = journal.info().tail
        """Sequence of the newest block."""
        self.groups = 0

    # --- asking --------------------------------------------------------------------------

    def submit(self, work: Work, *, first: bool = False) -> None:
        """Queue ``work`` (or put it ahead of all that waits); its reply comes once it is stored."""
        if self._failed is not None or self._stopping:
            _reply(work.reply, None, self._failed or RealmStopping("the realm is closing"))
            return
        self._waiting.insert(0 if first else len(self._waiting), work)
        self._wake.set()

    async def ask(self, work: Work, *, first: bool = False) -> Any:
        """Queue ``work`` and wait for its answer. Raises what it is refused with."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def reply(result: Any, error: BaseException | None) -> None:
            if answer.done():  # nobody waits any more
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        work.reply = reply
        self.submit(work, first=first)
        return await answer

    async def act(self, action: Callable[[Group], Any], *, first: bool = False) -> Any:
        """Run ``action(group)`` at its place in the order; its result."""
        return await self.ask(Act(action), first=first)

    async def exclusively(self, call: Callable[[], Awaitable[None]]) -> None:
        """Run ``call`` between two groups: a journal serves one caller at a time."""
        if self._failed is not None:
            raise self._failed
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._between.append((call, done))
        self._wake.set()
        await done

    def quarantine(self, number: int, command: Quarantine) -> None:
        """Some stored events turned out to be unreadable (SEM S1)."""
        self.submit(Do(number, command))

    def wake(self, number: int) -> None:
        """A channel may have something to offer (credit came, a connection drained)."""
        self._woken[number] = None
        self._wake.set()

    # --- serving -------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled, stopped, or until the journal fails.

        A failed append ends the shard: facts have been applied that are not stored, so it must
        not answer again. What is on disk is whole; a new realm is built from it.
        """
        try:
            while not (self._stopping and not self._waiting):
                if not self._waiting and not self._woken and not self._between:
                    await self._wake.wait()
                self._wake.clear()
                await self._serve_between()
                await self._serve_group()
                if self._woken:
                    await asyncio.sleep(0)  # let connections drain before offering them more
        except StorageFailed as failure:
            self._failed = failure
            _log.error("journal.failed", reason=str(failure))
            self._refuse_waiting(failure)
            raise
        except Exception:
            _log.exception("shard.broken")  # whoever waits is told that the realm is closed
            raise
        finally:
            if self._failed is None:
                self._failed = RealmStopping("the realm is closed")
            self._refuse_waiting(self._failed)
            self.ended.set()

    def stop(self) -> None:
        """Serve what waits, then end :meth:`run`."""
        self._stopping = True
        self._wake.set()

    def _refuse_waiting(self, failure: PenstockError) -> None:
        waiting, self._waiting = self._serving + self._waiting, []
        self._serving = []
        for work in waiting:
            _reply(work.reply, None, failure)
        between, self._between = self._between, []
        for _, done in between:
            if not done.done():
                done.set_exception(failure)

    async def _serve_between(self) -> None:
        while self._between:
            call, done = self._between[0]
            try:
                await call()
            except PenstockError as failure:
                if not done.done():
                    done.set_exception(failure)
            else:
                if not done.done():
                    done.set_result(None)
            del self._between[0]

    async def _serve_group(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._serving = waiting  # so that all are answered, should this be the end
        group = Group(self.state, self._clock.now_us(), self._memory_bytes_max)
        group.touched |= self._woken
        self._woken = {}
        waiting = self._serving = await self._with_room(waiting)
        answers = [(work.reply, *_outcome(work, group)) for work in waiting]
        for number in list(group.touched):
            if number in self.state.channels:
                group.sweep(number)
        for number, below in group.offers_early():
            await self._perform(number, below)
        if group.records:
            await self._append(group)
        self._serving = []
        for reply, result, error in answers:
            _reply(reply, result, error)
        await self._offer(list(group.touched))

    async def _with_room(self, waiting: list[Work]) -> list[Work]:
        """Make sure that what waits will find room on disk, before anything is decided."""
        size = sum(_size(work) for work in waiting)
        if size > GROUP_BYTES_MAX and len(waiting) > 1:
            waiting, rest = _cut(waiting, GROUP_BYTES_MAX)
            self._waiting = rest + self._waiting
            self._serving = waiting
            self._wake.set()
            size = sum(_size(work) for work in waiting)
        try:
            await self._journal.reserve(size + 4_096 * (1 + len(waiting)))
        except StorageFailed as failure:
            for work in waiting:
                if _size(work):
                    _reply(work.reply, None, failure)
            return [work for work in waiting if not _size(work)]
        return waiting

    async def _append(self, group: Group) -> None:
        chunks = encode_block(group.now_us, group.records, group.bodies)
        self.tail = await self._journal.append(self.tail, chunks, sync=group.must_sync)
        self.groups += 1

    async def _offer(self, touched: Sequence[int]) -> None:
        for number in touched:
            channel = self.state.channels.get(number)
            if channel is None:
                self._dispatch.channel_gone(number)
                continue
            await self._perform(number)
            if channel.has_offers:
                self.wake(number)

    async def _perform(self, number: int, below: int | None = None) -> None:
        channel = self.state.channels.get(number)
        if channel is not None:
            await self._dispatch.perform(number, channel, self.state.stores[number], self, below)


def _outcome(work: Work, group: Group) -> tuple[Any, BaseException | None]:
    try:
        return work.run(group), None
    except PenstockError as refusal:
        return None, refusal


def _reply(reply: Reply | None, result: Any, error: BaseException | None) -> None:
    if reply is not None:
        reply(result, error)


def _size(work: Work) -> int:
    return sum(len(body.buffer) for body in work.bodies)


def _cut(waiting: list[Work], limit: int) -> tuple[list[Work], list[Work]]:
    size = 0
    for i, work in enumerate(waiting):
        size += _size(work)
        if size > limit:
            return waiting[: max(i, 1)], waiting[max(i, 1) :]
    return waiting, []
