"""Calls a handler of the application with the events of a durable, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.client.connection import tracing
from penstock.client.reading.delivered import DeliveredBatch, DeliveredEvent
from penstock.client.reading.durable_seat import DurableSeat
from penstock_core.api.durables import DescribeDurable, DurableInfo
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import IllegalState, PenstockError, SessionClosed

Handler = Callable[[DeliveredEvent], Awaitable[None] | None]

_DELAY_FIRST_S: Final = 0.1
_DELAY_MAX_S: Final = 60.0
"""Delays on a durable without a backoff: an event whose handler fails is delivered again after
``_DELAY_FIRST_S``, doubled with each redelivery up to ``_DELAY_MAX_S`` (SEM D18). Without a delay
the handler would fail on it in an endless loop."""
_DOUBLED_MAX: Final = 16
"""Maximum number of times that the first delay is doubled."""


def delay_after_failure_s(redeliveries: int) -> float:
    """Return the seconds before an event whose handler failed is delivered again by a durable or
    queue without a backoff (SEM D18); ``redeliveries`` is its count of redeliveries."""
    return min(_DELAY_FIRST_S * (1 << min(redeliveries, _DOUBLED_MAX)), _DELAY_MAX_S)


class HandlerLoop:
    """The task that calls a handler with the events of an open seat."""

    def __init__(
        self,
        seat: DurableSeat[DeliveredBatch],
        next_batch: Callable[[float | None], Awaitable[DeliveredBatch | None]],
        handler: Handler,
        *,
        auto_ack: bool,
    ) -> None:
        self._seat = seat
        self._connection = seat.connection
        self._next_batch = next_batch
        self._handler = handler
        self._auto_ack = auto_ack
        self._needs_delay: bool | None = None
        """Whether the durable has no backoff, so that rollbacks need a delay; None until the first
        failure."""
        self._task = start_task(self._run(), on_failure=self._report_failure)

    async def end(self) -> None:
        """Cancel the task and wait for its end. Does nothing if the handler itself closes the
        subscription: the task would wait for itself."""
        if self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Call the handler with each event until the subscription ends."""
        seat = self._seat
        try:
            while seat.is_open and (batch := await self._next_batch(None)) is not None:
                rest: DeliveredBatch | None = batch
                while rest is not None:
                    batch, rest = rest, None
                    for row, event in enumerate(batch):
                        # An event of the batch may have been recalled: wait for the answers to the
                        # rollbacks, and continue with the events that are left.
                        if seat.may_recall:
                            rest = await batch._current_from(row)
                            break
                        if batch.is_stale or seat.has_ended or not seat.is_open:
                            break
                        await self._handle(event)
        except PenstockError as error:
            if not isinstance(error, SessionClosed):
                self._connection.report(error)

    async def _handle(self, event: DeliveredEvent) -> None:
        """Call the handler with one event; acknowledge the event, or roll it back after an
        error."""
        try:
            with tracing.processing(self._seat.source, event):
                result = self._handler(event)
                if result is not None:
                    await result
        except Exception as error:  # noqa: BLE001  application code may raise anything
            failure = PenstockError(
                f"the handler of durable {self._seat.durable} failed on event {event.event_id}: "
                f"{error!r}"
            )
            failure.__cause__ = error
            self._connection.report(failure)
            if self._seat.is_open:
                await event.rollback(delay=await self._delay_s(event.redelivery_count))
        else:
            if self._auto_ack and self._seat.is_open:
                try:
                    await event.ack()
                except IllegalState as error:  # the event has returned, and is delivered again
                    self._connection.report(error)

    async def _delay_s(self, redeliveries: int) -> float | None:
        """Return the seconds before an event is delivered again; None if the durable decides."""
        if self._needs_delay is None:
            self._needs_delay = await self._has_no_backoff()
        return delay_after_failure_s(redeliveries) if self._needs_delay else None

    async def _has_no_backoff(self) -> bool:
        """Return whether the durable redelivers rolled-back events without a delay."""
        try:
            info = await self._connection.ask(
                DescribeDurable(self._seat.channel, self._seat.durable), DurableInfo
            )
        except PenstockError:  # for example without the right to see the durable
            return False
        return info.backoff is None and not self._seat.settlements.cumulative

    def _report_failure(self, error: BaseException) -> None:
        failure = PenstockError(
            f"the handler of durable {self._seat.durable} receives no more events: {error!r}"
        )
        failure.__cause__ = error
        self._connection.report(failure)
