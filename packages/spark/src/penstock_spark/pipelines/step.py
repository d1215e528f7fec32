"""A step of a pipeline: its definition, its context and its result.

A kind of step is one class in :mod:`penstock_spark.pipelines.steps`: its fields are the keys of its
TOML table, and its :meth:`Step.plan` says what to do. The runner does the rest: it starts the query
or the thread, keeps the checkpoint, shows progress, restarts and stops. Nothing here imports
PySpark when it is loaded: definitions are read and checked without it.
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
"""The trigger that starts a micro-batch when the last one is done and there are new events."""
AVAILABLE_NOW: Final = "available now"
"""The trigger that processes what is there, and ends."""

_INTERVAL: Final = re.compile(r"\s*\d+\s*(ms|millisecond|second|minute|hour|day)s?\s*")


class MicroBatch(Struct, frozen=True):
    """The identity of a micro-batch; a retry of the micro-batch has an equal identity."""

    app: str
    """The query: stays through restarts, and is another one with a new checkpoint."""

    number: int
    """Counts from 0 within ``app``; a target that has stored it already skips it."""

    content: str = ""
    """Identifies what it contains; a target that has stored other content under the number refuses
    it. Empty: not known."""


class ChannelTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A channel to publish to: ``channel = "delays"``, or a table with these keys."""

    name: str = ""
    column: str = ""
    """The column that says which channel each row goes to; ``name`` is used where it is null."""

    delta: bool = False
    """Whether rows change events of a merge channel, by their key."""

    options: dict[str, str] = field(default_factory=dict)
    """Further options of the sink, as in ``.option(…)``."""

    def __post_init__(self) -> None:
        if not self.name and not self.column:
            raise InvalidArgument("channel has no name: give a name, or a column that holds names")

    @property
    def text(self) -> str:
        """The micro-batch's name for people."""
        return f"channel {self.name}" if self.name else f"channels of column {self.column}"

    def sink_options(self) -> dict[str, str]:
        """The options of the format ``penstock`` that write to it."""
        options = {"channel": self.name, "channelColumn": self.column}
        given = {option: text for option, text in options.items() if text}
        return given | ({"delta": "true"} if self.delta else {}) | self.options


class TableTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table to append to: ``table = "lake/delays"``, or a table with these keys."""

    path: str
    """A path, relative to the definition's file, or a URI."""

    format: Literal["delta", "parquet"] = "delta"
    partition_by: tuple[str, ...] = ()


class Flow(Struct, frozen=True, kw_only=True):
    """A streaming query that the runner is to start.

    Either ``write``, or ``channel`` and/or ``table``: both of them are written by one query, each
    exactly once.
    """

    frame: DataFrame
    """A streaming table."""

    channel: ChannelTarget | None = None
    table: TableTarget | None = None
    write: Callable[[DataFrame, MicroBatch], None] | None = None
    """Called on the driver for each micro-batch; has to store each batch once, and to compute all
    its rows even if they are stored already: otherwise Spark ends a query that has state."""

    events: str = ""
    """An aggregate that counts the events of ``frame``, where a row is something else than one:
    ``"sum(events)"``. The progress then counts these, on both sides."""

    output_mode: Literal["append", "update", "complete"] = "append"
    trigger: str = ASAP
    """See :func:`check_trigger`."""

    poison: Literal["", "bury"] = ""
    """How an event is treated that makes its micro-batch fail: "" lets the step fail, ``bury``
    moves the event to the dead event store."""

    at_end: Callable[[], bool] | None = None
    """Called when a run that takes what is there has ended without an error; True: the step is
    planned and started once more."""


class WorkOutcome(Struct, frozen=True, kw_only=True):
    """The result of work that ends by itself; shown at the end, and kept in the step's status."""

    text: str
    """The result in one line: "1,200 events replayed to flights"."""

    rows: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    """Figures for programs; they go to ``--format json``."""


Work: TypeAlias = Callable[[], WorkOutcome]
"""Work with an end. It runs in a thread of its own, checks ``context.stopping`` often enough to end
within seconds, and stores its position in ``context.checkpoint``, so that the next run continues
there."""


class Progress(Struct, frozen=True, kw_only=True):
    """The progress of a step. The runner makes it for queries; work reports its own."""

    step: str
    rows: int = 0
    """Rows read since this run of the pipeline began."""
    rows_out: int | None = None
    """Rows stored since then; None where it is not known."""
    rows_late: int = 0
    """Rows left out since then because they came behind the watermark, as Spark counts them:
    those of an aggregation after each task has summed up its own."""
    rows_per_s: float = 0.0
    """Rows per second of the last micro-batch, or over the last second or so."""
    rows_out_per_s: float | None = None
    batch: int | None = None
    """Number of the last micro-batch."""
    batch_ms: int | None = None
    lag_events: int | None = None
    """Events that are there and not processed; None where it is not known."""
    lag_ms: int | None = None
    """Age of the oldest of them."""
    total: int | None = None
    """Rows there are to do in all, where that is known."""
    text: str = ""
    """A few words: ``running``, ``waits``, ``restarts in 4 s``."""
    later: dict[str, list[str]] = field(default_factory=dict)
    """Properties, by channel, that came later and are left out until the step is started again."""


def left_out(later: Mapping[str, Sequence[str]]) -> str:
    """A line about the properties that a step leaves out."""
    names = ", ".join(f"{name} of {channel}" for channel in later for name in later[channel])
    return f"leaves out {names}, published since it started; restart it to read them"


class Stopping(Protocol):
    """Whether the pipeline is being stopped; a ``threading.Event`` is one."""

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
        """The session; started at first use, so work that never asks never pays for it."""
        ...

    @property
    def checkpoint(self) -> str:
        """The folder of this step alone: a path that exists, or a URI where they are on a store.

        A query's checkpoint is in it; work keeps its own files there.
        """
        ...

    @property
    def folder(self) -> Path:
        """The folder of the definition's file; see :meth:`located`."""
        ...

    @property
    def once(self) -> bool:
        """Take what is there and end."""
        ...

    @property
    def stopping(self) -> Stopping: ...

    def table(self, source: str, **options: str) -> DataFrame:
        """The ``[[source]]`` of this name, a stream where it is one, with its watermark.

        ``options`` are laid over those of the definition, under the names of the Spark format:
        ``context.table("flights", includeHeaders="true")``.
        """
        ...

    @property
    def sources(self) -> Mapping[str, Source]:
        """The definitions of the sources, by name."""
        ...

    def source(self, name: str) -> Source:
        """The definition of a source. Raises ``InvalidArgument`` naming those there are."""
        ...

    def located(self, path: str) -> str:
        """A path of the definition made absolute; a URI stays as it is."""
        ...

    def report(self, progress: Progress) -> None:
        """Show how far work has come; may be called often, from any thread."""
        ...


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step. A kind derives from it and adds its keys as fields, typed and with defaults.

    Unknown keys and wrong types are found by the reader of definitions, with the file, the step
    and the key in the message. What a kind has to say itself goes into ``__post_init__`` (keys
    that do not fit together) or :meth:`check`, as ``InvalidArgument`` with a text that begins
    with the key: ``"from is '12x'; it is an event id or a time"``. File and step are put ahead.
    """

    kind: ClassVar[str] = ""
    """The value of ``kind`` in the definition."""

    name: str

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        """The names of the sources it reads; what else it reads, for people: ``table lake``."""
        return ()

    def writes(self) -> tuple[str, ...]:
        """A description for people of the targets: ``channel delays``, ``table lake/delays``."""
        return ()

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        """Raise ``InvalidArgument`` for what can be known wrong without Spark and the realm."""

    def plan(self, context: Context) -> Flow | Work:
        """The query, or the work, of this step. Called again for each restart.

        Raises ``InvalidArgument`` and the like for what only Spark or the realm can tell.
        """
        raise NotImplementedError


class StreamStep(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys that all kinds share which run as a query."""

    trigger: str = ASAP
    """``"1 second"``, ``"as soon as possible"`` or ``"available now"``."""

    poison: Literal["", "bury"] = ""
    """``"bury"``: an event that makes its micro-batch fail goes to the dead ones, not the step."""

    def __post_init__(self) -> None:
        check_trigger(self.trigger)


def check_trigger(text: str) -> None:
    """Raises ``InvalidArgument`` for what is no trigger."""
    if text not in (ASAP, AVAILABLE_NOW) and _INTERVAL.fullmatch(text) is None:
        raise InvalidArgument(
            f'trigger is {text!r}; it is an interval such as "1 second", "{ASAP}" or '
            f'"{AVAILABLE_NOW}"'
        )


def channel_target(given: ChannelTarget | str | None) -> ChannelTarget | None:
    """The key ``channel`` of a step, however it was written."""
    return ChannelTarget(name=given) if isinstance(given, str) else given


def table_target(given: TableTarget | str | None) -> TableTarget | None:
    """The key ``table`` of a step, however it was written."""
    return TableTarget(path=given) if isinstance(given, str) else given


def named_targets(
    channel: ChannelTarget | str | None, table: TableTarget | str | None
) -> tuple[str, ...]:
    """Targets as :meth:`Step.writes` tells them."""
    found = []
    if (to_channel := channel_target(channel)) is not None:
        found.append(to_channel.text)
    if (to_table := table_target(table)) is not None:
        found.append(f"table {to_table.path}")
    return tuple(found)
