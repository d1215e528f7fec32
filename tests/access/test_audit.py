"""The audit log: kept, read back, and honest about a disk that takes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock_core.api.access import AuditRecord
from penstock_core.vocabulary.errors import Damaged, StorageFailed
from penstock_server.runtime.access.audit import Audit, LineReader, line_of
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.storage.audit_file import FILE_BYTES_MAX, FileAudit
from penstock_server.storage.disk import RealDisk
from tests.loops import on_a_loop


async def inline(call: Callable[[], Any]) -> Any:
    return call()


def opened(folder: Path, file_bytes_max: int = FILE_BYTES_MAX) -> tuple[Audit, FileAudit]:
    file = FileAudit(str(folder), disk=RealDisk(), offload=inline, file_bytes_max=file_bytes_max)
    return Audit(SystemClock(), {"acts": file}), file


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith("audit")]


@on_a_loop
async def test_records_are_read_back_the_newest_first(tmp_path: Path) -> None:
    audit, file = opened(tmp_path)
    await audit.load()
    for number in range(5):
        await audit.note("alice@h", "channel.create", f"c{number}", ttl=number)
    file.close()

    again, file = opened(tmp_path)
    await again.load()
    await again.note("bob@h", "channel.delete", "c0")
    newest = await again.read(limit=2)
    older = await again.read(before=newest[-1].number, limit=2)
    file.close()

    assert [(record.number, record.target) for record in newest] == [(6, "c0"), (5, "c4")]
    assert [(record.number, record.detail) for record in older] == [
        (4, {"ttl": 3}),
        (3, {"ttl": 2}),
    ]

    lines = (tmp_path / "audit.ndjson").read_text().splitlines()
    assert [msgspec.json.decode(line)["number"] for line in lines] == [1, 2, 3, 4, 5, 6]


@on_a_loop
async def test_a_line_torn_by_a_crash_is_skipped(tmp_path: Path) -> None:
    audit, file = opened(tmp_path)
    await audit.note("alice@h", "channel.create", "a")
    file.close()
    with (tmp_path / "audit.ndjson").open("ab") as torn:
        torn.write(b'{"number":2,"at')

    again, file = opened(tmp_path)
    await again.load()
    await again.note("alice@h", "channel.create", "b")
    file.close()
    last, file = opened(tmp_path)
    await last.load()
    assert [record.target for record in await last.read()] == ["b", "a"]
    file.close()


@on_a_loop
async def test_a_large_file_is_put_aside(tmp_path: Path) -> None:
    audit, file = opened(tmp_path, 400)
    for number in range(9):
        await audit.note("alice@h", "channel.create", f"c{number}")
    file.close()

    files = files_in(tmp_path)
    names = sorted(path.name for path in files)
    lines = b"".join(path.read_bytes() for path in files).count(b"\n")
    assert names == ["audit-1.ndjson", "audit-2.ndjson", "audit.ndjson"]
    assert lines == 9


@on_a_loop
async def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    audit, _ = opened(tmp_path / "missing")
    with pytest.raises(StorageFailed, match=r"audit\.ndjson") as failure:
        await audit.note("alice@h", "channel.create", "a")
    assert failure.value.__notes__ == ["channel.create of alice@h ended as done"]


@on_a_loop
async def test_a_record_is_short_however_long_a_request_is(tmp_path: Path) -> None:
    audit, file = opened(tmp_path)
    await audit.note("someone@h", "channel.create", "x" * 100_000, granted=["y" * 100_000] * 99)
    file.close()
    [record] = await audit.read()

    assert record.target.startswith("xxx")
    assert len(record.target) <= 513
    assert len(str(record.detail)) <= 1_000
    assert sum(path.stat().st_size for path in files_in(tmp_path)) < 4_000


def record(number: int, target: str = "orders") -> AuditRecord:
    return AuditRecord(
        number=number,
        at_us=1_700_000_000_000_000,
        principal="alice@h",
        operation="channel.create",
        target=target,
        detail={"ttl": number},
    )


def test_a_line_is_json_and_reads_as_what_was_written() -> None:
    line = line_of(record(7, 'a "b", \\ \N{SNOWMAN}'))

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert msgspec.json.decode(line)["checksum"]
    assert LineReader().record(line.removesuffix(b"\n")) == record(7, 'a "b", \\ \N{SNOWMAN}')


@pytest.mark.spec("S1")
def test_a_line_with_any_flipped_bit_is_damaged() -> None:
    line = line_of(record(2)).removesuffix(b"\n")
    reader = LineReader()
    reader.record(line_of(record(1)).removesuffix(b"\n"))

    for bit in range(8 * len(line)):
        flipped = bytearray(line)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            reader.record(bytes(flipped))


@pytest.mark.spec("S1")
def test_a_line_cut_anywhere_is_damaged() -> None:
    line = line_of(record(2)).removesuffix(b"\n")
    reader = LineReader()
    reader.record(line_of(record(1)).removesuffix(b"\n"))

    for size in range(len(line)):
        with pytest.raises(Damaged):
            reader.record(line[:size])


def test_lines_without_checksums_are_read_up_to_the_first_line_with_one() -> None:
    old = msgspec.json.encode(record(1))
    reader = LineReader()
    assert reader.record(old) == reader.record(old) == record(1)
    with pytest.raises(Damaged, match="not a record"):
        reader.record(b"nothing")
    reader.record(line_of(record(2)).removesuffix(b"\n"))

    with pytest.raises(Damaged, match="no checksum"):
        reader.record(old)


@on_a_loop
async def test_the_number_of_a_damaged_line_stays_unused(tmp_path: Path) -> None:
    audit, file = opened(tmp_path)
    for name in "abc":
        await audit.note("alice@h", "channel.create", name)
    file.close()
    path = tmp_path / "audit.ndjson"
    path.write_bytes(path.read_bytes().replace(b'"target":"c"', b'"target":"d"'))

    again, file = opened(tmp_path)
    await again.load()
    await again.note("alice@h", "channel.create", "e")
    file.close()

    records = [(record.number, record.target) for record in await again.read()]
    assert records == [(4, "e"), (2, "b"), (1, "a")]
