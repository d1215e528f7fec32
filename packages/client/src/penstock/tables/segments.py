"""Reads the segment files of a channel as one table, without a realm.

A segment file has only the columns that its events need, and stores rare properties together in the
column ``more``. The table has the columns of all files, and a column for each rare property.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.events.lifted_columns import flat_table
from penstock_core.columns.files.segments import ids_of_column
from penstock_core.columns.schema.ipc import schema_bytes
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.vocabulary.errors import Damaged, InvalidArgument, NameDoesNotExist
from penstock_core.vocabulary.names import file_part

_SEGMENTS: Final = "segments"
_NUMBERED: Final = re.compile(r"\.(\d+)\Z")


def segments(
    path: str | os.PathLike[str],
    channel: str = "",
    *,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return the events in the segment files of one channel, oldest first, as a flat Arrow table.
    No realm is needed.

    The table has the columns ``event_id``, ``published``, ``tag`` and ``data``, and one for each
    property in any of the files; ``columns`` selects some of them. Integers and floats of a
    property share one column (SEM E10); ``price::int`` and ``price::float`` name the exact columns.
    DuckDB, Polars and pandas accept the table directly::

        orders = penstock.segments("data", "orders", columns=["event_id", "price"])
        duckdb.sql("SELECT avg(price) FROM orders")
        polars.from_arrow(orders)
        orders.to_pandas()

    ``path`` is the data directory of a realm or a copy of it, and ``channel`` the name of a channel
    or queue in it. Without ``channel``, ``path`` is the folder of one channel below ``segments``.
    The files are mapped into memory, so that only the parts in use are read from disk. A null means
    that the event does not have the property, or that its value is null.

    Segment files contain sealed events only: the newest events are missing, and events that have
    left the channel are included until their file is rewritten or removed.

    Raises ``NameDoesNotExist`` if the channel has no files, ``InvalidArgument`` for a column that
    none of them has, and ``Damaged`` for an incomplete file. A file that the realm is extending is
    incomplete for a moment; call again then.
    """
    folder = _folder(Path(path), channel)
    files = sorted(folder.glob("*.arrow"))
    if not files:
        raise NameDoesNotExist(f"{folder} has no segment files: no event of it is sealed yet")
    schema = ChannelSchema.empty()
    batches: list[pa.RecordBatch] = []
    for file in files:
        file_schema, file_batches = _read(file)
        schema = schema.grown(file_schema.arrow)
        batches += file_batches
    for batch in batches:
        schema = schema.grown(batch.schema)
    return flat_table(_in_order(batches), schema, columns)


def _folder(path: Path, channel: str) -> Path:
    """Return the folder of a channel's segment files.

    Raises ``NameDoesNotExist`` if the folder does not exist or has no files of the channel, and
    ``InvalidArgument`` if ``channel`` is empty and ``path`` is a data directory.
    """
    if not channel:
        if (path / _SEGMENTS).is_dir():
            raise InvalidArgument(
                f"{path} is the data directory of a realm; name a channel in it, as in "
                f'penstock.segments("{path}", "orders")'
            )
        if not path.is_dir():
            raise NameDoesNotExist(f"folder {path} does not exist; give a data directory")
        return path
    root = path / _SEGMENTS
    # Earlier versions of Penstock made a folder for each part of a name.
    *parents, last = channel.split("/")
    places = [(root, file_part(channel)), (root.joinpath(*parents), last)]
    numbered = [
        (int(number[1]), folder)
        for parent, name in places
        if parent.is_dir()
        for folder in parent.iterdir()
        if (number := _NUMBERED.search(folder.name)) and folder.name[: number.start()] == name
        if any(folder.glob("*.arrow"))
    ]
    if not numbered:
        raise NameDoesNotExist(
            f"{root} has no files of {channel}: the channel does not exist, or none of its events "
            f"is sealed yet"
        )
    # A deleted channel may have left files; the channel with the highest number is the newest.
    return max(numbered)[1]


def _read(file: Path) -> tuple[ChannelSchema, list[pa.RecordBatch]]:
    """Return the channel's schema that a segment file records, and the batches of the file, which
    is mapped into memory. Raises ``Damaged``."""
    try:
        with pa.memory_map(str(file)) as source:
            reader = pa.ipc.open_file(source)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        plain = [batch.replace_schema_metadata(None) for batch in batches]
        return ChannelSchema.of_file(schema_bytes(reader.schema)), plain
    except (pa.ArrowException, ValueError, OSError) as error:
        raise Damaged(f"{file} cannot be read: {error}") from error


def _in_order(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the batches in the order of ids, without duplicate events. If sealing is interrupted,
    two files may contain the same events."""
    nonempty = [batch for batch in batches if batch.num_rows]
    nonempty.sort(key=lambda batch: int(batch.column(0)[0].as_py()))
    distinct, end = [], -1
    for batch in nonempty:
        ids = ids_of_column(batch.column(0))
        first = int(np.searchsorted(ids, end))
        if first < len(ids):
            distinct.append(batch.slice(first))
            end = int(ids[-1]) + 1
    return distinct
