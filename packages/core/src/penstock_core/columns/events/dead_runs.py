"""Delivery states of dead events, read from the dead event store (SEM D23).

The origin of a dead event has its former store and id, the durables that missed it, its cause, time
and count. Consecutive events that differ only in their ids are one run for each durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock_core.channel.dead import FOR_ONE
from penstock_core.channel.delivery_state import RUNS_MAX, Selected
from penstock_core.columns.events.batch import Int64s
from penstock_core.columns.events.origin import JOINED
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.layout import cause_and_reason
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.delivery_runs import DEAD, DeliveryPlace, DeliveryRun

DEAD_SCHEMA: Final = pa.schema(
    [
        pa.field("dead_event_id", pa.int64()),
        pa.field("store", pa.string()),
        pa.field("event_id", pa.int64()),
        pa.field("cause", pa.string()),
        pa.field("at", pa.int64()),
        pa.field("redeliveries", pa.int32()),
        pa.field("durables", pa.string()),
    ]
)
"""The columns of :func:`dead_columns`."""
_SEPARATOR: Final = "\0"
"""Separates the names of durables, which have no control characters."""


def dead_columns(batch: pa.RecordBatch) -> pa.Table:
    """Return the columns of a dead event store's events that :func:`dead_runs` reads."""
    index = batch.schema.get_field_index("origin")
    if index < 0:
        return DEAD_SCHEMA.empty_table()
    origin = {
        name: pc.struct_field(batch.column(index), name)
        for name in ("store", "event_id", "cause", "at", "redeliveries", "durables")
    }
    return pa.table(
        [
            batch.column("event_id"),
            origin["store"],
            origin["event_id"],
            origin["cause"],
            origin["at"].cast(pa.int64()),
            pc.fill_null(origin["redeliveries"], 0),
            pc.fill_null(pc.binary_join(origin["durables"], _SEPARATOR), ""),
        ],
        schema=DEAD_SCHEMA,
    )


def dead_runs(
    columns: pa.Table, store: str, selected: Selected, *, place: DeliveryPlace
) -> tuple[list[DeliveryRun], DeliveryPlace | None]:
    """Return the rows of the dead events of ``store`` as runs, from ``place`` on, and the place
    behind them; None after the last event of ``columns``."""
    is_dead = pc.and_kleene(
        pc.equal(columns["store"], store), pc.not_equal(columns["cause"], JOINED)
    )
    dead = columns.filter(is_dead)
    runs: list[DeliveryRun] = []
    rows = 0
    for group in _groups(dead, place):
        names = [name for name in group.durables if selected.durable in (None, name)]
        room = min(selected.rows_max - rows, RUNS_MAX - len(runs))
        if names and not room:
            return runs, DeliveryPlace("", group.dead_event_id, is_dead=True)
        # If not all durables of an event fit on the page, the event continues on the next one.
        fitting = 1 if len(names) > room else (selected.rows_max - rows) // max(1, len(names))
        size = min(group.size, max(1, fitting))
        runs += [group.run(name, size) for name in names[:room]]
        rows += size * len(names[:room])
        if len(names) > room:
            return runs, DeliveryPlace(names[room], group.dead_event_id, is_dead=True)
        if names and size < group.size:
            return runs, DeliveryPlace("", group.dead_event_id + size, is_dead=True)
    return runs, None


class _Group(NamedTuple):
    """Consecutive dead events that differ only in their ids."""

    dead_event_id: int
    event_id: int
    size: int
    durables: Sequence[str]
    """The durables that have missed the events, by name; a single empty name if none has."""
    cause: str
    at_us: int
    redeliveries: int

    def run(self, durable: str, size: int) -> DeliveryRun:
        """Return the first ``size`` events for one durable."""
        return DeliveryRun(
            Span(self.event_id, self.event_id + size),
            durable,
            DEAD,
            since_us=self.at_us,
            # An event that dies for one durable was in flight. The count of its last delivery is
            # not in the origin.
            deliveries=self.redeliveries + (self.cause in FOR_ONE),
            cause=self.cause,
            dead_event_id=self.dead_event_id,
        )


def _groups(dead: pa.Table, place: DeliveryPlace) -> Iterator[_Group]:
    """Yield the events from ``place`` on in groups, by id in the dead event store."""
    dead_event_ids, event_ids = _numbers(dead["dead_event_id"]), _numbers(dead["event_id"])
    count = len(event_ids)
    begins = np.ones(count, dtype=np.bool_)
    begins[1:] = (np.diff(dead_event_ids) != 1) | (np.diff(event_ids) != 1)
    for name in ("cause", "at", "redeliveries", "durables"):
        codes = dead[name].combine_chunks().dictionary_encode().indices
        begins[1:] |= np.diff(_numbers(codes)) != 0
    # The first event may continue in the middle of its durables.
    continues = bool(place.durable) and count > 0 and dead_event_ids[0] == place.first_id
    begins[1:2] |= continues
    firsts = np.flatnonzero(begins)
    heads = dead.take(pa.array(firsts)).to_pylist()
    for row, (first, end) in zip(heads, pairwise([*firsts.tolist(), count]), strict=True):
        names = sorted(row["durables"].split(_SEPARATOR))
        if continues and first == 0:
            names = [name for name in names if name >= place.durable]
        yield _Group(
            row["dead_event_id"],
            row["event_id"],
            size=end - first,
            durables=names,
            cause=cause_and_reason(row["cause"])[0],
            at_us=row["at"],
            redeliveries=row["redeliveries"],
        )


def _numbers(column: pa.Array) -> Int64s:
    numbers: Int64s = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers
