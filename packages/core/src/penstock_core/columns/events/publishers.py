"""Fills the headers publisher and host with the values recorded by the realm.

The realm stores publishers as ranges of ids, not per event (SEM E3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.rows import Publishers

_FIELDS: Final = ("publisher", "host")


def with_publishers(headers: pa.Array, ids: pa.Array, publishers: Publishers) -> pa.Array:
    """Return ``headers`` with publisher and host as recorded by the realm, whatever clients
    claimed."""
    names = [field.name for field in headers.type]
    if not publishers or not set(_FIELDS).intersection(names):
        return headers
    publisher_indexes = np.full(len(headers), -1, dtype=np.int32)
    event_ids = np.asarray(ids.to_numpy(), dtype=np.int64)
    # Backwards, because the first publisher that has an id wins: it is written last.
    for index in range(len(publishers) - 1, -1, -1):
        publisher_indexes[_covered(event_ids, publishers[index][1])] = index
    if (publisher_indexes < 0).all():
        return headers
    parts = dict(zip(_FIELDS, _names(publishers, publisher_indexes), strict=True))
    children = [
        pc.coalesce(parts[name], headers.field(index)) if name in parts else headers.field(index)
        for index, name in enumerate(names)
    ]
    mask: Any = headers.is_null() if headers.null_count else None
    if mask is not None:
        children = [
            child if name in parts else pc.if_else(mask, pa.scalar(None, child.type), child)
            for name, child in zip(names, children, strict=True)
        ]
        # A null struct becomes valid if the realm recorded the publisher of the event.
        mask = pc.and_(mask, pa.array(publisher_indexes < 0))
    return pa.StructArray.from_arrays(children, fields=list(headers.type), mask=mask)


def _covered(ids: npt.NDArray[np.int64], spans: Sequence[tuple[int, int]]) -> Any:
    """Return an index that selects the ids in one of ``spans``, which are ascending. A publisher
    without spans has all events."""
    if not spans:
        return slice(None)
    edges = np.array(spans, dtype=np.int64).reshape(-1)
    # An odd number of edges up to an id means that the id is inside a span.
    return np.searchsorted(edges, ids, side="right") % 2 == 1


def _names(
    publishers: Publishers, publisher_indexes: npt.NDArray[np.int32]
) -> tuple[pa.Array, pa.Array]:
    """Return user and host of each row. An unknown user is null."""
    pairs = [name.rpartition("@") for name, _ in publishers]
    users = pa.array([user or None for user, _, _ in pairs], pa.string())
    hosts = pa.array([host for _, _, host in pairs], pa.string())
    indices = pa.array(publisher_indexes, mask=publisher_indexes < 0)
    return users.take(indices), hosts.take(indices)
