"""A worker: receives flights from the shared durable, rolls back one in a hundred, and acknowledges
the others.

The run starts it as a separate process, which knows only the URL of the realm.
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
"""Maximum number of unacknowledged flights of this worker."""
_PATIENCE_S = 0.2

Int64s = npt.NDArray[np.int64]
_NONE: Int64s = np.empty(0, np.int64)


def is_rolled_back(event_ids: Int64s) -> npt.NDArray[np.bool_]:
    """Return which events are rolled back at their first delivery: about 1 %, the same in every
    run."""
    # A multiplicative hash scatters the ids, so that the chosen events are in no regular order.
    scattered = (event_ids.astype(np.uint64) * np.uint64(2_654_435_761)) % np.uint64(1 << 32)
    chosen: npt.NDArray[np.bool_] = scattered % np.uint64(100) == 0
    return chosen


class Tally:
    """The counts of this worker."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.acknowledged_ids = 0
        """Sum of the ids. The sums of both workers must add up to the sum of all ids."""
        self.rolled_back = 0
        self.redelivered = 0
        self.is_idle = False
        """Whether the last read returned no events."""

    def report(self) -> None:
        """Report the counts to the main process."""
        report(
            acknowledged=self.acknowledged,
            acknowledged_ids=self.acknowledged_ids,
            rolled_back=self.rolled_back,
            redelivered=self.redelivered,
        )


def work(url: str, instructions: Instructions) -> None:
    """Process flights until none are left and no more will come."""
    tally = Tally()
    with penstock.connect(url) as session:
        durable = session.channels.get(FLIGHTS).durables.get(GROUND_CREW)
        with durable.subscribe(window=WINDOW) as subscription:
            report(ready=True)
            while not (instructions.finish and tally.is_idle):
                settle(subscription, *receive_events(subscription), tally)
                tally.report()


def receive_events(subscription: DurableSubscription) -> tuple[Int64s, Int64s]:
    """Return the ids of all events that have arrived, and the ids of the redelivered ones among
    them.

    All arrived events are processed together, because an acknowledgement waits for the disk, and
    this takes no longer for many events than for a few.
    """
    ids, again = [_NONE], [_NONE]
    batch = subscription.next_batch(timeout=_PATIENCE_S)
    while batch is not None:
        ids.append(batch.event_ids)
        again.append(np.fromiter(batch.redeliveries, np.int64))
        batch = subscription.next_batch(timeout=0)
    return np.concatenate(ids), np.concatenate(again)


def settle(subscription: DurableSubscription, ids: Int64s, again: Int64s, tally: Tally) -> None:
    """Roll back one in a hundred events at their first delivery, and acknowledge the others."""
    refused = is_rolled_back(ids) & ~np.isin(ids, again)
    if refused.any():
        subscription.rollback(ids[refused].tolist())
    acknowledged = ids[~refused]
    if len(acknowledged):
        subscription.ack(acknowledged.tolist())
    tally.is_idle = not len(ids)
    tally.acknowledged += len(acknowledged)
    tally.acknowledged_ids += int(acknowledged.sum())
    tally.rolled_back += int(refused.sum())
    tally.redelivered += len(again)


if __name__ == "__main__":
    serve(partial(work, sys.argv[1]))
