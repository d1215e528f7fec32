"""Requests that read a channel or queue as a table."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from penstock_core.api.requests import Request
from penstock_core.bounds import Count, EndId, EventId
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.identities import ChannelNumber


class LoadTable(Request[Any], frozen=True):
    """Make a snapshot of the stored events as a table, or find the current one (SEM B1, B2)."""

    channel: ChannelNumber


class TableFile(Struct, frozen=True):
    """A Parquet file of a table."""

    path: str
    """Absolute path on the realm's machine; empty if the realm has no data directory."""
    size: int
    """Size of the file in bytes."""


class TableFiles(Struct, frozen=True, omit_defaults=True):
    """A snapshot of a channel or queue: Parquet files with its stored events and no others."""

    files: tuple[TableFile, ...]
    columns: bytes
    """The columns of the table, as the message of an Arrow schema. If all rows of a file are null
    in a column, the file lacks the column."""
    end_id: int
    """The id that the next published event gets."""
    until_us: int
    """Time until which the files are kept, in microseconds since 1970."""


class LocateTable(Request[TableFiles], frozen=True):
    """Make a snapshot of the stored events for readers on the realm's machine (SEM B1, B7)."""

    channel: ChannelNumber


class SealedTableFile(Struct, frozen=True):
    """A Parquet file whose rows are all the stored events of a range of ids."""

    path: str
    """Absolute path on the realm's machine; empty if the realm has no data directory."""
    size: int
    """Size of the file in bytes."""
    rows: int
    """Number of rows; smaller than the range if events of it were removed."""
    span: Span
    """The range of ids."""


class SealedTableFiles(Struct, frozen=True, omit_defaults=True):
    """Parquet files of sealed events, in the order of their ranges, which do not overlap."""

    files: tuple[SealedTableFile, ...]
    columns: bytes
    """The columns of the channel's stored events, as the message of an Arrow schema. Their layout
    in the files is that of ``TableLayout``."""
    until_us: int
    """Time until which the files are kept, in microseconds since 1970. The user's next request of
    this kind for the channel ends it."""


class LocateSealedTable(Request[SealedTableFiles], frozen=True):
    """Make Parquet files of the sealed events of a range of ids, for archives on the realm's
    machine (SEM B8)."""

    channel: ChannelNumber
    first_id: EventId
    end_id: EndId
    rows_min: Count = 1
    """Smallest number of rows of a file; smaller ones are left out."""
