"""Table metadata of Iceberg's format 2 (https://iceberg.apache.org/spec/#table-metadata)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock_lakehouse.manifests import SEQUENCE
from penstock_lakehouse.table_schema import TableSchema

BEHIND_MS: Final = 10_000
"""Milliseconds that are subtracted from the times of snapshots, because DuckDB ignores snapshots
that are younger than its transaction (SEM B2)."""
# The rows of each file ascend by column 1, which is `event_id`.
_ORDER: Final = {
    "order-id": 1,
    "fields": [
        {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}
    ],
}


class SnapshotFacts(Struct, frozen=True):
    """The entry of a snapshot in the table metadata."""

    snapshot_id: int
    """Time of the snapshot in microseconds since 1970, or more: ids of a table ascend."""
    at_ms: int
    """Time of the snapshot in milliseconds since 1970."""
    manifest_list: str
    """URI of the snapshot's manifest list."""
    schema: TableSchema
    summary: dict[str, str]
    """Iceberg's summary: the operation, and totals of rows and files."""


def table_metadata(
    table_uuid: str, location: str, snapshots: Sequence[SnapshotFacts]
) -> dict[str, Any]:
    """Return the metadata of a table with the given snapshots. The last snapshot is current."""
    schemas = _distinct(snapshot.schema for snapshot in snapshots)
    documents = [schema.document(schema_id) for schema_id, schema in enumerate(schemas)]
    current = snapshots[-1]
    schema_id = schemas.index(current.schema)
    return {
        "format-version": 2,
        "table-uuid": table_uuid,
        "location": location,
        "last-sequence-number": SEQUENCE,
        "last-updated-ms": current.at_ms - BEHIND_MS,
        "last-column-id": max(schema.last_column_id for schema in schemas),
        "schemas": documents,
        "current-schema-id": schema_id,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}, _ORDER],
        "default-sort-order-id": 1,
        "properties": {"schema.name-mapping.default": json.dumps(current.schema.mapping)},
        "current-snapshot-id": current.snapshot_id,
        "refs": {"main": {"snapshot-id": current.snapshot_id, "type": "branch"}},
        "snapshots": [
            {
                "snapshot-id": snapshot.snapshot_id,
                "sequence-number": SEQUENCE,
                "timestamp-ms": snapshot.at_ms - BEHIND_MS,
                "manifest-list": snapshot.manifest_list,
                "schema-id": schemas.index(snapshot.schema),
                "summary": snapshot.summary,
            }
            for snapshot in snapshots
        ],
        "snapshot-log": [
            {
                "timestamp-ms": snapshot.at_ms - BEHIND_MS,
                "snapshot-id": snapshot.snapshot_id,
            }
            for snapshot in snapshots
        ],
        "metadata-log": [],
    }


def _distinct(schemas: Iterable[TableSchema]) -> list[TableSchema]:
    # Schemas contain lists, so they cannot be in a set.
    distinct: list[TableSchema] = []
    for schema in schemas:
        if schema not in distinct:
            distinct.append(schema)
    return distinct
