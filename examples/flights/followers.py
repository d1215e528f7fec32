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
"""Empty reads after everything was published until the follower gives up: half a minute."""

Int64s = npt.NDArray[np.int64]


class Follower(PartThread):
    """Reads ``flights`` and records which events were delivered.

    A run that resumes begins here at the first event again: that is what a stored channel is for.
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
        """Set when nothing more will be published: from then on, silence is suspicious."""

    def work(self) -> None:
        channel = self._session.channels.get(FLIGHTS)
        self.part.began()
        # Only the channel is read: otherwise, reading would begin in the archive, if there is one.
        with channel.subscribe(
            start="earliest", selector=self._selector, archive=""
        ) as subscription:
            done, newest, silences = 0, -1, 0
            while not self.stopped and silences < _GIVES_UP_AFTER:
                batch = subscription.next_batch(timeout=_PATIENCE_S)
                if batch is None:
                    if newest >= self._last_id:
                        return  # and nothing came after it
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
