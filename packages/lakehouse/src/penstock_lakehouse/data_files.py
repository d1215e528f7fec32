"""Parquet files of a table: rows of events, and the positions of removed rows.

A file is one group of rows, so that Spark and DuckDB read it in one go; its columns have statistics
and a page index, but for ``data``. It has no field ids and no Arrow schema: the same bytes may be
added to tables of other catalogs (SEM B4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from pyarrow import parquet

from penstock_core.columns.files.segments import numbers_in
from penstock_core.columns.schema import compute as pc
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.compression import Compression
from penstock_lakehouse.table_schema import Leaf, TableSchema

BOUND_BYTES_MAX: Final = 64
"""Maximum number of bytes of a text in statistics; columns with longer texts have no bounds."""
DELETED_PATH_ID: Final = 2_147_483_546
DELETED_POSITION_ID: Final = 2_147_483_545
_DELETES: Final = pa.schema(
    [
        pa.field(name, kind, nullable=False, metadata={b"PARQUET:field_id": str(number).encode()})
        for name, kind, number in (
            ("file_path", pa.string(), DELETED_PATH_ID),
            ("pos", pa.int64(), DELETED_POSITION_ID),
        )
    ]
)
_DELETED: Final = (
    Leaf(DELETED_PATH_ID, "string", in_list=False),
    Leaf(DELETED_POSITION_ID, "long", in_list=False),
)
_PACKED: Final = {
    "boolean": "<?",
    "double": "<d",
    "int": "<i",
    "long": "<q",
    "timestamp": "<q",
    "timestamptz": "<q",
}


class Metrics(Struct, frozen=True):
    """Statistics of the columns of a file, by the ids of the columns."""

    sizes: dict[int, int]
    values: dict[int, int]
    nulls: dict[int, int]
    lower: dict[int, bytes]
    upper: dict[int, bytes]


class Image(Struct, frozen=True):
    """A Parquet file before it is stored."""

    buffer: pa.Buffer
    rows: int
    metrics: Metrics


def events_image(rows: pa.Table, schema: TableSchema, compression: Compression) -> Image:
    """Return rows of events as a Parquet file; ``schema`` has at least their columns."""
    texts = [field.name for field in rows.schema if field.type == pa.string()]
    without = {"data", *_with_nan(rows)}
    buffer = _written(
        rows,
        compression=compression,
        use_dictionary=texts,
        write_statistics=[
            path
            for field in rows.schema
            for path, _ in _leaf_paths(field.name, field.type)
            if path not in without
        ],
        write_page_index=True,
    )
    leaves = list(schema.leaves(rows.schema.names))
    return Image(buffer, rows.num_rows, _metrics(buffer, leaves))


def deletes_image(path: str, positions: npt.NDArray[np.int64]) -> Image:
    """Return the file that names removed rows of the file at ``path``, by ascending position."""
    paths = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(positions), np.int8)), pa.array([path])
    ).cast(pa.string())
    rows = pa.table([paths, pa.array(positions)], schema=_DELETES)
    buffer = _written(rows, compression="zstd")
    metrics = _metrics(buffer, _DELETED)
    # Clients skip delete files by these bounds, so that they are exact however long the path is.
    for bounds in (metrics.lower, metrics.upper):
        bounds[DELETED_PATH_ID] = path.encode()
    return Image(buffer, rows.num_rows, metrics)


def removed_positions(ids: IdSet, stored: IdSet) -> npt.NDArray[np.int64]:
    """Return the positions of rows whose events were removed, in a file that has one row for each
    of ``ids``. ``stored`` are those of them that are still stored."""
    edges = np.array(ids.spans, np.int64)
    rows = numbers_in(edges[:, 0], edges[:, 1])
    kept = np.array(stored.spans, np.int64).reshape(-1, 2)
    # An id is kept if it is below the end of the last span that begins at or below it.
    before = np.searchsorted(kept[:, 0], rows, side="right") - 1
    is_kept = (before >= 0) & (rows < kept[np.maximum(before, 0), 1]) if len(kept) else False
    return np.flatnonzero(~np.broadcast_to(is_kept, rows.shape)).astype(np.int64)


def _written(rows: pa.Table, compression: Compression | str, **options: Any) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    parquet.write_table(
        rows,
        sink,
        compression=compression,
        row_group_size=max(1, rows.num_rows),
        store_schema=False,
        **options,
    )
    return sink.getvalue()


def _with_nan(rows: pa.Table) -> Iterator[str]:
    """Yield the columns without statistics because of NaN: statistics ignore it, but for some
    clients it is greater than all numbers. Floats inside other values are not searched."""
    for field in rows.schema:
        if field.type == pa.float64():
            if pc.any(pc.is_nan(rows.column(field.name))).as_py():
                yield field.name
        else:
            yield from (
                path for path, kind in _leaf_paths(field.name, field.type) if kind == pa.float64()
            )


def _leaf_paths(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the columns that a Parquet file has for a column, by their paths."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaf_paths(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        yield from _leaf_paths(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind


def _metrics(buffer: pa.Buffer, leaves: Sequence[Leaf]) -> Metrics:
    metrics = Metrics({}, {}, {}, lower={}, upper={})
    footer = parquet.read_metadata(pa.BufferReader(buffer))
    for group in (footer.row_group(number) for number in range(footer.num_row_groups)):
        for number, leaf in enumerate(leaves):
            column = group.column(number)
            metrics.sizes[leaf.column_id] = column.total_compressed_size
            metrics.values[leaf.column_id] = column.num_values
            statistics = column.statistics
            if statistics is None or leaf.in_list:
                continue
            metrics.nulls[leaf.column_id] = statistics.null_count
            if statistics.has_min_max:
                lower = _bound(statistics.min_raw, leaf.kind)
                upper = _bound(statistics.max_raw, leaf.kind)
                if lower is not None and upper is not None:
                    metrics.lower[leaf.column_id] = lower
                    metrics.upper[leaf.column_id] = upper
    return metrics


def _bound(value: Any, kind: str) -> bytes | None:
    """Return a value as Iceberg serializes single values; None if it cannot be a bound."""
    if kind in _PACKED:
        return struct.pack(_PACKED[kind], value)
    data: bytes = value.encode() if isinstance(value, str) else value
    return data if len(data) <= BOUND_BYTES_MAX else None
