"""The lag of a streaming query behind its channels, read from the query's progress.

Spark 4.3 does not report metrics of Python sources. It reports the newest position of a source as
JSON, including keys that it does not know, so the lag is added to this JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.schema.ipc import schema_from
from penstock_spark.columns.projection import has_all_columns, unread_properties
from penstock_spark.options import SourceOptions
from penstock_spark.reading.offsets import Offset, Positions


class Lag(Struct, frozen=True):
    """Distance of a query from the newest event of a channel."""

    events: int
    """Number of ids from the end of the micro-batch to the newest event; some of these events may
    have been removed."""
    ms: int
    """Age of the oldest unprocessed event, in milliseconds; 0 if all events are processed."""


def lag(progress: Mapping[str, Any] | None) -> dict[str, Lag]:
    """Return the lag of a query, by channel.

    ``progress`` is a ``StreamingQueryProgress`` or its JSON; None, as ``query.lastProgress`` is
    before the first micro-batch, returns an empty dict. Sources of other formats are left out. If
    several sources read a channel, the largest lag counts.
    """
    lags: dict[str, Lag] = {}
    sources: Sequence[Mapping[str, Any]] = progress["sources"] if progress else ()
    for source in sources:
        newest, end = _offset(source["latestOffset"]), _offset(source["endOffset"])
        for name, channel_lag in newest.get("lag", {}).items():
            # Spark's end of the micro-batch is exact; the source's own count is only used if Spark
            # reports no end for this channel.
            next_id = end.get("c", {}).get(name, {}).get("n")
            events = channel_lag["events"] if next_id is None else newest["c"][name]["n"] - next_id
            previous = lags.get(name, Lag(0, 0))
            ms = channel_lag["ms"] if events else 0
            lags[name] = Lag(max(previous.events, events), max(previous.ms, ms))
    return lags


def later_columns(progress: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Return the properties, by channel, that appeared after the query started.

    The running query does not read them; a restart of the query does.
    """
    sources: Sequence[Mapping[str, Any]] = progress["sources"] if progress else ()
    later: dict[str, list[str]] = {}
    for source in sources:
        later |= _offset(source["latestOffset"]).get("later", {})
    return later


class PropertyGrowth:
    """Tracks the properties of channels that a running query leaves out until its restart.

    ``load()`` fixes the columns of a query. Properties are therefore compared with the query's
    schema, and not with the first micro-batch: a property may be published for the first time
    between the two. Properties that a query leaves out on purpose, by ``columns`` or ``.schema()``,
    are not reported.
    """

    def __init__(self, wanted: pa.Schema, options: SourceOptions) -> None:
        self._wanted = wanted
        self._columns = options.columns
        self._by_type = not options.choice.is_one
        self._has_own_schema = not options.columns and not has_all_columns(wanted, options)
        self._seen: dict[str, bytes] = {}
        """The newest schema of each channel that was compared."""
        self._on_purpose: dict[str, list[str]] = {}
        """Properties, by channel, that a query with a custom schema left out from the start."""
        self.later: dict[str, list[str]] = {}
        """Properties and fields, by channel, that a restart of the query would read."""

    def record_schema(self, channel: str, stored: bytes) -> None:
        """Compare the current schema of a channel with the query's columns, and add properties that
        the query does not read to :attr:`later`."""
        if self._seen.get(channel) == stored:
            return
        self._seen[channel] = stored
        schema = schema_from(stored)
        later = unread_properties(
            schema, self._wanted, columns=self._columns, by_type=self._by_type
        )
        if self._has_own_schema:
            on_purpose = self._on_purpose.setdefault(channel, later)
            later = [name for name in later if name not in on_purpose]
        if later:
            self.later[channel] = later


def newest_with_lag(
    newest: Offset, reached: Positions, ages_ms: Mapping[str, int], later: Mapping[str, list[str]]
) -> Offset:
    """Return the newest positions, with the lag of a query that is at the positions ``reached``.

    ``ages_ms`` has the age of the next event of each channel; ``later`` has the properties that
    appeared after the query started, and is added if it is not empty.
    """
    lags = {}
    for name, newest_position in newest["c"].items():
        position = reached.get(name)
        events = 0 if position is None else max(0, newest_position["n"] - position.event_id)
        lags[name] = {"events": events, "ms": ages_ms.get(name, 0)}
    return {**newest, "lag": lags} | ({"later": dict(later)} if later else {})


def _offset(text: object) -> dict[str, Any]:
    """Return ``text``, which Spark reports for a source, as positions of the format ``penstock``;
    an empty dict if the source has another format."""
    offset = text
    if isinstance(text, str):
        try:
            offset = json.loads(text)
        except ValueError:
            return {}
    if isinstance(offset, dict) and isinstance(offset.get("c"), dict) and "v" in offset:
        return offset
    return {}
