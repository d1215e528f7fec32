"""Moves events between stores: writes and reads the column ``origin``.

The origin of a dead event, or of a copy made by a join, names its previous store (SEM E3, T7, L1).
All functions work on whole columns, never row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.bounds import TTL_MS_MAX
from penstock_core.columns.events.batch import Int64s, ids_of, within
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.layout import (
    BODY,
    DELIVERY_TIME,
    FIELDS,
    ORIGIN,
    STAMPED,
    UTC_MICROSECONDS,
)
from penstock_core.ids.ids import Spans

JOINED: Final = "join"
"""The cause in the origin of a copy made by a join."""

Durables = Sequence[tuple[tuple[str, ...], Spans]]
"""Groups of durables, each with the ids that its durables have not acknowledged. An id may be in
several groups."""

Redeliveries = Sequence[tuple[int, Spans]]
"""Redelivery counts, each with the ids that have it."""

_FIELDS: Final = [pa.field(name, kind) for name, kind in ORIGIN.items()]


def with_origin(
    batch: pa.RecordBatch,
    *,
    store: str,
    cause: str,
    at_us: int,
    durables: Durables = (),
    redeliveries: Redeliveries = (),
) -> pa.RecordBatch:
    """Return the body that moves stored events of ``store`` to another store (SEM T7).

    An event's own TTL moves to the origin, because it does not apply in the new store. The path of
    stores is kept and extended by ``store``.
    """
    ids = ids_of(batch)
    own_ttl, former = _column(batch, "ttl"), _origin_field(batch, "ttl")
    # An event that was moved before has its own TTL in its origin.
    ttl = former if own_ttl is None else pc.coalesce(own_ttl, former)
    origin = _origin(
        batch,
        store,
        {
            "event_id": batch.column("event_id"),
            "published": batch.column("published"),
            "cause": cause,
            "at": at_us,
            "durables": _durables(ids, durables),
            "redeliveries": _redeliveries(ids, redeliveries),
            "ttl": ttl,
        },
    )
    return _body(batch, {"ttl": None, "origin": origin, DELIVERY_TIME: None})


def for_join(batch: pa.RecordBatch, ids: int | Int64s, at_us: int, store: str) -> pa.RecordBatch:
    """Return the body of the copies that a join makes of events just published on ``store`` (SEM
    L1).

    ``ids`` are the ids of the events there, or the first id if they are consecutive.
    """
    if isinstance(ids, int):
        ids = np.arange(ids, ids + batch.num_rows, dtype=np.int64)
    origin = _origin(
        batch,
        store,
        {"event_id": pa.array(ids), "published": at_us, "cause": JOINED, "at": at_us},
    )
    return _body(batch, {"origin": origin, DELIVERY_TIME: None})


def restored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the body that publishes dead events again: without origin, and with the event TTL that
    moved into the origin when they died."""
    if _column(batch, "origin") is None:
        return _body(batch, {})
    former = _origin_field(batch, "ttl")
    ttl = _column(batch, "ttl")
    ttl = former if ttl is None else pc.coalesce(former, ttl)
    return _body(batch, {"origin": None, "ttl": ttl if ttl.null_count < len(ttl) else None})


def due_body(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the body of scheduled events that are due, without their delivery times."""
    return _body(batch, {DELIVERY_TIME: None})


def carried(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the body that sends copies to another realm, with their present origin (SEM N9)."""
    return _body(batch, {})


def origins_of(batch: pa.RecordBatch) -> pa.StringArray:
    """Return the previous store of each event; null for events published here."""
    return _origin_field(batch, "store")


def path_lengths(batch: pa.RecordBatch) -> Int64s:
    """Return, for each event, the number of stores in which it was stored before (SEM L2)."""
    lengths = pc.fill_null(pc.list_value_length(_origin_field(batch, "path")), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)


def stores_on_paths(batch: pa.RecordBatch) -> set[str]:
    """Return the names of all stores in which any event of the batch was stored earlier."""
    if _column(batch, "origin") is None:
        return set()
    return set(pc.unique(pc.list_flatten(_origin_field(batch, "path"))).to_pylist())


def path_contains(batch: pa.RecordBatch, store: str) -> pa.BooleanArray:
    """Return a mask, without nulls, of the events that were stored in ``store`` before (SEM L2)."""
    path = _origin_field(batch, "path")
    matches = pc.equal(pc.list_flatten(path), store)
    rows = pc.filter(pc.list_parent_indices(path), matches)
    mask = np.zeros(batch.num_rows, dtype=np.bool_)
    mask[rows.to_numpy()] = True
    return pa.array(mask)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    index = batch.schema.get_field_index(name)
    return batch.column(index) if index >= 0 else None


def _origin_field(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a field of the origin of each event; null for an event without an origin."""
    origin = _column(batch, "origin")
    if origin is None:
        return pa.nulls(batch.num_rows, ORIGIN[name])
    return pc.struct_field(origin, name)


def _body(batch: pa.RecordBatch, changed: Mapping[str, pa.Array | None]) -> pa.RecordBatch:
    """Return the batch without the realm's stamp and with ``changed`` columns; None drops a
    column."""
    columns = {
        field.name: (field, column)
        for field, column in zip(batch.schema, batch.columns, strict=True)
        if field.name not in STAMPED and field.name not in changed
    }
    for name, array in changed.items():
        if array is not None:
            columns[name] = FIELDS[name], array
    if not columns:  # a batch without columns would have no rows
        columns["data"] = FIELDS["data"], pa.array([b""] * batch.num_rows, pa.binary())
    if (ttl := columns.get("ttl")) is not None:
        columns["ttl"] = ttl[0], bounded_ttl(ttl[1])
    ordered = [columns[name] for name in BODY if name in columns]
    return pa.RecordBatch.from_arrays(
        [array for _, array in ordered], schema=pa.schema([field for field, _ in ordered])
    )


def bounded_ttl(ttl: pa.Int64Array) -> pa.Int64Array:
    """Return the TTLs of stored events, limited to the largest TTL that a publisher may set,
    because version 0.1.0 stored larger ones."""
    return pc.min_element_wise(ttl, pa.scalar(TTL_MS_MAX), skip_nulls=False)


def _origin(batch: pa.RecordBatch, store: str, values: Mapping[str, Any]) -> pa.StructArray:
    """Return the column ``origin``. ``values`` has an array or one value for all rows for some of
    its fields; the others are null."""
    count = batch.num_rows
    fields = {**values, "store": store, "path": _extended(_origin_field(batch, "path"), store)}
    arrays = [_filled(fields.get(name), kind, count) for name, kind in ORIGIN.items()]
    return pa.StructArray.from_arrays(arrays, fields=_FIELDS)


def _filled(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array unchanged, or an array that repeats a value ``count`` times."""
    if isinstance(value, pa.Array):
        return value
    if kind == UTC_MICROSECONDS:
        return pa.repeat(pa.scalar(value, pa.int64()), count).view(kind)
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _extended(path: pa.ListArray, store: str) -> pa.ListArray:
    """Return the path of each event with ``store`` appended."""
    lengths = pc.fill_null(pc.list_value_length(path), 0).to_numpy().astype(np.int64)
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths + 1)))
    values = pc.list_flatten(path)
    # The name of ``store`` follows all former names in the values: each path ends with its index.
    order = np.full(int(offsets[-1]), len(values), dtype=np.int64)
    is_former = np.ones(len(order), dtype=np.bool_)
    is_former[offsets[1:] - 1] = False
    order[is_former] = np.arange(len(values))
    return _lists(offsets, pa.concat_arrays([values, pa.array([store])]).take(pa.array(order)))


def _lists(offsets: Int64s, values: pa.StringArray) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values).cast(ORIGIN["path"])


def _durables(ids: Int64s, durables: Durables) -> pa.ListArray:
    """Return, for each id, the names of the durables whose spans contain it, in the order of
    ``durables``."""
    rows: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    # A code is the index of a name in `all_names`; each row has as many codes as names.
    codes: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    all_names: list[str] = []
    for names, spans in durables:
        matches = np.flatnonzero(within(ids, spans))
        rows.append(np.repeat(matches, len(names)))
        codes.append(np.tile(np.arange(len(all_names), len(all_names) + len(names)), len(matches)))
        all_names.extend(names)
    all_rows = np.concatenate(rows)
    order = np.argsort(all_rows, kind="stable")  # stable, to keep the order of `durables`
    counts = np.bincount(all_rows, minlength=len(ids))
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
    values = pa.array(all_names, pa.string()).take(pa.array(np.concatenate(codes)[order]))
    return _lists(offsets, values)


def _redeliveries(ids: Int64s, redeliveries: Redeliveries) -> pa.Int32Array:
    """Return, for each id, the highest redelivery count whose spans contain it; 0 without one."""
    counts = np.zeros(len(ids), dtype=np.int32)
    for count, spans in redeliveries:
        np.maximum(counts, np.where(within(ids, spans), count, 0), out=counts, casting="unsafe")
    return pa.array(counts)
