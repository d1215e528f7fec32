"""Delays by carrier and day. They are computed as sums, because sums of parts can be added, unlike
averages."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

KEYS = ("carrier", "day")

_SUMS: dict[str, str] = {
    "flights": "all flights due to leave that day",
    "departed": "flights that left; the others were cancelled",
    "departure_delay": "minutes late at departure, all flights that left together",
    "arrived": "flights with a known arrival",
    "arrival_delay": "minutes late at arrival, all flights that arrived together",
    "distance": "miles",
    "air_time": "minutes in the air",
}
"""The sums, and their meanings."""

NAMES = ("carrier", *_SUMS)
"""The columns that the roll-up computes for each day."""

SCHEMA = pa.schema([(name, pa.string()) for name in KEYS] + [(name, pa.int64()) for name in _SUMS])

FLIGHT_COLUMNS = (
    "carrier",
    "year",
    "month",
    "day",
    "dep_delay",
    "arr_delay",
    "distance",
    "air_time",
)
"""The columns of a flight that the statistics need."""


def daily(flights: pa.Table) -> pa.Table:
    """Return the sums of flights, one row for each carrier and day."""
    columns = {
        "carrier": flights["carrier"],
        "day": _days(flights),
        "departure_delay": flights["dep_delay"],
        "arrival_delay": flights["arr_delay"],
        "distance": flights["distance"],
        "air_time": flights["air_time"],
    }
    grouped = pa.table(columns).group_by(list(KEYS))
    sums = grouped.aggregate(
        [
            ([], "count_all"),
            ("departure_delay", "count"),
            ("departure_delay", "sum"),
            ("arrival_delay", "count"),
            ("arrival_delay", "sum"),
            ("distance", "sum"),
            ("air_time", "sum"),
        ]
    )
    named = {
        "carrier": sums["carrier"],
        "day": sums["day"],
        "flights": sums["count_all"],
        "departed": sums["departure_delay_count"],
        "departure_delay": _or_zero(sums["departure_delay_sum"]),
        "arrived": sums["arrival_delay_count"],
        "arrival_delay": _or_zero(sums["arrival_delay_sum"]),
        "distance": _or_zero(sums["distance_sum"]),
        "air_time": _or_zero(sums["air_time_sum"]),
    }
    return pa.table(named).cast(SCHEMA)


def added_up(partial: pa.Table, by: tuple[str, ...] = KEYS) -> pa.Table:
    """Add up the rows that have the same values of ``by``; the result is sorted."""
    grouped = partial.group_by(list(by)).aggregate([(name, "sum") for name in _SUMS])
    named = grouped.select([*by, *(f"{name}_sum" for name in _SUMS)])
    return named.rename_columns([*by, *_SUMS]).sort_by([(name, "ascending") for name in by])


def of_windows(rows: pa.Table) -> pa.Table:
    """Return the rows of a roll-up sorted, with days as texts, so that they can be compared."""
    day = pc.strftime(rows["window_start"], format="%Y-%m-%d")
    named = rows.append_column("day", day).select(SCHEMA.names).cast(SCHEMA)
    return named.sort_by([(name, "ascending") for name in KEYS])


def _days(flights: pa.Table) -> pa.ChunkedArray:
    """Return the local dates of flights, such as ``2013-07-04``."""
    numbers = (flights[name].cast(pa.string()) for name in ("year", "month", "day"))
    year, month, day = numbers
    two = [pc.utf8_lpad(number, 2, "0") for number in (month, day)]
    return pc.binary_join_element_wise(year, *two, "-")


def _or_zero(sums: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace null by 0, because Arrow's sum of only nulls is null."""
    return pc.fill_null(sums, 0)
