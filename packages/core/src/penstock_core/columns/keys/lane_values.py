"""Assigns events to lanes by the value of one of their properties (SEM D11)."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

import numpy as np
import pyarrow as pa

from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.keys.key_values import NO_SLOT, Values

Lanes = tuple[list[Hashable], list[int], "array[int]"]
"""The key of each lane, the end of each lane in the ids, and the ids: lane by lane, ascending."""


def lanes_of(batches: Sequence[pa.RecordBatch], name: str) -> Lanes:
    """Return the lanes of stored batches by the property ``name``.

    Values are compared as for publish keys (``penstock_core.columns.keys.keys``). Events whose
    property is absent, null, NaN, a list or a dictionary share one lane, whose key is None.
    """
    ids = array("q")
    if not batches:
        return [], [], ids
    values = Values(name)
    slots = np.concatenate([values.slots_of(batch) for batch in batches])
    order = np.argsort(slots, kind="stable")
    ranked = slots[order]
    # No slot has the prepended number, so the first lane is also found.
    starts = np.flatnonzero(np.diff(ranked, prepend=NO_SLOT - 1))
    keys = values.values_by_slot()
    lanes = [None if slot == NO_SLOT else keys[slot] for slot in ranked[starts].tolist()]
    ordered_ids = np.concatenate([ids_of(batch) for batch in batches])[order]
    ids.frombytes(ordered_ids.astype("=i8", copy=False).tobytes())
    return lanes, [*starts[1:].tolist(), len(ranked)], ids
