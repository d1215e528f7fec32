"""The settlements of a seat: acknowledgements, rollbacks and rejections in transit to the realm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.client.connection import tracing
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
    """The settlements of one seat, sent in the order of the calls."""

    def __init__(self, seat: Attachment) -> None:
        self._connection = seat.connection
        self._seat = seat
        self.acks: list[int] = []
        """Ids to acknowledge, sent before ``rollback_delays``."""
        self.fast_ack_generation = NO_GENERATION
        """The generation whose events can be acknowledged by appending to ``acks`` alone. It is set
        while :meth:`hurry` is scheduled and no rule has to examine single events. Events in
        ``rollback_delays`` are excluded."""
        self._acks_all_earlier = False
        """Whether ``acks`` also acknowledge all earlier events."""
        self.rollback_delays: dict[int, int | None] = {}
        """Ids to roll back, in order, with the delay of each in milliseconds (SEM D18)."""
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._retries: set[asyncio.Future[Any]] = set()
        """Unanswered parts of refused settlements, which are sent again in halves."""
        self._rollbacks: set[asyncio.Future[Any]] = set()
        self._refusal: PenstockError | None = None
        self._unconfirmed: ConnectionLost | None = None
        self._connections = 0
        """Number of connections that the seat had before the present one."""
        self._lost_connection = -1
        """Value of ``_connections`` when a connection was last lost with an unanswered rollback;
        -1 if none was."""
        self.in_order = False
        """Whether acknowledgements made after a rollback have to arrive after it (SEM D11), because
        events may be recalled, or have been."""
        self.keeps_order = False
        """Whether events may be recalled because the durable has strict order."""
        self.is_timed = False
        """Whether events have to be acknowledged in time (SEM D19). A late one must not cause the
        refusal of others in the same request."""
        self.cumulative = False
        """Whether an acknowledgement covers all earlier events. It then has to arrive after earlier
        rollbacks, which it would acknowledge otherwise."""

    def attached(self, seat: Subscribed, *, is_recalled: bool) -> None:
        """Take over the properties of a seat that the realm has granted. ``is_recalled`` means that
        events were recalled between the request for the seat and its answer."""
        self.keeps_order = seat.strict_order
        self.in_order = self.keeps_order or is_recalled
        self.cumulative = seat.cumulative
        self.is_timed = bool(seat.ack_timeout_ms)

    def prepare_recall(self) -> None:
        """Prepare for the confirmation of a recall. Acknowledgements made so far are sent before
        it: the realm would count later ones for the next delivery of the events."""
        self.hurry()
        self.in_order = True

    @property
    def why_recalled(self) -> str:
        """The possible reasons for a recall, for error texts."""
        reasons = ["the durable was moved to another position (seek)"]
        if self.is_timed:
            reasons.append("it was not acknowledged in time")
        if self.keeps_order:
            reasons.append("an earlier event was rolled back and must be delivered first")
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
        """Send a settlement. The future is done when the realm has stored it, or has the refusal.

        If the ids do not fit into one request, the future is that of the last one, and
        :meth:`confirm` waits for the others. ``on_done`` is called with the spans of each request
        that succeeds while the seat is still held.
        """
        parts, rest = [], ids.spans
        while len(rest) > SPANS_MAX:
            parts.append(rest[:SPANS_MAX])
            rest = rest[SPANS_MAX:]
        for part in parts:
            answer = self._request(part, roll_back=roll_back, previous=False, delay_ms=delay_ms)
            self._call_when_done(answer, part, on_done)
            self.watch(answer)
        answer = self._request(rest, roll_back=roll_back, previous=previous, delay_ms=delay_ms)
        self._call_when_done(answer, rest, on_done)
        return answer

    def _call_when_done(
        self,
        answer: asyncio.Future[Any],
        spans: Spans,
        on_done: Callable[[Spans], None] | None,
    ) -> None:
        """Call ``on_done`` once a settlement is stored, unless the seat was lost in the
        meantime."""
        if on_done is None:
            return
        callback, generation = on_done, self._seat.generation

        def answered(done: asyncio.Future[Any]) -> None:
            is_refused = done.cancelled() or done.exception() is not None
            if not is_refused and generation == self._seat.generation:
                callback(spans)

        answer.add_done_callback(answered)

    def _request(
        self, spans: Spans, *, roll_back: bool, previous: bool, delay_ms: int | None
    ) -> asyncio.Future[Any]:
        """Send one request; note the connection if it is a rollback."""
        message = Settle(self._seat.number, spans, roll_back, previous=previous, delay_ms=delay_ms)
        # A settlement is for this connection: on the next one its events are delivered again.
        answer = self._connection.request(message, resend=False, waits=False)
        verb = "rollback" if roll_back else "ack"
        tracing.settling(answer, verb, spans, source=self._seat.source)
        if roll_back:
            self._rollbacks.add(answer)
            connection = self._connections
            answer.add_done_callback(lambda done: self._forget_rollback(done, connection))
        return answer

    def _forget_rollback(self, answer: asyncio.Future[Any], connection: int) -> None:
        """Process the answer of a rollback. ``connection`` is the value of ``_connections`` when
        the rollback was sent."""
        self._rollbacks.discard(answer)
        if not answer.cancelled() and isinstance(answer.exception(), ConnectionLost):
            self._lost_connection = connection

    @property
    def has_lost_rollback(self) -> bool:
        """Whether the last connection was lost with an unanswered rollback, and the seat is not
        taken again yet."""
        return self._lost_connection == self._connections

    async def extend(self, ids: IdSet, time_ms: int) -> int:
        """Restart the acknowledgement timeout of events. Return the number of events that the realm
        still counts as held by the client."""
        self.hurry()
        message = Extend(self._seat.number, ids.spans, time_ms)
        check_request(message)
        number: int = await self._connection.request(message, resend=False, waits=False)
        return number

    async def reject(self, ids: IdSet, reason: str) -> int:
        """Send events to the dead event store, after earlier settlements. Return their number when
        the realm has stored that."""
        self.hurry()
        number, rest = 0, ids.spans
        while rest:
            spans, rest = rest[:SPANS_MAX], rest[SPANS_MAX:]
            message = Bury(self._seat.number, spans, reason)
            check_request(message)
            answer = self._connection.request(message, resend=False, waits=False)
            tracing.settling(answer, "reject", spans, source=self._seat.source)
            number += await answer
        return number

    def settle_soon(
        self,
        event_id: int,
        *,
        roll_back: bool,
        previous: bool = False,
        delay_ms: int | None = None,
    ) -> None:
        """Settle without waiting. Settlements made in one turn of the event loop are sent together.

        Acknowledgements are sent before rollbacks. If their order matters, pending settlements are
        sent first.
        """
        acks, rollback_delays = self.acks, self.rollback_delays
        # The first settlement of a turn schedules the request for all that follow in it.
        if not acks and not rollback_delays:
            asyncio.get_running_loop().call_soon(self.hurry)
        if roll_back:
            rollback_delays[event_id] = delay_ms
        else:
            must_follow = rollback_delays and (
                self.in_order or self.cumulative or previous or event_id in rollback_delays
            )
            if must_follow or (acks and previous != self._acks_all_earlier):
                self.hurry()
                asyncio.get_running_loop().call_soon(self.hurry)
            self._acks_all_earlier = previous
            self.acks.append(event_id)
        # `fast_ack_generation` allows callers to append acknowledgements to `acks` without calling
        # this method.
        is_usual = not (
            self._acks_all_earlier or self.in_order or (self.cumulative and self.rollback_delays)
        )
        self.fast_ack_generation = self._seat.generation if is_usual else NO_GENERATION

    def refuse(self, error: PenstockError) -> None:
        """Report the error of a settlement, and keep it for the next :meth:`flush` to raise."""
        self._keep(error)
        self._connection.listeners.keep_error(self, error)
        self._connection.report(error)

    def _keep(self, error: PenstockError) -> None:
        """Keep the first error of its kind for the next :meth:`flush`."""
        if isinstance(error, ConnectionLost):
            self._unconfirmed = self._unconfirmed or error
        else:
            self._refusal = self._refusal or error

    def hurry(self) -> None:
        """Send the pending settlements now."""
        if not self.acks and not self.rollback_delays:
            return
        acks, self.acks = self.acks, []
        rollback_delays, self.rollback_delays = self.rollback_delays, {}
        previous, self._acks_all_earlier = self._acks_all_earlier, False
        self.fast_ack_generation = NO_GENERATION
        if acks and self.is_timed and not previous:
            self._send_divisible(IdSet.from_ids(acks), self._unanswered)
        elif acks:
            self.watch(self.send(IdSet.from_ids(acks), previous=previous))
        ids_by_delay: dict[int | None, list[int]] = {}
        for event_id, delay_ms in rollback_delays.items():
            ids_by_delay.setdefault(delay_ms, []).append(event_id)
        for delay_ms, ids in ids_by_delay.items():
            self.watch(self.send(IdSet.from_ids(ids), roll_back=True, delay_ms=delay_ms))

    def _send_divisible(self, ids: IdSet, unanswered: set[asyncio.Future[Any]]) -> None:
        """Acknowledge events that the application has acknowledged one by one. The realm refuses a
        request if one of its events was late; its halves are then sent again, down to the late
        events."""
        answer = self.send(ids)
        unanswered.add(answer)

        def answered(done: asyncio.Future[Any]) -> None:
            """Process the answer, or send the two halves of a request that was refused."""
            unanswered.discard(done)
            error = None if done.cancelled() else done.exception()
            # Success, an error of another kind, or the one event that was late.
            if not isinstance(error, IllegalState) or len(ids) == 1:
                self._process_answer(done)
                return
            middle = sorted(ids)[len(ids) // 2]
            for span in (Span(0, middle), Span(middle, 1 << 62)):
                self._send_divisible(ids.within(span), self._retries)

        answer.add_done_callback(answered)

    @property
    def rolls_back(self) -> bool:
        """Whether a rollback is pending or unanswered."""
        return bool(self._rollbacks) or bool(self.rollback_delays)

    async def rolled_back(self) -> None:
        """Wait until all rollbacks so far are answered, successfully or not."""
        if self.rollback_delays:
            self.hurry()
        if self._rollbacks:
            await asyncio.wait(list(self._rollbacks))

    def watch(self, answer: asyncio.Future[Any]) -> None:
        """Make :meth:`confirm` wait for ``answer``, and report a refusal. A rollback that is lost
        with the connection counts as done, as the loss rolls back all events."""
        self._unanswered.add(answer)
        # The set is read now, because `_forget_rollback` removes the answer from it before
        # `_process_answer` runs.
        is_rollback = answer in self._rollbacks
        answer.add_done_callback(lambda done: self._process_answer(done, is_rollback=is_rollback))

    def _process_answer(self, answer: asyncio.Future[Any], *, is_rollback: bool = False) -> None:
        """Record the answer to a settlement, and report its error."""
        self._unanswered.discard(answer)
        error = None if answer.cancelled() else answer.exception()
        if is_rollback and isinstance(error, ConnectionLost):
            return
        if isinstance(error, SessionClosed):
            self._keep(error)
        elif isinstance(error, PenstockError):
            self.refuse(error)

    def forget(self) -> None:
        """Drop pending settlements after a lost connection: on the next one the events are
        delivered again."""
        if self.acks:
            self.refuse(lost_before_sent(self.acks[0]))
        self.acks.clear()
        self.rollback_delays.clear()
        self._acks_all_earlier = False
        self.fast_ack_generation = NO_GENERATION
        self._connections += 1

    async def confirm(self) -> None:
        """Wait until all settlements so far are answered, successfully or not."""
        self.hurry()
        if self._unanswered:
            await asyncio.wait(list(self._unanswered))
        # The answer to a retry may lead to further retries.
        while self._retries:
            await asyncio.wait(list(self._retries))

    @property
    def is_clear(self) -> bool:
        """Whether all settlements are answered, and all their errors raised."""
        is_answered = not (self.acks or self.rollback_delays or self._unanswered or self._retries)
        return is_answered and self._refusal is None and self._unconfirmed is None

    def raise_refusal(self) -> None:
        """Raise the first refusal, once."""
        refusal, self._refusal = self._refusal, None
        self._raise(refusal)

    def raise_first(self) -> None:
        """Raise the first refusal, or the ``ConnectionLost`` of unconfirmed settlements; each
        once."""
        self.raise_refusal()
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        self._raise(unconfirmed)

    def _raise(self, error: PenstockError | None) -> None:
        if error is not None:
            self._connection.listeners.drop_error(self)
            raise error

    async def flush(self) -> None:
        """Wait until the realm has stored all settlements so far.

        Raises the error of the first refused settlement, and ``ConnectionLost`` if the connection
        was lost before all of them were confirmed: those events may be delivered again.
        """
        await self.confirm()
        self.raise_first()


def lost_before_sent(event_id: int) -> ConnectionLost:
    """Return the error for an acknowledgement that was not sent before the connection was lost."""
    return ConnectionLost(
        f"the connection was lost before the acknowledgement of event {event_id} was sent; the "
        "event is delivered again"
    )
