"""The audit log: acts of administration, their principals and outcomes, in the log and in
``audit.ndjson``."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from penstock_core.api.access import AuditRecord
from penstock_core.loggers import logger
from penstock_core.tasks import start_task
from penstock_core.vocabulary.argument_errors import decode_json
from penstock_core.vocabulary.errors import Damaged, InvalidArgument, StorageFailed
from penstock_core.vocabulary.ports import Clock

RECORDS_KEPT = 10_000
"""Number of the newest records of each log that stay in memory for queries. The file has all
records."""

Kind = Literal["acts", "sign-ins", "refusals"]
KINDS: Final[tuple[Kind, ...]] = ("acts", "sign-ins", "refusals")

REFUSALS_S = 60.0
"""Seconds between two records of the counted refusals of one principal, operation and outcome."""
SIGN_INS_S = 3_600.0
"""Seconds between two records of the counted sign-ins of one principal. They are counted because
HTTP clients sign in with each request."""
REFUSALS_FIRST = 5
"""Number of refusals of one principal, operation and outcome that are written within a period;
later ones are only counted."""
SIGN_INS_FIRST = 1
"""Number of sign-ins of one principal that are written within a period."""
COUNTS_MAX = 64
"""Maximum number of separate counts in a period, one for each principal, operation and outcome. All
further acts share one count for each outcome."""
OTHERS = "(others)"
"""Principal and operation in the record of the shared count."""

TEXT_MAX = 512
"""Characters of a client's text that a record keeps. Texts are cut because clients without rights
may send long texts, and their refusals are recorded."""
PARTS_MAX = 16
"""Number of items of a list that a record keeps; of a mapping twice as many."""

_SEAL = re.compile(rb',"checksum":"([0-9a-f]{16})"}\Z')

_log = logger("penstock.audit")


def line_of(record: AuditRecord) -> bytes:
    """Return a record as a line of the file: JSON whose last field is a checksum of the rest."""
    text = msgspec.json.encode(record).removesuffix(b"}")
    return b'%s,"checksum":"%016x"}\n' % (text, xxh3_64_intdigest(text))


class LineReader:
    """Reads the lines of an audit log, in order.

    Old versions wrote lines without checksums, so a log may begin with such lines. After the first
    line with a checksum, a line without one is damaged.
    """

    def __init__(self) -> None:
        self._are_sealed = False

    def record(self, line: bytes) -> AuditRecord:
        """Read a line. Raises ``Damaged`` if it is incomplete or was changed."""
        seal = _SEAL.search(line)
        if seal is None and self._are_sealed:
            raise Damaged(
                "it has no checksum, though the lines before it have one: it is incomplete or was "
                "changed"
            )
        if seal is not None:
            self._are_sealed = True
            if xxh3_64_intdigest(line[: seal.start()]) != int(seal[1], 16):
                raise Damaged("its checksum does not match its content: it was changed")
        return decode_json(
            line,
            AuditRecord,
            whole="the line",
            refuse=lambda why: Damaged(f"it is not a record: {why}"),
        )


class LogReader:
    """Reads the files of one log in order, and reports what is wrong with them."""

    def __init__(self) -> None:
        self._lines = LineReader()
        self._last = 0
        """Number of the last readable record."""

    def read(self, content: bytes) -> list[tuple[str, tuple[int, int]]]:
        """Return the faults of a file, each with its range of bytes (start, end)."""
        faults: list[tuple[str, tuple[int, int]]] = []
        start, unreadable = 0, 0
        for line in content.splitlines(keepends=True):
            span, start = (start, start + len(line)), start + len(line)
            try:
                record = self._lines.record(line.removesuffix(b"\n"))
            except Damaged as error:
                unreadable += 1
                faults.append((f"a line of the audit log: {error}", span))
                continue
            # Unreadable lines also have numbers, so these numbers are not missing.
            missing = record.number - self._last - 1 - unreadable
            if self._last and missing > 0:
                faults.append(
                    (f"{missing} records before this one are missing from the audit log", span)
                )
            self._last, unreadable = record.number, 0
        return faults


class AuditAct(NamedTuple):
    """An act to be recorded, before it has a number and a time."""

    principal: str
    operation: str
    target: str
    outcome: str
    detail: Mapping[str, Any]


class Sums:
    """Counts repeated acts: acts with the same principal, operation and outcome. The first of them
    within a period are written, later ones are counted, and the count is written as one record
    after the period."""

    def __init__(self, seconds: float, first: int) -> None:
        self._period_us = int(seconds * 1_000_000)
        self._first = first
        """Number of repeated acts that are written within a period."""
        self._began_us = 0
        self._counts: dict[tuple[str, str, str], int] = {}
        """Number of acts in this period, by principal, operation and outcome."""

    def add(self, entry: AuditAct, now_us: int) -> bool:
        """Count an act. Return True if the count replaces its record, and False if the act needs a
        record."""
        if not self._counts:
            self._began_us = now_us
        key = (entry.principal, entry.operation, entry.outcome)
        if key not in self._counts and len(self._counts) >= COUNTS_MAX:
            # Clients that invent names must not fill the disk.
            key = (OTHERS, OTHERS, entry.outcome)
        self._counts[key] = self._counts.get(key, 0) + 1
        return key[0] == OTHERS or self._counts[key] > self._first

    def is_over(self, now_us: int) -> bool:
        """Whether the period has ended; a clock that was set back also ends it."""
        return bool(self._counts) and not 0 <= now_us - self._began_us < self._period_us

    def take_unwritten(self) -> list[AuditAct]:
        """Return one record for each count that has not been written yet, and reset the counts."""
        counts, self._counts = self._counts, {}
        summaries = []
        for (principal, operation, outcome), count in counts.items():
            # The shared count has no records of its own: all its acts were only counted.
            more = count - (0 if principal == OTHERS else self._first)
            if more > 0:
                detail = {"more": more, "seconds": self._period_us // 1_000_000}
                summaries.append(AuditAct(principal, operation, "", outcome=outcome, detail=detail))
        return summaries


class AuditFile(Protocol):
    """The file that stores the records of one log."""

    async def append(self, line: bytes) -> None:
        """Append a record; it is on disk on return. Raises ``StorageFailed``."""
        ...

    def append_now(self, line: bytes) -> None:
        """Append a line, blocking the loop; it is on disk on return. Raises ``StorageFailed``."""
        ...

    async def newest(self, count: int) -> Sequence[bytes]:
        """Return the last lines, oldest first."""
        ...

    def close(self) -> None: ...


class NoFile:
    """An audit file that stores nothing, for realms in memory."""

    async def append(self, line: bytes) -> None:
        return

    def append_now(self, line: bytes) -> None:
        return

    async def newest(self, count: int) -> Sequence[bytes]:
        return ()

    def close(self) -> None:
        return


class Audit:
    """Three logs: acts, sign-ins and refusals. Every client can cause refusals, so refusals have a
    separate log, where they cannot displace other records. Repeated sign-ins and refusals are only
    counted (:class:`Sums`)."""

    def __init__(self, clock: Clock, files: Mapping[Kind, AuditFile] | None = None) -> None:
        self._clock = clock
        opened = files or {}
        self._logs: dict[Kind, _Log] = {kind: _Log(opened.get(kind) or NoFile()) for kind in KINDS}
        self._sums: dict[Kind, Sums] = {
            "sign-ins": Sums(SIGN_INS_S, SIGN_INS_FIRST),
            "refusals": Sums(REFUSALS_S, REFUSALS_FIRST),
        }
        self._writing = asyncio.Lock()
        self._pending: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Read the records of earlier processes; damaged lines are logged and skipped, and their
        numbers stay unused."""
        for log in self._logs.values():
            await log.load()

    async def note(
        self, principal: str, operation: str, target: str = "", outcome: str = "done", **detail: Any
    ) -> None:
        """Record an act, or its refusal. Raises ``StorageFailed`` if the file could not be
        written; the act itself was done."""
        act = AuditAct(principal, operation, target, outcome=outcome, detail=detail)
        await self._note("acts" if outcome == "done" else "refusals", act)

    def record_later(
        self, principal: str, operation: str, outcome: str = "done", **detail: Any
    ) -> None:
        """Record a sign-in without waiting for the disk, so that clients can still sign in while
        the disk is full."""
        act = AuditAct(principal, operation, "", outcome=outcome, detail=detail)
        kind: Kind = "sign-ins" if outcome == "done" else "refusals"
        now_us, sums = self._clock.now_us(), self._sums[kind]
        # Summaries of the last period come first: counting the act starts the next period.
        summaries = sums.take_unwritten() if sums.is_over(now_us) else []
        if sums.add(act, now_us) and not summaries:
            return
        task = start_task(
            self._write_aside(kind, [*summaries, act], now_us),
            on_failure=lambda error: _log.error("audit.not_written", reason=repr(error)),
        )
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _write_aside(self, kind: Kind, acts: Sequence[AuditAct], now_us: int) -> None:
        """Write acts of :meth:`record_later`. A failure is logged."""
        try:
            async with self._writing:
                for act in acts:
                    await self._logs[kind].write(act, now_us)
        except StorageFailed as error:
            _log.error("audit.not_written", reason=str(error))

    async def _note(self, kind: Kind, act: AuditAct) -> None:
        """Write an act to one of the logs, or count it if it is repeated."""
        # One writer at a time, so that the records are in the file in the order of their numbers.
        async with self._writing:
            now_us = self._clock.now_us()
            await self._write_summaries(kind, now_us)
            sums = self._sums.get(kind)
            if sums is None or not sums.add(act, now_us):
                await self._logs[kind].write(act, now_us)

    async def _write_summaries(self, kind: Kind, now_us: int) -> None:
        sums = self._sums.get(kind)
        if sums is not None and sums.is_over(now_us):
            for summary in sums.take_unwritten():
                await self._logs[kind].write(summary, now_us)

    async def close(self) -> None:
        """Wait for pending records, write the remaining counts, and close the files."""
        await self._wait_for_pending()
        now_us = self._clock.now_us()
        for kind, sums in self._sums.items():
            for summary in sums.take_unwritten():
                self._logs[kind].write_now(summary, now_us)
        for log in self._logs.values():
            log.file.close()

    async def read(
        self, *, kind: str = "acts", before: int | None = None, limit: int = 100
    ) -> list[AuditRecord]:
        """Return the newest records, or the newest below number ``before``, newest first. Raises
        ``InvalidArgument`` for an unknown ``kind``."""
        log = next((log for name, log in self._logs.items() if name == kind), None)
        if log is None:
            raise InvalidArgument(
                f"{kind!r} is not a kind of audit record; the kinds are {', '.join(KINDS)}"
            )
        # Records that record_later() is still writing also belong to the answer.
        await self._wait_for_pending()
        newest_first = reversed(log.records)
        matches = (record for record in newest_first if before is None or record.number < before)
        return [record for record, _ in zip(matches, range(max(0, limit)), strict=False)]

    async def _wait_for_pending(self) -> None:
        """Wait for the records of :meth:`record_later`, which its callers do not wait for."""
        while self._pending:
            await asyncio.wait(self._pending)


class _Log:
    """One of the three audit logs."""

    def __init__(self, file: AuditFile) -> None:
        self.file = file
        self.records: deque[AuditRecord] = deque(maxlen=RECORDS_KEPT)
        self._newest = 0
        """Number of the last record, readable or not."""

    async def load(self) -> None:
        reader = LineReader()
        for line in await self.file.newest(RECORDS_KEPT):
            try:
                record = reader.record(line)
            except Damaged as error:
                # The damaged record has a number, which must not be used again.
                self._newest += 1
                _log.warning("audit.line_unreadable", size=len(line), reason=str(error))
                continue
            self._newest = record.number
            self.records.append(record)

    async def write(self, act: AuditAct, now_us: int) -> None:
        record = self._add(act, now_us)
        try:
            await self.file.append(line_of(record))
        except StorageFailed as error:
            error.add_note(f"{act.operation} of {act.principal} ended as {act.outcome}")
            raise

    def write_now(self, act: AuditAct, now_us: int) -> None:
        """Write a record on the calling thread. Only used while the realm closes, when no other
        task is delayed."""
        try:
            self.file.append_now(line_of(self._add(act, now_us)))
        except StorageFailed as error:
            _log.error("audit.not_written", reason=str(error))

    def _add(self, act: AuditAct, now_us: int) -> AuditRecord:
        """Return the record of an act, with the next number, and add it to the records in
        memory."""
        self._newest += 1
        record = AuditRecord(
            number=self._newest,
            at_us=now_us,
            principal=_shorten(act.principal),
            operation=act.operation,
            target=_shorten(act.target),
            outcome=act.outcome,
            detail={name: _shorten(value) for name, value in act.detail.items()},
        )
        # The record is in memory and in the log before it is in the file, so that a failed write of
        # the file leaves these two traces.
        self.records.append(record)
        _log_record(record)
        return record


def _log_record(record: AuditRecord) -> None:
    _log.info(
        "audit.noted",
        principal=record.principal,
        operation=record.operation,
        target=record.target,
        outcome=record.outcome,
        **{f"detail_{name}": value for name, value in record.detail.items()},
    )


def _shorten(value: Any) -> Any:
    """Return a value as a record keeps it: with long texts cut, and without the end of long
    lists."""
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}\N{HORIZONTAL ELLIPSIS}"
    if isinstance(value, Mapping):
        return {str(name): _shorten(item) for name, item in list(value.items())[: 2 * PARTS_MAX]}
    if isinstance(value, list | tuple):
        parts = [str(item)[: TEXT_MAX // PARTS_MAX] for item in value[:PARTS_MAX]]
        return parts if len(parts) == len(value) else [*parts, "\N{HORIZONTAL ELLIPSIS}"]
    return value
