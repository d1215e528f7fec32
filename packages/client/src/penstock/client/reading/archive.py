"""Reads an archive: the events that have left a channel, with their ids and in order.

An archive is a table that an archive pipeline writes (:mod:`penstock_core.columns.files.archives`
defines its columns). Only committed files are read; the statistics of files and row groups locate
the events of a range. If a compaction replaces files during the reading, it continues in the new
version of the table after the last event returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from penstock.tables import DataFile, Table
from penstock.tables.files import batches_of
from penstock_core.columns.events.batch import EventBatch, ids_of
from penstock_core.columns.files.archives import DAY, from_archive, identity_of
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.selectors import Selector
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    PenstockError,
    Unavailable,
)
from penstock_core.vocabulary.uris import shown, without_secrets

BATCH_ROWS_MAX: Final = 16_384
"""Maximum number of events in a batch."""
ATTEMPTS_MAX: Final = 20
"""Largest number of attempts to read a range whose files are deleted during the reading."""

Pieces = list[tuple[DataFile, int]]
"""Row groups, each as its file and its index in the file."""


class Wanted(Struct, frozen=True):
    """Conditions for the events to read."""

    selector: str = ""
    now_us: int = 0
    """Value of ``NOW()`` in the selector, in microseconds since 1970."""
    messages: MessageAccess | None = None


class Archive:
    """The archive of one channel, in the version of the table opened last. Only one thread may use
    it at a time."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.channel, self.epoch = identity_of(table.schema)

    @classmethod
    def open(cls, uri: str, channel: str, epoch: str = "") -> Archive:
        """Open the archive of ``channel`` at ``uri``. With ``epoch``, the archive must belong to
        the channel of this epoch.

        Raises ``NameDoesNotExist`` if no table exists there, ``InvalidArgument`` if the table is
        not an archive, ``IllegalState`` if it belongs to another channel, and ``Unavailable`` if it
        cannot be reached or a package for it is not installed.
        """
        try:
            archive = cls(Table.found(uri))
        except InvalidArgument as error:
            raise InvalidArgument(f"archive {shown(uri)}: {error}") from error
        except OSError as error:
            raise Unavailable(
                f"archive {shown(uri)} cannot be read here: {without_secrets(str(error), uri)}"
            ) from None
        if epoch and archive.epoch != epoch:
            raise IllegalState(
                f"the archive at {shown(uri)} belongs to another channel than {channel}: to "
                f"{archive.channel} in another realm, or to a channel that was deleted and created "
                f"again; to read it anyway, pass archive={shown(uri)!r}"
            )
        return archive

    def refresh(self) -> int:
        """Open the newest version of the table. Return :attr:`end`."""
        self._table.refresh()
        return self.end

    @property
    def end(self) -> int:
        """The largest event id plus one; 0 if the archive is empty."""
        return max((file.ids[1] + 1 for file in self._table.files() if file.ids), default=0)

    @property
    def first(self) -> int | None:
        """The smallest event id; None if the archive is empty."""
        return min((file.ids[0] for file in self._table.files() if file.ids), default=None)

    def first_since(self, at_us: int) -> int | None:
        """Return the id of the first event published at this time or later; None if all are
        earlier."""
        day = datetime.fromtimestamp(at_us / 1_000_000, UTC).date().isoformat()
        moment = pa.scalar(at_us, pa.timestamp("us", tz="UTC"))
        for file in self._files(Span(0, 1 << 62)):
            if (file_day := file.partition.get(DAY)) is not None and file_day < day:
                continue
            for batch in self._rows(file, None, ("event_id", "published")):
                ids = batch.column("event_id").filter(pc.greater_equal(batch["published"], moment))
                if len(ids):
                    return int(pc.min(ids).as_py())
        return None

    def batches(self, span: Span, wanted: Wanted = Wanted()) -> Iterator[pa.RecordBatch]:  # noqa: B008 - a value
        """Yield the events of ``span`` as stored batches, by id, each once."""
        for batch in self._selected(span, wanted, newest_first=False):
            for first in range(0, batch.num_rows, BATCH_ROWS_MAX):
                yield batch.slice(first, BATCH_ROWS_MAX)

    def newest(self, below: int, wanted: Wanted = Wanted()) -> Iterator[EventBatch]:  # noqa: B008 - a value
        """Yield the events below an id, the newest batch first; within a batch by id."""
        for batch in self._selected(Span(0, below), wanted, newest_first=True):
            if batch.num_rows:
                yield EventBatch(batch)

    def _selected(
        self, span: Span, wanted: Wanted, *, newest_first: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events of ``span`` that match the selector. If files are deleted during the
        reading, it continues in the newest version of the table after the last batch."""
        selector = Selector(wanted.selector) if wanted.selector else None
        for _ in range(ATTEMPTS_MAX):
            try:
                for batch in self._stored(span, newest_first=newest_first):
                    ids = batch.column("event_id")
                    if newest_first:
                        span = Span(span.first, int(ids[0].as_py()))
                    else:
                        span = Span(int(ids[-1].as_py()) + 1, span.end)
                    if selector is not None:
                        mask = selector.mask(batch, now_us=wanted.now_us, messages=wanted.messages)
                        batch = batch.filter(mask)
                    yield batch
            except FileNotFoundError:
                self._table.refresh()
            else:
                return
        raise Unavailable(
            f"archive {shown(self._table.uri)}: its files were deleted in {ATTEMPTS_MAX} attempts "
            "to read them; compact and clean the table less often"
        )

    def _files(self, span: Span) -> list[DataFile]:
        """Return the files that may have events of ``span``, ordered by their first id."""
        files = [
            file
            for file in self._table.files()
            if file.ids and file.ids[0] < span.end and file.ids[1] >= span.first
        ]
        return sorted(files, key=lambda file: file.ids or (0, 0))

    def _stored(self, span: Span, *, newest_first: bool) -> Iterator[pa.RecordBatch]:
        """Yield the events of ``span``, one batch for each group of overlapping row groups; the
        last group first if ``newest_first``."""
        groups = list(_overlapping(list(self._pieces(span)))) if span.size > 0 else []
        for pieces in reversed(groups) if newest_first else groups:
            batch = self._merged(pieces, span)
            if batch is not None:
                yield batch

    def _merged(self, pieces: Pieces, span: Span) -> pa.RecordBatch | None:
        """Return the events of some row groups that are in the range, by id, each once."""
        rows = [
            batch
            for file, group in pieces
            for batch in self._rows(file, group, self._table.schema.names)
        ]
        batch = pa.concat_batches(rows)
        ids, kept = np.unique(ids_of(batch), return_index=True)
        kept = kept[np.searchsorted(ids, span.first) : np.searchsorted(ids, span.end)]
        if not len(kept):
            return None
        # Complete rows in the order of their ids need no copy.
        if len(kept) != batch.num_rows or np.any(np.diff(kept) != 1):
            batch = batch.take(pa.array(kept))
        return from_archive(batch, self._table.schema)

    def _pieces(self, span: Span) -> Iterator[tuple[int, int, DataFile, int]]:
        """Yield the row groups that may have events of the range, with their smallest and largest
        ids."""
        for file in self._files(span):
            metadata = pq.ParquetFile(self._table.open_file(file)).metadata
            names = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
            column = names.index("event_id")
            for group in range(metadata.num_row_groups):
                statistics = metadata.row_group(group).column(column).statistics
                assert file.ids is not None, "the file was selected by its ids"
                first, last = (
                    (statistics.min, statistics.max) if statistics is not None else file.ids
                )
                if first < span.end and last >= span.first:
                    yield first, last, file, group

    def _rows(
        self, file: DataFile, group: int | None, names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns ``names`` of a row group of a file; of all its row groups if ``group``
        is None."""
        source: Any = self._table.open_file(file)
        groups = None if group is None else [group]
        chosen = frozenset(names)
        yield from batches_of(
            file, source, self._table.schema, row_groups=groups, wanted=chosen.__contains__
        )


def _overlapping(pieces: list[tuple[int, int, DataFile, int]]) -> Iterator[Pieces]:
    """Yield row groups in the order of their ids. Row groups with overlapping ranges of ids are
    yielded together."""
    group: Pieces = []
    last_of_group = -1
    for first, last, file, number in sorted(pieces, key=lambda piece: piece[:2]):
        if group and first > last_of_group:
            yield group
            group = []
        group.append((file, number))
        last_of_group = max(last_of_group, last)
    if group:
        yield group


def unreachable(uri: str, channel: str, error: PenstockError) -> PenstockError:
    """Add a note to ``error`` that explains how to read without the archive, and return it."""
    error.add_note(
        f"{shown(uri)} is the archive of {channel}; to read only the events on the channel, pass "
        'archive="" (--archive "" on the command line)'
    )
    return error
