"""The step ``replay``: publishes the events of archives again, at a pace, each event once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import field

from penstock.client.sync.sync import Session, connect
from penstock.tables import Table
from penstock_core.columns.schema.moments import us_of
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.names import unescaped
from penstock_spark.pipelines.bounds import (
    bound,
    check_selector,
    format_time,
    parse_bound,
)
from penstock_spark.pipelines.sources import Source
from penstock_spark.pipelines.step import Context, Progress, Step, Work, WorkOutcome
from penstock_spark.replaying.archived import ROWS, Archived, Bounds
from penstock_spark.replaying.live import LiveHistory, RealmOutlet, WallTimer
from penstock_spark.replaying.pace import FLAT_OUT, ReplayPace, Timer
from penstock_spark.replaying.position import PositionFile, open_position
from penstock_spark.replaying.replay import ReplayOutcome, ReplayProgress, ReplayRoute, ReplayRun

_TIMES: Final = re.compile(r"\s*(?:x\s*(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*x)\s*", re.IGNORECASE)
_SPEEDS: Final = {"original": 1.0, "flat out": FLAT_OUT}
REPORT_US: Final = 500_000
"""Shortest time between two reports of progress, in microseconds."""


class ReplayStep(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Publishes events of archives in the order of time; continues after an interruption."""

    kind: ClassVar[str] = "replay"

    archive: str | dict[str, str] = ""
    """The path or URI of an archive, whose last part is the name of the channel. For several
    archives, or for other names of folders, a table of ``channel = "path"``."""

    live: bool | tuple[str, ...] = False
    """Whether the replay continues with the events of the channels after their archives; or the
    names of channels to replay, which need no archive."""

    first: Any = field(name="from", default=None)
    """The first event to replay: an id, a time, or a table of ``channel = id``."""

    until: Any = None
    """The event before which the replay ends: an id, a time, or a table of ``channel = id``."""

    selector: str = ""
    """A condition on the events to replay; empty means all."""

    speed: str | float = "original"
    """The pace: ``"original"``, a factor such as ``10``, ``"10x"`` or ``0.5``, or ``"flat out"``
    for a replay without waits."""

    channel: str = ""
    """Name of the target of all events; empty means the name of the original channel."""

    prefix: str = ""
    """Prefix of the names of target channels."""

    replay_of: bool = False
    """Whether events get a property ``replay_of`` with their original channel, id and time."""

    def __post_init__(self) -> None:
        if not self.archive and not isinstance(self.live, tuple):
            raise InvalidArgument(
                'archive is missing; give the path of an archive such as "lake/flights", or '
                'name channels to replay from the realm itself: live = ["flights"]'
            )
        if self.channel and self.prefix:
            raise InvalidArgument("channel and prefix are both given; give only one of them")
        speed_of(self.speed)
        parse_bound("from", self.first)
        parse_bound("until", self.until)
        for key, value in (("from", self.first), ("until", self.until)):
            for name in value if isinstance(value, dict) else ():
                if name not in self.channels:
                    raise InvalidArgument(
                        f"{key} names {name}, which is not replayed; replayed are "
                        f"{', '.join(self.channels)}"
                    )
        check_selector(self.selector)
        if not (self.channel or self.prefix) and self.live:
            raise InvalidArgument(
                "live would replay a channel into itself; give another channel, or a prefix"
            )

    @property
    def archives(self) -> Mapping[str, str]:
        """The path of each archive, by name of the channel."""
        if isinstance(self.archive, dict):
            return self.archive
        return {channel_of(self.archive): self.archive} if self.archive else {}

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the replayed channels, sorted."""
        live = self.live if isinstance(self.live, tuple) else ()
        return tuple(sorted({*self.archives, *live}))

    @property
    def targets(self) -> Mapping[str, str]:
        """The name of the target channel, by name of the replayed channel."""
        return {name: self.channel or f"{self.prefix}{name}" for name in self.channels}

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        tables = [f"table {path}" for path in self.archives.values()]
        return (*tables, *(f"channel {name}" for name in self.channels if self.is_live(name)))

    def writes(self) -> tuple[str, ...]:
        return tuple(f"channel {name}" for name in sorted(set(self.targets.values())))

    def is_live(self, channel: str) -> bool:
        """Return whether events that the channel still stores are also replayed."""
        return channel in self.live if isinstance(self.live, tuple) else self.live

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        """Do nothing: other checks need the archive and the realm."""

    def plan(self, context: Context) -> Work:
        """Return the work. It ends after the last event; if it is stopped earlier, the next run
        continues."""
        return partial(replay, self, context)


def replay(step: ReplayStep, context: Context) -> WorkOutcome:
    """Replay the events that are not replayed yet.

    Raises ``NameDoesNotExist`` if an archive or a channel does not exist, ``InvalidArgument`` if a
    table is not an archive or settings have changed since the replay began, and ``IllegalState`` if
    the position cannot be read or events of an interrupted portion are missing.
    """
    position_file = PositionFile(context.checkpoint)
    settings = identity(step)
    with connect(context.url) as session:
        for target in sorted(set(step.targets.values())):
            session.channels.get(target)  # raises before any event is published
        # The merge loads a batch of each channel, so the channels share the rows in memory.
        rows = max(1_024, ROWS // len(step.channels))
        histories = [
            history_of(step, name, context, session=session, rows=rows) for name in step.channels
        ]
        position = open_position(position_file, settings)
        total = _count(histories, position.next_ids)
        timer = WallTimer(context.stopping)
        replay_run = ReplayRun(
            histories,
            ReplayRoute(step.targets, step.replay_of),
            RealmOutlet(session),
            place=position_file,
            pace=ReplayPace(speed_of(step.speed)),
            timer=timer,
            replays=settings,
            report=Reporting(step.name, context, timer, total=total).report,
        )
        done = replay_run.run()
    return outcome(step, done)


def history_of(
    step: ReplayStep, name: str, context: Context, session: Session, rows: int
) -> Archived | LiveHistory:
    """Return the events to replay of a channel: those of its archive, of the channel itself, or of
    both in this order."""
    bounds = bounds_of(step, name)
    archived = None
    path = step.archives.get(name)
    if path is not None:
        dataset = Table.found(context.located(path)).dataset()
        archived = Archived(name, dataset, bounds, selector=step.selector, rows=rows)
    if archived is not None and not step.is_live(name):
        return archived
    return LiveHistory(session.channels.get(name), bounds, step.selector, before=archived)


def bounds_of(step: ReplayStep, channel: str) -> Bounds:
    """Return the ids and times of the events to replay of a channel."""
    first, end = bound(step.first, channel), bound(step.until, channel)
    return Bounds(
        first if isinstance(first, int) else 0,
        end if isinstance(end, int) else None,
        us_of(first) if isinstance(first, datetime) else None,
        until_us=us_of(end) if isinstance(end, datetime) else None,
    )


def identity(step: ReplayStep) -> dict[str, str]:
    """Return the settings that identify a replay, by key. A stored position is valid only for equal
    settings. The pace is not among them, so it may change."""
    return {
        "archive": ", ".join(f"{name} = {path}" for name, path in sorted(step.archives.items())),
        "from": str(step.first or ""),
        "until": str(step.until or ""),
        "selector": step.selector,
        "channel": ", ".join(f"{name} to {to}" for name, to in sorted(step.targets.items())),
    }


def speed_of(value: str | float) -> float:
    """Return the speed as a multiple of the original; 0 for a replay without waits. Raises
    ``InvalidArgument`` for another value."""
    speed = _SPEEDS.get(value.strip().lower()) if isinstance(value, str) else float(value)
    if speed is None and (times := _TIMES.fullmatch(str(value))) is not None:
        speed = float(times[1] or times[2])
        speed = speed or None
    elif not isinstance(value, str) and not (speed and speed > 0 and math.isfinite(speed)):
        speed = None
    if speed is None:
        raise InvalidArgument(
            f'speed is {value!r}; it must be "original", a number of times as fast such as 10 or '
            '"10x", or "flat out"'
        )
    return speed


def channel_of(path: str) -> str:
    """Return the name of the channel whose archive is at ``path``. The step ``archive`` names the
    folder after the channel, with some characters escaped."""
    return unescaped(path.rstrip("/").rpartition("/")[2], "~")


def _count(histories: list[Archived | LiveHistory], next_ids: Mapping[str, int]) -> int | None:
    """Return the number of events from ``next_ids`` on; None if counting would need to read
    them."""
    total = 0
    for history in histories:
        remaining = history.count(next_ids.get(history.channel, 0))
        if remaining is None:
            return None
        total += remaining
    return total


class Reporting:
    """Reports the progress of a replay, at most once in :data:`REPORT_US`."""

    def __init__(self, step: str, context: Context, timer: Timer, total: int | None) -> None:
        self._step = step
        self._context = context
        self._timer = timer
        self._total = total
        self._at_us = timer.now_us()
        self._events = 0
        self._rate = 0.0

    def report(self, progress: ReplayProgress) -> None:
        """Report the progress after a portion, unless the last report is too recent. A refusal and
        the end are always reported."""
        now_us = self._timer.now_us()
        since_us = now_us - self._at_us
        is_last = progress.events == self._total
        if since_us < REPORT_US and not progress.refusal and not is_last:
            return
        if since_us > 0:
            self._rate = (progress.events - self._events) * 1e6 / since_us
        self._at_us, self._events = now_us, progress.events
        self._context.report(
            Progress(
                step=self._step,
                rows=progress.events,
                rows_out=progress.events,
                rows_per_s=self._rate,
                rows_out_per_s=self._rate,
                lag_ms=progress.late_us // 1_000,
                total=self._total,
                text=progress.refusal or f"at {format_time(progress.original_us)}",
            )
        )


def outcome(step: ReplayStep, done: ReplayOutcome) -> WorkOutcome:
    """Return the result of a run as text and figures."""
    targets = sorted(set(step.targets.values()))
    where = targets[0] if len(targets) == 1 else f"{len(targets)} channels"
    text = f"{done.events:,} events replayed to {where}"
    if done.total != done.events:
        text += f", {done.total:,} in all runs"
    if not done.is_complete:
        text += "; the next run continues from there"
    if done.late_max_us >= 1_000_000:
        text += f"; at most {done.late_max_us / 1e6:,.1f} s late"
    return WorkOutcome(
        text=text,
        rows=done.events,
        facts={
            "events": done.events,
            "events_of_all_runs": done.total,
            "is_complete": done.is_complete,
            "late_max_ms": done.late_max_us // 1_000,
            "channels": targets,
        },
    )
