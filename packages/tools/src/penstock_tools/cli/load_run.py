"""One run of ``penstock load``: clients publish events at their due times, consume them, and
measure latencies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock import aio
from penstock.client.reading.delivered import DeliveredBatch
from penstock_core.vocabulary.errors import (
    CannotConnect,
    ConnectionLost,
    EventTooLarge,
    IllegalState,
    PenstockError,
    Refused,
    SessionClosed,
)
from penstock_core.vocabulary.ports import Clock
from penstock_tools.cli.load_plan import Int64s, Latencies, LoadLedger, LoadPlan

DURABLE: Final = "load"
"""Name of the durable of all consumers."""
UNANSWERED_MAX: Final = 16
"""Maximum number of unanswered publishes of one publisher. Events that become due in the meantime
are part of the next publish; their latency counts from their due time."""
PAUSE_S: Final = 0.001
"""Events that are due within this time are published together."""
DRAIN_S: Final = 10.0
"""Longest time without a delivery after the last publish, while events are missing."""
CLEANUP_S: Final = 10.0
"""Timeout of the last requests: counting lost events, and deleting the channel."""
SHOW_S: Final = 1.0
"""Seconds between two pictures of the progress."""
SECOND_US: Final = 1_000_000
_BYTES: Final = 1 << 20
"""Number of random bytes. The data of events is copied out of them."""


class LoadSetup(Struct, frozen=True, kw_only=True):
    """The realm, the channel and the number of clients of a run."""

    url: str
    channel: str
    """Name of the channel that the run creates."""
    type: str = "persistent"
    publishers: int = 1
    consumers: int = 1
    window: int = 1_000
    """Maximum number of unacknowledged events of one consumer."""
    by_key: bool = False
    """Whether the durable is serial, with a lane for each key."""
    keep: bool = False
    """Whether the channel is kept after the run."""
    reconnect_s: float = 10.0
    """Seconds to keep reconnecting after the connection is lost."""


class LatencyLine(Struct, frozen=True):
    """Percentiles of latencies in milliseconds, counted from the due time of the event."""

    events: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class StepLine(Struct, frozen=True):
    """The latencies at one rate."""

    rate: float
    publish: LatencyLine
    """Until the publisher received the acknowledgement."""
    delivery: LatencyLine
    """Until the first delivery to a consumer."""


class LoadReport(Struct, frozen=True, kw_only=True):
    """The result of a run."""

    ended: str
    """``complete``, ``interrupted`` or ``failed``."""
    problem: str
    """The first error of the run; empty if it had none."""
    channel: str
    is_kept: bool
    """Whether the channel still exists."""
    seconds: float
    planned: int
    """Events that the plan contained."""
    acknowledged: int
    """Events that the realm acknowledged to their publisher."""
    refused: int
    """Events that the realm refused to store."""
    unanswered: int
    """Events that were sent without an answer, so that it is unknown whether they are stored."""
    delivered: int
    """Events that were delivered at least once."""
    rolled_back: int
    """Events that a consumer rolled back on purpose."""
    redelivered: int
    """Further deliveries of events that were not acknowledged yet."""
    outstanding: int
    """Events that were acknowledged to the publisher but not delivered, or not delivered again, by
    the end. If the realm did not answer then, it is unknown whether it still has them."""
    lost: int
    """Events that were acknowledged to the publisher and that the realm does not have any more,
    although they were not delivered."""
    twice: int
    """Events that were stored twice, or delivered again after their acknowledgement."""
    steps: tuple[StepLine, ...]

    @property
    def is_right(self) -> bool:
        """Whether the run is complete, every event was stored, and each was delivered once."""
        is_wrong = self.refused or self.unanswered or self.outstanding or self.lost or self.twice
        return self.ended == "complete" and not is_wrong


class LoadPicture(Struct, frozen=True):
    """The progress of a run, for the live line."""

    at_s: float
    """Seconds since the run began."""
    rate: float
    """Events that are due per second."""
    acknowledged_per_s: float
    delivered_per_s: float
    behind: int
    """Events that are due but not acknowledged to their publisher yet."""
    publish_p99_ms: float
    delivery_p99_ms: float
    problem: str


class Ending:
    """Requests to end a run. After the first, the run stops publishing and waits for events in
    flight; after the second, it ends immediately."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        """Set by the first request."""
        self.hurried = asyncio.Event()
        """Set by the second request."""

    def request(self) -> None:
        """Request the end; called for each signal."""
        if self.requested.is_set():
            self.hurried.set()
        self.requested.set()


class LoadRun:
    """One load run; :meth:`run` may be called once."""

    def __init__(self, plan: LoadPlan, setup: LoadSetup, clock: Clock, ending: Ending) -> None:
        self.plan = plan
        self._setup = setup
        self._clock = clock
        self._ending = ending
        self._ledger = LoadLedger(plan.count)
        self._publish_times = [Latencies() for _ in plan.rates]
        self._delivery_times = [Latencies() for _ in plan.rates]
        # Random bytes cannot be compressed, so the realm stores as many bytes as the plan says.
        self._bytes = np.random.default_rng(0).integers(0, 256, _BYTES, dtype=np.uint8)
        self._began_us = self._ended_us = self._delivered_us = 0
        self._sent = self._refused = self._rolled_back = 0
        self._has_moved = asyncio.Event()
        """Set after each acknowledged publish and each settled delivery."""
        self._problem = ""
        """The first error, for the report."""
        self._failure: PenstockError | None = None
        """The error that ended the run."""
        self._is_kept = False
        self._outstanding = self._lost = self._stored_twice = 0
        self._last_counts = (0, 0, 0)
        """Time, acknowledged events and delivered events of the last picture."""

    async def run(self, show: Callable[[LoadPicture], None] | None = None) -> LoadReport:
        """Create the channel, publish and consume, and delete the channel. Errors during the run
        are part of the report; errors before its start are raised."""
        setup = self._setup
        async with AsyncExitStack() as sessions:
            owner = await self._connect(sessions)
            if max(self.plan.sizes) >= owner.event_bytes_max:
                raise EventTooLarge(
                    f"events with {max(self.plan.sizes):,} bytes of data are too large; this "
                    f"realm allows events of {owner.event_bytes_max:,} bytes in all; "
                    "use a smaller --size"
                )
            attributes: Any = {"type": setup.type}  # the realm checks the type
            channel = await owner.channels.create(setup.channel, **attributes)
            self._is_kept = True
            try:
                await self._measure(channel, show)
                await self._count_missing(channel)
            finally:
                await self._clean_up(owner)
        return self.report()

    async def _connect(self, sessions: AsyncExitStack) -> aio.Session:
        """Return a new session, which is closed with ``sessions``."""
        opening = aio.connect(self._setup.url, reconnect_timeout=self._setup.reconnect_s)
        session = await sessions.enter_async_context(opening)
        session.on_error(lambda error: None)  # calls raise their own errors
        session.on_interruption(lambda error: None)  # the session reconnects
        return session

    async def _measure(
        self, channel: aio.Channel, show: Callable[[LoadPicture], None] | None
    ) -> None:
        """Publish and consume until the plan is done or the end is requested; store an error for
        the report."""
        setup = self._setup
        try:
            async with AsyncExitStack() as sessions:
                if setup.consumers:
                    await self._create_durable(channel)
                # Each client has a separate connection, so that none waits for another.
                clients = [
                    await (await self._connect(sessions)).channels.get(setup.channel)
                    for _ in range(setup.publishers + setup.consumers)
                ]
                self._began_us = self._delivered_us = self._clock.steady_us()
                async with asyncio.TaskGroup() as tasks:
                    endless_tasks = [
                        tasks.create_task(self._consume(client))
                        for client in clients[setup.publishers :]
                    ]
                    if show is not None:
                        endless_tasks.append(tasks.create_task(self._show(show)))
                    publishing = self._publish_and_drain(clients[: setup.publishers])
                    await _run_until_set(self._ending.hurried, publishing)
                    for task in endless_tasks:
                        task.cancel()
        except* PenstockError as failures:
            self._failure = _first_of(failures)
            self._record_problem(self._failure)
        self._ended_us = self._clock.steady_us()

    async def _create_durable(self, channel: aio.Channel) -> None:
        if self._setup.by_key:
            await channel.durables.create(DURABLE, type="serial", order_by="key")
        else:
            await channel.durables.create(DURABLE, type="shared")

    # --- publishing -----------------------------------------------------------------------

    async def _publish_and_drain(self, publishers: list[aio.Channel]) -> None:
        """Publish the events of the plan, wait for the answers, then wait for the deliveries."""
        async with asyncio.TaskGroup() as publishing_tasks:
            await _run_until_set(
                self._ending.requested, self._publish_when_due(publishers, publishing_tasks)
            )
        if self._setup.consumers:
            await self._drain()

    async def _publish_when_due(
        self, publishers: list[aio.Channel], publishing_tasks: asyncio.TaskGroup
    ) -> None:
        """Publish events when they are due, without waiting for answers to earlier publishes."""
        plan, publish_count = self.plan, 0
        unanswered_slots = asyncio.Semaphore(UNANSWERED_MAX * len(publishers))
        while self._sent < plan.count:
            await unanswered_slots.acquire()
            next_us = int(plan.due_us(np.array([self._sent]))[0])
            await asyncio.sleep(max(PAUSE_S, (next_us - self.at_us()) / SECOND_US))
            first = self._sent
            end = min(plan.due_by(self.at_us()), first + plan.batch_events)
            if end <= first:
                unanswered_slots.release()
                continue
            self._sent = end
            publisher = publishers[publish_count % len(publishers)]
            publishing_tasks.create_task(
                self.publish(publisher, np.arange(first, end), unanswered_slots)
            )
            publish_count += 1

    async def publish(
        self, channel: aio.Channel, numbers: Int64s, unanswered_slots: asyncio.Semaphore
    ) -> None:
        """Publish events of these numbers in one batch, and count them as acknowledged or
        refused."""
        try:
            ids = await channel.publish_table(self._table(numbers))
        except (CannotConnect, SessionClosed):
            raise
        except Refused as error:
            self._refused += len(numbers)
            self._record_problem(error)
        except PenstockError as error:  # it is unknown whether the events are stored
            self._record_problem(error)
        else:
            at_us = self.at_us()
            self._ledger.record_published(int(numbers[0]), ids)
            self.count(self._publish_times, numbers, at_us)
            self._has_moved.set()
        finally:
            unanswered_slots.release()

    def _table(self, numbers: Int64s) -> pa.Table:
        """Return the events of these numbers as a table to publish."""
        ends = np.concatenate(([0], np.cumsum(self.plan.sizes_of(numbers)))).astype(np.int32)
        data = np.resize(self._bytes, int(ends[-1]))
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        columns = {
            "data": pa.Array.from_buffers(pa.binary(), len(numbers), buffers),
            "number": pa.array(numbers),
        }
        if self.plan.keys:
            columns["key"] = pa.array(numbers % self.plan.keys)
        return pa.table(columns)

    # --- consuming ------------------------------------------------------------------------

    async def _consume(self, channel: aio.Channel) -> None:
        """Acknowledge the events of the durable until this task is cancelled."""
        durable = await channel.durables.get(DURABLE)
        async with durable.subscribe(window=self._setup.window) as subscription:
            while (batch := await subscription.next_batch()) is not None:
                if batch.is_stale:
                    continue  # the realm delivers it again
                try:
                    await self._settle(subscription, batch)
                except (ConnectionLost, IllegalState):
                    if not batch.is_stale:
                        raise
                    # The realm delivers the events whose acknowledgement was lost again.

    async def _settle(self, subscription: aio.DurableSubscription, batch: DeliveredBatch) -> None:
        """Acknowledge a batch, except for the events that the plan rolls back."""
        at_us = self.at_us()
        column = batch.to_arrow().column("properties").field("number")
        # The second buffer of an Arrow array has its values; the array may start inside of it.
        numbers = np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8)
        is_first = self._ledger.record_delivery(numbers, batch.event_ids)
        self.count(self._delivery_times, numbers[is_first], at_us)
        is_rolled_back = is_first & self.plan.rolls_back(numbers)
        if is_rolled_back.any():
            self._ledger.record_rollback(numbers[is_rolled_back])
            for event, rolls_back in zip(batch, is_rolled_back.tolist(), strict=True):
                await (event.rollback() if rolls_back else event.ack())
            await subscription.flush()
        else:
            await batch.ack()
        # A batch that became stale in the meantime was acknowledged on a lost connection.
        if not batch.is_stale:
            self._ledger.record_confirmation(numbers[~is_rolled_back])
            self._rolled_back += int(is_rolled_back.sum())
        self._delivered_us = self._clock.steady_us()
        self._has_moved.set()

    async def _drain(self) -> None:
        """Wait until every acknowledged event is delivered, or for ``DRAIN_S`` without a
        delivery."""
        self._delivered_us = self._clock.steady_us()
        while not self._ledger.is_complete:
            idle_s = (self._clock.steady_us() - self._delivered_us) / SECOND_US
            if idle_s >= DRAIN_S:
                return
            self._has_moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S - idle_s):
                    await self._has_moved.wait()

    # --- the end --------------------------------------------------------------------------

    @property
    def _is_unreachable(self) -> bool:
        """Whether the realm cannot be reached any more."""
        return isinstance(self._failure, CannotConnect | SessionClosed)

    async def _count_missing(self, channel: aio.Channel) -> None:
        """Count lost events by comparing with the durable's outstanding events; without consumers,
        with the channel's counter of published events."""
        missing = self._ledger.undelivered() if self._setup.consumers else ()
        self._outstanding = len(missing)
        if self._is_unreachable or (self._setup.consumers and not self._outstanding):
            return
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(CLEANUP_S):
                if self._setup.consumers:
                    durable = await channel.durables.get(DURABLE)
                    outstanding = (await durable.outstanding()).id_set
                    self._lost = self._ledger.lost(outstanding)
                    self._outstanding -= self._lost
                else:
                    published = (await channel.info()).counters.published
                    self._lost = max(0, self._ledger.acknowledged - published)
                    self._stored_twice = max(0, published - (self._sent - self._refused))

    async def _clean_up(self, owner: aio.Session) -> None:
        """Delete the channel unless it is to be kept; a failure is reported, not raised."""
        if self._setup.keep or self._is_unreachable:
            return
        try:
            async with asyncio.timeout(CLEANUP_S):
                await owner.channels.delete(self._setup.channel)
        except TimeoutError:
            self._problem = (
                self._problem
                or f"the deletion of the channel was not answered within {CLEANUP_S:.0f} s"
            )
        except PenstockError as error:
            self._record_problem(error)
        else:
            self._is_kept = False

    # --- measurements ---------------------------------------------------------------------

    def at_us(self) -> int:
        """Return the microseconds since the run began."""
        return self._clock.steady_us() - self._began_us

    def count(self, times: list[Latencies], numbers: Int64s, at_us: int) -> None:
        """Add the latencies of events."""
        # They count from the due time, not from the send: events that become due while the realm
        # stalls are sent late, and that wait is part of their latency.
        latencies = at_us - self.plan.due_us(numbers)
        steps = self.plan.steps_of(numbers)
        for step in np.unique(steps).tolist():
            times[step].add(latencies[steps == step])

    def _record_problem(self, error: PenstockError) -> None:
        """Store the error for the report, unless it has an earlier one."""
        self._problem = self._problem or f"{error} [{error.code}]"

    async def _show(self, show: Callable[[LoadPicture], None]) -> None:
        """Show the progress repeatedly until this task is cancelled."""
        while True:
            await asyncio.sleep(SHOW_S)
            show(self.picture())

    def picture(self) -> LoadPicture:
        """Return the current progress; its rates cover the time since the last picture."""
        at_us, ledger = self.at_us(), self._ledger
        last_us, acknowledged, delivered = self._last_counts
        self._last_counts = (at_us, ledger.acknowledged, ledger.delivered)
        seconds = max(1, at_us - last_us) / SECOND_US
        step = min(int(at_us / SECOND_US / self.plan.step_s), len(self.plan.rates) - 1)
        # After a request to end, no more events are sent, so only sent events can be behind.
        due = self._sent if self._ending.requested.is_set() else self.plan.due_by(at_us)
        return LoadPicture(
            at_s=at_us / SECOND_US,
            rate=self.plan.rates[step],
            acknowledged_per_s=(ledger.acknowledged - acknowledged) / seconds,
            delivered_per_s=(ledger.delivered - delivered) / seconds,
            behind=due - ledger.acknowledged - self._refused,
            publish_p99_ms=self._publish_times[step].percentile(99) / 1_000,
            delivery_p99_ms=self._delivery_times[step].percentile(99) / 1_000,
            problem=self._problem,
        )

    def report(self) -> LoadReport:
        """Return the result of the run after its end."""
        ledger, ended = self._ledger, "complete"
        if self._failure is not None:
            ended = "failed"
        elif self._ending.requested.is_set():
            ended = "interrupted"
        return LoadReport(
            ended=ended,
            problem=self._problem,
            channel=self._setup.channel,
            is_kept=self._is_kept,
            seconds=(self._ended_us - self._began_us) / SECOND_US,
            planned=self.plan.count,
            acknowledged=ledger.acknowledged,
            refused=self._refused,
            unanswered=self._sent - ledger.acknowledged - self._refused,
            delivered=ledger.delivered,
            rolled_back=self._rolled_back,
            redelivered=ledger.redelivered,
            outstanding=self._outstanding,
            lost=self._lost,
            twice=ledger.twice + self._stored_twice,
            steps=tuple(
                StepLine(rate, _line(publish), _line(delivery))
                for rate, publish, delivery in zip(
                    self.plan.rates, self._publish_times, self._delivery_times, strict=True
                )
            ),
        )


async def _run_until_set(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until it is done; cancel it when the event is set."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work), group.create_task(event.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


def _first_of(failures: BaseExceptionGroup[PenstockError]) -> PenstockError:
    """Return the first error of a group; nested groups contain one each."""
    first = failures.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def _line(times: Latencies) -> LatencyLine:
    """Return the percentiles of a histogram."""
    p50, p90, p99, p999 = (times.percentile(percent) / 1_000 for percent in (50, 90, 99, 99.9))
    return LatencyLine(times.count, p50, p90, p99_ms=p99, p999_ms=p999, max_ms=times.max_us / 1_000)
