"""Which Parquet files of a Spark stream count.

A stream that is killed leaves files of a batch it has not committed; the batch writes others when
it is repeated. Spark lists those that count in ``_spark_metadata``, and reads no other.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def committed_table(folder: Path, schema: pa.Schema) -> pa.Table:
    """The rows of all committed files, with the columns of ``schema``."""
    tables = [pq.read_table(file, columns=schema.names) for file in committed_files(folder)]
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])


def committed_files(folder: Path) -> list[Path]:
    """The files that count, sorted."""
    log = folder / "_spark_metadata"
    entries = [
        json.loads(line)
        for batch in log.glob("[0-9]*")
        for line in batch.read_text().splitlines()[1:]  # the first line is the format's version
    ]
    names = {Path(entry["path"]).name for entry in entries if entry["action"] == "add"}
    return sorted(folder / name for name in names)
