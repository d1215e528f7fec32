"""A step of a pipeline: its definition, its context and its result.

A kind of step is one class in :mod:`penstock_spark.pipelines.steps`: its fields are the keys of its
TOML table, and its :meth:`Step.plan` returns the query or the work. The runner does the rest: it
starts the query or the thread, keeps the checkpoint, shows progress, restarts and stops. This
module does not import PySpark, so that definitions are read and checked without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeAlias

from msgspec import Struct, field

from penstock_core.vocabulary.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock_spark.pipelines.sources import Source

ASAP: Final = "as soon as possible"
"""The trigger that starts a micro-batch when the last one is done and new events are stored."""
AVAILABLE_NOW: Final = "available now"
"""The trigger that processes all stored events, and ends."""

_INTERVAL: Final = re.compile(r"\s*\d+\s*(ms|millisecond|second|minute|hour|day)s?\s*")


class MicroBatch(Struct, frozen=True):
    """The identity of a micro-batch; a retry of the micro-batch has an equal identity."""

    app: str
    """Id of the query: unchanged by restarts, new with a new checkpoint."""

    number: int
    """Counts from 0 within ``app``; a target that has stored it already skips it."""

    content: str = ""
    """Identity of the content; a target that has stored other content under the number refuses
    it. Empty: unknown."""


class ChannelTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A channel to publish to: ``channel = "delays"``, or a table with these keys."""

    name: str = ""
    column: str = ""
    """The column with the target channel of each row; ``name`` is used if it is null."""

    delta: bool = False
    """Whether rows change events of a merge channel, by their key."""

    options: dict[str, str] = field(default_factory=dict)
    """Further options of the sink, as in ``.option(…)``."""

    def __post_init__(self) -> None:
        if not self.name and not self.column:
            raise InvalidArgument("channel has no name: give a name, or a column that holds names")

    @property
    def text(self) -> str:
        """Description of the target, for display."""
        return f"channel {self.name}" if self.name else f"channels of column {self.column}"

    def sink_options(self) -> dict[str, str]:
        """Return the options of the format ``penstock`` that write to it."""
        options = {"channel": self.name, "channelColumn": self.column}
        non_empty = {option: text for option, text in options.items() if text}
        return non_empty | ({"delta": "true"} if self.delta else {}) | self.options


class TableTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table to append to: ``table = "lake/delays"``, or a table with these keys."""

    path: str
    """A path, relative to the definition's file, or a URI."""

    format: Literal["delta", "parquet"] = "delta"
    partition_by: tuple[str, ...] = ()


class Flow(Struct, frozen=True, kw_only=True):
    """A streaming query for the runner to start.

    Either ``write``, or ``channel`` and/or ``table``: both of them are written by one query, each
    exactly once.
    """

    frame: DataFrame
    """A streaming table."""

    channel: ChannelTarget | None = None
    table: TableTarget | None = None
    write: Callable[[DataFrame, MicroBatch], None] | None = None
    """Called on the driver for each micro-batch. It must store each batch once, and compute all
    rows even if they are stored already: otherwise Spark ends a query that has state."""

    events: str = ""
    """An aggregate that counts the events of ``frame`` if its rows are not events:
    ``"sum(events)"``. The progress then shows these counts as rows in and rows out."""

    output_mode: Literal["append", "update", "complete"] = "append"
    trigger: str = ASAP
    """See :func:`check_trigger`."""

    poison: Literal["", "bury"] = ""
    """Treatment of an event that makes its micro-batch fail: "" lets the step fail, ``bury``
    moves the event to the dead event store."""

    at_end: Callable[[], bool] | None = None
    """Called when a run that ends by itself has ended without an error; True: the step is planned
    and started once more."""


class WorkOutcome(Struct, frozen=True, kw_only=True):
    """The result of work that ends by itself; shown at the end, and kept in the step's status."""

    text: str
    """The result in one line: "1,200 events replayed to flights"."""

    rows: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    """Figures for programs; they go to ``--format json``."""


Work: TypeAlias = Callable[[], WorkOutcome]
"""Work with an end. It runs in a separate thread, checks ``context.stopping`` often enough to end
within seconds, and stores its position in ``context.checkpoint``, where the next run continues."""


class Progress(Struct, frozen=True, kw_only=True):
    """The progress of a step. The runner makes it for queries; work reports its own."""

    step: str
    rows: int = 0
    """Rows read since this run of the pipeline began."""
    rows_out: int | None = None
    """Rows stored since then; None if unknown."""
    rows_late: int = 0
    """Rows dropped since then because they were older than the watermark, as Spark counts them:
    in an aggregation, after each task has aggregated its rows."""
    rows_per_s: float = 0.0
    """Rows per second of the last micro-batch, or over the last second or so."""
    rows_out_per_s: float | None = None
    batch: int | None = None
    """Number of the last micro-batch."""
    batch_ms: int | None = None
    lag_events: int | None = None
    """Stored events that are not processed; None if unknown."""
    lag_ms: int | None = None
    """Age of the oldest of them."""
    total: int | None = None
    """Total of rows to process, if known."""
    text: str = ""
    """State in a few words: ``running``, ``waits``, ``restarts in 4 s``."""
    later: dict[str, list[str]] = field(default_factory=dict)
    """Properties, by channel, that appeared later and are left out until the step is restarted."""


def left_out(later: Mapping[str, Sequence[str]]) -> str:
    """Return a line about the properties that a step leaves out."""
    names = ", ".join(f"{name} of {channel}" for channel in later for name in later[channel])
    return f"leaves out {names}, published since it started; restart it to read them"


class Stopping(Protocol):
    """Signals that the pipeline must stop; a ``threading.Event`` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Context(Protocol):
    """The context that a step is given when it starts."""

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
        """The realm."""
        ...

    @property
    def spark(self) -> SparkSession:
        """The session; started at first use, so that work without Spark does not start it."""
        ...

    @property
    def checkpoint(self) -> str:
        """The folder of this step: an existing path, or a URI on an object store.

        It contains the checkpoint of a query, or the files of work.
        """
        ...

    @property
    def folder(self) -> Path:
        """The folder of the definition's file; see :meth:`located`."""
        ...

    @property
    def once(self) -> bool:
        """Whether to process the stored events and end."""
        ...

    @property
    def stopping(self) -> Stopping: ...

    def table(self, source: str, **options: str) -> DataFrame:
        """Return the ``[[source]]`` of this name, as a stream if it is one, with its watermark.

        ``options`` override those of the definition, under the names of the Spark format:
        ``context.table("flights", includeHeaders="true")``.
        """
        ...

    @property
    def sources(self) -> Mapping[str, Source]:
        """The definitions of the sources, by name."""
        ...

    def source(self, name: str) -> Source:
        """Return the definition of a source. Raises ``InvalidArgument`` for an unknown name."""
        ...

    def located(self, path: str) -> str:
        """Return a path of the definition made absolute; a URI is returned unchanged."""
        ...

    def report(self, progress: Progress) -> None:
        """Report the progress of work; may be called often, from any thread."""
        ...


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step. A kind derives from it and adds its keys as fields, typed and with defaults.

    The reader of definitions reports unknown keys and wrong types, with the file, the step and the
    key. Other checks of a kind belong in ``__post_init__`` (contradicting keys) or :meth:`check`.
    They raise ``InvalidArgument`` with a text that begins with the key: ``"from is '12x'; it must
    be an event id or a time"``. The reader prefixes the file and the step.
    """

    kind: ClassVar[str] = ""
    """The value of ``kind`` in the definition."""

    name: str

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        """Return the names of the sources it reads, and descriptions of other inputs, such as
        ``table lake``."""
        return ()

    def writes(self) -> tuple[str, ...]:
        """Return descriptions of the targets: ``channel delays``, ``table lake/delays``."""
        return ()

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        """Raise ``InvalidArgument`` for mistakes that can be found without Spark and the realm."""

    def plan(self, context: Context) -> Flow | Work:
        """Return the query, or the work, of this step. Called again for each restart.

        Raises ``InvalidArgument`` and other errors that only Spark or the realm can detect.
        """
        raise NotImplementedError


class StreamStep(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys shared by all kinds that run as a query."""

    trigger: str = ASAP
    """``"1 second"``, ``"as soon as possible"`` or ``"available now"``."""

    poison: Literal["", "bury"] = ""
    """``"bury"``: an event that makes its micro-batch fail is moved to the dead event store."""

    def __post_init__(self) -> None:
        check_trigger(self.trigger)


def check_trigger(text: str) -> None:
    """Raise ``InvalidArgument`` for an invalid trigger."""
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
