"""Subscriptions without a durable: they read everything that is stored, then new events."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

import penstock
from examples.flights.names import FLIGHTS
from examples.flights.progress import Part
from examples.flights.threads import PartThread

_PATIENCE_S = 0.25
_GIVES_UP_AFTER = 120
"""Number of reads without an event, after everything was published, until a follower gives up. They
take half a minute."""

Int64s = npt.NDArray[np.int64]


class Follower(PartThread):
    """Reads ``flights``, and records the ids of the delivered events.

    A resumed run reads from the first event again, because the channel still stores all of them.
    """

    def __init__(
        self, part: Part, session: penstock.Session, last_id: int, *, selector: str = ""
    ) -> None:
        """``last_id`` is the last event that is expected."""
        super().__init__(part)
        self._session = session
        self._last_id = last_id
        self._selector = selector
        self._ids: list[Int64s] = []
        self.all_published = threading.Event()
        """Set when no more events will be published. From then on, reads without an event count
        towards giving up."""

    def work(self) -> None:
        channel = self._session.channels.get(FLIGHTS)
        self.part.began()
        # With an empty archive, only the channel is read; otherwise, reading would begin in the
        # archive as soon as it exists.
        with channel.subscribe(
            start="earliest", selector=self._selector, archive=""
        ) as subscription:
            done, newest, silences = 0, -1, 0
            while not self.stopped and silences < _GIVES_UP_AFTER:
                batch = subscription.next_batch(timeout=_PATIENCE_S)
                if batch is None:
                    if newest >= self._last_id:
                        return  # and no event came after it
                    silences += self.all_published.is_set()
                    continue
                silences = 0
                ids = batch.event_ids
                self._ids.append(ids)
                done, newest = done + len(ids), int(ids[-1])
                self.part.reach(done)

    @property
    def event_ids(self) -> Int64s:
        """The ids delivered, in the order of their delivery."""
        return np.concatenate([*self._ids, np.empty(0, np.int64)])
