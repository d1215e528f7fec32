"""Reads all stored data of a realm and reports its damage, without changing it (SEM S1).

In the journal, snapshots and pages the check reports the same damage as a start of the realm. Files
with sealed events, which a start does not read, are read completely.
"""

from __future__ import annotations

import re

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from penstock_core.columns.files.growing_segment import end_of_batches, has_its_tail
from penstock_core.columns.files.segments import SegmentReader
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import Damaged, NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Blobs, Block, Journal
from penstock_server.runtime.store.file_names import SNAPSHOTS
from penstock_server.runtime.store.records import decode_block
from penstock_server.runtime.store.sealed_file import SealedFile
from penstock_server.runtime.upkeep.recovery import READ_BLOCKS, RecoveredRealm, checked

_PLACE = re.compile(r"(?P<file>.*) bytes (?P<first>\d+)-(?P<end>\d+)$")
_ARROW_START = b"ARROW1\0\0"


class Finding(Struct, frozen=True):
    """A piece of stored data that differs from the data that was written."""

    file: str
    reason: str
    first_byte: int | None = None
    end_byte: int | None = None
    channel: str = ""
    events: Spans = ()
    """Stored events that are unreadable because of the damage."""


class StoreReport(Struct):
    """The amount of checked data, and its faults."""

    blocks: int = 0
    snapshots: int = 0
    files: int = 0
    batches: int = 0
    bytes: int = 0
    records: int = 0
    audit_lines: int = 0
    events: int = 0
    """Stored events of all channels."""
    findings: list[Finding] = []
    quarantined: list[str] = []
    """Names of the files in quarantine, which earlier starts and repairs have set aside."""


class BadFile(Struct):
    """A damaged file of sealed events."""

    number: ChannelId
    """The channel of the file."""
    file: SealedFile
    batches: list[int]
    """Numbers of the unreadable batches."""
    findings: list[Finding]


async def check_all(
    recovered: RecoveredRealm, journal: Journal, blobs: Blobs, report: StoreReport
) -> None:
    """Check all stored data, and add the findings to ``report``."""
    report.findings += [_finding(description) for description in recovered.damage]
    await _check_journal(journal, report)
    await _check_snapshots(blobs, report)
    for bad in await check_files(recovered, blobs, report):
        report.findings += bad.findings
    report.findings += [lost for _, lost in lost_events(recovered)]
    report.events = recovered.events


async def check_files(
    recovered: RecoveredRealm, blobs: Blobs, report: StoreReport
) -> list[BadFile]:
    """Read all batches, headers and footers of all files of sealed events; return the damaged
    files."""
    bad_files = []
    for channel_id, store in recovered.state.stores.items():
        for file in store.files:
            report.files += 1
            report.bytes += file.index.size
            report.batches += len(file.index.batches)
            bad = await _check_file(recovered, ChannelId(channel_id), file, blobs=blobs)
            if bad.findings:
                bad_files.append(bad)
    return bad_files


def lost_events(recovered: RecoveredRealm) -> list[tuple[int, Finding]]:
    """Return the recorded events that no file, page or block has, with the id of their channel."""
    findings = []
    for channel_id, channel in recovered.state.channels.items():
        store, missing_ids = recovered.state.stores[channel_id], channel.state.stored.copy()
        # A damaged batch has its own finding, so here a batch counts if the index has it.
        for file in store.files:
            for place in file.index.batches:
                missing_ids.remove(place.span)
        for tail_batch in store.held():
            for span in (
                (Span(tail_batch.first, tail_batch.end),)
                if tail_batch.ids is None
                else tail_batch.ids.spans
            ):
                missing_ids.remove(span)
        if missing_ids:
            reason = "events are recorded, but no file, page or block has them"
            name = channel.state.name
            findings.append(
                (channel_id, Finding("", reason, channel=name, events=missing_ids.spans))
            )
    return findings


async def damaged_snapshots(blobs: Blobs) -> list[Finding]:
    """Return a finding for each snapshot that fails its checksum or cannot be decoded."""
    findings = []
    for info in await blobs.list(SNAPSHOTS):
        try:
            decode_block(checked(await blobs.get(info.name), info.name))
        except Damaged as error:
            findings.append(Finding(info.name, str(error), 0, end_byte=info.size))
    return findings


def _finding(description: str) -> Finding:
    """Return a finding from the recovery's description of damage, which may begin with a file and a
    range of bytes."""
    location, colon, reason = description.partition(": ")
    if match := _PLACE.match(location):
        return Finding(match["file"], reason, int(match["first"]), end_byte=int(match["end"]))
    if colon and "/" in location:
        return Finding(location.removeprefix("snapshot "), reason)
    return Finding("journal", description)


async def _check_journal(journal: Journal, report: StoreReport) -> None:
    """Read all blocks, and count them in ``report``."""
    info = journal.info()
    report.bytes += info.size
    next_sequence = info.floor + 1
    while next_sequence <= info.tail:
        for block in await journal.read(next_sequence, READ_BLOCKS):
            report.blocks += 1
            next_sequence = block.seq + (1 if isinstance(block, Block) else block.count)


async def _check_snapshots(blobs: Blobs, report: StoreReport) -> None:
    """Verify all snapshots, and add damaged ones to ``report``."""
    for info in await blobs.list(SNAPSHOTS):
        report.snapshots += 1
        report.bytes += info.size
    # The recovery has reported the damaged snapshots that it tried to read.
    reported = {finding.file for finding in report.findings}
    for finding in await damaged_snapshots(blobs):
        if finding.file not in reported:
            report.findings.append(finding)


async def _check_file(
    recovered: RecoveredRealm, channel_id: ChannelId, file: SealedFile, blobs: Blobs
) -> BadFile:
    """Read a whole file. Return it with its findings; without findings the file is sound."""
    state = recovered.state.channels[channel_id].state
    bad = BadFile(channel_id, file, [], findings=[])

    def add_finding(reason: str, first: int, end: int, events: IdSet) -> None:
        finding = Finding(
            file.name, reason, first, end_byte=end, channel=state.name, events=events.spans
        )
        bad.findings.append(finding)

    try:
        data = await blobs.get(file.name)
    except NameDoesNotExist:
        events = state.stored.within(file.span)
        add_finding("the file is missing", 0, file.index.size, events=events)
        bad.batches = list(range(len(file.index.batches)))
        return bad
    reader = SegmentReader(data, file.index, name=file.name)
    for batch, place in enumerate(file.index.batches):
        try:
            reader.batch(batch)
        except Damaged as error:
            bad.batches.append(batch)
            reason = str(error).removeprefix(f"{file.name}: ")
            stored_ids = state.stored.within(place.span)
            add_finding(reason, place.offset, place.offset + place.length, events=stored_ids)
    start, end = file.index.batches[0].offset, end_of_batches(file.index.batches)
    if bytes(data[:start]) != _ARROW_START + file.index.schema:
        add_finding("the header is damaged", 0, start, events=IdSet())
    if file.grows:
        has_footer = has_its_tail(data, file.index)
    else:
        # The checksum covers the whole file, so it does not show whether the footer is damaged if a
        # batch is.
        has_footer = bool(bad.findings) or xxh3_64_intdigest(data) == file.index.checksum
    if not has_footer:
        add_finding("the footer is damaged", end, len(data), events=IdSet())
    return bad
