"""Deliberate mistakes in the realm or the client, each of which a developer could make.

``make sim ARGS=--mutants`` runs each of them and prints the scene and seed that notice it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.pending import Pending
from penstock.client.reading import merging
from penstock.client.reading.durable_seat import DurableSeat
from penstock.client.reading.subscription import Subscription
from penstock_core.api.publishing import PublishEvents
from penstock_core.channel import decide, disconnected_subscribers
from penstock_core.channel.producers import Remembered
from penstock_core.channel.retention import Ages
from penstock_core.channel.state import ChannelState
from penstock_core.columns.files.segments import SegmentReader
from penstock_core.durable.durable import Durable
from penstock_core.durable.lanes import Lanes
from penstock_core.durable.seat import Seat
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.publishing import Appended
from penstock_core.messages.retention import Removed
from penstock_core.messages.transactions import TransactionEnded
from penstock_core.realm import transactions
from penstock_core.vocabulary.ports import Block, Buffer, DamagedBlock
from penstock_core.vocabulary.start_positions import FromId
from penstock_server.frontends.native.connection import Connection
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.runtime import realm
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.store import state
from penstock_server.runtime.store.records import FactRecord
from penstock_server.runtime.subscriptions.resume_places import ResumePlaces
from penstock_server.runtime.subscriptions.subscriptions import Subscriptions
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard
from penstock_server.storage.disk import Disk
from penstock_server.storage.embedded import FileJournal, blobs, frames, journal
from penstock_server.storage.embedded.page_files import PageFiles
from penstock_testing.loop import pass_time
from tests.sim import born_mutants as born
from tests.sim.lease_mutants import LEASED
from tests.sim.reply_mutants import any_reply, hasty_removal, kept_reply_queues
from tests.sim.rot import rot_of
from tests.sim.seek_mutants import forgotten_seek, leaving_seek, skipping_seek
from tests.sim.waiting_mutants import (
    REJECTED,
    endless_time,
    endless_wait,
    forgotten_wait,
    late_and_taken,
    lost_to_time,
    passed_by,
    short_wait,
)
from tests.sim.world import life_of

Spoil = Callable[[pytest.MonkeyPatch], None]


def ack_before_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "must_sync", property(lambda _: False, lambda _, __: None), raising=False)


def delivery_before_append(patch: pytest.MonkeyPatch) -> None:
    append = Shard.append

    async def offer_first(shard: Shard, group: Group) -> None:
        await shard.offer(list(group.touched))
        await pass_time(0.05)
        await append(shard, group)

    patch.setattr(Shard, "append", offer_first)


def blind_retry(patch: pytest.MonkeyPatch) -> None:
    """Repeat a publish as if it were a new one."""
    send = RealmConnection.send

    def send_as_new(connection: RealmConnection, pending: Pending) -> None:
        if pending.sent and isinstance(pending.message, PublishEvents):
            pending.message = msgspec.structs.replace(pending.message, producer="", sequence=0)
        send(connection, pending)

    patch.setattr(RealmConnection, "send", send_as_new)


def forgotten_gap(patch: pytest.MonkeyPatch) -> None:
    """Let an acknowledgement move the floor over unacknowledged events of other clients."""
    settled_by = Durable.settled_by

    def settle_all_below(durable: Durable, seat: Seat, spans: Spans, stored: IdSet) -> IdSet:
        settled = settled_by(durable, seat, spans, stored=stored).copy()
        if settled:
            settled.add_all(
                durable.outstanding.within(Span(0, max(span.end for span in settled.spans)))
            )
        return settled

    patch.setattr(Durable, "settled_by", settle_all_below)


def covered_rollback(patch: pytest.MonkeyPatch) -> None:
    """Let an acknowledgement cover events that were given back and not delivered again."""
    below = Durable.below

    def below_with_rolled_back(durable: Durable, seat: Seat, event_id: int, stored: IdSet) -> IdSet:
        settled = below(durable, seat, event_id, stored=stored)
        settled.add_all(durable.rolled_back.within(Span(0, event_id + 1)))
        return settled

    patch.setattr(Durable, "below", below_with_rolled_back)


def lost_rollback(patch: pytest.MonkeyPatch) -> None:
    """Leave events in flight with a lost client."""

    def lose(subscriptions: Subscriptions, subscription: int) -> None:
        subscriptions.dispatch.close(subscription)

    patch.setattr(Subscriptions, "lose", lose)


def unsynced_files(patch: pytest.MonkeyPatch) -> None:
    """Name snapshots and segments before their bytes are on disk."""

    def write_all(disk: Disk, path: str, chunks: Sequence[Buffer]) -> None:
        file = disk.open(path, create=True)
        disk.pwrite(file, chunks, 0)
        disk.close(file)

    patch.setattr(blobs, "write_all", write_all)


def torn_tail(patch: pytest.MonkeyPatch) -> None:
    """Take the last block for whole, even if a power cut tore it."""
    for module in (frames, journal):
        patch.setattr(module, "is_whole", lambda *_: True)


def stale_session(patch: pytest.MonkeyPatch) -> None:
    """Keep a session's older connection next to its new one."""

    def greeted(listener: NativeListener, connection: Connection, session: str) -> None:
        listener.sessions[session] = connection

    patch.setattr(NativeListener, "greeted", greeted)


def taken_seat(patch: pytest.MonkeyPatch) -> None:
    """Do not wait for the seat that an ended connection is about to take."""

    async def at_once(*_: object) -> None:
        return None

    patch.setattr(NativeListener, "seats_given_back", at_once)


def acknowledged_and_handed_out(patch: pytest.MonkeyPatch) -> None:
    """Hand out events that a reconnect brought again although they were acknowledged meanwhile (SEM
    D13)."""
    patch.setattr(DurableSeat, "acknowledged", lambda seat, spans: None)


def late_resume(patch: pytest.MonkeyPatch) -> None:
    """Resume a reader one event too late after a reconnect."""

    async def reopen(subscription: Subscription) -> None:
        if subscription._attachment.is_open:
            await subscription._attach(FromId(subscription._next_id + 1))

    patch.setattr(Subscription, "_reopen", reopen)


def delta_for_whole(patch: pytest.MonkeyPatch) -> None:
    """Take a delta for the whole state in a client that merges (SEM K3)."""
    patch.setattr(merging, "deltas_of", lambda batch: np.zeros(batch.num_rows, dtype=np.bool_))


def lost_recall(patch: pytest.MonkeyPatch) -> None:
    """Do not tell clients which events the realm takes back, and accept their settlement anyway."""
    patch.setattr(Dispatch, "recall", lambda *_: None)
    patch.setattr(decide, "refuse_recalled", lambda *_: None)


def open_lanes(patch: pytest.MonkeyPatch) -> None:
    """Leave the events behind a rolled-back event of their lane with the client."""
    patch.setattr(Lanes, "after", lambda *_: IdSet())


def consumed_states(patch: pytest.MonkeyPatch) -> None:
    """Remove a state once all durables have acknowledged it, like any other event (SEM D6)."""
    patch.setattr(
        ChannelState, "retains_consumed", property(lambda state: state.definition.retain_consumed)
    )


def time_goes_back(patch: pytest.MonkeyPatch) -> None:
    """Use the machine's clock as the realm's time even when it is set back."""
    patch.setattr(SystemClock, "now_us", lambda clock: clock.now_ns() // 1_000)


def expired_is_seen(patch: pytest.MonkeyPatch) -> None:
    """Show expired events until another cause removes them (SEM T1)."""
    patch.setattr(Ages, "_expired_end", lambda *_: -1)


def lost_place(patch: pytest.MonkeyPatch) -> None:
    """Treat a listener that comes back as a new one (SEM J5)."""
    patch.setattr(ResumePlaces, "take", lambda *_: None)


def stored_in_two_blocks(
    patch: pytest.MonkeyPatch, is_late: Callable[[Group, FactRecord], bool]
) -> None:
    """Store the facts that ``is_late`` selects a moment after the rest of their group."""
    append = Shard.append

    async def append_in_two(shard: Shard, group: Group) -> None:
        bodies = iter(group.bodies)
        parts: list[tuple[list[FactRecord], list[Buffer]]] = [([], []), ([], [])]
        for record in group.records:
            records, own_bodies = parts[is_late(group, record)]
            records.append(record)
            own_bodies += [next(bodies) for ref in record.bodies if ref.place is None]
        for records, own_bodies in parts:
            if records:
                group.records, group.bodies = records, own_bodies
                await append(shard, group)
                await pass_time(0.02)

    patch.setattr(Shard, "append", append_in_two)


def lost_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "_kept", lambda *_: None)


def lost_block(patch: pytest.MonkeyPatch) -> None:
    read = FileJournal.read

    async def read_without_tail(
        journal: FileJournal, first: int, limit: int
    ) -> list[Block | DamagedBlock]:
        blocks = await read(journal, first, limit)
        return [block for block in blocks if block.seq != journal.info().tail]

    patch.setattr(FileJournal, "read", read_without_tail)


def late_dead(patch: pytest.MonkeyPatch) -> None:
    """Remove dead events after they were moved (SEM T7)."""

    def is_removal(_: Group, record: FactRecord) -> bool:
        return isinstance(record.fact, Removed) and bool(record.fact.dead)

    stored_in_two_blocks(patch, is_removal)


def late_store(patch: pytest.MonkeyPatch) -> None:
    """Store the other stores of a transaction after its first one (SEM X4)."""

    def is_later_store(group: Group, record: FactRecord) -> bool:
        ends = [
            record_.fact for record_ in group.records if isinstance(record_.fact, TransactionEnded)
        ]
        if not ends:
            return False
        later = {number for end in ends for number, _ in end.ended.spans[1:]}
        return record.channel in later or isinstance(record.fact, TransactionEnded)

    stored_in_two_blocks(patch, is_later_store)


def late_due(patch: pytest.MonkeyPatch) -> None:
    """Remove a scheduled event before it is published (SEM X4)."""

    def is_publish(group: Group, record: FactRecord) -> bool:
        due = any(
            isinstance(removal.fact, Removed)
            and group.state.channels[removal.channel].state.definition.kind == "schedule"
            for removal in group.records
            if removal.channel
        )
        return due and isinstance(record.fact, Appended)

    stored_in_two_blocks(patch, is_publish)


def late_copy(patch: pytest.MonkeyPatch) -> None:
    """Store the copy of a join after its event (SEM L1)."""

    def is_copy(group: Group, record: FactRecord) -> bool:
        return isinstance(record.fact, Appended) and bool(
            group.state.directory.joins.into(record.channel)
        )

    stored_in_two_blocks(patch, is_copy)


def forgotten_keys(patch: pytest.MonkeyPatch) -> None:
    """Forget the stored values of publish keys at a restart (SEM K1)."""

    async def nothing(*_: object) -> None:
        return None

    patch.setattr(realm, "index_keys", nothing)


def unchecked_segments(patch: pytest.MonkeyPatch) -> None:
    def read(reader: SegmentReader, number: int) -> pa.RecordBatch:
        place = reader.index.batches[number]
        message = reader._buffer.slice(place.offset, place.length)
        return pa.ipc.read_record_batch(message, reader.schema)

    patch.setattr(SegmentReader, "_verified", read)


def unchecked_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageFiles, "_fault", lambda *_: "")


def silence_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Measure the silence of a connection with the machine's clock, which jumps."""
    check_silence = Connection.check

    def check(connection: Connection, now_s: float) -> None:
        ahead_s = connection.realm.clock.now_us() / 1e6 - now_s
        began_s = began.setdefault(connection, ahead_s)
        check_silence(connection, now_s + ahead_s - began_s)

    began: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
    patch.setattr(Connection, "check", check)


def endless_place(patch: pytest.MonkeyPatch) -> None:
    """Keep the place of a disconnected listener for ever (SEM J5)."""
    patch.setattr(disconnected_subscribers, "drop_overdue", lambda *_: None)


def short_memory(patch: pytest.MonkeyPatch) -> None:
    """Remember the end of a transaction for only an hour (SEM X2)."""
    patch.setattr(transactions, "REMEMBERED_US", 3_600_000_000)


def endless_memory(patch: pytest.MonkeyPatch) -> None:
    """Never forget producers."""
    patch.setattr(Remembered, "_prune", lambda *_: None)


SEEDS_MAX = 25
"""Number of seeds that every change tries."""
RARE_SEEDS_MAX = 100
"""Number of seeds for a mistake that needs a connection cut within the milliseconds of one
request."""
RAREST_SEEDS_MAX = 250
"""Number of seeds for a mistake that needs a power cut that tears the one block whose events a
client then reads."""
ROTS_MAX = 60


class Mutant(NamedTuple):
    mistake: str
    """Description for the table in README.md."""
    spoil: Spoil
    scenes: tuple[str, ...] = ()
    """Scenes that have to notice it, in a world without other scenes."""
    rots: str = ""
    """Instead of scenes: the folder of the realm whose files are damaged."""
    complaint: str = ""
    """Part of the expected complaint."""
    is_soon: bool = False
    """Whether it is noticed so quickly that the fast tests include it."""
    seeds: int = SEEDS_MAX
    """Number of seeds within which it has to be noticed."""
    first: int = 0
    """A seed that notices it, which tests try first. A change elsewhere may move it."""


MUTANTS: dict[str, Mutant] = {
    "ack before sync": Mutant("acknowledged before the sync", ack_before_sync, ("wired",)),
    "delivery before append": Mutant(
        "delivered before it is stored", delivery_before_append, ("wired",)
    ),
    "blind retry": Mutant(
        "a repeated publish is stored as a new one", blind_retry, ("wired",), seeds=RARE_SEEDS_MAX
    ),
    "forgotten gap": Mutant(
        "an acknowledgement covers events of other clients", forgotten_gap, ("wired",)
    ),
    "covered rollback": Mutant(
        "an acknowledgement covers events that were given back", covered_rollback, ("durables",)
    ),
    "lost rollback": Mutant(
        "events of a lost client are not given back", lost_rollback, ("wired",)
    ),
    "unsynced files": Mutant("files named before they are synced", unsynced_files, ("durables",)),
    "torn tail": Mutant(
        "a torn tail is taken for whole",
        torn_tail,
        ("durables",),
        seeds=RAREST_SEEDS_MAX,
        first=10,
    ),
    "stale session": Mutant("an older connection of a session lives on", stale_session, ("wired",)),
    "taken seat": Mutant(
        "the realm does not wait for the seat that an ended connection is about to take",
        taken_seat,
        ("wired",),
        seeds=RARE_SEEDS_MAX,
        first=70,
    ),
    "acknowledged and handed out": Mutant(
        "an event acknowledged while it waits is handed out anyway",
        acknowledged_and_handed_out,
        ("wired",),
        seeds=RARE_SEEDS_MAX,
        first=10,
    ),
    "late resume": Mutant("a reader resumes one event too late", late_resume, ("wired",)),
    "delta for whole": Mutant(
        "a client that merges takes a delta for the whole state",
        delta_for_whole,
        ("followed",),
    ),
    "consumed states": Mutant(
        "a state that a durable has acknowledged is removed", consumed_states, ("merged",)
    ),
    "time goes back": Mutant(
        "the realm's time goes back with the machine's clock", time_goes_back, ("timed",)
    ),
    "expired is seen": Mutant("expired events are visible", expired_is_seen, ("timed",)),
    "lost recall": Mutant("clients are not told about recalled events", lost_recall, ("ordered",)),
    "open lanes": Mutant("a lane continues behind a rolled-back event", open_lanes, ("ordered",)),
    "forgotten wait": Mutant(
        "a restart forgets how long an event waits", forgotten_wait, ("breathing",)
    ),
    "short wait": Mutant("an event is redelivered before its time", short_wait, ("breathing",)),
    "endless wait": Mutant("one of many waiting events is lost", endless_wait, ("breathing",)),
    "passed by": Mutant(
        "a serial durable continues behind a waiting event", passed_by, ("breathing",)
    ),
    "lost to time": Mutant("a late event counts as acknowledged", lost_to_time, ("breathing",)),
    **{name: Mutant(mistake, spoil, ("breathing",)) for name, (mistake, spoil) in REJECTED.items()},
    "any reply": Mutant("a reply is given to another request", any_reply, ("asked",)),
    "kept reply queues": Mutant(
        "the reply queues of lost sessions remain", kept_reply_queues, ("asked",)
    ),
    "hasty removal": Mutant(
        "a session that reconnects finds its reply queue removed", hasty_removal, ("asked",)
    ),
    "missed birth": Mutant("a channel created later is missed", born.missed_birth, ("born",)),
    "late birth": Mutant(
        "a channel created later is read from its end", born.late_birth, ("born",)
    ),
    "starved": Mutant("a busy channel starves others", born.starved, ("born",), complaint="behind"),
    "lost pattern": Mutant("a restart forgets patterns", born.forgotten_pattern, ("born",)),
    "childless": Mutant(
        "a channel is created without its durable", born.childless_birth, ("born",)
    ),
    "endless time": Mutant("clients may take as long as they like", endless_time, ("breathing",)),
    "late and taken": Mutant(
        "a late acknowledgement counts for the next delivery", late_and_taken, ("breathing",)
    ),
    "skipping seek": Mutant("a seek skips one event", skipping_seek, ("sought",)),
    "forgotten seek": Mutant("a restart forgets a seek", forgotten_seek, ("sought",)),
    "leaving seek": Mutant("a seek leaves one event in flight", leaving_seek, ("sought",)),
    "lost to a lease's time": Mutant(
        "events that a lease did not settle in time are lost", lost_to_time, ("leased",)
    ),
    **{name: Mutant(mistake, spoil, ("leased",)) for name, (mistake, spoil) in LEASED.items()},
    "lost place": Mutant("a listener that comes back is a new one", lost_place, ("jms",)),
    "silence by the clock": Mutant(
        "a connection is silent for as long as the machine's clock says",
        silence_by_the_clock,
        ("lent",),
    ),
    "endless place": Mutant("a place is kept for ever", endless_place, ("lent",)),
    "short memory": Mutant("the end of a transaction is forgotten early", short_memory, ("lent",)),
    "endless memory": Mutant("producers are never forgotten", endless_memory, ("lent",)),
    "lost tail": Mutant("a snapshot without its tail", lost_tail, ("durables",), is_soon=True),
    "lost block": Mutant(
        "a recovery without its last block", lost_block, ("durables",), is_soon=True
    ),
    "late dead": Mutant(
        "a dead event moved in one block and removed in the next",
        late_dead,
        ("dead",),
        complaint="dead",
    ),
    "late dead chain": Mutant("the same along a chain of dead event stores", late_dead, ("chain",)),
    "late store": Mutant(
        "a transaction in two blocks",
        late_store,
        ("transfers",),
        complaint="stored in part",
        is_soon=True,
    ),
    "late due": Mutant(
        "a scheduled event removed in one block and published in the next",
        late_due,
        ("scheduled",),
        complaint="was never published",
        is_soon=True,
    ),
    "forgotten keys": Mutant(
        "a restart forgets the publish keys",
        forgotten_keys,
        ("keyed",),
        complaint="at most",
        is_soon=True,
    ),
    "late copy": Mutant(
        "the copy of a join in a block of its own", late_copy, ("joined",), complaint="has no copy"
    ),
    "unchecked journal": Mutant("no checksum of the journal", torn_tail, rots="journal"),
    "unchecked segments": Mutant("no checksum of segments", unchecked_segments, rots="segments"),
    "unchecked pages": Mutant("no checksum of pages", unchecked_pages, rots="pages"),
}


class Noticed(NamedTuple):
    seed: int
    complaint: str


def noticed(mutant: Mutant, first: int = 0) -> Noticed | None:
    """Return the first seed at which an oracle complains, and the complaint. Starts at ``first``,
    then tries the seeds before it. Returns None if no seed notices the mistake."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.spoil(patch)
        if mutant.rots:
            return first_noticed(lambda seed: _rotten(seed, mutant.rots), range(ROTS_MAX))
        seeds = [*range(first, mutant.seeds), *range(first)]
        return first_noticed(lambda seed: life_of(seed, mutant.scenes), seeds)


def first_noticed(play: Callable[[int], object], seeds: Iterable[int]) -> Noticed | None:
    """Return the first of the seeds whose life fails, with the error."""
    for seed in seeds:
        try:
            play(seed)
        except Exception as group:  # noqa: BLE001  any error counts as noticed
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            return Noticed(seed, repr(error))
    return None


def _rotten(seed: int, part: str) -> None:
    with TemporaryDirectory() as directory:
        rot_of(seed, Path(directory), part)


def row(mutant: Mutant, result: Noticed | None) -> str:
    """Return a row of the table in README.md."""
    noticed_by = "`rot`" if mutant.rots else ", ".join(f"`{name}`" for name in mutant.scenes)
    return f"| {mutant.mistake} | {noticed_by} | {'nobody' if result is None else result.seed} |"
