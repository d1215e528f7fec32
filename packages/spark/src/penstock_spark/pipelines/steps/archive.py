"""The step ``archive``: keeps the events of channels in tables of Delta, Iceberg or plain
Parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from penstock.tables.disk import format_of
from penstock.tables.table import KEEP_HOURS
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.errors.error_marks import secret_options
from penstock_spark.pipelines.sources import Source, joined_names
from penstock_spark.pipelines.step import (
    COMPACT_EVERY,
    Context,
    Flow,
    MicroBatch,
    StreamStep,
    check_maintenance,
    deprecated_formats,
)
from penstock_spark.pipelines.written_tables import WrittenTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.client.archiving.lake import Lake


class ArchiveStep(StreamStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stores all parts of each event exactly once, with its id, in a table for each channel."""

    kind: ClassVar[str] = "archive"

    source: str
    """Name of the ``[[source]]`` to archive: one or several channels, or a pattern."""

    table: str
    """Path of the table, relative to the definition's file, or a URI. If the source has several
    channels or a pattern, this is a folder with a table for each channel. For Iceberg it is
    ``iceberg://CATALOG/NAMESPACE/TABLE`` or, for several tables, ``iceberg://CATALOG/NAMESPACE``."""

    format: Literal["", "delta", "iceberg", "parquet"] = ""
    """Format of the table. Empty means ``iceberg`` for the URI of an Iceberg table, otherwise
    ``delta``."""

    partition_by: Literal["day", ""] = "day"
    """``"day"`` partitions the table by the day of ``published``; ``""`` does not partition it."""

    compact_every: int = COMPACT_EVERY
    """Number of micro-batches between two compactions, which merge small files; 0 turns compaction
    off."""

    keep_hours: int = KEEP_HOURS
    """Hours before files are removed that a compaction has replaced. Until then, programs may still
    read them."""

    register: bool = True
    """Whether to set the channel's attribute ``archive`` to the table, so that readers of the
    channel find archived events."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.table:
            raise InvalidArgument("table is empty; give the path of the archive")
        format_of(self.table, self.format)
        check_maintenance(self.compact_every, self.keep_hours)

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        return (self.source,)

    def writes(self) -> tuple[str, ...]:
        return (f"table {self.table}",)

    def deprecations(self) -> tuple[str, ...]:
        return deprecated_formats(self.format)

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        source = sources.get(self.source)
        if source is None:
            names = ", ".join(sources) or "none"
            raise InvalidArgument(
                f"source is {self.source!r}, which is not defined; defined are {names}"
            )
        if not source.channel or not source.is_stream:
            raise InvalidArgument(
                f"source {self.source} reads {source.reads}; an archive step needs channels, read "
                f"as a stream"
            )
        if source.columns:
            raise InvalidArgument(
                f"source {self.source} has columns, but an archive keeps every column of an event"
            )

        option_names = {name.lower() for name in source.options}
        if "columns" in option_names:
            raise InvalidArgument(
                f"source {self.source} has the option columns, but an archive keeps every column "
                f"of an event"
            )
        if self.register and (source.selector or "selector" in option_names):
            raise InvalidArgument(
                f"source {self.source} has a selector, so readers of the channel would miss events "
                f"in its archive: set register = false"
            )

    def plan(self, context: Context) -> Flow:
        from penstock.client.archiving.lake import Lake
        from penstock_spark.archives.archiving import archive_stream

        source = context.source(self.source)
        lake = Lake(
            context.located(self.table),
            format_of(self.table, self.format),
            _is_several(source),
            by_day=bool(self.partition_by),
        )
        # Unlike other streams, an archive begins with the first stored event.
        first = {} if source.durable else {"startingOffsets": "earliest"}
        options = first | source.format_options()
        if "startingTimestamp" in options:
            del options["startingOffsets"]
        frame = archive_stream(
            context.spark, lake, {"url": context.url, **options, **secret_options()}
        )
        return Flow(
            frame=frame,
            write=self._writer(context, lake),
            events="sum(events)",  # each row is a file
            trigger=self.trigger,
        )

    def _writer(self, context: Context, lake: Lake) -> Callable[[DataFrame, MicroBatch], None]:
        """Return the function that stores a micro-batch: it commits files that tasks have written,
        registers new archives, and compacts."""
        url, tables = context.url, WrittenTables(context.checkpoint)
        registered: set[str] = set()

        def write(frame: DataFrame, batch: MicroBatch) -> None:
            from penstock_spark.archives import archiving

            written = archiving.written_in(frame)
            stored = archiving.commit(
                lake,
                written,
                batch.app,
                version=batch.number,
                content=batch.content,
                check=lambda table: tables.check(table, batch),
            )
            for channel, table in stored.items():
                tables.wrote(table, batch)
                if self.register and channel not in registered:
                    archiving.register(url, lake, channel)
                    registered.add(channel)
                if batch.completes(self.compact_every):
                    archiving.compact(lake, channel, self.keep_hours)

        return write


def _is_several(source: Source) -> bool:
    """Return whether the source may have several channels."""
    from penstock_core.vocabulary.choice import choice_of

    names = source.channel if isinstance(source.channel, str) else joined_names(source.channel)
    return not choice_of(names).is_one
