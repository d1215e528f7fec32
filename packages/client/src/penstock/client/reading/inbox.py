"""Events that a subscription has received and the application has not: waiting batches, and the
batches that loops have begun."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sized
from typing import Any, Generic, TypeVar

from penstock.client.reading.attachment import Attachment
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.wire.native import messages as wire

B = TypeVar("B", bound=Sized)
L = TypeVar("L")


class OpenBatch(Generic[B]):
    """The batch that a loop delivers event by event. If the loop is left early, the rest of it is
    delivered by the next loop or call."""

    def __init__(self) -> None:
        self._batch: B | None = None
        self.loop: Callable[[], Any] = _no_loop
        """Returns the loop while it is referenced, then None."""
        self.count = 0
        """Number of events that the loop has finished with."""
        self._in_use = 0
        """Number of events after the finished ones that the application is processing. They are
        delivered again if the loop is left now."""

    def begin(self, batch: B, in_use: int = 0) -> None:
        """Begin to deliver ``batch``; the application processes ``in_use`` events at a time."""
        self._batch, self.count, self._in_use = batch, 0, in_use

    def rest(self) -> tuple[B, int] | None:
        """Return the batch and the number of its events that are finished, and forget both; None if
        all are finished."""
        batch, self._batch = self._batch, None
        return None if batch is None or self.count >= len(batch) else (batch, self.count)

    def unreceived(self) -> tuple[B, int] | None:
        """Return the batch and the row of the first event that the application has not received;
        None if it has received all."""
        batch, first = self._batch, self.count + self._in_use
        return None if batch is None or first >= len(batch) else (batch, first)

    def forget(self) -> None:
        """Drop the rest of the batch."""
        self._batch = None


def _no_loop() -> None:
    """Stand for a weak reference whose loop does not exist any more."""
    return None


class Loops(Generic[B]):
    """The loops over one subscription, of any number of tasks or threads, each with a batch."""

    def __init__(self) -> None:
        self._open_batches: dict[int, OpenBatch[B]] = {}
        self._running: set[int] = set()
        self._have_opened = False

    def add(self, loop_with: Callable[[OpenBatch[B]], L]) -> L:
        """Create a loop, a generator, with the batch that it delivers. A weak reference shows when
        the loop is abandoned; its finalizer would run too late."""
        open_batch = OpenBatch[B]()
        loop = loop_with(open_batch)
        open_batch.loop = weakref.ref(loop)
        self._open_batches[id(open_batch)] = open_batch
        return loop

    def loop_started(self, open_batch: OpenBatch[B], *, opens: bool) -> None:
        """Record the first step of a loop, and whether that step opens the subscription."""
        self._have_opened = self._have_opened or opens
        self._running.add(id(open_batch))

    def loop_ended(self, open_batch: OpenBatch[B]) -> bool:
        """Record that a loop has ended; references to it no longer count. Return True if the caller
        must close the subscription: no other loop runs, and the subscription was opened by a
        loop."""
        open_batch.loop = _no_loop
        self._running.discard(id(open_batch))
        return self._have_opened and not self._running

    def rests(self) -> list[tuple[B, int]]:
        """Return the batches of ended and abandoned loops, with the number of finished events, and
        forget them."""
        if not self._open_batches:
            return []
        # This is a copy, because loops of other threads may be added at the same time.
        ended = [
            key for key, open_batch in list(self._open_batches.items()) if open_batch.loop() is None
        ]
        rests = [self._open_batches.pop(key).rest() for key in ended]
        return [rest for rest in rests if rest is not None]

    def all_rests(self) -> list[tuple[B, int]]:
        """Return the batches of all loops, including running ones, with the number of finished
        events, and forget them."""
        rests = [open_batch.rest() for open_batch in list(self._open_batches.values())]
        return [rest for rest in rests if rest is not None]

    def unreceived(self) -> list[tuple[B, int]]:
        """Return the batches of all loops that have unreceived events, with the row of the first
        one."""
        rests = [open_batch.unreceived() for open_batch in list(self._open_batches.values())]
        return [rest for rest in rests if rest is not None]

    def closed(self) -> None:
        """Record that the subscription is closed, so that no loop closes it again."""
        self._have_opened = False
        self.forget()

    def forget(self) -> None:
        """Drop the batches of all loops."""
        for open_batch in list(self._open_batches.values()):
            open_batch.forget()


def deadline_of(timeout: float | None) -> float | None:
    """Return the time of the event loop at which ``timeout`` ends; None without a timeout."""
    return None if timeout is None else asyncio.get_running_loop().time() + timeout


async def set_by(event: asyncio.Event, deadline_s: float | None) -> bool:
    """Clear an asyncio.Event and wait until it is set; return False if the deadline comes
    before."""
    event.clear()
    if deadline_s is None:
        await event.wait()
        return True
    try:
        async with asyncio.timeout_at(deadline_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Buffered:
    """Counts the bytes of waiting deliveries, and returns them to the realm as credit when the
    application receives the deliveries. Deliveries are identified by their ``id()``."""

    def __init__(self, attachment: Attachment, bytes_max: int) -> None:
        """A ``bytes_max`` of 0 means no limit; then nothing is counted."""
        self._attachment = attachment
        self._bytes_max = bytes_max
        self._sizes: dict[int, int] = {}
        self._taken = 0
        """Bytes received by the application and not yet returned to the realm as credit."""

    @property
    def size(self) -> int:
        """Bytes of the waiting deliveries."""
        return sum(self._sizes.values())

    def add(self, delivery: object, size: int) -> None:
        """Count a delivery as waiting."""
        if self._bytes_max:
            self._sizes[id(delivery)] = size

    def took(self, delivery: object, more: int = 0) -> None:
        """Count a delivery as received by the application, once, and grant the realm ``more``
        events."""
        self._release(self._sizes.pop(id(delivery), 0), more)

    def took_all(self) -> None:
        """Count all deliveries as received."""
        size = self.size
        self._sizes.clear()
        self._release(size)

    def replace(self, delivery: Sized, rest: Sized | None) -> None:
        """Count only the ``rest`` of a delivery as waiting."""
        if rest is delivery:
            return
        size = self._sizes.pop(id(delivery), 0)
        kept = int(size * (len(rest) / len(delivery))) if size and rest is not None else 0
        if kept:
            self._sizes[id(rest)] = kept
        self._release(size - kept)

    def carry_over(self) -> int:
        """Return the bytes that still wait; the realm continues counting from there on a new
        connection."""
        self._taken = 0
        return self.size

    def forget(self) -> None:
        """Count from zero, as the realm does for a new connection."""
        self._sizes.clear()
        self._taken = 0

    def _release(self, size: int, more: int = 0) -> None:
        """Let the realm send ``size`` more bytes, and ``more`` more events."""
        self._taken += size
        # In quarters of the limit: a frame for each delivery would cost more than it brings.
        if more or (self._taken and self._taken * 4 >= self._bytes_max):
            released, self._taken = self._taken, 0
            attachment = self._attachment
            attachment.connection.tell(wire.Credit(attachment.number, more, 0, taken=released))


class Inbox(Generic[B]):
    """The waiting batches of a subscription in order, followed by its end or an error."""

    def __init__(self, buffered: Buffered, on_arrival: Callable[[], None] | None = None) -> None:
        """``on_arrival`` is called when a batch arrives, and at the end."""
        self.buffered = buffered
        self._batches: deque[B] = deque()
        self._arrived = asyncio.Event()
        self._on_arrival = on_arrival
        self._error: PenstockError | None = None
        self._ended = False

    def put(self, batch: B, size: int = 0) -> None:
        """Add a delivery of ``size`` bytes."""
        self.buffered.add(batch, size)
        self._batches.append(batch)
        self._arrives()

    def end(self) -> None:
        """Record that no more batches will follow."""
        self._ended = True
        self._arrives()

    def fail(self, error: PenstockError) -> None:
        self._error = error
        self._arrives()

    def _arrives(self) -> None:
        """Wake the tasks that wait for a batch."""
        self._arrived.set()
        if self._on_arrival is not None:
            self._on_arrival()

    def raise_failure(self) -> None:
        """Raise the error that has ended the subscription, if one has."""
        if self._error is not None:
            raise self._error

    @property
    def failure(self) -> PenstockError | None:
        """The error that has ended the subscription, if one has."""
        return self._error

    @property
    def has_failed(self) -> bool:
        """Whether an error has ended the subscription."""
        return self._error is not None

    @property
    def has_ended(self) -> bool:
        """Whether no batches will follow the waiting ones."""
        return self._ended

    def clear(self) -> None:
        """Drop all batches: their events returned to the realm when the connection was lost."""
        self._batches.clear()
        self.buffered.forget()

    def drop(self) -> None:
        """Drop all batches, and return their bytes to the realm as credit."""
        self._batches.clear()
        self.buffered.took_all()

    def put_back(self, batch: B) -> None:
        """Put a batch back as the next one, and wake tasks that wait for a batch."""
        self._batches.appendleft(batch)
        self._arrives()

    def renewed(self) -> Inbox[B]:
        """Return an empty inbox for a subscription that starts again. This is the same inbox,
        because tasks may wait for its batches; if it has ended, it is a new one, so that waiting
        tasks still receive the end."""
        if self._ended or self.has_failed:
            self.buffered.forget()
            return Inbox(self.buffered, self._on_arrival)
        self.clear()
        return self

    def reduce(self, reduced: Callable[[B], B | None]) -> None:
        """Replace each waiting batch by the result of ``reduced``; None removes it."""
        batches, self._batches = self._batches, deque()
        for batch in batches:
            rest = reduced(batch)
            self.buffered.replace(batch, rest)
            if rest is not None:
                self._batches.append(rest)

    async def get(self, timeout: float | None) -> B | None:
        """Return the next batch; None at the end, or if none arrives within ``timeout`` seconds.

        Raises the error that has ended the subscription, once all batches before it are received.
        """
        deadline_s = deadline_of(timeout)
        while not self._batches:
            self.raise_failure()
            if self._ended or not await self.changes(deadline_s):
                return None
        return self._batches.popleft()

    async def changes(self, deadline_s: float | None) -> bool:
        """Wait for a batch, the end or :meth:`wake`; return False if the deadline passes first."""
        return await set_by(self._arrived, deadline_s)

    def wake(self) -> None:
        """Wake the tasks that wait for a change, although no batch has arrived."""
        self._arrived.set()

    def waiting(self) -> B | None:
        """Return the next batch without removing it; None if no batch waits."""
        return self._batches[0] if self._batches else None

    def take(self) -> B:
        """Remove and return the next batch, which must exist."""
        return self._batches.popleft()

    @property
    def rows(self) -> int:
        """Number of waiting events."""
        return sum(map(len, self._batches))

    def count_unread(self) -> int:
        """Return the number of waiting events. Any thread may call this."""
        return sum(map(len, list(self._batches)))  # the loop may change the deque during the sum

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[B]:
        """Iterate over the waiting batches without removing them."""
        return iter(self._batches)
