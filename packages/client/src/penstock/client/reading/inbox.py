"""What a subscription has received and its application has not taken yet."""

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
    """The batch that a loop hands out event by event. If the loop stops in the middle, the rest is
    still to come."""

    def __init__(self) -> None:
        self._batch: B | None = None
        self.loop: Callable[[], Any] = _nobody
        """Gives the loop while it is in use."""
        self.count = 0
        """Number of its events that were handed out."""
        self._more = 0
        """Number of events behind these that are in use, and are handed out again if that is left
        in the middle."""

    def begin(self, batch: B, more: int = 0) -> None:
        """Hand out ``batch``. So many events ``more`` than are counted are in use at a time."""
        self._batch, self.count, self._more = batch, 0, more

    def rest(self) -> tuple[B, int] | None:
        """The batch and how many events of it were handed out, if there are others; once."""
        batch, self._batch = self._batch, None
        return None if batch is None or self.count >= len(batch) else (batch, self.count)

    def to_come(self) -> tuple[B, int] | None:
        """The batch and at which event those begin that nobody has had yet, if there are any."""
        batch, first = self._batch, self.count + self._more
        return None if batch is None or first >= len(batch) else (batch, first)

    def forget(self) -> None:
        """Drop the rest of it."""
        self._batch = None


def _nobody() -> None:
    return None


class Loops(Generic[B]):
    """The loops over one subscription, by any number of tasks or threads, each with a batch."""

    def __init__(self) -> None:
        self._begun: dict[int, OpenBatch[B]] = {}
        self._running: set[int] = set()
        self._have_opened = False

    def add(self, loop_with: Callable[[OpenBatch[B]], L]) -> L:
        """Make a new loop, a generator, with the batch that it hands out. A weak reference tells
        when nobody uses it any more, because its finalizer would run too late."""
        begun = OpenBatch[B]()
        loop = loop_with(begun)
        begun.loop = weakref.ref(loop)
        self._begun[id(begun)] = begun
        return loop

    def begins(self, begun: OpenBatch[B], *, opens: bool) -> None:
        """A loop takes its first step; whether that opens the subscription."""
        self._have_opened = self._have_opened or opens
        self._running.add(id(begun))

    def ends(self, begun: OpenBatch[B]) -> bool:
        """A loop is over, even if it is still referenced; tells whether it is for this one to close
        what loops have opened."""
        begun.loop = _nobody
        self._running.discard(id(begun))
        return self._have_opened and not self._running

    def rests(self) -> list[tuple[B, int]]:
        """What loops that are no longer in use have left, and how many events of it were handed
        out; given once."""
        if not self._begun:
            return []
        over = [key for key, begun in list(self._begun.items()) if begun.loop() is None]
        left = [self._begun.pop(key).rest() for key in over]
        return [rest for rest in left if rest is not None]

    def left(self) -> list[tuple[B, int]]:
        """What all loops have left, including those in use."""
        left = [begun.rest() for begun in list(self._begun.values())]
        return [rest for rest in left if rest is not None]

    def to_come(self) -> list[tuple[B, int]]:
        """Batches of loops, and at which event of each those begin that nobody has had yet."""
        to_come = [begun.to_come() for begun in list(self._begun.values())]
        return [rest for rest in to_come if rest is not None]

    def closed(self) -> None:
        """Note that the subscription is closed: loops have nothing to close any more."""
        self._have_opened = False
        self.forget()

    def forget(self) -> None:
        """Drop what all loops have left."""
        for begun in list(self._begun.values()):
            begun.forget()


def deadline_of(timeout: float | None) -> float | None:
    """The loop's time at which ``timeout`` ends; None if there is no timeout."""
    return None if timeout is None else asyncio.get_running_loop().time() + timeout


async def set_by(event: asyncio.Event, deadline_s: float | None) -> bool:
    """Clear an event and wait until it is set; return False if the deadline comes before."""
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
    """Counts the bytes of waiting deliveries, and returns credit to the realm as they are taken.

    Waiting deliveries are identified by their ``id()``.
    """

    def __init__(self, attachment: Attachment, bytes_max: int) -> None:
        """With a ``bytes_max`` of 0 there is no limit, and nothing is counted."""
        self._attachment = attachment
        self._bytes_max = bytes_max
        self._sizes: dict[int, int] = {}
        self._taken = 0
        """Bytes that do not wait any more, and whose credit was not returned yet."""

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return sum(self._sizes.values())

    def add(self, delivery: object, size: int) -> None:
        """Count a delivery as waiting."""
        if self._bytes_max:
            self._sizes[id(delivery)] = size

    def took(self, delivery: object, more: int = 0) -> None:
        """Count a delivery as taken by the application, once, and grant the realm ``more``
        events."""
        self._left(self._sizes.pop(id(delivery), 0), more)

    def took_all(self) -> None:
        """Count all deliveries as taken."""
        size = self.size
        self._sizes.clear()
        self._left(size)

    def replace(self, delivery: Sized, rest: Sized | None) -> None:
        """Count only a part of a delivery as waiting: ``rest``."""
        if rest is delivery:
            return
        size = self._sizes.pop(id(delivery), 0)
        kept = int(size * (len(rest) / len(delivery))) if size and rest is not None else 0
        if kept:
            self._sizes[id(rest)] = kept
        self._left(size - kept)

    def carry_over(self) -> int:
        """Return the bytes that still wait, from which the realm counts on a new connection."""
        self._taken = 0
        return self.size

    def forget(self) -> None:
        """Count from zero, as the realm does for a new connection."""
        self._sizes.clear()
        self._taken = 0

    def _left(self, size: int, more: int = 0) -> None:
        self._taken += size
        if more or (self._taken and self._taken * 4 >= self._bytes_max):
            taken, self._taken = self._taken, 0
            attachment = self._attachment
            attachment.connection.tell(wire.Credit(attachment.number, more, 0, taken=taken))


class Inbox(Generic[B]):
    """Batches in order, then the end or an error."""

    def __init__(self, buffered: Buffered, on_arrival: Callable[[], None] | None = None) -> None:
        """``on_arrival`` is called when there is something to take, or an end to hear of."""
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
        """Note that nothing will follow."""
        self._ended = True
        self._arrives()

    def fail(self, error: PenstockError) -> None:
        self._error = error
        self._arrives()

    def _arrives(self) -> None:
        self._arrived.set()
        if self._on_arrival is not None:
            self._on_arrival()

    def raise_failure(self) -> None:
        """Raises the error the subscription ended with, if it did."""
        if self._error is not None:
            raise self._error

    @property
    def failure(self) -> PenstockError | None:
        """The error that the subscription ended with, if it did."""
        return self._error

    @property
    def has_failed(self) -> bool:
        """Whether the subscription ended with an error."""
        return self._error is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing will follow what waits."""
        return self._ended

    def clear(self) -> None:
        """Drop all batches, which went back with their connection."""
        self._batches.clear()
        self.buffered.forget()

    def drop(self) -> None:
        """Drop all batches, and report to the realm that they do not wait any more."""
        self._batches.clear()
        self.buffered.took_all()

    def put_back(self, batch: B) -> None:
        """Put a batch back, as the next one, also for those who wait already."""
        self._batches.appendleft(batch)
        self._arrives()

    def renewed(self) -> Inbox[B]:
        """The inbox for a new beginning. It is this one, emptied, because somebody may wait at it.
        Only after its end it is another one: whoever waits at this one is still to hear of that."""
        if self._ended or self.has_failed:
            self.buffered.forget()
            return Inbox(self.buffered, self._on_arrival)
        self.clear()
        return self

    def reduce(self, left_of: Callable[[B], B | None]) -> None:
        """Replace each waiting batch by what ``left_of`` leaves of it."""
        batches, self._batches = self._batches, deque()
        for batch in batches:
            rest = left_of(batch)
            self.buffered.replace(batch, rest)
            if rest is not None:
                self._batches.append(rest)

    async def get(self, timeout: float | None) -> B | None:
        """The next batch; None at the end, or when nothing comes for ``timeout`` seconds.

        Raises the error the subscription ended with, once everything before it is taken.
        """
        deadline_s = deadline_of(timeout)
        while not self._batches:
            self.raise_failure()
            if self._ended or not await self.changes(deadline_s):
                return None
        return self._batches.popleft()

    async def changes(self, deadline_s: float | None) -> bool:
        """Wait for a batch, the end or :meth:`wake`; return False if the deadline comes before."""
        return await set_by(self._arrived, deadline_s)

    def wake(self) -> None:
        """Wake the tasks that wait for a change, although nothing has arrived."""
        self._arrived.set()

    def waiting(self) -> B | None:
        """The next batch if it is here already; it stays."""
        return self._batches[0] if self._batches else None

    def take(self) -> B:
        """The next batch, which is here."""
        return self._batches.popleft()

    @property
    def rows(self) -> int:
        """Number of waiting events."""
        return sum(map(len, self._batches))

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[B]:
        """The waiting batches, which stay."""
        return iter(self._batches)
