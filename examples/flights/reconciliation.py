"""Whether everything adds up: what each part has counted against the CSV itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from examples.flights import statistics
from examples.flights.worker import is_rolled_back

Int64s = npt.NDArray[np.int64]


class Check(msgspec.Struct, frozen=True):
    """One claim of the report."""

    claim: str
    is_true: bool
    found: str

    def __str__(self) -> str:
        return f"{'OK    ' if self.is_true else 'FAILED'}  {self.claim}: {self.found}"


class Outstanding(msgspec.Struct, frozen=True):
    """What the workers had still to acknowledge when this run began."""

    events: int
    ids: int
    """The sum of their ids."""


class Acknowledged(msgspec.Struct, frozen=True):
    """What one worker has done in this run."""

    worker: str
    acknowledged: int = 0
    acknowledged_ids: int = 0
    rolled_back: int = 0
    redelivered: int = 0

    @classmethod
    def said_by(cls, worker: str, said: Mapping[str, Any]) -> Acknowledged:
        """From what the worker has reported last."""
        counts = {name: said.get(name, 0) for name in cls.__struct_fields__ if name != "worker"}
        return cls(worker, **counts)


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the run has counted, each by the part that did the work."""

    flights: pa.Table
    """The CSV, in the order of publishing."""
    is_resumed: bool
    stored: int
    last_event_id: int
    published_before: int
    outstanding_before: Outstanding
    outstanding_after: int
    delivered_ids: Int64s
    filtered_ids: Int64s
    workers: tuple[Acknowledged, ...]
    channel_statistics: pa.Table
    parquet_statistics: pa.Table
    archive: pa.Table


def late_from_jfk(flights: pa.Table) -> Int64s:
    """The event ids the selector has to choose, straight from the CSV."""
    chosen = pc.and_(pc.equal(flights["origin"], "JFK"), pc.greater(flights["dep_delay"], 60))
    ids: Int64s = np.flatnonzero(chosen.fill_null(False).to_numpy())
    return ids


def checks(found: Findings) -> list[Check]:
    """Every claim, true or not."""
    return [*_channel(found), *_workers(found), *_spark(found)]


def _channel(found: Findings) -> Iterator[Check]:
    rows = found.flights.num_rows
    yield Check(
        "published = flights in the CSV",
        found.stored == rows == found.last_event_id + 1,
        f"{found.stored:,} events stored, ids 0 to {found.last_event_id:,}, {rows:,} flights",
    )
    delivered = found.delivered_ids
    yield Check(
        "delivered = published",
        np.array_equal(delivered, np.arange(rows)),
        f"{len(delivered):,} events, {_order(delivered)}",
    )
    expected = late_from_jfk(found.flights)
    yield Check(
        "filtered = chosen from the CSV",
        np.array_equal(found.filtered_ids, expected),
        f"{len(found.filtered_ids):,} events, {len(expected):,} flights",
    )


def _order(ids: Int64s) -> str:
    steps = np.diff(ids)
    if (steps == 1).all():
        return "every id once, ascending, no gap"
    return f"{(steps < 1).sum()} repeated or out of order, {(steps > 1).sum()} gaps"


def _workers(found: Findings) -> Iterator[Check]:
    rows, before = found.flights.num_rows, found.outstanding_before
    earlier = found.published_before - before.events
    counts = [worker.acknowledged for worker in found.workers]
    counts += [earlier] if found.is_resumed else []
    ids = sum(worker.acknowledged_ids for worker in found.workers)
    due_ids = before.ids + sum(range(found.published_before, rows))
    yield Check(
        "acknowledged = published",
        sum(counts) == rows and ids == due_ids and found.outstanding_after == 0,
        " + ".join(f"{count:,}" for count in counts)
        + (" (before the interruption)" if found.is_resumed else "")
        + f" = {sum(counts):,}, {'each id once' if ids == due_ids else 'not each id once'}, "
        f"{found.outstanding_after:,} outstanding",
    )
    yield _rollbacks(found)


def _rollbacks(found: Findings) -> Check:
    rolled_back = sum(worker.rolled_back for worker in found.workers)
    redelivered = sum(worker.redelivered for worker in found.workers)
    if found.is_resumed:
        # What was in a worker's hands at the interruption comes again, too.
        return Check(
            "redelivered >= rolled back (resumed)",
            redelivered >= rolled_back,
            f"{rolled_back:,} rolled back, {redelivered:,} redelivered since the interruption",
        )
    chosen = int(is_rolled_back(np.arange(found.flights.num_rows)).sum())
    return Check(
        "redelivered = rolled back = 1 % chosen",
        redelivered == rolled_back == chosen,
        f"{redelivered:,} redelivered, {rolled_back:,} rolled back, {chosen:,} chosen",
    )


def _spark(found: Findings) -> Iterator[Check]:
    flights = found.flights
    ids = found.archive["event_id"].combine_chunks().sort().to_numpy()
    yield Check(
        "archived = published",
        np.array_equal(ids, np.arange(flights.num_rows)),
        f"{len(ids):,} rows in Parquet, {_order(ids)}",
    )
    wanted = statistics.added_up(statistics.daily(flights))
    sources = (
        ("channel", found.channel_statistics),
        ("Parquet", found.parquet_statistics),
        ("archive", statistics.daily(found.archive)),
    )
    for name, partial in sources:
        sums = statistics.added_up(partial)
        yield Check(
            f"sums by carrier and day, {name} = CSV",
            sums.equals(wanted),
            f"{_total(sums, 'flights')} flights, {_total(sums, 'distance')} miles, minutes late "
            f"{_total(sums, 'departure_delay')} (departure) {_total(sums, 'arrival_delay')} "
            "(arrival)",
        )


def _total(sums: pa.Table, name: str) -> str:
    return f"{pc.sum(sums[name]).as_py() or 0:,}"
