"""Finds the events that make a micro-batch fail, by bisection, and buries them.

The search is for streams that are bound to a durable. The events of the failed micro-batch are
still outstanding, so any part of the micro-batch can be read again, as a batch, until the events
that fail by themselves are found. Each of these is moved to the dead event store with its error as
the reason. Nothing is buried if the failure has another cause: an unavailable realm, exhausted
memory, or a transformation that fails on any input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import InvalidArgument, PenstockError
from penstock_spark.connections import ask_realm
from penstock_spark.errors.error_marks import (
    active_secret,
    blame_of,
    marked_error,
    secret_options,
    unmarked,
)
from penstock_spark.errors.failure_text import (
    FROM_THREAD,
    is_of_environment,
    layers,
    line_of,
    whole_text,
)
from penstock_spark.options import SourceOptions, source_options
from penstock_spark.reading.binding import hold_durable, outstanding_events
from penstock_spark.reading.channels import Links, links_of, spans_between
from penstock_spark.reading.offsets import Positions, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POISON_MAX: Final = 10
"""Largest number of events of a micro-batch that are buried. If more events fail, the cause is
probably the transformation, and none is buried."""

_PYTHON_ERROR: Final = re.compile(
    r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit)): (.*)", re.M
)
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]*")

Attempt = Callable[["DataFrame"], object]
"""Runs the failed transformation on a table of some of the events, to its end: for example
``lambda table: verdict_of_result(table).write.format("noop").mode("overwrite").save()``."""
EventKey = tuple[str, int]
"""Channel and event id."""


class Poison(Struct, frozen=True):
    """An event that made a micro-batch fail and was buried."""

    channel: str
    event_id: int
    error: str
    """The error that the event causes. It is stored as the reason in the dead event store."""


class Verdict(Struct, frozen=True):
    """The result of a search for poison events."""

    buried: tuple[Poison, ...] = ()
    """The buried events. If at least one was buried, a restarted query continues without them."""
    why_none: str = ""
    """Why no event was buried; empty if an event was buried."""
    runs: int = 0
    """Number of times that the transformation was run."""


class NotPoison(Exception):
    """The cause of the failure is not a single event. The text names the cause."""


def bury_poison(
    spark: SparkSession,
    options: Mapping[str, str],
    checkpoint: str | Path,
    attempt: Attempt,
    *,
    limit: int = POISON_MAX,
    watch: Callable[[int], object] = lambda run: None,
) -> Verdict:
    """Find and bury the events that made the last micro-batch of an ended query fail.

    ``options`` are the options of the query's source, including ``durable``. ``checkpoint`` is the
    folder or URI of the query's checkpoint. ``attempt`` runs the query's transformation on a table.
    If more than ``limit`` events fail, none is buried. ``watch`` is called before each run of the
    transformation with the number of the run, from 1. Raises ``InvalidArgument`` if ``options``
    name no durable.
    """
    parsed = source_options(options)
    if not parsed.durable:
        raise InvalidArgument("poison needs a durable: give the source the option durable")
    runs: list[int] = []
    try:
        failed_range = unfinished_batch(spark, checkpoint, parsed)
        outstanding_keys = ask_realm(
            parsed.realm, lambda session: _outstanding_keys(session, parsed, *failed_range)
        )
        error_of = _trial(
            spark, options, sorted(failed_range[1]), attempt=attempt, runs=runs, watch=watch
        )
        errors = isolate(outstanding_keys, error_of, limit)
        _bury(parsed, errors)
    except (NotPoison, PenstockError) as error:
        return Verdict(why_none=str(error), runs=len(runs))
    poison = [Poison(channel, event_id, error) for (channel, event_id), error in errors.items()]
    return Verdict(tuple(poison), runs=len(runs))


# --- the search for failing events --------------------------------------------------------


def isolate(
    keys: Sequence[EventKey], error_of: Callable[[Sequence[EventKey]], str], limit: int
) -> dict[EventKey, str]:
    """Find the events that fail by themselves; return the error of each.

    ``error_of`` runs the transformation on some of the events and returns the error text, or "" if
    the run succeeds. If one of n events fails, the search needs about log2(n) runs. Raises
    ``NotPoison`` if no single event causes the failure, or if more than ``limit`` do.
    """
    if not keys:
        raise NotPoison("the durable has no unacknowledged event of the micro-batch left")
    if error := error_of(()):
        raise NotPoison(f"it also fails without any event: {error}")
    if not (error := error_of(keys)):
        raise NotPoison("the micro-batch does not fail when it is run again")
    errors: dict[EventKey, str] = {}
    # A stack of parts that fail, each with its error text. The text is "" if the failure is only
    # inferred. The part with the lowest ids is on top, so that errors are found in id order.
    failing_parts = [(keys, error)]
    while failing_parts:
        part, error = failing_parts.pop()
        if len(part) == 1:
            error = error or error_of(part)
            if not error:
                raise NotPoison(
                    f"event {part[0][1]} of {part[0][0]} fails only together with others"
                )
            errors[part[0]] = error
            if len(errors) > limit:
                raise NotPoison(
                    f"more than {limit} events fail, the first with: {next(iter(errors.values()))}"
                )
            continue
        half = len(part) // 2
        head, tail = part[:half], part[half:]
        # If the head does not fail, the tail must fail, which saves a run of the transformation.
        if error := error_of(head):
            if tail_error := error_of(tail):
                failing_parts.append((tail, tail_error))
            failing_parts.append((head, error))
        else:
            failing_parts.append((tail, ""))
    return errors


def _outstanding_keys(
    session: Session, options: SourceOptions, start: Positions, end: Positions
) -> list[EventKey]:
    """Return the outstanding events of the micro-batch from ``start`` to ``end``.

    Raises ``NotPoison`` if a channel with such events has no dead event store.
    """
    links = links_of(session, options)
    spans = spans_between(options, links, start, end=end)
    outstanding_ids = outstanding_events(options, links, spans) or {}
    _check_dead_event_stores(links, [name for name, ids in outstanding_ids.items() if ids])
    return [
        (name, event_id) for name in sorted(outstanding_ids) for event_id in outstanding_ids[name]
    ]


def _check_dead_event_stores(links: Links, names: Sequence[str]) -> None:
    """Raise ``NotPoison`` if a channel of ``names`` has no dead event store."""
    for name in names:
        if not links[name].channel.info().definition.dead_event_store:
            raise NotPoison(
                f"channel {name} has no dead event store to bury events in; set one: "
                f"penstock channel edit {name} --dead-event-store NAME"
            )


def _bury(options: SourceOptions, errors: Mapping[EventKey, str]) -> None:
    """Reject the failing events at the durable, which moves them to the dead event store."""

    def bury(session: Session) -> None:
        links = links_of(session, options)
        for name, keys in groupby(errors, itemgetter(0)):
            with hold_durable(options, links[name]) as hold:
                for key in keys:
                    hold.reject([key[1]], errors[key])

    ask_realm(options.realm, bury)


# --- runs of the transformation -----------------------------------------------------------


def _trial(
    spark: SparkSession,
    options: Mapping[str, str],
    channels: Sequence[str],
    attempt: Attempt,
    runs: list[int],
    watch: Callable[[int], object],
) -> Callable[[Sequence[EventKey]], str]:
    """Return a function that runs ``attempt`` on some events and returns its error text, or "" if
    the run succeeds. ``runs`` gets the number of events of each run."""

    def error_of(keys: Sequence[EventKey]) -> str:
        runs.append(len(keys))
        watch(len(runs))
        read_options = {**options, **ranges_of(keys, channels), **secret_options()}
        reader = spark.read.format("penstock").options(**read_options)
        try:
            attempt(reader.load())
        except Exception as error:
            if is_of_realm(error):
                raise NotPoison(
                    f"no single event causes the failure: {reason_of(error)}"
                ) from error
            return reason_of(error)
        return ""

    return error_of


def ranges_of(keys: Sequence[EventKey], channels: Sequence[str]) -> dict[str, str]:
    """Return the options for a read of the events ``keys``, which are adjacent in each channel.

    Other ``channels`` get an empty range.
    """
    starts, ends = dict.fromkeys(channels, 0), dict.fromkeys(channels, 0)
    for name, keys_of_channel in groupby(keys, itemgetter(0)):
        ids = [event_id for _, event_id in keys_of_channel]
        starts[name], ends[name] = ids[0], ids[-1] + 1
    return {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}


def is_of_realm(error: BaseException) -> bool:
    """Return whether an error is of a kind that the content of events cannot cause.

    An error of Penstock states this itself; for other errors, the class decides. The words of the
    text do not count, because the text may quote an event.
    """
    if isinstance(error, PenstockError):
        return blame_of(error) == "realm"
    if isinstance(error, OSError | MemoryError):
        return True
    if (marked := marked_error(whole_text(error), active_secret())) is not None:
        return marked.blame == "realm"
    return is_of_environment(error)


def reason_of(error: BaseException) -> str:
    """Return the text of the innermost error inside an error of Spark, in one line."""
    if (marked := marked_error(whole_text(error), active_secret())) is not None:
        return f"{marked.text} [{marked.code}]"
    texts = (_innermost_error(layer, unmarked(str(layer))) for layer in layers(error))
    return next(filter(None, texts), type(error).__name__)


def _innermost_error(error: BaseException, text: str) -> str:
    """Return the last error that ``text``, the text of ``error``, names, in one line; empty if the
    error only wraps its cause."""
    raised = [match for match in _PYTHON_ERROR.findall(text) if match[1].strip() != FROM_THREAD]
    if raised and raised[-1][0] != "Py4JJavaError":
        kind, message = raised[-1]
        return f"{kind}: {message}".strip()
    if conditions := _CONDITION.findall(text):
        return str(conditions[-1]).partition(" SQLSTATE")[0]
    return line_of(error, text)


# --- positions in the checkpoint ----------------------------------------------------------


def unfinished_batch(
    spark: SparkSession, checkpoint: str | Path, options: SourceOptions
) -> tuple[Positions, Positions]:
    """Return the start and end of the micro-batch that was begun and not finished.

    Raises ``NotPoison`` if the last micro-batch is finished, or if the checkpoint belongs to
    another source.
    """
    offsets = _log(spark, checkpoint, "offsets")
    finished = _log(spark, checkpoint, "commits")
    if not offsets or (number := max(offsets)) in finished:
        raise NotPoison("the checkpoint has no micro-batch that was begun and not finished")
    end = _positions(offsets[number], options)
    if end is None:
        raise NotPoison(f"the checkpoint has no position of {options.choice.text}")
    start = _positions(offsets[number - 1], options) if number - 1 in offsets else None
    return start or {}, end


def _positions(text: str, options: SourceOptions) -> Positions | None:
    """Return the positions of the source that reads the channels of ``options``.

    ``text`` is an entry of the checkpoint's log of offsets: two lines for the query, then a line
    for each source. None means that no line has such positions.
    """
    for line in text.splitlines()[2:]:
        try:
            offset: Any = json.loads(line)
            positions = decode(offset)
        except (ValueError, LookupError, TypeError, AttributeError, InvalidArgument):
            continue  # the line of a source of another format
        if positions and all(options.choice.takes(name) for name in positions):
            return positions
    return None


def _qualified(spark: SparkSession, place: str) -> str:
    """Return an absolute path or URI for ``place``, resolved as Spark does.

    Spark resolves a relative path in the working directory of its JVM, or in the cluster's file
    system, and not in the working directory of this program.
    """
    from pyspark.sql.utils import is_remote

    if urlsplit(place).scheme or Path(place).is_absolute() or is_remote():
        return place
    context = spark.sparkContext
    assert context._jvm is not None, "a session in this process has a JVM"
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    return str(files.makeQualified(path).toString())


def _log(spark: SparkSession, checkpoint: str | Path, name: str) -> dict[int, str]:
    """Return the texts of the log ``name`` of a checkpoint, by number of the micro-batch."""
    place = _qualified(spark, str(checkpoint))
    parts = urlsplit(place)
    if parts.scheme in ("", "file"):
        folder = Path(unquote(parts.path) if parts.scheme else place) / name
        files = folder.iterdir() if folder.is_dir() else ()
        return {int(file.name): file.read_text() for file in files if file.name.isdecimal()}
    table = spark.read.option("wholetext", value=True).text(f"{place.rstrip('/')}/{name}")
    rows = table.select("_metadata.file_name", "value").collect()
    return {int(row[0]): str(row[1]) for row in rows if str(row[0]).isdecimal()}
