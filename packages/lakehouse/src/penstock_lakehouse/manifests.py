"""Manifests and manifest lists of Iceberg's format 2, as Avro files.

The ids of fields are those of the specification (https://iceberg.apache.org/spec/#manifests).
"""

from __future__ import annotations

import io
import json
import secrets
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import fastavro
from msgspec import Struct

from penstock_lakehouse.data_files import Metrics

Content = Literal["data", "deletes"]
SEQUENCE: Final = 1
"""Sequence number of all files. In Iceberg, delete files apply to data files whose number is not
higher."""
_CONTENTS: Final[Mapping[str, int]] = {"data": 0, "deletes": 1}
_MARKER_BYTES: Final = 16
"""Size of the marker at the end of each block of an Avro file."""
_EXISTING: Final = 0
"""Status of all entries. "Existing" instead of "added", because the realm does not record which
snapshot added a file."""


class ManifestEntry(Struct, frozen=True):
    """A data file or delete file in a manifest."""

    path: str
    rows: int
    """Number of rows."""
    size: int
    """Size in bytes."""
    metrics: Metrics
    data_path: str = ""
    """Path of the data file whose rows a delete file marks as removed; empty for data files."""


class ManifestFile(Struct, frozen=True):
    """A manifest in a manifest list."""

    path: str
    size: int
    """Size of the manifest in bytes."""
    content: Content
    files: int
    """Number of files that the manifest lists."""
    rows: int
    """Number of rows in these files."""


def manifest(records: Sequence[bytes], content: Content, schema: Mapping[str, Any]) -> bytes:
    """Return a manifest of files with these ``records``, which :func:`manifest_record` has
    returned. ``schema`` is the JSON form of the table's schema."""
    metadata = {
        "schema": json.dumps(schema),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "2",
        "content": content,
    }
    marker = secrets.token_bytes(_MARKER_BYTES)
    header = _avro(_MANIFEST, [], metadata, marker=marker)
    # A block of an Avro file is the number of its records, its size, the records, and the marker.
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    block = compressor.compress(b"".join(records)) + compressor.flush()
    return b"".join((header, _long(len(records)), _long(len(block)), block, marker))


def manifest_record(entry: ManifestEntry, content: Content) -> bytes:
    """Return the description of a file in a manifest, in Avro's binary form. It takes longer than
    the rest of a manifest, and the same bytes serve each manifest that lists the file."""
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, _MANIFEST, _record(entry, content))
    return sink.getvalue()


def manifest_list(files: Sequence[ManifestFile], snapshot_id: int) -> bytes:
    """Return the manifest list of a snapshot, which lists its manifests ``files``."""
    records = [
        {
            "manifest_path": file.path,
            "manifest_length": file.size,
            "partition_spec_id": 0,
            "content": _CONTENTS[file.content],
            "sequence_number": SEQUENCE,
            "min_sequence_number": SEQUENCE,
            "added_snapshot_id": snapshot_id,
            "added_files_count": 0,
            "existing_files_count": file.files,
            "deleted_files_count": 0,
            "added_rows_count": 0,
            "existing_rows_count": file.rows,
            "deleted_rows_count": 0,
            "partitions": [],
        }
        for file in files
    ]
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null",
        "sequence-number": str(SEQUENCE),
        "format-version": "2",
    }
    return _avro(_MANIFEST_LIST, records, metadata)


def _record(entry: ManifestEntry, content: Content) -> dict[str, Any]:
    """Return the Avro record of a file in a manifest."""
    metrics = entry.metrics
    return {
        "status": _EXISTING,
        "snapshot_id": 1,
        "sequence_number": SEQUENCE,
        "file_sequence_number": SEQUENCE,
        "data_file": {
            "content": _CONTENTS[content],
            "file_path": entry.path,
            "file_format": "PARQUET",
            "partition": {},
            "record_count": entry.rows,
            "file_size_in_bytes": entry.size,
            "column_sizes": _pairs(metrics.sizes),
            "value_counts": _pairs(metrics.values),
            "null_value_counts": _pairs(metrics.nulls),
            "nan_value_counts": None,
            "lower_bounds": _pairs(metrics.lower),
            "upper_bounds": _pairs(metrics.upper),
            # The only row group begins after the four bytes of the magic number.
            "split_offsets": [4],
            "sort_order_id": None,
            "referenced_data_file": entry.data_path or None,
        },
    }


def _pairs(values: Mapping[int, Any]) -> list[dict[str, Any]]:
    """Return a map with integer keys as the array of pairs that :func:`_map` declares."""
    return [{"key": key, "value": value} for key, value in values.items()]


def _avro(
    schema: Any, records: Sequence[Any], metadata: Mapping[str, str], marker: bytes = b""
) -> bytes:
    """Return an Avro file with these records; ``metadata`` is stored in its header. ``marker`` is
    the bytes at the end of each block; without them they are random."""
    sink = io.BytesIO()
    fastavro.writer(
        sink, schema, records, codec="deflate", metadata=dict(metadata), sync_marker=marker
    )
    return sink.getvalue()


def _long(value: int) -> bytes:
    """Return a number, at least 0, as Avro encodes a long: seven bits in a byte, zigzag."""
    encoded, rest = bytearray(), value << 1
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _field(name: str, kind: Any, field_id: int, *, optional: bool = False) -> dict[str, Any]:
    """Return a field of an Avro record; ``field_id`` is its id in Iceberg's specification."""
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}
    return {"name": name, "type": kind, "field-id": field_id}


def _map(key_id: int, value: str, value_id: int) -> dict[str, Any]:
    """Return the Avro type of a map with integer keys: an array of pairs, because the keys of
    Avro's maps are texts."""
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_field("key", "int", key_id), _field("value", value, value_id)],
    }
    return {"type": "array", "items": pair, "logicalType": "map"}


_DATA_FILE: Final[dict[str, Any]] = {
    "type": "record",
    "name": "r2",
    "fields": [
        _field("content", "int", 134),
        _field("file_path", "string", 100),
        _field("file_format", "string", 101),
        _field("partition", {"type": "record", "name": "r102", "fields": []}, 102),
        _field("record_count", "long", 103),
        _field("file_size_in_bytes", "long", 104),
        _field("column_sizes", _map(117, "long", 118), 108, optional=True),
        _field("value_counts", _map(119, "long", 120), 109, optional=True),
        _field("null_value_counts", _map(121, "long", 122), 110, optional=True),
        _field("nan_value_counts", _map(138, "long", 139), 137, optional=True),
        _field("lower_bounds", _map(126, "bytes", 127), 125, optional=True),
        _field("upper_bounds", _map(129, "bytes", 130), 128, optional=True),
        _field(
            "split_offsets",
            {"type": "array", "items": "long", "element-id": 133},
            132,
            optional=True,
        ),
        _field("sort_order_id", "int", 140, optional=True),
        _field("referenced_data_file", "string", 143, optional=True),
    ],
}
_MANIFEST: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field("status", "int", 0),
            _field("snapshot_id", "long", 1, optional=True),
            _field("sequence_number", "long", 3, optional=True),
            _field("file_sequence_number", "long", 4, optional=True),
            _field("data_file", _DATA_FILE, 2),
        ],
    }
)
_PARTITION_SUMMARY: Final[dict[str, Any]] = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field("contains_null", "boolean", 509),
        _field("contains_nan", "boolean", 518, optional=True),
        _field("lower_bound", "bytes", 510, optional=True),
        _field("upper_bound", "bytes", 511, optional=True),
    ],
}
_MANIFEST_LIST: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            _field("manifest_path", "string", 500),
            _field("manifest_length", "long", 501),
            _field("partition_spec_id", "int", 502),
            _field("content", "int", 517),
            _field("sequence_number", "long", 515),
            _field("min_sequence_number", "long", 516),
            _field("added_snapshot_id", "long", 503),
            _field("added_files_count", "int", 504),
            _field("existing_files_count", "int", 505),
            _field("deleted_files_count", "int", 506),
            _field("added_rows_count", "long", 512),
            _field("existing_rows_count", "long", 513),
            _field("deleted_rows_count", "long", 514),
            _field(
                "partitions",
                {"type": "array", "items": _PARTITION_SUMMARY, "element-id": 508},
                507,
                optional=True,
            ),
        ],
    }
)
