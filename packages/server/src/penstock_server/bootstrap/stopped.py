"""Verifies, counts and repairs the content of data directories that are not open."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from penstock_core.api.realm import RatesNow
from penstock_core.vocabulary.errors import Damaged
from penstock_server.bootstrap.directories import absolute, holder, opened
from penstock_server.bootstrap.registries import rules
from penstock_server.runtime.access.audit import LogReader
from penstock_server.runtime.operations.realm_handlers import rates_of
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.subscriptions.realm_view import RealmView
from penstock_server.runtime.upkeep.recovery import recover
from penstock_server.runtime.upkeep.repair import Repaired, repair
from penstock_server.runtime.upkeep.verification import Finding, StoreReport, check_all
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.storage.audit_file import files_of
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.embedded.quarantine import QuarantineFolder
from penstock_server.storage.embedded.repairing import (
    check_exists,
    check_records,
    in_quarantine,
    mend_format,
    remove_damaged_records,
)
from penstock_server.storage.overlay import OverlayDisk


async def verify_store(directory: Path) -> StoreReport:
    """Verify all files of a data directory that is not open, without changing them (SEM S1).

    Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``.
    """
    root = absolute(directory)
    check_exists(RealDisk(), root)
    report = StoreReport(quarantined=in_quarantine(RealDisk(), root))
    records = check_records(RealDisk(), root)
    report.records = len(records)
    for file, reason in records.items():
        if reason:
            report.findings.append(Finding(file, reason))
    _check_audit(root, report)
    # Opening a directory writes to it, for example to repair the end of the journal. The overlay
    # keeps these changes in memory.
    try:
        store = opened(root, OverlayDisk(RealDisk()))
    except Damaged as error:
        report.findings.append(Finding("registry", str(error)))
        return report  # other files cannot be read without the registry
    try:
        recovered = await recover(store.journal, store.blobs, store.pages, rules=rules())
        await check_all(recovered, store.journal, store.blobs, report=report)
    finally:
        await store.pages.close()
        await store.journal.close()
    return report


async def read_counters(directory: Path) -> RatesNow:
    """Return the counters of the channels, queues and durables of a data directory that is not
    open, without changing it. Counters of deliveries are 0, because they begin with each start.

    Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``, ``Damaged``.
    """
    root, clock = absolute(directory), SystemClock()
    check_exists(RealDisk(), root)
    store = opened(root, OverlayDisk(RealDisk()))
    try:
        recovered = await recover(store.journal, store.blobs, store.pages, rules=rules())
        view = RealmView(recovered.state, store.pages, clock)
        size = store.journal.info().size
        return rates_of(view, clock.now_us(), name=None, connections=0, journal_bytes=size)
    finally:
        await store.pages.close()
        await store.journal.close()


def _check_audit(root: str, report: StoreReport) -> None:
    """Check every line of the audit logs. No line may be incomplete, changed or missing between two
    others. Older files of a log may have been removed."""
    disk = RealDisk()
    for log in files_of(disk, root):
        lines = LogReader()
        for name in log:
            content = Path(root, name).read_bytes()
            report.audit_lines += content.count(b"\n")
            findings = lines.read(content)
            report.findings += [Finding(name, reason, *span) for reason, span in findings]


async def repair_store(directory: Path) -> Repaired:
    """Set damaged data aside in a data directory that is not open (SEM S1).

    Copies are written to ``quarantine/``, with a report. Raises ``Damaged`` if the format of the
    directory cannot be determined, ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``,
    ``StorageFailed``.
    """
    root, disk = absolute(directory), RealDisk()
    check_exists(disk, root)
    report = await verify_store(directory)
    repaired = Repaired(findings=list(report.findings))
    if not report.findings:
        return repaired
    before = set(report.quarantined)
    # The directory cannot be opened without its format.
    mend_format(disk, root, holder())
    store = opened(root, disk)
    quarantine = QuarantineFolder(disk, root)
    try:
        realm = await RunningRealm.open(
            store.journal,
            store.blobs,
            store.pages,
            rules(),
            SystemClock(),
            asyncio.to_thread,
            identity="",
        )
        await repair(realm, store.journal, quarantine.keep, repaired=repaired)
        remove_damaged_records(disk, root)
        repaired.kept = sorted(set(in_quarantine(disk, root)) - before)
        document = msgspec.json.format(msgspec.json.encode(repaired), indent=2)
        quarantine.keep(f"repair-{SystemClock().now_us()}.json", document)
    finally:
        await store.pages.close()
        await store.journal.close()
    return repaired
