"""Reads the events of a channel from its archive in the order of their ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import Struct
from msgspec.structs import replace

from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.files.archives import DAY
from penstock_core.columns.schema.layout import STAMPED, UTC_MICROSECONDS
from penstock_core.columns.schema.moments import moment_of
from penstock_core.columns.selectors import Selector
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.replaying.ordering import SortedRows, SortedRun, merged, order_of
from penstock_spark.replaying.rows import stored_rows

ROWS: Final = 65_536
"""Largest number of rows in a batch that is read from an archive or published at full speed."""


class Bounds(Struct, frozen=True):
    """The ids and publication times of the events to read. None means no bound."""

    first_id: int = 0
    """Lowest id."""
    end_id: int | None = None
    """The id after the highest one."""
    from_us: int | None = None
    """Earliest time, in microseconds since 1970."""
    until_us: int | None = None
    """The time before which events were published, in microseconds since 1970."""

    def within(self, first_id: int, end_id: int | None = None) -> Bounds:
        """Return bounds that also exclude ids before ``first_id`` and from ``end_id`` on."""
        ends = [end for end in (self.end_id, end_id) if end is not None]
        return replace(
            self, first_id=max(self.first_id, first_id), end_id=min(ends) if ends else None
        )

    def expression(self, schema: pa.Schema) -> Any:
        """Return the bounds as an Arrow expression for a table of this schema."""
        expression = ds.field("event_id") >= self.first_id
        if self.end_id is not None:
            expression &= ds.field("event_id") < self.end_id
        # Archives are partitioned by day: a condition on the day skips whole folders.
        by_day = DAY in schema.names
        if self.from_us is not None:
            expression &= ds.field("published") >= _moment(self.from_us)
            if by_day:
                expression &= ds.field(DAY) >= pa.scalar(moment_of(self.from_us).date())
        if self.until_us is not None:
            expression &= ds.field("published") < _moment(self.until_us)
            if by_day:
                expression &= ds.field(DAY) <= pa.scalar(moment_of(self.until_us).date())
        return expression

    def may_have(self, statistics: Mapping[str, Mapping[str, Any]]) -> bool:
        """Return whether a row group with these statistics can contain events within the bounds."""
        ids, times = statistics.get("event_id"), statistics.get("published")
        return _overlap(ids, self.first_id, self.end_id) and _overlap(
            times,
            None if self.from_us is None else moment_of(self.from_us),
            None if self.until_us is None else moment_of(self.until_us),
        )


class History(Protocol):
    """The stored events of a channel, in an archive or on the realm."""

    @property
    def channel(self) -> str:
        """Name of the channel."""
        ...

    def batches(self, first_id: int, end_id: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield stored batches in ascending order of ids, from ``first_id`` to before
        ``end_id``."""
        ...


class Archived:
    """The archived events of a channel."""

    def __init__(
        self,
        channel: str,
        dataset: ds.Dataset,
        bounds: Bounds,
        *,
        selector: str = "",
        rows: int = ROWS,
    ) -> None:
        """Only events within ``bounds`` that match ``selector`` are read, in batches of up to
        ``rows``."""
        self.channel = channel
        self._dataset = dataset
        self._bounds = bounds
        self._selector = Selector(selector) if selector else None
        self._rows = rows

    def batches(self, first_id: int, end_id: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield stored batches in ascending order of ids.

        One row group is in memory at a time; row groups whose ids overlap are in memory together.
        Raises ``InvalidArgument`` if the table is not an archive.
        """
        bounds = self._bounds.within(first_id, end_id)
        schema = self._dataset.schema
        for flat in rows_in_order(self._dataset, bounds, self._rows):
            batch = filter_events(stored_rows(flat, schema), bounds, self._selector)
            if batch.num_rows:
                yield batch

    def count(self, first_id: int) -> int | None:
        """Return the number of events from ``first_id`` on; None with a selector, because counting
        would need to read the events."""
        if self._selector is not None:
            return None
        check_archive(self._dataset.schema)
        restricted = self._bounds.within(first_id)
        return int(self._dataset.count_rows(filter=restricted.expression(self._dataset.schema)))


def filter_events(
    batch: pa.RecordBatch, bounds: Bounds, selector: Selector | None
) -> pa.RecordBatch:
    """Return the events of a stored batch that are within the times of ``bounds`` and match
    ``selector``."""
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


def check_archive(schema: pa.Schema) -> None:
    """Raise ``InvalidArgument`` if a table with this schema is not an archive of a channel."""
    missing = [name for name in STAMPED if name not in schema.names]
    if missing:
        raise InvalidArgument(
            f"the table has no column {' and no '.join(missing)}, so it is not an archive of a "
            f"channel; its columns are {', '.join(schema.names)}"
        )


def rows_in_order(dataset: ds.Dataset, bounds: Bounds, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an archive in the order of ``event_id``.

    A batch has up to ``rows`` rows of each overlapping row group. Files and row groups outside of
    ``bounds`` are not read, but a batch may still have rows outside of the times of ``bounds``.
    """
    check_archive(dataset.schema)
    for portion in merged(list(_sources(dataset, bounds, rows))):
        if len(portion) == 1:
            yield portion[0].rows.batch
        else:
            rows_of_portion = pa.concat_batches([source_rows.rows.batch for source_rows in portion])
            yield rows_of_portion.take(pa.array(order_of(portion)))


def _sources(dataset: ds.Dataset, bounds: Bounds, rows: int) -> Iterator[SortedRun]:
    """Yield a sorted source for each row group that may have events within ``bounds``. Raises
    ``InvalidArgument`` if a file of the table is not a Parquet file."""
    schema = dataset.schema
    for fragment in dataset.get_fragments(filter=bounds.expression(schema)):
        if not isinstance(fragment, ds.ParquetFileFragment):
            raise InvalidArgument(
                f"{getattr(fragment, 'path', 'the table')} is not a Parquet file; archives are "
                "Delta or Parquet tables"
            )
        for group in fragment.row_groups:
            statistics = group.statistics or {}
            if bounds.may_have(statistics):
                id_statistics = statistics.get("event_id")
                lowest = (
                    bounds.first_id
                    if id_statistics is None
                    else max(id_statistics["min"], bounds.first_id)
                )
                row_group = fragment.subset(row_group_ids=[group.id])
                yield SortedRun(lowest, partial(_rows_of, row_group, schema, bounds, rows))


def _rows_of(
    part: ds.ParquetFileFragment, schema: pa.Schema, bounds: Bounds, rows: int
) -> Iterator[SortedRows]:
    """Yield the rows of a row group within the ids of ``bounds``, in the order of ids."""
    # Reading the column of ids twice is cheap. It shows whether the rows were written in order: if
    # so, the row group is read in batches instead of being loaded and sorted as a whole.
    all_ids = part.to_table(schema=schema, columns=["event_id"]).column(0).to_numpy()
    if np.all(all_ids[1:] > all_ids[:-1]):
        batches = part.to_batches(schema=schema, batch_size=rows, batch_readahead=1)
    else:
        sorted_rows = part.to_table(schema=schema).take(
            pa.array(np.argsort(all_ids, kind="stable"))
        )
        batches = iter(sorted_rows.combine_chunks().to_batches(max_chunksize=rows))
    end = bounds.end_id
    for batch in batches:
        ids = ids_of(batch)
        start = int(np.searchsorted(ids, bounds.first_id))
        stop = len(ids) if end is None else int(np.searchsorted(ids, end))
        if start < stop:
            yield SortedRows(ids[start:stop], batch.slice(start, stop - start))


def _overlap(statistics: Mapping[str, Any] | None, first: Any, end: Any) -> bool:
    """Return whether a column with these statistics may have values from ``first`` to before
    ``end``. None for ``first`` or ``end`` means no bound; without statistics the answer is True."""
    if statistics is None:
        return True
    is_above_first = first is None or statistics["max"] >= first
    return bool(is_above_first and (end is None or statistics["min"] < end))


def _moment(us: int) -> pa.Scalar:
    return pa.scalar(moment_of(us), UTC_MICROSECONDS)
