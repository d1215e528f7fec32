"""``penstock archive``, which copies channels to tables, each event once, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock_server.cli.shared import completing, parsers
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import ListFormat, count, note, write, write_json
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.shared.stopping import stopped_by_signals

if TYPE_CHECKING:
    from penstock.client.archiving.archiver import ArchiveProgress

commands = command_group("Copy channels to tables, each event once.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="archive")


@commands.command("run")
def run_(
    channels: Annotated[
        str,
        typer.Argument(
            help="A channel, or several names and patterns between commas.",
            metavar="CHANNELS",
            autocompletion=completing.channels,
        ),
    ],
    table: Annotated[
        str,
        typer.Option(
            help="Path or URI of the table; for several channels, of the folder or namespace "
            "with a table for each.",
            metavar="URI",
        ),
    ],
    table_format: Annotated[
        Literal["delta", "iceberg", "parquet", ""],
        typer.Option(
            "--table-format",
            help="delta, iceberg, or parquet (deprecated). [default: iceberg if URI is, delta]",
        ),
    ] = "",
    durable: Annotated[
        str,
        typer.Option(help="Durable that keeps the events until they are copied.", metavar="NAME"),
    ] = "",
    partition_by: Annotated[
        Literal["day", "none"], typer.Option(help="How to partition a new table.")
    ] = "day",
    compact_every: Annotated[
        int, typer.Option(help="Commits after which small files are merged; 0: never.", min=0)
    ] = 100,
    keep_hours: Annotated[
        int, typer.Option(help="Hours for which replaced files are kept for readers.", min=0)
    ] = 168,
    every: Annotated[
        str, typer.Option(help="Shortest time between two commits.", metavar="DURATION")
    ] = "10s",
    register: Annotated[
        bool, typer.Option(help="Name the table in the channel, unless it names one.")
    ] = True,
    allow_losses: Annotated[
        bool,
        typer.Option("--allow-losses", help="Continue after events that left before the copy."),
    ] = False,
    by: Annotated[
        Literal["auto", "reference", "value"],
        typer.Option(
            help="reference: add Parquet files of the realm to an Iceberg table; value: copy "
            "events; auto: by reference where possible."
        ),
    ] = "auto",
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show why events are copied by value.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Copy the stored events and end.")] = False,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Copy channels to tables until Ctrl-C, each event once; the next run continues there.

    \b
    Examples:
      penstock archive run orders --table iceberg://prod/lake/orders
      penstock archive run "eu/*" --table lake/eu --durable lake --once
    """
    from penstock.client.archiving.archiver import Archiver, ArchiveSettings
    from penstock.client.archiving.lake import Lake
    from penstock.tables.disk import format_of
    from penstock.tables.log import PARQUET_DEPRECATED
    from penstock_core.vocabulary.choice import choice_of

    if table_format == "parquet":
        note(PARQUET_DEPRECATED)
    choice = choice_of(channels)
    if "://" not in table:
        table = str(Path(table).absolute())  # the channel will name it for clients anywhere
    lake = Lake(
        table,
        format_of(table, table_format),
        not choice.is_one,
        by_day=partition_by == "day",
    )
    settings = ArchiveSettings(
        durable=durable,
        compact_every=compact_every,
        keep_hours=keep_hours,
        register=register,
        allows_losses=allow_losses,
        every_s=parsers.milliseconds(every) / 1_000,
        by=by,
    )
    totals = _Totals(is_verbose=verbose)

    with _returning_memory(), session(url) as realm, stopped_by_signals() as stopping:

        def note_retry(channel: str, error: Exception) -> None:
            note(f"{channel}: {error}{'' if stopping.is_set() else '; trying again'}")

        archiver = Archiver(
            realm, choice, lake, settings=settings, on_commit=totals.add, on_retry=note_retry
        )
        archiver.run(stopping, once=once)
    totals.show(format)


class _Totals:
    """The numbers of events of each channel, which are shown after each commit and at the end."""

    def __init__(self, *, is_verbose: bool) -> None:
        """``is_verbose``: whether to show why events are copied by value."""
        self._is_verbose = is_verbose
        self._copied: Counter[str] = Counter()
        """Events in the table, by channel."""
        self._shared: Counter[str] = Counter()
        """Events that were archived by reference, by channel."""
        self._lost: Counter[str] = Counter()

    def add(self, copied: ArchiveProgress) -> None:
        """Count and show a commit."""
        from penstock.client.archiving.losses import described

        name = copied.channel
        self._copied[name] += copied.events
        self._lost[name] += copied.lost_events
        if copied.is_by_reference:
            self._shared[name] += copied.events
        way = " by reference" if copied.is_by_reference else ""
        note(f"{name}: {count(copied.events, 'event')}{way}, next is {copied.next_id:,}")
        if self._is_verbose and copied.reason:
            note(f"{name}: copied by value: {copied.reason}")
        if copied.lost:
            doubt = "; the durable's selector may leave them out" if copied.may_be_unwanted else ""
            note(f"{name}: before they were archived, {described(copied.lost)}{doubt}")

    def show(self, format: Literal["table", "json"]) -> None:
        """Write the totals."""
        if format == "json":
            write_json(
                {
                    name: {
                        "events": events,
                        "by_reference": self._shared[name],
                        "lost": self._lost[name],
                    }
                    for name, events in sorted(self._copied.items())
                }
            )
            return
        for name, events in sorted(self._copied.items()):
            shared, lost = self._shared[name], self._lost[name]
            parts = [f"{count(events, 'event')} archived"]
            if shared:
                parts.append(f"{shared:,} by reference and {events - shared:,} by value")
            if lost:
                parts.append(f"{lost:,} lost")
            write(f"{name}  {', '.join(parts)}")


@contextmanager
def _returning_memory() -> Iterator[None]:
    """Make Arrow use the allocator of the C library within the context. This allocator returns the
    memory of a written row group to the operating system; Arrow's own would keep 15 to 20 MiB."""
    import pyarrow as pa

    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(pool)
