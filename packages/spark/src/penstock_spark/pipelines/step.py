"""A step of a pipeline: its definition, its context and its result.

A kind of step is one class in :mod:`penstock_spark.pipelines.steps`. The fields of the class are
the keys of the step's TOML table, and :meth:`Step.plan` returns the query or the work. The runner
starts the query or the thread, places the checkpoint, shows progress, restarts and stops. This
module does not import PySpark, so that definitions can be read and checked without PySpark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeAlias

from msgspec import Struct, field

from penstock.tables.disk import format_of, iceberg_parts
from penstock.tables.log import PARQUET_DEPRECATED, Format
from penstock.tables.table import KEEP_HOURS
from penstock_core.vocabulary.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock_spark.pipelines.sources import Source

ASAP: Final = "as soon as possible"
"""The trigger that starts a micro-batch as soon as the last one is done and new events are
stored."""
AVAILABLE_NOW: Final = "available now"
"""The trigger of a query that processes all stored events and then ends."""

_INTERVAL: Final = re.compile(r"\s*\d+\s*(ms|millisecond|second|minute|hour|day)s?\s*")


COMPACT_EVERY: Final = 100
"""Default number of micro-batches between two compactions of a table."""


class MicroBatch(Struct, frozen=True):
    """The identity of a micro-batch. A retry of the micro-batch has an equal identity."""

    app: str
    """Id of the query. It does not change at a restart, but a new checkpoint has a new id."""

    number: int
    """Number of the micro-batch in the query, from 0. A target skips a number that it has stored
    already."""

    content: str = ""
    """Identity of the content; empty if unknown. A target refuses a stored number with other
    content."""

    def completes(self, count: int) -> bool:
        """Return whether the micro-batch is the last one of each ``count``; False if ``count`` is
        0."""
        return count > 0 and (self.number + 1) % count == 0


class ChannelTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A channel to publish to: in TOML ``channel = "delays"``, or a table with these keys."""

    name: str = ""
    """Name of the channel."""
    column: str = ""
    """The column with the target channel of each row. Rows with null go to the channel ``name``."""

    delta: bool = False
    """Whether rows are deltas: in a merge channel, they change the state of their key."""

    options: dict[str, str] = field(default_factory=dict)
    """Further options of the Spark sink, by the names that ``.option(…)`` accepts."""

    def __post_init__(self) -> None:
        if not self.name and not self.column:
            raise InvalidArgument(
                "channel has neither name nor column; give a name, or a column that holds names"
            )

    @property
    def text(self) -> str:
        """A description of the target for display."""
        return f"channel {self.name}" if self.name else f"channels of column {self.column}"

    def sink_options(self) -> dict[str, str]:
        """Return the options of the format ``penstock`` for writing to this target."""
        options = {"channel": self.name, "channelColumn": self.column}
        non_empty = {option: text for option, text in options.items() if text}
        return non_empty | ({"delta": "true"} if self.delta else {}) | self.options


class TableTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table to write to: in TOML ``table = "lake/delays"``, or a table with these keys."""

    path: str
    """Path of the table, relative to the definition's file, or a URI; of an Iceberg table
    ``iceberg://CATALOG/NAMESPACE/TABLE``."""

    format: Literal["", "delta", "iceberg", "parquet"] = ""
    """Format of the table. Empty means ``iceberg`` for the URI of an Iceberg table, otherwise
    ``delta``."""
    partition_by: tuple[str, ...] = ()
    """Names of the columns that partition the table."""

    compact_every: int | None = None
    """Number of micro-batches between two compactions, which merge small files and remove old ones;
    0 turns compaction off. None means 100 for an Iceberg table and 0 for others."""

    keep_hours: int = KEEP_HOURS
    """Hours before files are removed that micro-batches or a compaction have replaced."""

    def __post_init__(self) -> None:
        if self.table_format == "iceberg":
            iceberg_parts(self.path)
        check_maintenance(self.compaction_interval, self.keep_hours)

    @property
    def table_format(self) -> Format:
        """The format of the table. Raises ``InvalidArgument`` if :attr:`format` does not match the
        path."""
        return format_of(self.path, self.format)

    @property
    def compaction_interval(self) -> int:
        """Number of micro-batches between two compactions; 0 for none.

        Without compaction, each commit to an Iceberg table takes longer than the one before,
        because it rewrites the list of all snapshots.
        """
        if self.compact_every is not None:
            return self.compact_every
        return COMPACT_EVERY if self.table_format == "iceberg" else 0


def check_maintenance(compact_every: int, keep_hours: int) -> None:
    """Raise ``InvalidArgument`` if a key about the compaction of a table is negative."""
    for key, value in (("compact_every", compact_every), ("keep_hours", keep_hours)):
        if value < 0:
            raise InvalidArgument(f"{key} is {value}; it must be 0 or more")


class Flow(Struct, frozen=True, kw_only=True):
    """A streaming query that the runner starts.

    Its target is either ``write``, or ``channel``, ``table`` or both of these. One query writes to
    both, exactly once to each.
    """

    frame: DataFrame
    """The streaming DataFrame whose rows are written."""

    channel: ChannelTarget | None = None
    table: TableTarget | None = None
    write: Callable[[DataFrame, MicroBatch], None] | None = None
    """Function that the driver calls for each micro-batch. It must store each micro-batch
    exactly once. It must evaluate all rows of ``frame`` even if the micro-batch is already stored,
    because Spark fails a stateful query whose rows are not evaluated."""

    events: str = ""
    """SQL aggregate that counts the events in ``frame`` if its rows are not events, for example
    ``"sum(events)"``. The progress then shows this count as rows in and as rows out."""

    output_mode: Literal["append", "update", "complete"] = "append"
    """Spark's output mode."""
    trigger: str = ASAP
    """The trigger, in the form that :func:`check_trigger` accepts."""

    poison: Literal["", "bury"] = ""
    """How to handle an event that makes its micro-batch fail. Empty means that the step fails;
    ``bury`` means that the event is moved to the dead event store."""

    at_end: Callable[[], bool] | None = None
    """Function to call when the query has ended by itself without an error. If it returns True, the
    step is planned and started once more."""


class WorkOutcome(Struct, frozen=True, kw_only=True):
    """The result of work that ends by itself. It is shown at the end and stored in the status of
    the step."""

    text: str
    """The result in one line, such as "1,200 events replayed to flights"."""

    rows: int = 0
    """Number of rows that were stored."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Figures for programs, which ``--format json`` prints."""


Work: TypeAlias = Callable[[], WorkOutcome]
"""A function that does the work of a step and returns when the work is done. It runs in a separate
thread, must check ``context.stopping`` often enough to end within seconds, and stores its position
in ``context.checkpoint``, from where the next run continues."""


class Progress(Struct, frozen=True, kw_only=True):
    """The progress of a step. The runner computes it for queries; work reports it itself."""

    step: str
    """Name of the step."""
    rows: int = 0
    """Number of rows read since this run of the pipeline began."""
    rows_out: int | None = None
    """Number of rows stored since this run began; None if unknown."""
    rows_late: int = 0
    """Number of rows dropped since this run began because they were older than the watermark. Spark
    counts them after each task has aggregated its rows."""
    rows_per_s: float = 0.0
    """Rows read per second, in the last micro-batch or in about the last second."""
    rows_out_per_s: float | None = None
    """Rows stored per second in the same time; None if unknown."""
    batch: int | None = None
    """Number of the last micro-batch; None if the step is not a query."""
    batch_ms: int | None = None
    """Duration of the last micro-batch, in milliseconds; None if unknown."""
    lag_events: int | None = None
    """Number of stored events that are not processed yet; None if unknown."""
    lag_ms: int | None = None
    """Age of the oldest event that is not processed yet, in milliseconds; None if unknown."""
    total: int | None = None
    """Total number of rows to process; None if unknown."""
    text: str = ""
    """The state in a few words, such as ``running``, ``waits`` or ``restarts in 4 s``."""
    later: dict[str, list[str]] = field(default_factory=dict)
    """Properties, by channel, that appeared after the query started. They are left out until the
    step is restarted."""


def left_out(later: Mapping[str, Sequence[str]]) -> str:
    """Return a line for display about the properties that a step leaves out, given by channel."""
    names = ", ".join(f"{name} of {channel}" for channel in later for name in later[channel])
    return f"leaves out {names}, published since it started; restart it to read them"


class Stopping(Protocol):
    """Signals that the pipeline must stop, as a ``threading.Event`` does."""

    def is_set(self) -> bool:
        """Return whether the pipeline must stop."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the signal; return whether the pipeline must stop."""
        ...


class Context(Protocol):
    """The environment of a step: its sources, its folder, the session and the realm."""

    @property
    def pipeline(self) -> str:
        """The pipeline's name."""
        ...

    @property
    def step(self) -> str:
        """The step's name."""
        ...

    @property
    def url(self) -> str:
        """The URL of the realm."""
        ...

    @property
    def spark(self) -> SparkSession:
        """The Spark session. The first access starts it, so that work without Spark never does."""
        ...

    @property
    def checkpoint(self) -> str:
        """The folder of this step: the path of an existing folder, or a URI of an object store.

        It contains the checkpoint of a query, or the files of work.
        """
        ...

    @property
    def folder(self) -> Path:
        """The folder of the definition's file; see :meth:`located`."""
        ...

    @property
    def once(self) -> bool:
        """Whether the step ends when it has processed the events that are stored now."""
        ...

    @property
    def stopping(self) -> Stopping:
        """The signal that work must end."""
        ...

    def table(self, source: str, **options: str) -> DataFrame:
        """Return a ``[[source]]`` as a DataFrame with its watermark, streaming if it is a stream.

        ``options`` override the options of the definition, by the names of the format ``penstock``:
        ``context.table("flights", includeHeaders="true")``.
        """
        ...

    @property
    def sources(self) -> Mapping[str, Source]:
        """The definitions of the sources, by name."""
        ...

    def source(self, name: str) -> Source:
        """Return the definition of a source. Raises ``InvalidArgument`` if the name is unknown."""
        ...

    def located(self, path: str) -> str:
        """Return the absolute path for a path in the definition. A URI is returned unchanged."""
        ...

    def report(self, progress: Progress) -> None:
        """Report the progress of work. Work may call this often, from any thread."""
        ...


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of a pipeline. Each kind of step derives from this class and adds its keys as
    fields, with types and defaults.

    Unknown keys and values of a wrong type are reported when the definition is read. Other checks
    belong in ``__post_init__`` (for keys that contradict each other) or in :meth:`check`. They
    raise ``InvalidArgument`` with a text that begins with the key: ``"from is '12x'; it must be an
    event id or a time"``. The file and the step are added in front of the text.
    """

    kind: ClassVar[str] = ""
    """The value of ``kind`` in the definition."""

    name: str

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        """Return the names of the sources that the step reads, and descriptions of other inputs,
        such as ``table lake``."""
        return ()

    def writes(self) -> tuple[str, ...]:
        """Return descriptions of the targets, such as ``channel delays`` or ``table lake``."""
        return ()

    def deprecations(self) -> tuple[str, ...]:
        """Return a text about each deprecated part of the definition, with its replacement."""
        return ()

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        """Raise ``InvalidArgument`` for mistakes that can be found without Spark and the realm.

        ``sources`` are the pipeline's sources by name; ``folder`` contains the definition's file.
        """

    def plan(self, context: Context) -> Flow | Work:
        """Return the query or the work of this step. The runner calls this for each start.

        Raises ``InvalidArgument`` and other errors for mistakes that only Spark or the realm can
        detect.
        """
        raise NotImplementedError


class StreamStep(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step that runs as a query, with the keys that all these kinds have."""

    trigger: str = ASAP
    """When micro-batches start: an interval such as ``"1 second"``, ``"as soon as possible"`` or
    ``"available now"``."""

    poison: Literal["", "bury"] = ""
    """With ``"bury"``, an event that makes its micro-batch fail is moved to the dead event
    store."""

    def __post_init__(self) -> None:
        check_trigger(self.trigger)


def check_trigger(text: str) -> None:
    """Raise ``InvalidArgument`` unless ``text`` is an interval, ``ASAP`` or ``AVAILABLE_NOW``."""
    if text not in (ASAP, AVAILABLE_NOW) and _INTERVAL.fullmatch(text) is None:
        raise InvalidArgument(
            f'trigger is {text!r}; it must be an interval such as "1 second", "{ASAP}" or '
            f'"{AVAILABLE_NOW}"'
        )


def channel_target(value: ChannelTarget | str | None) -> ChannelTarget | None:
    """Return the value of the key ``channel`` of a step, a name or a table, as a target."""
    return ChannelTarget(name=value) if isinstance(value, str) else value


def table_target(value: TableTarget | str | None) -> TableTarget | None:
    """Return the value of the key ``table`` of a step, a path or a table, as a target."""
    return TableTarget(path=value) if isinstance(value, str) else value


def deprecated_formats(format: str) -> tuple[str, ...]:
    """Return the deprecation text of a table format, for :meth:`Step.deprecations`; empty if the
    format is not deprecated."""
    return (PARQUET_DEPRECATED,) if format == "parquet" else ()


def deprecated_formats_of(table: TableTarget | str | None) -> tuple[str, ...]:
    """Return the deprecation text of the format in the key ``table`` of a step; empty if the format
    is not deprecated."""
    target = table_target(table)
    return () if target is None else deprecated_formats(target.table_format)


def describe_targets(
    channel: ChannelTarget | str | None, table: TableTarget | str | None
) -> tuple[str, ...]:
    """Return descriptions of targets for :meth:`Step.writes`."""
    names = []
    if (to_channel := channel_target(channel)) is not None:
        names.append(to_channel.text)
    if (to_table := table_target(table)) is not None:
        names.append(f"table {to_table.path}")
    return tuple(names)
