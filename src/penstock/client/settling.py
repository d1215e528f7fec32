"""Settling what was delivered to a seat: acknowledgements and rollbacks on their way."""

from __future__ import annotations

import asyncio
import itertools
from operator import itemgetter
from typing import Any

from penstock.client.conversation import Conversation
from penstock.core.errors import ConnectionLost, PenstockError, SessionClosed
from penstock.core.ids import IdSet
from penstock.wire.native import messages as wire


class Settlements:
    """Those of one seat, in the order they were made."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._soon: list[tuple[int, bool, bool]] = []
        self._rolls_back_soon = False
        self._under_way: set[asyncio.Future[Any]] = set()
        self._rollbacks: set[asyncio.Future[Any]] = set()
        self._refusal: PenstockError | None = None
        self._unconfirmed: ConnectionLost | None = None
        self._seat = 0
        """Counts the connections the seat was held over."""
        self._lost_seat = -1
        self.subscription = 0
        """The seat's number, once it is taken."""
        self.in_order = False
        """Whether what is acknowledged after a rollback has to arrive after it (SEM D11)."""

    def send(
        self, ids: IdSet, *, roll_back: bool = False, previous: bool = False
    ) -> asyncio.Future[Any]:
        """Settle now; the future is done when that is on disk, or has the refusal."""
        message = wire.Settle(0, self.subscription, ids.spans, roll_back, previous)
        answer = self._conversation.request(message, resend=False, waits=False)
        if roll_back:
            self._rollbacks.add(answer)
            seat = self._seat
            answer.add_done_callback(lambda done: self._rolled_back(done, seat))
        return answer

    def _rolled_back(self, answer: asyncio.Future[Any], seat: int) -> None:
        self._rollbacks.discard(answer)
        if not answer.cancelled() and isinstance(answer.exception(), ConnectionLost):
            self._lost_seat = seat

    @property
    def has_lost_rollback(self) -> bool:
        """A rollback went with the connection, and the seat is not taken again yet."""
        return self._lost_seat == self._seat

    def soon(self, event_id: int, *, roll_back: bool, previous: bool = False) -> None:
        """Settle without waiting; what one turn of the loop settles travels together."""
        if not self._soon:
            asyncio.get_running_loop().call_soon(self._send_soon)
        self._soon.append((event_id, roll_back, previous))
        if roll_back:
            self._rolls_back_soon = True

    def refuse(self, error: PenstockError) -> None:
        """A settlement is refused here already."""
        self._refusal = error
        self._conversation.report(error)

    def hurry(self) -> None:
        """Send what was to be settled soon, before anything else is sent."""
        if self._soon:
            self._send_soon()

    @property
    def rolls_back(self) -> bool:
        """Whether a rollback has no answer yet."""
        return bool(self._rollbacks) or self._rolls_back_soon

    async def rolled_back(self) -> None:
        """Wait until all rollbacks so far are answered, however."""
        if self._rolls_back_soon:
            self.hurry()
        if self._rollbacks:
            await asyncio.wait(list(self._rollbacks))

    def _send_soon(self) -> None:
        soon, self._soon = self._soon, []
        mixed, self._rolls_back_soon = self._rolls_back_soon, False
        if mixed and not self.in_order:
            soon = _sorted_out(soon)
        for (roll_back, previous), run in itertools.groupby(soon, key=_how):
            ids = IdSet.of([event_id for event_id, *_ in run])
            self.watch(self.send(ids, roll_back=roll_back, previous=previous))

    def watch(self, answer: asyncio.Future[Any]) -> None:
        """Have :meth:`confirm` wait for ``answer``, and report what it is refused with."""
        self._under_way.add(answer)
        answer.add_done_callback(self._settled)

    def _settled(self, answer: asyncio.Future[Any]) -> None:
        self._under_way.discard(answer)
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, ConnectionLost):
            self._unconfirmed = error
        elif isinstance(error, PenstockError):
            self._refusal = error
        if isinstance(error, PenstockError) and not isinstance(error, SessionClosed):
            self._conversation.report(error)

    def forget(self) -> None:
        """The connection was lost: what was not sent is of no use on another one."""
        self._soon.clear()
        self._rolls_back_soon = False
        self._seat += 1

    async def confirm(self) -> None:
        """Wait until everything settled so far is answered. Raises the first refusal."""
        self.hurry()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        self.raise_refusal()

    def raise_refusal(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    async def flush(self) -> None:
        """Wait until everything settled so far is on disk.

        Raises the first refusal, and ``ConnectionLost`` when some of it was on its way as the
        connection was lost: those events may be delivered again.
        """
        await self.confirm()
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        if unconfirmed is not None:
            raise unconfirmed


_how = itemgetter(1, 2)
"""The way of a settlement: whether it rolls back, and whether it means all previous ones."""


def _sorted_out(soon: list[tuple[int, bool, bool]]) -> list[tuple[int, bool, bool]]:
    """Acknowledgements, then rollbacks, so that each travel together: they concern different
    events, so it does not matter which come first. Where it might, all stay as they are."""
    backs = {entry[0] for entry in soon if entry[1]}
    if any(previous or (event_id in backs and not back) for event_id, back, previous in soon):
        return soon
    return sorted(soon, key=itemgetter(1))
