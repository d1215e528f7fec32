"""The lag of a streaming query behind the channels it reads, from its progress.

Spark 4.3 shows no metrics of Python sources. It does show the newest position that a source has
reported, with everything else in that text: so the text carries the lag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.schema.ipc import schema_from
from penstock_spark.columns.projection import has_all_columns, left_out
from penstock_spark.options import SourceOptions
from penstock_spark.reading.offsets import Offset, Positions


class Lag(Struct, frozen=True):
    """The lag of a channel after the micro-batch that the progress describes."""

    events: int
    """Ids between the end of the micro-batch and the newest event; some may be of events that
    have left."""
    ms: int
    """Age of the oldest event that was not processed yet; 0 where there is none."""


def lag(progress: Mapping[str, Any] | None) -> dict[str, Lag]:
    """The lag of each channel of a ``StreamingQueryProgress``, or of its JSON; of sources of
    other formats there is none. Nothing without a progress (``query.lastProgress`` at first)."""
    found: dict[str, Lag] = {}
    sources: Sequence[Mapping[str, Any]] = progress["sources"] if progress else ()
    for source in sources:
        newest, end = _offset(source["latestOffset"]), _offset(source["endOffset"])
        for name, behind in newest.get("lag", {}).items():
            done = end.get("c", {}).get(name, {}).get("n")
            events = behind["events"] if done is None else newest["c"][name]["n"] - done
            before = found.get(name, Lag(0, 0))
            ms = behind["ms"] if events else 0
            found[name] = Lag(max(before.events, events), max(before.ms, ms))
    return found


def later_columns(progress: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Properties, by channel, that appeared after the query began, and that it leaves out until it
    is started again."""
    sources: Sequence[Mapping[str, Any]] = progress["sources"] if progress else ()
    found: dict[str, list[str]] = {}
    for source in sources:
        found |= _offset(source["latestOffset"]).get("later", {})
    return found


class PropertyGrowth:
    """The properties that channels have and a running query leaves out until it starts again.

    Its columns were fixed by ``load()``. So its schema is what counts, not the columns of the first
    micro-batch: a property may be published between the two. Properties that a query leaves out on
    purpose, by ``columns`` or ``.schema()``, are not told.
    """

    def __init__(self, wanted: pa.Schema, options: SourceOptions) -> None:
        self._wanted = wanted
        self._columns = options.columns
        self._by_type = not options.choice.is_one
        self._has_own_schema = not options.columns and not has_all_columns(wanted, options)
        self._seen: dict[str, bytes] = {}
        self._on_purpose: dict[str, list[str]] = {}
        """Properties, by channel, that a query with a schema of its own left out from the start."""
        self.later: dict[str, list[str]] = {}
        """Properties and fields, by channel, that another start of the query would read."""

    def saw(self, channel: str, stored: bytes) -> None:
        """Note the properties that a channel stores now."""
        if self._seen.get(channel) == stored:
            return
        self._seen[channel] = stored
        schema = schema_from(stored)
        later = left_out(schema, self._wanted, columns=self._columns, by_type=self._by_type)
        if self._has_own_schema:
            on_purpose = self._on_purpose.setdefault(channel, later)
            later = [name for name in later if name not in on_purpose]
        if later:
            self.later[channel] = later


def reported(
    newest: Offset, reached: Positions, ages_ms: Mapping[str, int], later: Mapping[str, list[str]]
) -> Offset:
    """The newest positions with the lag, for a query that has reached ``reached``, and the
    properties that appeared later, if any."""
    behind = {}
    for name, position in newest["c"].items():
        at = reached.get(name)
        events = 0 if at is None else max(0, position["n"] - at.event_id)
        behind[name] = {"events": events, "ms": ages_ms.get(name, 0)}
    return {**newest, "lag": behind} | ({"later": dict(later)} if later else {})


def _offset(text: object) -> dict[str, Any]:
    """A position of ours; nothing for any other text."""
    found = text
    if isinstance(text, str):
        try:
            found = json.loads(text)
        except ValueError:
            return {}
    if isinstance(found, dict) and isinstance(found.get("c"), dict) and "v" in found:
        return found
    return {}
