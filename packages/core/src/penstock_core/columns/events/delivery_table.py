"""Delivery states as an Arrow table: a row for each event and durable (SEM D23)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.layout import UTC_MICROSECONDS
from penstock_core.vocabulary.delivery_runs import DeliveryRun

_NAMES: Final = pa.dictionary(pa.int32(), pa.string())
DELIVERY_SCHEMA: Final = pa.schema(
    [
        pa.field("event_id", pa.int64(), nullable=False),
        pa.field("durable", _NAMES, nullable=False),
        pa.field("state", _NAMES, nullable=False),
        pa.field("client", _NAMES),
        pa.field("since", UTC_MICROSECONDS),
        pa.field("deliveries", pa.int32()),
        pa.field("lease_end", UTC_MICROSECONDS),
        pa.field("delayed_until", UTC_MICROSECONDS),
        pa.field("cause", _NAMES),
        pa.field("dead_event_id", pa.int64()),
    ]
)
"""The columns of a table of delivery states."""


def table_of_runs(runs: Sequence[DeliveryRun]) -> pa.Table:
    """Return the events of ``runs`` as a table with :data:`DELIVERY_SCHEMA`, in order."""
    firsts = np.array([run.span.first for run in runs], dtype=np.int64)
    sizes = np.array([run.span.size for run in runs], dtype=np.int64)
    rows_before = np.cumsum(sizes) - sizes
    offsets = np.arange(sizes.sum(), dtype=np.int64) - np.repeat(rows_before, sizes)
    dead_event_ids = _repeated([run.dead_event_id for run in runs], pa.int64(), sizes)
    columns = [
        pa.array(np.repeat(firsts, sizes) + offsets),
        _names([run.durable for run in runs], sizes),
        _names([run.state for run in runs], sizes),
        _names([run.client for run in runs], sizes),
        _repeated([run.since_us for run in runs], UTC_MICROSECONDS, sizes),
        _repeated([run.deliveries for run in runs], pa.int32(), sizes),
        _repeated([run.lease_end_us for run in runs], UTC_MICROSECONDS, sizes),
        _repeated([run.delayed_until_us for run in runs], UTC_MICROSECONDS, sizes),
        _names([run.cause for run in runs], sizes),
        pc.add(dead_event_ids, pa.array(offsets)),
    ]
    return pa.table(columns, schema=DELIVERY_SCHEMA)


def _repeated(
    values: Sequence[int | None],
    kind: pa.DataType,
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> pa.Array:
    """Return each value as often as ``sizes`` says."""
    indexes = pa.array(np.repeat(np.arange(len(values)), sizes))
    return pa.array(values, kind).take(indexes)


def _names(
    values: Sequence[str | None], sizes: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> pa.DictionaryArray:
    """Return each name as often as ``sizes`` says, with one entry for equal names."""
    encoded = pa.array(values, pa.string()).dictionary_encode()
    codes = encoded.indices.take(pa.array(np.repeat(np.arange(len(values)), sizes)))
    return pa.DictionaryArray.from_arrays(codes, encoded.dictionary)
