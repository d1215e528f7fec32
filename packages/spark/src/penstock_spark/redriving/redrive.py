"""Redrives portions of dead events: reads them, decides, and commits the verdict in one step.

One transaction publishes and records the events of a portion, and removes them from the dead event
store. So a redrive has no position: an event that is still dead was not redriven, and a redriven
event is no longer dead, whichever process was killed in between. Two redrives of one store do not
interfere: the second one to name an event is refused, and reads again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

import pyarrow as pa
from msgspec import Struct

from penstock.client.sync.sync import Channel, Queue, Session
from penstock_core.columns.events.batch import ids_of
from penstock_core.vocabulary.errors import (
    CapacityReached,
    IllegalState,
    InvalidArgument,
    MemoryLimit,
    NameAlreadyBound,
    NameDoesNotExist,
    Refused,
)
from penstock_spark.redriving.dead import ChannelOfDead, QueueOfDead
from penstock_spark.redriving.verdict import (
    RedriveRules,
    RedriveVerdict,
    verdict_of_result,
    verdict_unchanged,
)
from penstock_spark.replaying.pace import Timer

PORTION: Final = 10_000
"""Maximum number of dead events in one transaction, by default."""
POLL_US: Final = 1_000_000
"""Microseconds between two polls of a continuous redrive for new dead events, and between
retries."""
ATTEMPTS_MAX: Final = 30
"""Attempts in a row that may fail because other readers removed or hold events of the portion."""

Transformation = Callable[[pa.RecordBatch], pa.Table]
"""Makes rows to publish from stored dead events."""


class CommitVerdict(Protocol):
    """Commits a verdict: all of it or nothing."""

    def __call__(self, verdict: RedriveVerdict) -> None:
        """Commit. Raises ``IllegalState`` if an event is no longer stored, and ``Refused``."""
        ...


class RedriveCounts(Struct, frozen=True):
    """The counts of a redrive so far."""

    looked_at: int = 0
    redriven: int = 0
    dropped: int = 0
    kept: int = 0
    homeless: int = 0
    """Number of kept events without a target channel."""
    published: int = 0
    is_refused: str = ""
    """Why the realm refuses events at present."""


class RedriveOutcome(Struct, frozen=True):
    """The result of a run of a redrive."""

    done: RedriveCounts
    channels: dict[str, int]
    """Events published, by channel."""
    is_complete: bool
    """Whether every dead event was processed."""


class RedriveRun:
    """Processes the events of a dead event store, each once in a run."""

    def __init__(
        self,
        source: ChannelOfDead | QueueOfDead,
        rules: Callable[[], RedriveRules],
        commit: CommitVerdict,
        *,
        timer: Timer,
        transformation: Transformation | None = None,
        report: Callable[[RedriveCounts], None] = lambda _: None,
        portion: int = PORTION,
    ) -> None:
        self._source = source
        self._rules = rules
        self._commit = commit
        self._timer = timer
        self._transformation = transformation
        self._report = report
        self._portion = portion
        self._counts: Counter[str] = Counter()
        self._channels: Counter[str] = Counter()
        self._next_id = 0

    def run(self, *, once: bool) -> RedriveOutcome:
        """Run until the timer stops it or, with ``once``, until every dead event was processed.

        Raises ``InvalidArgument`` for a result that does not name its events, ``IllegalState`` if
        other readers keep taking them.
        """
        is_complete = False
        while not self._timer.wait(0):
            dead = self._source.read(self._next_id, self._portion)
            if dead is not None:
                self._process_portion(dead)
            elif once:
                is_complete = True
                break
            else:
                self._timer.wait(POLL_US)
        return RedriveOutcome(self._counts_so_far(), dict(self._channels), is_complete)

    def _process_portion(self, dead: pa.RecordBatch) -> None:
        attempts = 0
        size = self._portion
        portion: pa.RecordBatch | None = dead
        while portion is not None:
            verdict = self._verdict(portion)
            try:
                self._commit(verdict)
            except Refused as refusal:
                # Only lost events count as attempts: a full or paused realm is waited for without a
                # limit.
                attempts += isinstance(refusal, IllegalState)
                has_lost_events = isinstance(refusal, IllegalState) and attempts < ATTEMPTS_MAX
                if not (refusal.retryable or has_lost_events):
                    raise
                self._report(self._counts_so_far(str(refusal)))
                if isinstance(refusal, CapacityReached | MemoryLimit) and portion.num_rows > 1:
                    size = portion.num_rows // 2  # a part may fit
                elif self._timer.wait(POLL_US):
                    return
                portion = self._source.read(self._next_id, size)
            else:
                self._count(verdict, portion)
                return

    def _verdict(self, dead: pa.RecordBatch) -> RedriveVerdict:
        rules = self._rules()
        if self._transformation is None:
            return verdict_unchanged(dead, rules)
        return verdict_of_result(dead, self._transformation(dead), rules)

    def _count(self, verdict: RedriveVerdict, dead: pa.RecordBatch) -> None:
        self._next_id = int(ids_of(dead)[-1]) + 1
        self._channels.update(verdict.published)
        self._counts.update(
            looked_at=dead.num_rows,
            redriven=len(verdict.redriven),
            dropped=len(verdict.dropped),
            kept=len(verdict.kept),
            homeless=verdict.homeless,
            published=verdict.published.total(),
        )
        self._report(self._counts_so_far())

    def _counts_so_far(self, is_refused: str = "") -> RedriveCounts:
        return RedriveCounts(**self._counts, is_refused=is_refused)


class RealmCommit:
    """Commits verdicts on a realm."""

    def __init__(
        self, session: Session, source: ChannelOfDead | QueueOfDead, record: str = ""
    ) -> None:
        """``record`` is the channel that gets a record of every event that leaves; it is created
        if it is missing. Raises ``InvalidArgument`` if it is the dead event store."""
        if record == source.name:
            raise InvalidArgument(
                f"record is {record!r}, which holds the dead events; name another channel"
            )
        self._session = session
        self._source = source
        self._record = _record_channel(session, record) if record else None
        self._stores: dict[str, Channel | Queue] = {}

    def __call__(self, verdict: RedriveVerdict) -> None:
        leaving = len(verdict.redriven) + len(verdict.dropped)
        if not leaving:
            return
        with self._session.transaction() as unit:
            for name, body in verdict.bodies.items():
                unit.publish_bodies(self._store(name), [body])
            if self._record is not None and verdict.record is not None:
                unit.publish_bodies(self._record, [verdict.record])
            if len(verdict.redriven):
                unit.redrive(self._source.store, verdict.redriven.tolist())
            if len(verdict.dropped):
                unit.purge(self._source.store, verdict.dropped.tolist())

    def targets(self) -> frozenset[str]:
        """Return all channels and queues that can be published to now."""
        names = {*self._session.channels.list(), *self._session.queues.list()}
        return frozenset(names - {self._source.name})

    def _store(self, name: str) -> Channel | Queue:
        store = self._stores.get(name)
        if store is None:
            try:
                store = self._session.channels.get(name)
            except NameDoesNotExist:
                store = self._session.queues.get(name)
            self._stores[name] = store
        return store


def commit_nothing(verdict: RedriveVerdict) -> None:
    """Commit nothing, as a dry run does."""


def _record_channel(session: Session, name: str) -> Channel:
    try:
        return session.channels.get(name)
    except NameDoesNotExist:
        pass
    try:
        return session.channels.create(name, type="persistent")
    except NameAlreadyBound:  # another step has just created it
        return session.channels.get(name)
