"""Redrives portions of dead events: reads a portion, decides, and commits the verdict in one step.

One transaction publishes and records the events of a portion, and removes them from the dead event
store. A redrive therefore needs no stored position: an event that is still in the store was not
redriven, and a redriven event is no longer there, whichever process was killed in between. Two
redrives of one store do not interfere: the realm refuses the second transaction that names an
event, and that redrive reads again.
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
from penstock_spark.redriving.dead import DeadEventChannel, DeadEventQueue
from penstock_spark.redriving.verdict import (
    RedriveRules,
    RedriveVerdict,
    verdict_of_result,
    verdict_unchanged,
)
from penstock_spark.replaying.pace import Timer

PORTION: Final = 10_000
"""Default for the largest number of dead events in one transaction."""
POLL_US: Final = 1_000_000
"""Microseconds between two reads of a continuous redrive that has found no dead events, and between
a refused commit and its repetition."""
ATTEMPTS_MAX: Final = 30
"""Largest number of commits in a row that may fail because other readers removed or hold events of
the portion."""

Transformation = Callable[[pa.RecordBatch], pa.Table]
"""Returns the rows to publish for a portion of stored dead events."""


class CommitVerdict(Protocol):
    """Commits a verdict in one step."""

    def __call__(self, verdict: RedriveVerdict) -> None:
        """Apply the whole verdict or nothing.

        Raises ``IllegalState`` if an event is no longer stored, and ``Refused`` if the realm
        refuses for another reason.
        """
        ...


class RedriveCounts(Struct, frozen=True):
    """Numbers of events that a run of a redrive has processed so far."""

    looked_at: int = 0
    """Dead events that were read and decided."""
    redriven: int = 0
    """Dead events that were published again and removed from the store."""
    dropped: int = 0
    """Dead events that were removed from the store and not published."""
    kept: int = 0
    """Dead events that stay in the store."""
    homeless: int = 0
    """Number of kept events without a target channel."""
    published: int = 0
    """Published events; a transformation may make several from one dead event."""
    refusal: str = ""
    """Why the realm refuses the current portion; empty if it does not."""


class RedriveOutcome(Struct, frozen=True):
    """The result of a run of a redrive."""

    done: RedriveCounts
    channels: dict[str, int]
    """Number of published events, by channel."""
    is_complete: bool
    """Whether every dead event was processed; False if the run was stopped earlier."""


class RedriveRun:
    """Processes the events of a dead event store. A run decides each event once."""

    def __init__(
        self,
        source: DeadEventChannel | DeadEventQueue,
        rules: Callable[[], RedriveRules],
        commit: CommitVerdict,
        *,
        timer: Timer,
        transformation: Transformation | None = None,
        report: Callable[[RedriveCounts], None] = lambda _: None,
        portion: int = PORTION,
    ) -> None:
        """``rules`` is called for each portion, because the set of target channels can change.

        Without a ``transformation``, events are published unchanged. ``portion`` is the largest
        number of dead events in one transaction.
        """
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
        """Dead events before this id were decided in this run."""

    def run(self, *, once: bool) -> RedriveOutcome:
        """Run until the timer stops the redrive or, with ``once``, until every dead event was
        processed.

        Raises ``InvalidArgument`` if a result of the transformation is not valid, and
        ``IllegalState`` if other readers removed events during :data:`ATTEMPTS_MAX` attempts.
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
        """Decide and commit a portion. After a refusal, read a portion again and retry, until the
        commit succeeds, the timer stops the redrive, or no events are left."""
        attempts = 0
        size = self._portion
        portion: pa.RecordBatch | None = dead
        while portion is not None:
            verdict = self._verdict(portion)
            try:
                self._commit(verdict)
            except Refused as refusal:
                # Only refusals because of lost events are limited. The redrive waits without a
                # limit for a realm that is full or paused.
                attempts += isinstance(refusal, IllegalState)
                has_lost_events = isinstance(refusal, IllegalState) and attempts < ATTEMPTS_MAX
                if not (refusal.retryable or has_lost_events):
                    raise
                self._report(self._counts_so_far(str(refusal)))
                if isinstance(refusal, CapacityReached | MemoryLimit) and portion.num_rows > 1:
                    size = portion.num_rows // 2  # half of the portion may fit into the realm
                elif self._timer.wait(POLL_US):
                    return
                portion = self._source.read(self._next_id, size)
            else:
                self._count(verdict, portion)
                return

    def _verdict(self, dead: pa.RecordBatch) -> RedriveVerdict:
        """Decide a portion, with the transformation if the redrive has one."""
        rules = self._rules()
        if self._transformation is None:
            return verdict_unchanged(dead, rules)
        return verdict_of_result(dead, self._transformation(dead), rules)

    def _count(self, verdict: RedriveVerdict, dead: pa.RecordBatch) -> None:
        """Add a committed portion to the counts, report them, and continue after the portion."""
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

    def _counts_so_far(self, refusal: str = "") -> RedriveCounts:
        return RedriveCounts(**self._counts, refusal=refusal)


class RealmCommit:
    """Commits each verdict as one transaction of a realm."""

    def __init__(
        self, session: Session, source: DeadEventChannel | DeadEventQueue, record: str = ""
    ) -> None:
        """``record`` names the channel for records of the events that leave the store; empty means
        no records. The channel is created if it does not exist. Raises ``InvalidArgument`` if it is
        the dead event store itself."""
        if record == source.name:
            raise InvalidArgument(
                f"record is {record!r}, which stores the dead events; name another channel"
            )
        self._session = session
        self._source = source
        self._record = _record_channel(session, record) if record else None
        self._stores: dict[str, Channel | Queue] = {}

    def __call__(self, verdict: RedriveVerdict) -> None:
        leaving_count = len(verdict.redriven) + len(verdict.dropped)
        if not leaving_count:
            return
        with self._session.transaction() as transaction:
            for name, body in verdict.bodies.items():
                transaction.publish_bodies(self._store(name), [body])
            if self._record is not None and verdict.record is not None:
                transaction.publish_bodies(self._record, [verdict.record])
            if len(verdict.redriven):
                transaction.redrive(self._source.store, verdict.redriven.tolist())
            if len(verdict.dropped):
                transaction.purge(self._source.store, verdict.dropped.tolist())

    def targets(self) -> frozenset[str]:
        """Return the names of all channels and queues of the realm, without the dead event
        store."""
        names = {*self._session.channels.list(), *self._session.queues.list()}
        return frozenset(names - {self._source.name})

    def _store(self, name: str) -> Channel | Queue:
        """Return the channel or queue ``name``. Raises ``NameDoesNotExist``."""
        store = self._stores.get(name)
        if store is None:
            try:
                store = self._session.channels.get(name)
            except NameDoesNotExist:
                store = self._session.queues.get(name)
            self._stores[name] = store
        return store


def commit_nothing(verdict: RedriveVerdict) -> None:
    """Ignore the verdict: the ``CommitVerdict`` of a dry run."""


def _record_channel(session: Session, name: str) -> Channel:
    """Return the channel for records, which is created if it does not exist."""
    try:
        return session.channels.get(name)
    except NameDoesNotExist:
        pass
    try:
        return session.channels.create(name, type="persistent")
    except NameAlreadyBound:  # another step has just created it
        return session.channels.get(name)
