"""Settling what was delivered to a seat: acknowledgements and rollbacks on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.client.reading.attachment import Attachment
from penstock_core.api.subscriptions import Bury, Extend, Settle, Subscribed
from penstock_core.bounds import SPANS_MAX
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    IllegalState,
    PenstockError,
    SessionClosed,
)
from penstock_core.wire.native.asking import check_request

NO_GENERATION = -1


class Settlements:
    """The settlements of one seat, in the order they were made."""

    def __init__(self, seat: Attachment) -> None:
        self._connection = seat.connection
        self._seat = seat
        self.acks: list[int] = []
        """Ids to acknowledge, sent before ``backs``."""
        self.takes_acks_of = NO_GENERATION
        """The generation whose events may simply be added to ``acks``, those in ``backs`` apart:
        :meth:`hurry` is due, and they are acknowledged each for itself."""
        self._previous = False
        """Whether ``acks`` mean all previous ones, too."""
        self.backs: dict[int, int | None] = {}
        """Ids to roll back, in this order, with the milliseconds that each is to wait (SEM D18)."""
        self._under_way: set[asyncio.Future[Any]] = set()
        self._again: set[asyncio.Future[Any]] = set()
        """Parts of what was refused together, asked for again."""
        self._rollbacks: set[asyncio.Future[Any]] = set()
        self._refusal: PenstockError | None = None
        self._unconfirmed: ConnectionLost | None = None
        self._connections = 0
        """Counts the connections the seat was held over."""
        self._lost_on = -1
        """The last of them that was lost with a rollback."""
        self.in_order = False
        """Whether what is acknowledged after a rollback has to arrive after it (SEM D11): events
        may be recalled, or some were."""
        self.keeps_order = False
        """Whether they may be because of order."""
        self.is_timed = False
        """Whether events have to be acknowledged in time (SEM D19): one that came too late is no
        reason to refuse those that travel with it."""
        self.cumulative = False
        """Whether an acknowledgement covers earlier events: those rolled back before, too, did it
        arrive first."""

    def attached(self, seat: Subscribed, *, is_recalled: bool) -> None:
        """A seat is taken: what it is like, and whether events were recalled since it was asked
        for."""
        self.keeps_order = seat.strict_order
        self.in_order = self.keeps_order or is_recalled
        self.cumulative = seat.cumulative
        self.is_timed = bool(seat.ack_timeout_ms)

    def recalled(self) -> None:
        """The realm has taken events back, and is about to be told that this is known: what is
        acknowledged already must arrive before, or would be taken for another delivery's."""
        self.hurry()
        self.in_order = True

    @property
    def why_recalled(self) -> str:
        """Why the realm has taken an event back, as far as that is known here."""
        reasons = ["the durable was moved to another position (seek)"]
        if self.is_timed:
            reasons.append("it was not acknowledged in time")
        if self.keeps_order:
            reasons.append("an earlier event was rolled back and must come first")
        return ", or ".join(reasons)

    def send(
        self,
        ids: IdSet,
        *,
        roll_back: bool = False,
        previous: bool = False,
        delay_ms: int | None = None,
        on_done: Callable[[Spans], None] | None = None,
    ) -> asyncio.Future[Any]:
        """Settle now; the future is done when that is on disk, or has the refusal. What does not
        fit into one request goes before it, in requests that :meth:`confirm` waits for.

        ``on_done`` is called with what each request has settled, while the seat is still held.
        """
        parts, rest = [], ids.spans
        while len(rest) > SPANS_MAX:
            parts.append(rest[:SPANS_MAX])
            rest = rest[SPANS_MAX:]
        for part in parts:
            answer = self._sent(part, roll_back=roll_back, previous=False, delay_ms=delay_ms)
            self._tell(answer, part, on_done)
            self.watch(answer)
        answer = self._sent(rest, roll_back=roll_back, previous=previous, delay_ms=delay_ms)
        self._tell(answer, rest, on_done)
        return answer

    def _tell(
        self,
        answer: asyncio.Future[Any],
        spans: Spans,
        on_done: Callable[[Spans], None] | None,
    ) -> None:
        if on_done is None:
            return
        tell, generation = on_done, self._seat.generation

        def answered(done: asyncio.Future[Any]) -> None:
            is_refused = done.cancelled() or done.exception() is not None
            if not is_refused and generation == self._seat.generation:
                tell(spans)

        answer.add_done_callback(answered)

    def _sent(
        self, spans: Spans, *, roll_back: bool, previous: bool, delay_ms: int | None
    ) -> asyncio.Future[Any]:
        message = Settle(self._seat.number, spans, roll_back, previous=previous, delay_ms=delay_ms)
        answer = self._connection.request(message, resend=False, waits=False)
        if roll_back:
            self._rollbacks.add(answer)
            connection = self._connections
            answer.add_done_callback(lambda done: self._rolled_back(done, connection))
        return answer

    def _rolled_back(self, answer: asyncio.Future[Any], connection: int) -> None:
        self._rollbacks.discard(answer)
        if not answer.cancelled() and isinstance(answer.exception(), ConnectionLost):
            self._lost_on = connection

    @property
    def has_lost_rollback(self) -> bool:
        """A rollback went with the connection, and the seat is not taken again yet."""
        return self._lost_on == self._connections

    async def extend(self, ids: IdSet, time_ms: int) -> int:
        """Have so much time from now on to acknowledge events; gives how many are in hand still."""
        self.hurry()
        message = Extend(self._seat.number, ids.spans, time_ms)
        check_request(message)
        number: int = await self._connection.request(message, resend=False, waits=False)
        return number

    async def reject(self, ids: IdSet, reason: str) -> int:
        """Send events to the dead event store, after what was settled before; gives their number
        once that is on disk."""
        self.hurry()
        number, rest = 0, ids.spans
        while rest:
            message = Bury(self._seat.number, rest[:SPANS_MAX], reason)
            check_request(message)
            number += await self._connection.request(message, resend=False, waits=False)
            rest = rest[SPANS_MAX:]
        return number

    def soon(
        self,
        event_id: int,
        *,
        roll_back: bool,
        previous: bool = False,
        delay_ms: int | None = None,
    ) -> None:
        """Settle without waiting; what one turn of the loop settles travels together.

        Acknowledgements are sent before rollbacks. Where that matters, they are not held back.
        """
        acks, backs = self.acks, self.backs
        if not acks and not backs:
            asyncio.get_running_loop().call_soon(self.hurry)
        if roll_back:
            backs[event_id] = delay_ms
        else:
            comes_after = backs and (
                self.in_order or self.cumulative or previous or event_id in backs
            )
            if comes_after or (acks and previous != self._previous):
                self.hurry()
                asyncio.get_running_loop().call_soon(self.hurry)
            self._previous = previous
            self.acks.append(event_id)
        is_usual = not (self._previous or self.in_order or (self.cumulative and self.backs))
        self.takes_acks_of = self._seat.generation if is_usual else NO_GENERATION

    def refuse(self, error: PenstockError) -> None:
        """Refuse a settlement here already: it is reported now, and raised by the next
        :meth:`flush`."""
        self._keep(error)
        self._connection.listeners.owe(self, error)
        self._connection.report(error)

    def _keep(self, error: PenstockError) -> None:
        """Keep the first error of its kind for the next :meth:`flush`."""
        if isinstance(error, ConnectionLost):
            self._unconfirmed = self._unconfirmed or error
        else:
            self._refusal = self._refusal or error

    def hurry(self) -> None:
        """Send pending settlements before anything else is sent."""
        if not self.acks and not self.backs:
            return
        acks, self.acks = self.acks, []
        backs, self.backs = self.backs, {}
        previous, self._previous = self._previous, False
        self.takes_acks_of = NO_GENERATION
        if acks and self.is_timed and not previous:
            self._send_apart(IdSet.from_ids(acks), self._under_way)
        elif acks:
            self.watch(self.send(IdSet.from_ids(acks), previous=previous))
        waits: dict[int | None, list[int]] = {}
        for event_id, delay_ms in backs.items():
            waits.setdefault(delay_ms, []).append(event_id)
        for delay_ms, ids in waits.items():
            self.watch(self.send(IdSet.from_ids(ids), roll_back=True, delay_ms=delay_ms))

    def _send_apart(self, ids: IdSet, under_way: set[asyncio.Future[Any]]) -> None:
        """Acknowledge events that were acknowledged one by one: if some are refused because they
        have gone back, the others are asked for again, in halves."""
        answer = self.send(ids)
        under_way.add(answer)

        def answered(done: asyncio.Future[Any]) -> None:
            under_way.discard(done)
            error = None if done.cancelled() else done.exception()
            if not isinstance(error, IllegalState) or len(ids) == 1:
                self._settled(done)
                return
            middle = sorted(ids)[len(ids) // 2]
            for span in (Span(0, middle), Span(middle, 1 << 62)):
                self._send_apart(ids.within(span), self._again)

        answer.add_done_callback(answered)

    @property
    def rolls_back(self) -> bool:
        """Whether a rollback has no answer yet."""
        return bool(self._rollbacks) or bool(self.backs)

    async def rolled_back(self) -> None:
        """Wait until all rollbacks so far are answered, however."""
        if self.backs:
            self.hurry()
        if self._rollbacks:
            await asyncio.wait(list(self._rollbacks))

    def watch(self, answer: asyncio.Future[Any]) -> None:
        """Have :meth:`confirm` wait for ``answer``, and report what it is refused with. A rollback
        that is lost with the connection is done by that."""
        self._under_way.add(answer)
        is_rollback = answer in self._rollbacks
        answer.add_done_callback(lambda done: self._settled(done, is_rollback=is_rollback))

    def _settled(self, answer: asyncio.Future[Any], *, is_rollback: bool = False) -> None:
        self._under_way.discard(answer)
        error = None if answer.cancelled() else answer.exception()
        if is_rollback and isinstance(error, ConnectionLost):
            return
        if isinstance(error, SessionClosed):
            self._keep(error)
        elif isinstance(error, PenstockError):
            self.refuse(error)

    def forget(self) -> None:
        """Drop what was not sent over the connection that is lost: it is of no use on another."""
        if self.acks:
            self.refuse(lost_before_sent(self.acks[0]))
        self.acks.clear()
        self.backs.clear()
        self._previous = False
        self.takes_acks_of = NO_GENERATION
        self._connections += 1

    async def confirm(self) -> None:
        """Wait until everything settled so far is answered, however."""
        self.hurry()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        while self._again:
            await asyncio.wait(list(self._again))

    @property
    def is_clear(self) -> bool:
        """Whether everything is answered, and no error is left to be raised."""
        is_answered = not (self.acks or self.backs or self._under_way or self._again)
        return is_answered and self._refusal is None and self._unconfirmed is None

    def raise_refusal(self) -> None:
        """Raise the first refusal, once."""
        refusal, self._refusal = self._refusal, None
        self._raise(refusal)

    def raise_first(self) -> None:
        """Raise the first refusal, or that some of it was on its way as the connection was lost;
        each once."""
        self.raise_refusal()
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        self._raise(unconfirmed)

    def _raise(self, error: PenstockError | None) -> None:
        if error is not None:
            self._connection.listeners.pay(self)
            raise error

    async def flush(self) -> None:
        """Wait until everything settled so far is on disk.

        Raises the first refusal, and ``ConnectionLost`` when some of it was on its way as the
        connection was lost: those events may be delivered again.
        """
        await self.confirm()
        self.raise_first()


def lost_before_sent(event_id: int) -> ConnectionLost:
    """The error for an acknowledgement that did not leave before the connection was lost."""
    return ConnectionLost(
        f"the connection was lost before the acknowledgement of event {event_id} was sent: it went "
        "back, and is delivered again"
    )
