"""Builds Arrow arrays of a few plain values without ``pyarrow.array``.

The first call of ``pyarrow.array`` imports pandas if it is installed, which takes longer than a
whole publish should. This module writes a few values into buffers instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa

FEW: Final = 8
"""Maximum number of values that this module converts; for more values Arrow's own conversion is
faster."""

_BYTES_MAX: Final = (1 << 31) - 1
"""Largest offset in an Arrow array of strings or bytes."""


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return ``pa.array(values, kind)``, for values that are None or already have the type of
    ``kind``."""
    build = _BUILDERS.get(id(kind)) if len(values) <= FEW else None
    if build is None or any(value is None for value in values):
        return pa.array(values, kind)
    buffers = build(values)
    if buffers is None:
        return pa.array(values, kind)
    return pa.Array.from_buffers(kind, len(values), [None, *map(pa.py_buffer, buffers)], 0)


_Buffers = list[Any] | None
"""The buffers of an array, without its validity bitmap; None if the values do not fit."""


def _integers(values: Sequence[Any]) -> _Buffers:
    return [np.array(values, dtype=np.int64)]


def _floats(values: Sequence[Any]) -> _Buffers:
    return [np.array(values, dtype=np.float64)]


def _flags(values: Sequence[Any]) -> _Buffers:
    return [np.packbits(np.array(values, dtype=np.bool_), bitorder="little")]


def _texts(values: Sequence[Any]) -> _Buffers:
    return _blobs([value.encode() for value in values])


def _blobs(values: Sequence[Any]) -> _Buffers:
    """Return the offsets and the joined bytes; None if the bytes exceed the offsets of 32 bits."""
    ends = list(accumulate(map(len, values), initial=0))
    if ends[-1] > _BYTES_MAX:
        return None
    return [np.array(ends, dtype=np.int32), values[0] if len(values) == 1 else b"".join(values)]


_BUILDERS: Final[dict[int, Callable[[Sequence[Any]], _Buffers]]] = {
    id(pa.int64()): _integers,
    id(pa.float64()): _floats,
    id(pa.bool_()): _flags,
    id(pa.string()): _texts,
    id(pa.binary()): _blobs,
}
"""The function that builds the buffers, by the ``id()`` of the type."""
assert pa.int64() is pa.int64(), "pyarrow keeps one object for each simple type"
