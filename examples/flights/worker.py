"""A worker: takes flights from the shared durable, rolls back one in a hundred, acknowledges.

Started by the run as a process of its own; it knows nothing but the realm's URL.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import numpy.typing as npt

import penstock
from examples.flights.companion import Instructions, report, serve
from examples.flights.names import FLIGHTS, GROUND_CREW
from penstock.client.sync.sync import DurableSubscription

WINDOW = 4_000
"""Most flights that this worker holds at a time."""
_PATIENCE_S = 0.2

Int64s = npt.NDArray[np.int64]
_NONE: Int64s = np.empty(0, np.int64)


def is_rolled_back(event_ids: Int64s) -> npt.NDArray[np.bool_]:
    """Which events are rolled back at their first delivery: about 1 %, the same in every run."""
    scattered = (event_ids.astype(np.uint64) * np.uint64(2_654_435_761)) % np.uint64(1 << 32)
    chosen: npt.NDArray[np.bool_] = scattered % np.uint64(100) == 0
    return chosen


class Tally:
    """What this worker has done."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.acknowledged_ids = 0
        """Sum of the ids: two workers that share the work add up to the whole, exactly."""
        self.rolled_back = 0
        self.redelivered = 0
        self.is_idle = False
        """Whether the last read returned no events."""

    def tell(self) -> None:
        report(
            acknowledged=self.acknowledged,
            acknowledged_ids=self.acknowledged_ids,
            rolled_back=self.rolled_back,
            redelivered=self.redelivered,
        )


def work(url: str, instructions: Instructions) -> None:
    """Process flights until none are left and the run says that no more will come."""
    tally = Tally()
    with penstock.connect(url) as session:
        durable = session.channels.get(FLIGHTS).durables.get(GROUND_CREW)
        with durable.subscribe(window=WINDOW) as subscription:
            report(ready=True)
            while not (instructions.finish and tally.is_idle):
                settle(subscription, *handed_over(subscription), tally)
                tally.tell()


def handed_over(subscription: DurableSubscription) -> tuple[Int64s, Int64s]:
    """The ids of all events that have arrived, and of those that were delivered before.

    They are taken together, because an acknowledgement waits for the disk, and waits no longer
    for many events than for a few.
    """
    ids, again = [_NONE], [_NONE]
    batch = subscription.next_batch(timeout=_PATIENCE_S)
    while batch is not None:
        ids.append(batch.event_ids)
        again.append(np.fromiter(batch.redeliveries, np.int64))
        batch = subscription.next_batch(timeout=0)
    return np.concatenate(ids), np.concatenate(again)


def settle(subscription: DurableSubscription, ids: Int64s, again: Int64s, tally: Tally) -> None:
    """Roll back one in a hundred events at their first delivery; acknowledge the rest."""
    refused = is_rolled_back(ids) & ~np.isin(ids, again)
    if refused.any():
        subscription.rollback(ids[refused].tolist())
    taken = ids[~refused]
    if len(taken):
        subscription.ack(taken.tolist())
    tally.is_idle = not len(ids)
    tally.acknowledged += len(taken)
    tally.acknowledged_ids += int(taken.sum())
    tally.rolled_back += int(refused.sum())
    tally.redelivered += len(again)


if __name__ == "__main__":
    serve(partial(work, sys.argv[1]))
