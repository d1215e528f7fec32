"""The audit log: who administered what, and how it ended, in the log and in ``audit.ndjson``."""

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
"""Newest records that are held in memory for queries; the file has all."""

Kind = Literal["acts", "sign-ins", "refusals"]
KINDS: Final[tuple[Kind, ...]] = ("acts", "sign-ins", "refusals")

REFUSALS_S = 60.0
"""Seconds for which refusals of one kind are counted before the count is written."""
SIGN_INS_S = 3_600.0
"""Likewise sign-ins of one principal: who asks over HTTP signs in with each request."""
REFUSALS_FIRST = 5
"""So many of one kind are written as they are, within the time; then they are counted."""
SIGN_INS_FIRST = 1
SUMS_MAX = 64
"""Kinds counted apart at the same time; the rest is counted as one."""
OTHERS = "(others)"

TEXT_MAX = 512
"""Signs of what somebody has given that a record keeps: who may do nothing may ask for much."""
PARTS_MAX = 16

_SEAL = re.compile(rb',"checksum":"([0-9a-f]{16})"}\Z')

_log = logger("penstock.audit")


def line_of(record: AuditRecord) -> bytes:
    """A record as a line of the file: JSON, whose last field is the checksum of all before it."""
    text = msgspec.json.encode(record).removesuffix(b"}")
    return b'%s,"checksum":"%016x"}\n' % (text, xxh3_64_intdigest(text))


class LineReader:
    """Reads the lines of an audit log, in their order.

    The first ones may be of a version that wrote no checksums; behind one that has it, one
    without is damaged.
    """

    def __init__(self) -> None:
        self._are_sealed = False

    def record(self, line: bytes) -> AuditRecord:
        """Read a line. Raises ``Damaged`` where it is torn, or not what was written."""
        seal = _SEAL.search(line)
        if seal is None and self._are_sealed:
            raise Damaged(
                "it has no checksum, though the lines before it have one: it is incomplete or was "
                "changed"
            )
        if seal is not None:
            self._are_sealed = True
            if xxh3_64_intdigest(line[: seal.start()]) != int(seal[1], 16):
                raise Damaged("its checksum does not fit: it was changed")
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
        """The number of the last record that could be read."""

    def read(self, content: bytes) -> list[tuple[str, tuple[int, int]]]:
        """List the faults of a file, each with its first byte and the one after its last."""
        found: list[tuple[str, tuple[int, int]]] = []
        at, unread = 0, 0
        for line in content.splitlines(keepends=True):
            place, at = (at, at + len(line)), at + len(line)
            try:
                record = self._lines.record(line.removesuffix(b"\n"))
            except Damaged as error:
                unread += 1
                found.append((f"a line of the audit log: {error}", place))
                continue
            missing = record.number - self._last - 1 - unread
            if self._last and missing > 0:
                found.append(
                    (f"{missing} records before this one are missing from the audit log", place)
                )
            self._last, unread = record.number, 0
        return found


class AuditAct(NamedTuple):
    """A record that is to be written."""

    principal: str
    operation: str
    target: str
    outcome: str
    detail: Mapping[str, Any]


class Sums:
    """Counts repeated records: the first of a kind are written, those that follow within a time are
    counted, and the count is written in one record afterwards."""

    def __init__(self, seconds: float, first: int) -> None:
        self._lasts_us = int(seconds * 1_000_000)
        self._first = first
        self._began_us = 0
        self._seen: dict[tuple[str, str, str], int] = {}

    def counts(self, entry: AuditAct, now_us: int) -> bool:
        """Whether it was counted; else it is to be written."""
        if not self._seen:
            self._began_us = now_us
        key = (entry.principal, entry.operation, entry.outcome)
        if key not in self._seen and len(self._seen) >= SUMS_MAX:
            key = (OTHERS, OTHERS, entry.outcome)  # made-up names must not fill the disk
        self._seen[key] = self._seen.get(key, 0) + 1
        return key[0] == OTHERS or self._seen[key] > self._first

    def is_over(self, now_us: int) -> bool:
        """Whether the count is to be written now; a clock that was set back also ends the
        period."""
        return bool(self._seen) and not 0 <= now_us - self._began_us < self._lasts_us

    def all(self) -> list[AuditAct]:
        """The counts that are not written yet."""
        seen, self._seen = self._seen, {}
        found = []
        for (principal, operation, outcome), number in seen.items():
            more = number - (0 if principal == OTHERS else self._first)
            if more > 0:
                detail = {"more": more, "seconds": self._lasts_us // 1_000_000}
                found.append(AuditAct(principal, operation, "", outcome=outcome, detail=detail))
        return found


class AuditFile(Protocol):
    """Where audit records are stored."""

    async def append(self, line: bytes) -> None:
        """Append a record; it is on disk on return. Raises ``StorageFailed``."""
        ...

    def append_now(self, line: bytes) -> None:
        """Append a line, blocking the loop: on disk when this returns. Raises ``StorageFailed``."""
        ...

    async def newest(self, count: int) -> Sequence[bytes]:
        """The last lines, oldest first."""
        ...

    def close(self) -> None: ...


class NoFile:
    """Stores nothing."""

    async def append(self, line: bytes) -> None:
        return

    def append_now(self, line: bytes) -> None:
        return

    async def newest(self, count: int) -> Sequence[bytes]:
        return ()

    def close(self) -> None:
        return


class Audit:
    """The three logs: acts; sign-ins; and refusals, which anybody can cause and which therefore
    push out nothing else, and are counted where there are many (:class:`Sums`)."""

    def __init__(self, clock: Clock, files: Mapping[Kind, AuditFile] | None = None) -> None:
        self._clock = clock
        held = files or {}
        self._logs: dict[Kind, _Log] = {kind: _Log(held.get(kind) or NoFile()) for kind in KINDS}
        self._sums: dict[Kind, Sums] = {
            "sign-ins": Sums(SIGN_INS_S, SIGN_INS_FIRST),
            "refusals": Sums(REFUSALS_S, REFUSALS_FIRST),
        }
        self._writing = asyncio.Lock()
        self._pending: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Read what earlier lives have written; a line that is damaged is told and passed over,
        and its number is missing."""
        for log in self._logs.values():
            await log.load()

    async def note(
        self, principal: str, operation: str, target: str = "", outcome: str = "done", **detail: Any
    ) -> None:
        """Write an act down, or that it was refused. Raises ``StorageFailed``: it was done, and is
        not in the file."""
        entry = AuditAct(principal, operation, target, outcome=outcome, detail=detail)
        await self._note("acts" if outcome == "done" else "refusals", entry)

    def aside(self, principal: str, operation: str, outcome: str = "done", **detail: Any) -> None:
        """Record a sign-in without waiting for it, so that a full disk keeps nobody from signing
        in."""
        entry = AuditAct(principal, operation, "", outcome=outcome, detail=detail)
        kind: Kind = "sign-ins" if outcome == "done" else "refusals"
        now_us, sums = self._clock.now_us(), self._sums[kind]
        spoken = sums.all() if sums.is_over(now_us) else []
        if sums.counts(entry, now_us) and not spoken:
            return
        work = start_task(
            self._noted_aside(kind, [*spoken, entry], now_us),
            on_failure=lambda error: _log.error("audit.not_written", reason=repr(error)),
        )
        self._pending.add(work)
        work.add_done_callback(self._pending.discard)

    async def _noted_aside(self, kind: Kind, entries: Sequence[AuditAct], now_us: int) -> None:
        try:
            async with self._writing:
                for each in entries:
                    await self._logs[kind].write(each, now_us)
        except StorageFailed as error:
            _log.error("audit.not_written", reason=str(error))

    async def _note(self, kind: Kind, entry: AuditAct) -> None:
        async with self._writing:
            now_us = self._clock.now_us()
            await self._say_sums(kind, now_us)
            sums = self._sums.get(kind)
            if sums is None or not sums.counts(entry, now_us):
                await self._logs[kind].write(entry, now_us)

    async def _say_sums(self, kind: Kind, now_us: int) -> None:
        sums = self._sums.get(kind)
        if sums is not None and sums.is_over(now_us):
            for each in sums.all():
                await self._logs[kind].write(each, now_us)

    async def close(self) -> None:
        """Wait for what is being written, write the counts that are still pending, and close the
        files."""
        await self._written()
        now_us = self._clock.now_us()
        for kind, sums in self._sums.items():
            for each in sums.all():
                self._logs[kind].write_now(each, now_us)
        for log in self._logs.values():
            log.file.close()

    async def read(
        self, *, kind: str = "acts", before: int | None = None, limit: int = 100
    ) -> list[AuditRecord]:
        """The newest records, or the newest below number ``before``; the newest first. Raises
        ``InvalidArgument`` for a ``kind`` there is not."""
        log = next((each for name, each in self._logs.items() if name == kind), None)
        if log is None:
            raise InvalidArgument(
                f"there is no audit log of {kind!r}; there are {', '.join(KINDS)}"
            )
        await self._written()
        found = (each for each in reversed(log.records) if before is None or each.number < before)
        return [record for record, _ in zip(found, range(max(0, limit)), strict=False)]

    async def _written(self) -> None:
        """Wait for the records that nobody else waits for."""
        while self._pending:
            await asyncio.wait(self._pending)


class _Log:
    """One of the three logs."""

    def __init__(self, file: AuditFile) -> None:
        self.file = file
        self.records: deque[AuditRecord] = deque(maxlen=RECORDS_KEPT)
        self._newest = 0
        """The number of the last record, read or not."""

    async def load(self) -> None:
        reader = LineReader()
        for line in await self.file.newest(RECORDS_KEPT):
            try:
                record = reader.record(line)
            except Damaged as error:
                self._newest += 1
                _log.warning("audit.line_unreadable", size=len(line), reason=str(error))
                continue
            self._newest = record.number
            self.records.append(record)

    async def write(self, entry: AuditAct, now_us: int) -> None:
        record = self._added(entry, now_us)
        try:
            await self.file.append(line_of(record))
        except StorageFailed as error:
            error.add_note(f"{entry.operation} of {entry.principal} ended as {entry.outcome}")
            raise

    def write_now(self, entry: AuditAct, now_us: int) -> None:
        """Write a record at the end of the realm, when nothing else runs."""
        try:
            self.file.append_now(line_of(self._added(entry, now_us)))
        except StorageFailed as error:
            _log.error("audit.not_written", reason=str(error))

    def _added(self, entry: AuditAct, now_us: int) -> AuditRecord:
        self._newest += 1
        record = AuditRecord(
            number=self._newest,
            at_us=now_us,
            principal=_short(entry.principal),
            operation=entry.operation,
            target=_short(entry.target),
            outcome=entry.outcome,
            detail={name: _short(value) for name, value in entry.detail.items()},
        )
        self.records.append(record)
        _say(record)
        return record


def _say(record: AuditRecord) -> None:
    _log.info(
        "audit.noted",
        principal=record.principal,
        operation=record.operation,
        target=record.target,
        outcome=record.outcome,
        **{f"detail_{name}": value for name, value in record.detail.items()},
    )


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}\N{HORIZONTAL ELLIPSIS}"
    if isinstance(value, Mapping):
        return {str(name): _short(each) for name, each in list(value.items())[: 2 * PARTS_MAX]}
    if isinstance(value, list | tuple):
        parts = [str(each)[: TEXT_MAX // PARTS_MAX] for each in value[:PARTS_MAX]]
        return parts if len(parts) == len(value) else [*parts, "\N{HORIZONTAL ELLIPSIS}"]
    return value
