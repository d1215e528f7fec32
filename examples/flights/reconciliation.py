"""Compares the counts of all parts, and the contents of the channels and tables, with the CSV."""

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

_AIRCRAFT = pa.schema(
    [
        ("tailnum", pa.string()),
        ("last_event_id", pa.int64()),
        ("origin", pa.string()),
        ("dest", pa.string()),
    ]
)

Int64s = npt.NDArray[np.int64]


class Check(msgspec.Struct, frozen=True):
    """One claim of the report."""

    claim: str
    is_true: bool
    found: str

    def __str__(self) -> str:
        return f"{'OK    ' if self.is_true else 'FAILED'}  {self.claim}: {self.found}"


class Outstanding(msgspec.Struct, frozen=True):
    """Events that the workers still had to acknowledge when this run began."""

    events: int
    ids: int
    """The sum of their ids."""


class Acknowledged(msgspec.Struct, frozen=True):
    """The counts of one worker in this run."""

    worker: str
    acknowledged: int = 0
    acknowledged_ids: int = 0
    rolled_back: int = 0
    redelivered: int = 0

    @classmethod
    def from_report(cls, worker: str, report: Mapping[str, Any]) -> Acknowledged:
        """Return the counts in the last report of a worker."""
        counts = {name: report.get(name, 0) for name in cls.__struct_fields__ if name != "worker"}
        return cls(worker, **counts)


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run. Each count was made by the part that did the work."""

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
    channel_delays: pa.Table
    """Rows of the roll-up in its channel."""
    table_delays: pa.Table
    """Rows of the roll-up in its table."""
    aircraft: pa.Table
    archived_ids: pa.ChunkedArray
    """The ids in the archive's table."""
    archive: str
    """The archive table of the channel; empty if it has none."""
    read_back: pa.Table
    """The flights that a reader gets from the first id on."""


def late_from_jfk(flights: pa.Table) -> Int64s:
    """Return the event ids that the selector must select, computed from the CSV."""
    chosen = pc.and_(pc.equal(flights["origin"], "JFK"), pc.greater(flights["dep_delay"], 60))
    ids: Int64s = np.flatnonzero(chosen.fill_null(fill_value=False).to_numpy())
    return ids


def checks(found: Findings) -> list[Check]:
    """Return all checks, whether or not they hold."""
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
        # Events that a worker held at the interruption are redelivered, too.
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


def newest_flights(flights: pa.Table) -> pa.Table:
    """Return the event id and route of the newest flight of each aircraft, computed from the
    CSV."""
    numbered = flights.select(["tailnum", "origin", "dest"]).append_column(
        "last_event_id", pa.array(np.arange(flights.num_rows))
    )
    known = numbered.filter(numbered["tailnum"].is_valid())
    newest = known.group_by("tailnum").aggregate([("last_event_id", "max")])
    rows = numbered.take(newest["last_event_id_max"])
    return _by_aircraft(rows)


def _by_aircraft(rows: pa.Table) -> pa.Table:
    """Return rows in the form in which they are compared."""
    return rows.select(_AIRCRAFT.names).cast(_AIRCRAFT).sort_by("tailnum")


def _spark(found: Findings) -> Iterator[Check]:
    rows = found.flights.num_rows
    ids = found.archived_ids.combine_chunks().sort().to_numpy()
    yield Check(
        "archived = published",
        np.array_equal(ids, np.arange(rows)),
        f"{len(ids):,} rows in the archive, {_order(ids)}",
    )
    again = found.read_back["event_id"].to_numpy()
    yield Check(
        "read back through the archive = published",
        np.array_equal(again, np.arange(rows)) and found.archive != "",
        f"{len(again):,} events, {_order(again)}"
        + ("" if found.archive else ", but the channel names no archive"),
    )
    yield from _delays(found)
    wanted, aircraft = newest_flights(found.flights), _by_aircraft(found.aircraft)
    yield Check(
        "newest flight of each aircraft = CSV",
        aircraft.equals(wanted),
        f"{aircraft.num_rows:,} aircraft, {wanted.num_rows:,} in the CSV, "
        f"{len(np.intersect1d(aircraft['last_event_id'], wanted['last_event_id'])):,} alike",
    )


def _delays(found: Findings) -> Iterator[Check]:
    """Check that each carrier and day has one row, with the sums of the CSV."""
    wanted = statistics.added_up(statistics.daily(found.flights))
    sources = (
        ("channel", statistics.of_windows(found.channel_delays)),
        ("table", statistics.of_windows(found.table_delays)),
        ("archive", statistics.added_up(statistics.daily(found.read_back))),
    )
    for name, sums in sources:
        yield Check(
            f"sums by carrier and day, {name} = CSV",
            sums.equals(wanted),
            f"{sums.num_rows:,} rows, {_total(sums, 'flights')} flights, "
            f"{_total(sums, 'distance')} miles, minutes late "
            f"{_total(sums, 'departure_delay')} (departure) {_total(sums, 'arrival_delay')} "
            "(arrival)",
        )


def _total(sums: pa.Table, name: str) -> str:
    return f"{pc.sum(sums[name]).as_py() or 0:,}"
