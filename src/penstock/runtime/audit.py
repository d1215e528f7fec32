"""Who administered what, and how it ended: a log event, and a line of ``audit.ndjson``."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import structlog
from xxhash import xxh3_64_intdigest

from penstock.core.errors import Damaged, StorageFailed
from penstock.core.ports import Clock
from penstock.wire.native.access import AuditRecord

RECORDS_KEPT = 10_000
"""The newest records, which can be asked for; the file has all."""

TEXT_MAX = 512
"""Signs of what somebody has given that a record keeps: who may do nothing may ask for much."""
PARTS_MAX = 16

_SEAL = re.compile(rb',"checksum":"([0-9a-f]{16})"}\Z')

_log = structlog.get_logger("penstock.audit")


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
        """What a line says. Raises ``Damaged``: it is torn, or not what was written."""
        seal = _SEAL.search(line)
        if seal is None and self._are_sealed:
            raise Damaged("it has no checksum, as the lines before it have: it is torn, or changed")
        if seal is not None:
            self._are_sealed = True
            if xxh3_64_intdigest(line[: seal.start()]) != int(seal[1], 16):
                raise Damaged("its checksum is of something else: it was changed")
        try:
            return msgspec.json.decode(line, type=AuditRecord)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Damaged(f"it is no record: {error}") from None


class AuditFile(Protocol):
    """Where records are kept."""

    async def append(self, line: bytes) -> None:
        """On disk when this returns. Raises ``StorageFailed``."""
        ...

    async def newest(self, count: int) -> Sequence[bytes]:
        """The last lines, the oldest of them first."""
        ...

    def close(self) -> None: ...


class NoFile:
    """Nothing is kept."""

    async def append(self, line: bytes) -> None:
        return

    async def newest(self, count: int) -> Sequence[bytes]:
        return ()

    def close(self) -> None:
        return


class Audit:
    def __init__(self, clock: Clock, file: AuditFile | None = None) -> None:
        self._clock = clock
        self._file: AuditFile = file or NoFile()
        self._records: deque[AuditRecord] = deque(maxlen=RECORDS_KEPT)
        self._writing = asyncio.Lock()
        self._newest = 0
        """The number of the last record, read or not."""

    async def load(self) -> None:
        """Read what earlier lives have written; a line that is damaged is told and passed over,
        and its number is missing."""
        reader = LineReader()
        for line in await self._file.newest(RECORDS_KEPT):
            try:
                record = reader.record(line)
            except Damaged as error:
                self._newest += 1
                _log.warning("audit.line_unreadable", size=len(line), reason=str(error))
                continue
            self._newest = record.number
            self._records.append(record)

    async def note(
        self, principal: str, operation: str, target: str = "", outcome: str = "done", **detail: Any
    ) -> None:
        """Write an act down. Raises ``StorageFailed``: it was done, and is not in the file."""
        async with self._writing:
            self._newest += 1
            record = AuditRecord(
                number=self._newest,
                at_us=self._clock.now_us(),
                principal=principal,
                operation=operation,
                target=_short(target),
                outcome=outcome,
                detail={name: _short(value) for name, value in detail.items()},
            )
            self._records.append(record)
            _log.info(
                "audit.noted",
                principal=principal,
                operation=operation,
                target=record.target,
                outcome=outcome,
                **{f"detail_{name}": value for name, value in record.detail.items()},
            )
            try:
                await self._file.append(line_of(record))
            except StorageFailed as error:
                error.add_note(f"{operation} of {principal} ended as {outcome}")
                raise

    def close(self) -> None:
        self._file.close()

    async def read(self, *, before: int | None = None, limit: int = 100) -> list[AuditRecord]:
        """The newest records, or the newest below number ``before``; the newest first."""
        found = (each for each in reversed(self._records) if before is None or each.number < before)
        return [record for record, _ in zip(found, range(max(0, limit)), strict=False)]


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}\N{HORIZONTAL ELLIPSIS}"
    if isinstance(value, list | tuple):
        parts = [str(each)[: TEXT_MAX // PARTS_MAX] for each in value[:PARTS_MAX]]
        return parts if len(parts) == len(value) else [*parts, "\N{HORIZONTAL ELLIPSIS}"]
    return value
