"""The events of a channel from its archive: in the order of their ids, whatever the files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import Struct

from penstock.columns.batch import ids_of
from penstock.columns.layout import UTC_MICROSECONDS
from penstock.columns.selectors import Selector
from penstock.core.errors import InvalidArgument
from penstock.spark.replaying.ordering import Keyed, Source, merged, order_of
from penstock.spark.replaying.rows import stored_rows

ROWS: Final = 65_536
"""Rows that are read at once, of all channels together."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Bounds(Struct, frozen=True):
    """Which events of a channel: from the first ones on, and before the second ones."""

    first_id: int = 0
    end_id: int | None = None
    from_us: int | None = None
    """Microseconds since 1970."""
    until_us: int | None = None


class History(Protocol):
    """Stored events of a channel, from wherever they are kept."""

    @property
    def channel(self) -> str: ...

    def batches(self, first_id: int, end_id: int | None = None) -> Iterator[pa.RecordBatch]:
        """Stored batches, ids ascending, from ``first_id`` on and before ``end_id``."""
        ...


class Archived:
    """The events an archive has of a channel."""

    def __init__(
        self,
        channel: str,
        dataset: ds.Dataset,
        bounds: Bounds,
        *,
        selector: str = "",
        added: Collection[str] = (),
        rows: int = ROWS,
    ) -> None:
        self.channel = channel
        self._dataset = dataset
        self._bounds = bounds
        self._selector = Selector(selector) if selector else None
        self._added = added
        self._rows = rows

    def batches(self, first_id: int, end_id: int | None = None) -> Iterator[pa.RecordBatch]:
        """Stored batches, ids ascending. One row group is in memory at a time, or those whose
        ids overlap. Raises ``InvalidArgument`` where the table is no archive."""
        bounds = self._bounds
        first = max(first_id, bounds.first_id)
        ends = [end for end in (end_id, bounds.end_id) if end is not None]
        end = min(ends) if ends else None
        for flat in in_order(self._dataset, first, end, self._filter(first, end), self._rows):
            batch = chosen(stored_rows(flat, self._added), bounds, self._selector)
            if batch.num_rows:
                yield batch

    def _filter(self, first: int, end: int | None) -> Any:
        """What passes over whole files; rows are looked at again."""
        found = ds.field("event_id") >= first
        if end is not None:
            found &= ds.field("event_id") < end
        bounds = self._bounds
        if bounds.from_us is not None:
            found &= ds.field("published") >= _moment(bounds.from_us)
        if bounds.until_us is not None:
            # Statistics of Delta have milliseconds: what they cut off may be in it.
            found &= ds.field("published") < _moment(bounds.until_us + 1_000)
        return found


def chosen(batch: pa.RecordBatch, bounds: Bounds, selector: Selector | None) -> pa.RecordBatch:
    """The events of a stored batch that were published in time and that a selector selects."""
    if bounds.from_us is not None or bounds.until_us is not None:
        times = pc.cast(batch.column("published"), pa.int64()).to_numpy()
        mask = np.ones(len(times), dtype=np.bool_)
        if bounds.from_us is not None:
            mask &= times >= bounds.from_us
        if bounds.until_us is not None:
            mask &= times < bounds.until_us
        if not mask.all():
            batch = batch.filter(pa.array(mask))
    if selector is None or not batch.num_rows:
        return batch
    return batch.filter(selector.mask(batch))


def in_order(
    dataset: ds.Dataset, first: int, end: int | None, passes: Any, rows: int
) -> Iterator[pa.RecordBatch]:
    """Rows of a table by ``event_id``, those from ``first`` on and before ``end``; what
    ``passes`` cannot pass is not opened."""
    for name in ("event_id", "published"):
        if name not in dataset.schema.names:
            raise InvalidArgument(
                f"the table has no column {name}: it is no archive of a channel; "
                f"there are {', '.join(dataset.schema.names)}"
            )
    for portion in merged(list(_sources(dataset, first, end, passes, rows))):
        if len(portion) == 1:
            yield portion[0].rows.batch
        else:
            whole = pa.concat_batches([piece.rows.batch for piece in portion])
            yield whole.take(pa.array(order_of(portion)))


def _sources(
    dataset: ds.Dataset, first: int, end: int | None, passes: Any, rows: int
) -> Iterator[Source]:
    for fragment in dataset.get_fragments(filter=passes):
        if not isinstance(fragment, ds.ParquetFileFragment):
            raise InvalidArgument(
                f"{getattr(fragment, 'path', 'the table')} is no Parquet file; archives are "
                "Delta or Parquet tables"
            )
        for group in fragment.row_groups:
            statistics = (group.statistics or {}).get("event_id")
            lowest, highest = (
                (first, None) if statistics is None else (statistics["min"], statistics["max"])
            )
            if (highest is not None and highest < first) or (end is not None and lowest >= end):
                continue
            part = fragment.subset(row_group_ids=[group.id])
            open_it = partial(_rows_of, part, dataset.schema, first, end, rows)
            yield Source(max(lowest, first), open_it)


def _rows_of(
    part: ds.ParquetFileFragment, schema: pa.Schema, first: int, end: int | None, rows: int
) -> Iterator[Keyed]:
    """A row group by id. Those that were written in order are read piece by piece."""
    ids = part.to_table(schema=schema, columns=["event_id"]).column(0).to_numpy()
    if np.all(ids[1:] > ids[:-1]):
        batches = part.to_batches(schema=schema, batch_size=rows, batch_readahead=1)
    else:
        whole = part.to_table(schema=schema).take(pa.array(np.argsort(ids, kind="stable")))
        batches = iter(whole.combine_chunks().to_batches(max_chunksize=rows))
    for batch in batches:
        found = ids_of(batch)
        start = int(np.searchsorted(found, first))
        stop = len(found) if end is None else int(np.searchsorted(found, end))
        if start < stop:
            yield Keyed(found[start:stop], batch.slice(start, stop - start))


def _moment(us: int) -> pa.Scalar:
    return pa.scalar(_EPOCH + timedelta(microseconds=us), UTC_MICROSECONDS)
