"""Copies the events of channels to tables, each event once, without Spark.

The id of the last copied event is the version of this writer in the table: rows and progress are
one commit, so a copy that was interrupted at any point continues where its last commit ended. A
commit is refused if another one has followed the version that the copy began at: of two archivers
for one channel, the slower one discards its files and continues after the faster one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock.client.archiving.durables import existing_durable
from penstock.client.archiving.lake import Lake
from penstock.client.archiving.losses import (
    ReadIds,
    described,
    lost_before_reading,
    lost_ids,
    prevention,
)
from penstock.client.archiving.shared_files import By, CommitFiles, RealmFiles, ValueRange
from penstock.client.sync.sync import Channel, Destination, DurableHold, Session
from penstock.tables.attempts import MachineClock, PausingClock
from penstock.tables.files import RowWriter
from penstock.tables.table import NO_VERSION
from penstock_core.api.channels import Missing
from penstock_core.columns.events.batch import ids_of, within
from penstock_core.columns.files.archives import ArchiveLayout
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.choice import Choice
from penstock_core.vocabulary.errors import (
    DataLost,
    DifferentContent,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
    Unavailable,
)
from penstock_core.vocabulary.uris import shown

APP: Final = "penstock archive"
"""Name of this writer in the tables."""
COMMIT_ROWS_MAX: Final = 1_000_000
COMMIT_BYTES_MAX: Final = 256 << 20
"""Number of bytes of events after which a commit is made; a commit is also made after
``COMMIT_ROWS_MAX`` events."""
COMPACT_BYTES: Final = 16 << 20
"""Size of compacted files; it bounds the memory of a compaction."""
ROWS_ENOUGH: Final = 25_000
"""Number of rows with which a file is not compacted if the table shares files of the realm. It is
half of the number of events that a sealed file has by default."""
WAIT_S: Final = 1.0
"""Seconds after which an archiver that waits for events checks whether it should end."""
RETRY_S: Final = 5.0
"""Seconds before the next attempt if a table is not available."""


class ArchiveSettings(Struct, frozen=True, kw_only=True):
    """Settings of an archiver, as those of the step ``archive`` of a pipeline."""

    durable: str = ""
    """Name of a durable of each channel that keeps its events until they are copied."""
    compact_every: int = 100
    """Commits after which small files are merged; 0: never."""
    keep_hours: int = 168
    """Hours for which replaced files are kept for readers that use them."""
    register: bool = True
    """Whether to set the attribute ``archive`` of a channel that has none."""
    allows_losses: bool = False
    """Whether to continue after events that left the channel before they were copied."""
    every_s: float = 0.0
    """Smallest number of seconds between the commits of a channel whose events are all copied."""
    by: By = "value"
    """How events get into the table: ``reference`` adds files that the realm has made of its sealed
    events, ``auto`` does so if the table and the realm can share files (SEM B8)."""


class ArchiveProgress(Struct, frozen=True):
    """The state of the copy of one channel after a commit."""

    channel: str
    events: int
    """Number of events in the commit."""
    next_id: int
    """Id of the first event to copy next."""
    lost: tuple[Missing, ...] = ()
    """Events before ``next_id`` that left the channel before they were copied, by cause."""
    may_be_unwanted: bool = False
    """Whether the durable has a selector, which may have left out the lost events."""
    is_by_reference: bool = False
    """Whether the events are in files of the realm, which the table shares."""
    reason: str = ""
    """Why the events were copied by value, if they could have been archived by reference."""

    @property
    def lost_events(self) -> int:
        """Number of events that left before they were copied."""
        return sum(loss.events for loss in self.lost)


class StoppingClock(MachineClock):
    """The clock of the machine for a program that ends when an event is set."""

    def __init__(self, stopping: Event) -> None:
        self._stopping = stopping

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    def pause(self, us: int) -> None:
        self._stopping.wait(us / 1e6)


class ChannelArchiver:
    """Copies one channel to its table."""

    def __init__(
        self,
        channel: Channel,
        lake: Lake,
        settings: ArchiveSettings,
        *,
        clock: PausingClock | None = None,
    ) -> None:
        self.channel = channel
        self._lake = lake
        self._settings = settings
        self._table = lake.table_of(channel.name, clock)
        self._realm_files: RealmFiles | None = None
        """Files for archives by reference; None if the settings exclude it."""
        if settings.by != "value":
            self._realm_files = RealmFiles(
                channel, self._table, is_required=settings.by == "reference"
            )
        self._hold: DurableHold | None = None
        self._is_selective = False
        """Whether the durable has a selector."""
        self._is_registered = False
        self._version = NO_VERSION
        """The version of this writer that the next commit follows."""
        self._left_before = IdSet()
        """Ids of events that had left the channel before its table existed; they do not count as
        losses."""
        self._existing_end: int | None = None
        """The id after the newest event at the first :meth:`open`; events below it may leave before
        the first commit creates the table. 0 if the table existed; None before the first
        :meth:`open`."""
        self.next_id = 0
        """Id of the first event to copy next."""
        self.is_open = False

    def open(self) -> None:
        """Read the position from the table, and hold the durable. May be called again after
        :meth:`close`.

        Raises ``IllegalState`` if the table belongs to another channel or was removed,
        ``DurableInUse`` and ``NameDoesNotExist``.
        """
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        self.is_open = True

    def _open(self) -> None:
        if self._settings.durable and self._hold is None:
            self._hold = self._hold_durable()
        self._read_position()
        if self._existing_end is None:
            self._existing_end = 0
            if not self._table.exists:
                self._existing_end = self.channel.info().last_event_id + 1
        if self._hold is not None:
            self._settle_copied(self._hold)

    def _settle_copied(self, hold: DurableHold) -> None:
        """Acknowledge again what this writer has copied from its durable: the acknowledgement after
        the last commit may not have been stored.

        Raises ``IllegalState`` if the table was filled in another way: events of the durable that
        are not in the table would be acknowledged, too.
        """
        name = self._settings.durable
        if self._version != NO_VERSION and self._table.content_of(APP, self._version) == name:
            self._table.sync()
            hold.ack(self._version)
        elif self.next_id and hold.take(0, self.next_id - 1).id_set:
            raise IllegalState(
                f"durable {name} of channel {self.channel.name} has events before event "
                f"{self.next_id}, where the table at {shown(self._table.uri)} ends, and the table "
                f"was not filled from this durable: acknowledge them or seek to {self.next_id} if "
                f"the table has them, or choose another table"
            )

    def close(self) -> None:
        """Release the durable."""
        self.is_open = False
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def copy(
        self, end: int, on_commit: Callable[[ArchiveProgress], None] = lambda copied: None
    ) -> ArchiveProgress:
        """Copy the events from ``next_id`` to below ``end``, or as many as one commit takes.

        ``on_commit`` is called after the commit, and when events were lost; the steps after this
        call may still fail. Raises ``DataLost`` if events left the channel before they were copied,
        and ``IllegalState`` if they cannot be archived by reference and the settings require it.
        """
        span = Span(self.next_id, end)
        table = self._table
        versions = table.state.version
        shared = self._shared(span)
        if isinstance(shared, CommitFiles):
            rows, lost = shared, self._losses(Span(span.first, shared.end), shared.read)
        else:
            rows, lost = self._written(Span(span.first, shared.end))
        reached, files = rows.end, rows.files
        events = sum(file.rows for file in files)
        if files:
            try:
                table.commit(
                    rows.columns,
                    files,
                    app=APP,
                    version=reached - 1,
                    content=self._settings.durable,
                    after=self._version,
                )
            except (IllegalState, DifferentContent):
                self._read_position()  # raises if the table was removed
                return ArchiveProgress(self.channel.name, 0, self.next_id)
            self._version = reached - 1
        # Before all that may fail: a further attempt must not copy these events again.
        self.next_id = reached
        copied = ArchiveProgress(
            self.channel.name,
            events,
            reached,
            lost=lost,
            may_be_unwanted=self._is_selective,
            is_by_reference=isinstance(shared, CommitFiles),
            reason="" if isinstance(shared, CommitFiles) else shared.reason,
        )
        if events or lost:
            on_commit(copied)
        if self._hold is not None:
            self._hold.ack(reached - 1)
        if files:
            self._finish_commit(versions)
        return copied

    def _shared(self, span: Span) -> CommitFiles | ValueRange:
        """Return files of the realm with the first events of ``span``, or the range to copy by
        value."""
        if self._realm_files is None:
            return ValueRange(span.end)
        return self._realm_files.take_over(span, None if self._hold is None else self._held_ids)

    def _written(self, span: Span) -> tuple[CommitFiles, tuple[Missing, ...]]:
        """Write the events of ``span``, up to the limits of a commit, to new files. Return the
        files and the events that were lost. Raises ``DataLost`` if losses are not allowed."""
        table = self._table
        layout = ArchiveLayout(
            self.channel.columns(),
            table.schema if table.exists else None,
            channel=self.channel.name,
            epoch=self.channel.epoch,
        )
        writer = table.writer()
        try:
            read = ReadIds()
            reached = self._write(writer, layout, span, read=read)
            lost = self._losses(Span(span.first, reached), read)
            files = tuple(file for file in writer.close() if file.rows)
        finally:
            writer.abandon()
        return CommitFiles(files, writer.schema, read, end=reached), lost

    def _held_ids(self, span: Span) -> IdSet:
        """Return the ids of ``span`` that the durable has."""
        assert self._hold is not None, "there is a durable"
        return self._hold.take(span.first, span.end - 1).id_set

    def _write(self, writer: RowWriter, layout: ArchiveLayout, span: Span, read: ReadIds) -> int:
        """Write the events of ``span`` to files, up to the limits of a commit, and add their ids to
        ``read``. Return the id of the first event that was not reached."""
        held_ids = None if self._hold is None else self._held_ids(span)
        size = 0
        with self.channel.browse(start=span.first, end=span.end - 1) as reading:
            for batch in reading.batches():
                stored = batch.to_arrow()
                ids = ids_of(stored)
                read.add(ids)
                row_batch = layout.of(stored, batch.publishers)
                if held_ids is not None:
                    row_batch = row_batch.filter(pa.array(within(ids, held_ids.spans)))
                writer.add(row_batch)
                size += stored.nbytes
                if read.count >= COMMIT_ROWS_MAX or size >= COMMIT_BYTES_MAX:
                    return int(ids[-1]) + 1
        return span.end

    def _read_position(self) -> None:
        """Read from the table which event is copied next. Raises ``IllegalState`` if the table
        belongs to another channel, or was removed or set back."""
        table = self._table
        last = table.last_of(APP)
        self._lake.check_identity(table, self.channel.name, self.channel.epoch)
        # A pipeline may have filled the table before: its events are not copied again.
        ends = [file.ids[1] + 1 for file in table.files() if file.ids]
        next_id = max([0 if last is None else last + 1, *ends])
        if next_id <= self._version:
            raise IllegalState(
                f"the table at {shown(table.uri)} was removed, or set back to an earlier state: it "
                f"ends before event {next_id}, and event {self._version} was in it; restore the "
                f"table, or choose another one"
            )
        self._version = NO_VERSION if last is None else last
        self.next_id = next_id

    def _losses(self, span: Span, read: ReadIds) -> tuple[Missing, ...]:
        """Return the events of ``span``, which was read up to its end, that left the channel before
        they were read.

        Raises ``DataLost`` if there are any and losses are not allowed. With a selector, they are
        returned without an error, because the realm does not know which of them the durable would
        have received.
        """
        is_bound = self._hold is not None
        if self._existing_end and not self._table.exists:
            lost_by_cause = lost_ids(self.channel, Span(0, self._existing_end), bound=is_bound)
            self._left_before = IdSet.union(lost_by_cause.values())
        lost = lost_before_reading(
            self.channel, span, read, harmless=self._left_before, bound=is_bound
        )
        if lost and not self._settings.allows_losses and not self._is_selective:
            raise DataLost(
                f"channel {self.channel.name}: before they were archived, {described(lost)}; pass "
                f"--allow-losses to continue without them{prevention(lost, 'channel')}"
            )
        return tuple(lost)

    def _hold_durable(self) -> DurableHold:
        """Hold the existing durable that the settings name. Raises ``InvalidArgument`` if it has a
        selector and the table is to be registered as the channel's archive, which needs all
        events."""
        name = self._settings.durable
        durable = existing_durable(self.channel, name)
        selector = durable.info().selector
        if selector and self._settings.register:
            raise InvalidArgument(
                f"durable {name} of channel {self.channel.name} has the selector {selector!r}, so "
                f"the table will not have all events; pass --no-register, so that the channel does "
                f"not name it as its archive"
            )
        self._is_selective = bool(selector)
        return durable.hold().open()

    def _finish_commit(self, versions: int) -> None:
        """Name the table in the channel after the first commit of this process, and compact the
        table every few versions. ``versions`` is the version of the table before the commit."""
        if self._settings.register and not self._is_registered:
            self._lake.register(self.channel.name, self.channel)
            self._is_registered = True
        every = self._settings.compact_every
        # Counted by the table, as a process may end after one commit.
        if every and self._table.state.version // every != versions // every:
            # Otherwise the files of the realm would be copied after all.
            rows_enough = None if self._realm_files is None else ROWS_ENOUGH
            self._table.compact(
                COMPACT_BYTES, keep_hours=self._settings.keep_hours, rows_enough=rows_enough
            )


class Archiver:
    """Copies the chosen channels to their tables."""

    def __init__(
        self,
        session: Session,
        choice: Choice,
        lake: Lake,
        *,
        settings: ArchiveSettings,
        on_commit: Callable[[ArchiveProgress], None],
        on_retry: Callable[[str, Exception], None],
    ) -> None:
        """``on_commit`` is called after each commit, and when events were lost; ``on_retry`` with
        the name of a channel whose table or realm is not available for now. Unless the archiver is
        stopping, it tries again."""
        self._session = session
        self._choice = choice
        self._lake = lake
        self._settings = settings
        self._on_commit = on_commit
        self._on_retry = on_retry
        self._archivers: dict[str, ChannelArchiver] = {}

    def run(self, stopping: Event, *, once: bool) -> None:
        """Copy until ``stopping`` is set; with ``once``, only the events that are stored now."""
        # Fails now, and not again and again later, if a package for the tables is missing.
        self._lake.table_of("check")
        try:
            self._copy_all(stopping, once=once)
            while not once and not stopping.is_set():
                if self._wait(stopping):
                    self._copy_all(stopping, once=once)
        finally:
            for name in list(self._archivers):
                self._forget(name)

    def _copy_all(self, stopping: Event, *, once: bool) -> None:
        for name in self._choice.select(self._channel_names(stopping, once=once)):
            if stopping.is_set():
                return
            try:
                self._copy(name, stopping)
            except NameDoesNotExist:
                self._forget(name)
                if name in self._choice.names:
                    raise
                # The channel was deleted after the channels were listed; the next list does not
                # have it.
            except (Unavailable, OSError) as error:
                # The archiver is opened again later, because its hold on a durable may have failed
                # for good. It is not forgotten, because it knows which events had left before its
                # table existed.
                if (archiver := self._archivers.get(name)) is not None:
                    archiver.close()
                if once:
                    raise
                self._on_retry(name, error)
                stopping.wait(RETRY_S)

    def _channel_names(self, stopping: Event, *, once: bool) -> Sequence[str]:
        """Return the names of all channels, from which the patterns of the settings choose; empty
        without patterns, and if ``stopping`` is set while the realm is not available. With ``once``
        an unavailable realm raises ``Unavailable`` instead of being asked again."""
        if not self._choice.patterns:
            return ()
        while True:
            try:
                return self._session.channels.list()
            except Unavailable as error:
                if once:
                    raise
                self._on_retry("channels", error)
                if stopping.wait(RETRY_S):
                    return ()

    def _forget(self, name: str) -> None:
        """Close the archiver of a channel; the next copy opens it again."""
        archiver = self._archivers.pop(name, None)
        if archiver is not None:
            archiver.close()

    def _copy(self, name: str, stopping: Event) -> None:
        channel = self._session.channels.get(name)
        archiver = self._archivers.get(name)
        if archiver is not None and archiver.channel.epoch != channel.epoch:
            # Its ids have begun again; opening it refuses the table of the earlier events.
            self._forget(name)
            archiver = None
        if archiver is None:
            archiver = ChannelArchiver(
                channel, self._lake, self._settings, clock=StoppingClock(stopping)
            )
            self._archivers[name] = archiver
        if not archiver.is_open:
            archiver.open()
        end = archiver.channel.info().last_event_id + 1
        while archiver.next_id < end and not stopping.is_set():
            archiver.copy(end, self._on_commit)

    def _wait(self, stopping: Event) -> bool:
        """Wait for events to copy. Return False if none arrived within :data:`WAIT_S`."""
        if self._settings.every_s and stopping.wait(self._settings.every_s):
            return False
        if self._choice.patterns:  # a new channel may match
            return not stopping.wait(WAIT_S)
        starts: dict[Destination, int] = {
            archiver.channel: archiver.next_id
            for archiver in self._archivers.values()
            if archiver.is_open
        }
        if len(starts) < len(self._choice.names):
            return True  # the table of a channel was not available
        has_events = True
        try:
            has_events = self._session.wait_for_events(starts, WAIT_S)
        except* (Unavailable, NameDoesNotExist):
            stopping.wait(WAIT_S)  # the next copy has the error, too
        return has_events
