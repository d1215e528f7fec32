"""Writes the Parquet files of a table: rows of events, and positions of removed rows.

A file has a single row group, so that Spark and DuckDB read it in one go. Its columns, except
``data``, have statistics and a page index. A file of events has no field ids and no Arrow schema,
so that the same bytes can be added to tables of other catalogs (SEM B4).
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
from penstock_core.columns.files.table_rows import parquet_columns
from penstock_core.columns.schema import compute as pc
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.compression import Compression
from penstock_lakehouse.table_schema import Leaf, TableSchema

BOUND_BYTES_MAX: Final = 64
"""Longest text in statistics, in bytes. A column whose smallest or largest text is longer has no
bounds."""
# The ids that Iceberg reserves for the two columns of position delete files.
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
    """Statistics of the columns of a file. The keys are column ids."""

    sizes: dict[int, int]
    """Compressed sizes in bytes."""
    values: dict[int, int]
    """Numbers of values, including nulls."""
    nulls: dict[int, int]
    """Numbers of nulls."""
    lower: dict[int, bytes]
    """Lower bounds, in Iceberg's binary form."""
    upper: dict[int, bytes]
    """Upper bounds, in Iceberg's binary form."""


class Image(Struct, frozen=True):
    """The bytes of a Parquet file that is not stored yet, with its statistics."""

    buffer: pa.Buffer
    rows: int
    metrics: Metrics


def events_image(rows: pa.Table, schema: TableSchema, compression: Compression) -> Image:
    """Return rows of events as a Parquet file; ``schema`` must contain all their columns."""
    text_columns = [field.name for field in rows.schema if field.type == pa.string()]
    without_statistics = {"data", *_columns_with_nan(rows)}
    buffer = _write_parquet(
        rows,
        compression=compression,
        use_dictionary=text_columns,
        write_statistics=[
            path for path, _ in parquet_columns(rows.schema) if path not in without_statistics
        ],
        write_page_index=True,
    )
    leaves = list(schema.leaves(rows.schema.names))
    return Image(buffer, rows.num_rows, _metrics(buffer, leaves))


def deletes_image(path: str, positions: npt.NDArray[np.int64]) -> Image:
    """Return a position delete file: it marks the rows at ``positions``, which ascend, of the data
    file at ``path`` as removed."""
    paths = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(positions), np.int8)), pa.array([path])
    ).cast(pa.string())
    rows = pa.table([paths, pa.array(positions)], schema=_DELETES)
    buffer = _write_parquet(rows, compression="zstd")
    metrics = _metrics(buffer, _DELETED)
    # Clients skip delete files by these bounds, so the limit for texts does not apply to the path.
    for bounds in (metrics.lower, metrics.upper):
        bounds[DELETED_PATH_ID] = path.encode()
    return Image(buffer, rows.num_rows, metrics)


def removed_positions(ids: IdSet, stored: IdSet) -> npt.NDArray[np.int64]:
    """Return the positions of removed rows in a file that has one row for each id of ``ids``, in
    ascending order. ``stored`` is the subset of ``ids`` that is not removed."""
    edges = np.array(ids.spans, np.int64)
    row_ids = numbers_in(edges[:, 0], edges[:, 1])
    # The reshape matters for an empty set, whose array would have one dimension.
    spans = np.array(stored.spans, np.int64).reshape(-1, 2)
    # An id is stored if it is below the end of the last span that begins at or below it.
    span_indexes = np.searchsorted(spans[:, 0], row_ids, side="right") - 1
    is_stored = (
        (span_indexes >= 0) & (row_ids < spans[np.maximum(span_indexes, 0), 1])
        if len(spans)
        else False
    )
    return np.flatnonzero(~np.broadcast_to(is_stored, row_ids.shape)).astype(np.int64)


def _write_parquet(rows: pa.Table, compression: Compression | str, **options: Any) -> pa.Buffer:
    """Return ``rows`` as a Parquet file with a single row group."""
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


def _columns_with_nan(rows: pa.Table) -> Iterator[str]:
    """Yield the paths of columns that contain NaN or, inside structs and lists, could contain it.

    Bounds ignore NaN, but some clients sort it above all numbers, so bounds would hide rows.
    """
    for field in rows.schema:
        if field.type == pa.float64():
            if pc.any(pc.is_nan(rows.column(field.name))).as_py():
                yield field.name
        else:
            # Floats inside structs and lists are not searched, so any of them may be NaN.
            inside = parquet_columns(pa.schema([field]))
            yield from (path for path, kind in inside if kind == pa.float64())


def _metrics(buffer: pa.Buffer, leaves: Sequence[Leaf]) -> Metrics:
    """Return the statistics in the footer of a Parquet file whose columns are ``leaves``."""
    metrics = Metrics({}, {}, {}, lower={}, upper={})
    footer = parquet.read_metadata(pa.BufferReader(buffer))
    for group in (footer.row_group(index) for index in range(footer.num_row_groups)):
        for index, leaf in enumerate(leaves):
            column = group.column(index)
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
    """Return a value in Iceberg's binary form for bounds; None for a text that is too long."""
    if kind in _PACKED:
        return struct.pack(_PACKED[kind], value)
    data: bytes = value.encode() if isinstance(value, str) else value
    return data if len(data) <= BOUND_BYTES_MAX else None
