"""Finds events that make a micro-batch fail, by halving it, and buries them, so that the query goes
on.

It is for streams that are bound to a durable. The durable still owes the failed micro-batch, so any
part of it can be read again, as a batch, until it is known which events fail by themselves. Each of
these goes to the dead event store with the error as its reason. A failure for another reason buries
nothing: an unavailable realm, exhausted memory, a transformation that fails on any input.
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
    is_elsewhere,
    layers,
    line_of,
    whole_text,
)
from penstock_spark.options import SourceOptions, source_options
from penstock_spark.reading.binding import held, outstanding
from penstock_spark.reading.channels import Links, links_of, spans_between
from penstock_spark.reading.offsets import Positions, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POISON_MAX: Final = 10
"""Most events of a micro-batch that are buried; with more, the transformation is wrong."""

_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit)): (.*)", re.M)
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]*")

Attempt = Callable[["DataFrame"], object]
"""Runs the transformation that failed on a table of some of the events, to its end: for example
``lambda table: transformed(table).write.format("noop").mode("overwrite").save()``."""
EventKey = tuple[str, int]
"""Channel and event id."""


class Poison(Struct, frozen=True):
    """An event that was buried."""

    channel: str
    event_id: int
    error: str
    """The error that the event causes; it is the reason stored with its copy in the dead event
    store."""


class Verdict(Struct, frozen=True):
    """The result of a search for poison events."""

    buried: tuple[Poison, ...] = ()
    """The buried events; if there are some, start the query again, which continues without them."""
    why_none: str = ""
    """Why nothing was buried; the query's own error stands."""
    runs: int = 0
    """Number of times that the transformation was run."""


class NotPoison(Exception):
    """No event is to blame for the failure; the text says what is."""


def bury_poison(
    spark: SparkSession,
    options: Mapping[str, str],
    checkpoint: str | Path,
    attempt: Attempt,
    *,
    limit: int = POISON_MAX,
    watch: Callable[[int], object] = lambda run: None,
) -> Verdict:
    """Find and bury the events that made a query's last micro-batch fail, once it has ended.

    ``options`` are those its source was read with, ``durable`` among them; ``checkpoint`` is its
    checkpoint's folder or URI. With more than ``limit`` of them nothing is buried. ``watch`` is
    called with the number of each run of the transformation, before it. Raises ``InvalidArgument``
    for a source that is bound to no durable.
    """
    given = source_options(options)
    if not given.durable:
        raise InvalidArgument("poison needs a durable: give the source the option durable")
    runs: list[int] = []
    try:
        failed = last_begun(spark, checkpoint, given)
        owed = ask_realm(given.realm, lambda session: _owed(session, given, *failed))
        fails = _failing(spark, options, sorted(failed[1]), attempt=attempt, runs=runs, watch=watch)
        found = isolated(owed, fails, limit)
        _bury(given, found)
    except (NotPoison, PenstockError) as error:
        return Verdict(why_none=str(error), runs=len(runs))
    poison = [Poison(channel, event_id, error) for (channel, event_id), error in found.items()]
    return Verdict(tuple(poison), runs=len(runs))


# --- which events -------------------------------------------------------------------------


def isolated(
    keys: Sequence[EventKey], fails: Callable[[Sequence[EventKey]], str], limit: int
) -> dict[EventKey, str]:
    """The keys that fail by themselves, and their errors.

    ``fails`` returns "" for events that do not fail. For one failing event among n it is called
    about log2(n) times. Raises ``NotPoison``.
    """
    if not keys:
        raise NotPoison("the durable has no unacknowledged event of the micro-batch left")
    if error := fails(()):
        raise NotPoison(f"it also fails without any event: {error}")
    if not (error := fails(keys)):
        raise NotPoison("the micro-batch does not fail when it is run again")
    found: dict[EventKey, str] = {}
    # Parts that fail, the first one on top, with the error if it occurred and was not inferred.
    parts = [(keys, error)]
    while parts:
        part, error = parts.pop()
        if len(part) == 1:
            error = error or fails(part)
            if not error:
                raise NotPoison(
                    f"event {part[0][1]} of {part[0][0]} fails only together with others"
                )
            found[part[0]] = error
            if len(found) > limit:
                raise NotPoison(
                    f"more than {limit} events fail, the first with: {next(iter(found.values()))}"
                )
            continue
        half = len(part) // 2
        head, tail = part[:half], part[half:]
        if error := fails(head):
            if other := fails(tail):
                parts.append((tail, other))
            parts.append((head, error))
        else:
            parts.append((tail, ""))
    return found


def _owed(
    session: Session, options: SourceOptions, start: Positions, end: Positions
) -> list[EventKey]:
    """The events of the micro-batch, all of which can be buried."""
    links = links_of(session, options)
    spans = spans_between(options, links, start, end=end)
    owed = outstanding(options, links, spans) or {}
    _check_graves(links, [name for name, ids in owed.items() if ids])
    return [(name, event_id) for name in sorted(owed) for event_id in owed[name]]


def _check_graves(links: Links, names: Sequence[str]) -> None:
    for name in names:
        if not links[name].channel.info().definition.dead_event_store:
            raise NotPoison(
                f"channel {name} has no dead event store to bury events in; set one: "
                f"penstock channel edit {name} --dead-event-store NAME"
            )


def _bury(options: SourceOptions, found: Mapping[EventKey, str]) -> None:
    def bury(session: Session) -> None:
        links = links_of(session, options)
        for name, keys in groupby(found, itemgetter(0)):
            with held(options, links[name]) as hold:
                for key in keys:
                    hold.reject([key[1]], found[key])

    ask_realm(options.realm, bury)


# --- running it again ---------------------------------------------------------------------


def _failing(
    spark: SparkSession,
    options: Mapping[str, str],
    channels: Sequence[str],
    attempt: Attempt,
    runs: list[int],
    watch: Callable[[int], object],
) -> Callable[[Sequence[EventKey]], str]:
    def fails(keys: Sequence[EventKey]) -> str:
        runs.append(len(keys))
        watch(len(runs))
        chosen = {**options, **ranges_of(keys, channels), **secret_options()}
        reader = spark.read.format("penstock").options(**chosen)
        try:
            attempt(reader.load())
        except Exception as error:
            if blameless(error):
                raise NotPoison(
                    f"no single event causes the failure: {reason_of(error)}"
                ) from error
            return reason_of(error)
        return ""

    return fails


def ranges_of(keys: Sequence[EventKey], channels: Sequence[str]) -> dict[str, str]:
    """The options of a read of these events, neighbours in each channel."""
    starts, ends = dict.fromkeys(channels, 0), dict.fromkeys(channels, 0)
    for name, mine in groupby(keys, itemgetter(0)):
        ids = [event_id for _, event_id in mine]
        starts[name], ends[name] = ids[0], ids[-1] + 1
    return {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}


def blameless(error: BaseException) -> bool:
    """Whether an error is of a kind that no event is to blame for.

    Its kind decides: the data of an error of Penstock, the class of any other. Words in its text
    may come from an event.
    """
    if isinstance(error, PenstockError):
        return blame_of(error) == "realm"
    if isinstance(error, OSError | MemoryError):
        return True
    if (found := marked_error(whole_text(error), active_secret())) is not None:
        return found.blame == "realm"
    return is_elsewhere(error)


def reason_of(error: BaseException) -> str:
    """The innermost error of those Spark has wrapped, in one line."""
    if (found := marked_error(whole_text(error), active_secret())) is not None:
        return f"{found.text} [{found.code}]"
    told = (_told(layer, unmarked(str(layer))) for layer in layers(error))
    return next(filter(None, told), type(error).__name__)


def _told(error: BaseException, text: str) -> str:
    """The innermost error in a text, in one line; empty if it only passes on its cause."""
    raised = [found for found in _RAISED.findall(text) if found[1].strip() != FROM_THREAD]
    if raised and raised[-1][0] != "Py4JJavaError":
        kind, message = raised[-1]
        return f"{kind}: {message}".strip()
    if conditions := _CONDITION.findall(text):
        return str(conditions[-1]).partition(" SQLSTATE")[0]
    return line_of(error, text)


# --- what the checkpoint knows ------------------------------------------------------------


def last_begun(
    spark: SparkSession, checkpoint: str | Path, options: SourceOptions
) -> tuple[Positions, Positions]:
    """The bounds of the micro-batch that was begun and not finished.

    Raises ``NotPoison`` when there is none.
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
    """The positions of the source that reads these channels: a line for each source of the
    query, after two others."""
    for line in text.splitlines()[2:]:
        try:
            given: Any = json.loads(line)
            found = decode(given)
        except (ValueError, LookupError, TypeError, AttributeError, InvalidArgument):
            continue  # an offset of another format
        if found and all(options.choice.takes(name) for name in found):
            return found
    return None


def _qualified(spark: SparkSession, place: str) -> str:
    """A path as Spark takes it: one that is not absolute begins where its JVM was started, or on
    the cluster's own file system, whatever this program's working directory is."""
    from pyspark.sql.utils import is_remote

    if urlsplit(place).scheme or Path(place).is_absolute() or is_remote():
        return place
    context = spark.sparkContext
    assert context._jvm is not None, "a session has one"
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    return str(files.makeQualified(path).toString())


def _log(spark: SparkSession, checkpoint: str | Path, name: str) -> dict[int, str]:
    """The entries of one of a checkpoint's logs, by number."""
    place = _qualified(spark, str(checkpoint))
    parts = urlsplit(place)
    if parts.scheme in ("", "file"):
        folder = Path(unquote(parts.path) if parts.scheme else place) / name
        files = folder.iterdir() if folder.is_dir() else ()
        return {int(file.name): file.read_text() for file in files if file.name.isdecimal()}
    table = spark.read.option("wholetext", value=True).text(f"{place.rstrip('/')}/{name}")
    rows = table.select("_metadata.file_name", "value").collect()
    return {int(row[0]): str(row[1]) for row in rows if str(row[0]).isdecimal()}
