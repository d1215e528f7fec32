"""Ways to break a realm, or a client, on purpose: each is a mistake somebody could make.

``make sim ARGS=--mutants`` makes them one after the other, and prints who notices and when.
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
    whole = Shard.append

    async def late(shard: Shard, group: Group) -> None:
        await shard.offer(list(group.touched))
        await pass_time(0.05)
        await whole(shard, group)

    patch.setattr(Shard, "append", late)


def blind_retry(patch: pytest.MonkeyPatch) -> None:
    """A publish is sent again as if it were another one."""
    whole = RealmConnection.send

    def blind(connection: RealmConnection, pending: Pending) -> None:
        if pending.sent and isinstance(pending.message, PublishEvents):
            pending.message = msgspec.structs.replace(pending.message, producer="", sequence=0)
        whole(connection, pending)

    patch.setattr(RealmConnection, "send", blind)


def forgotten_gap(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement moves the floor over what others hold, and have not acknowledged."""
    whole = Durable.settled_by

    def floor(durable: Durable, seat: Seat, spans: Spans, stored: IdSet) -> IdSet:
        mine = whole(durable, seat, spans, stored=stored).copy()
        if mine:
            mine.add_all(durable.outstanding.within(Span(0, max(span.end for span in mine.spans))))
        return mine

    patch.setattr(Durable, "settled_by", floor)


def covered_rollback(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement covers what was given back before, and has not come again."""
    whole = Durable.below

    def covers(durable: Durable, seat: Seat, event_id: int, stored: IdSet) -> IdSet:
        settled = whole(durable, seat, event_id, stored=stored)
        settled.add_all(durable.rolled_back.within(Span(0, event_id + 1)))
        return settled

    patch.setattr(Durable, "below", covers)


def lost_rollback(patch: pytest.MonkeyPatch) -> None:
    """What a client that is gone has held stays in its hands."""

    def lose(subscriptions: Subscriptions, subscription: int) -> None:
        subscriptions.dispatch.close(subscription)

    patch.setattr(Subscriptions, "lose", lose)


def unsynced_files(patch: pytest.MonkeyPatch) -> None:
    """Snapshots and segments get their names before their bytes are on disk."""

    def write_all(disk: Disk, path: str, chunks: Sequence[Buffer]) -> None:
        file = disk.open(path, create=True)
        disk.pwrite(file, chunks, 0)
        disk.close(file)

    patch.setattr(blobs, "write_all", write_all)


def torn_tail(patch: pytest.MonkeyPatch) -> None:
    """The last block is taken for whole, however much of it a power cut has left."""
    for module in (frames, journal):
        patch.setattr(module, "is_whole", lambda *_: True)


def stale_session(patch: pytest.MonkeyPatch) -> None:
    """A session's older connection lives on beside the one it has come back with."""

    def greeted(listener: NativeListener, connection: Connection, session: str) -> None:
        listener.sessions[session] = connection

    patch.setattr(NativeListener, "greeted", greeted)


def taken_seat(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the seat that an ended connection is about to take."""

    async def at_once(*_: object) -> None:
        return None

    patch.setattr(NativeListener, "seats_given_back", at_once)


def acknowledged_and_handed_out(patch: pytest.MonkeyPatch) -> None:
    """Events that a reconnect has brought again are handed out although they are acknowledged
    meanwhile (SEM D13)."""
    patch.setattr(DurableSeat, "acknowledged", lambda seat, spans: None)


def late_resume(patch: pytest.MonkeyPatch) -> None:
    """A reader goes on one event too late after a reconnect."""

    async def reopen(subscription: Subscription) -> None:
        if subscription._attachment.is_open:
            await subscription._attach(FromId(subscription._next_id + 1))

    patch.setattr(Subscription, "_reopen", reopen)


def delta_for_whole(patch: pytest.MonkeyPatch) -> None:
    """A client that is to merge takes what has changed for all there is (SEM K3)."""
    patch.setattr(merging, "deltas_of", lambda batch: np.zeros(batch.num_rows, dtype=np.bool_))


def lost_recall(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told of what the realm takes back, and who settles it anyway is believed."""
    patch.setattr(Dispatch, "recall", lambda *_: None)
    patch.setattr(decide, "refuse_recalled", lambda *_: None)


def open_lanes(patch: pytest.MonkeyPatch) -> None:
    """What follows a rolled-back event in its lane stays in hands."""
    patch.setattr(Lanes, "after", lambda *_: IdSet())


def consumed_states(patch: pytest.MonkeyPatch) -> None:
    """A state that all durables have acknowledged leaves as any event does (SEM D6)."""
    patch.setattr(
        ChannelState, "retains_consumed", property(lambda state: state.definition.retain_consumed)
    )


def time_goes_back(patch: pytest.MonkeyPatch) -> None:
    """The realm's time is the machine's, also where that is set back."""
    patch.setattr(SystemClock, "now_us", lambda clock: clock.now_ns() // 1_000)


def expired_is_seen(patch: pytest.MonkeyPatch) -> None:
    """What has expired is there until something else makes it leave (SEM T1)."""
    patch.setattr(Ages, "_expired_through", lambda *_: -1)


def lost_place(patch: pytest.MonkeyPatch) -> None:
    """A listener that comes back is taken for a new one (SEM J5)."""
    patch.setattr(ResumePlaces, "take", lambda *_: None)


def stored_in_two_blocks(
    patch: pytest.MonkeyPatch, is_late: Callable[[Group, FactRecord], bool]
) -> None:
    """What ``is_late`` says comes a moment after the rest of its group."""
    whole = Shard.append

    async def halves(shard: Shard, group: Group) -> None:
        bodies = iter(group.bodies)
        parts: list[tuple[list[FactRecord], list[Buffer]]] = [([], []), ([], [])]
        for record in group.records:
            records, own = parts[is_late(group, record)]
            records.append(record)
            own += [next(bodies) for ref in record.bodies if ref.place is None]
        for records, own in parts:
            if records:
                group.records, group.bodies = records, own
                await whole(shard, group)
                await pass_time(0.02)

    patch.setattr(Shard, "append", halves)


def lost_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "_kept", lambda *_: None)


def lost_block(patch: pytest.MonkeyPatch) -> None:
    whole = FileJournal.read

    async def short(journal: FileJournal, first: int, limit: int) -> list[Block | DamagedBlock]:
        blocks = await whole(journal, first, limit)
        return [block for block in blocks if block.seq != journal.info().tail]

    patch.setattr(FileJournal, "read", short)


def late_dead(patch: pytest.MonkeyPatch) -> None:
    """Dead events leave after they were moved (SEM T7)."""

    def leaves(_: Group, record: FactRecord) -> bool:
        return isinstance(record.fact, Removed) and bool(record.fact.dead)

    stored_in_two_blocks(patch, leaves)


def late_store(patch: pytest.MonkeyPatch) -> None:
    """The other stores of a transaction come after its first one (SEM X4)."""

    def comes_last(group: Group, record: FactRecord) -> bool:
        ended = [each.fact for each in group.records if isinstance(each.fact, TransactionEnded)]
        if not ended:
            return False
        later = {number for end in ended for number, _ in end.ended.spans[1:]}
        return record.channel in later or isinstance(record.fact, TransactionEnded)

    stored_in_two_blocks(patch, comes_last)


def late_due(patch: pytest.MonkeyPatch) -> None:
    """A scheduled event leaves before it is published (SEM X4)."""

    def arrives(group: Group, record: FactRecord) -> bool:
        due = any(
            isinstance(each.fact, Removed)
            and group.state.channels[each.channel].state.definition.kind == "schedule"
            for each in group.records
            if each.channel
        )
        return due and isinstance(record.fact, Appended)

    stored_in_two_blocks(patch, arrives)


def late_copy(patch: pytest.MonkeyPatch) -> None:
    """The copy of a join is stored after its event (SEM L1)."""

    def is_copy(group: Group, record: FactRecord) -> bool:
        return isinstance(record.fact, Appended) and bool(
            group.state.directory.joins.into(record.channel)
        )

    stored_in_two_blocks(patch, is_copy)


def forgotten_keys(patch: pytest.MonkeyPatch) -> None:
    """A restart forgets what is stored for each key (SEM K1)."""

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
    """How long a connection has been silent is told by the machine's clock, which jumps."""
    whole = Connection.check

    def check(connection: Connection, now_s: float) -> None:
        ahead_s = connection.realm.clock.now_us() / 1e6 - now_s
        began_s = began.setdefault(connection, ahead_s)
        whole(connection, now_s + ahead_s - began_s)

    began: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
    patch.setattr(Connection, "check", check)


def endless_place(patch: pytest.MonkeyPatch) -> None:
    """The place of a listener that was cut off is kept for ever (SEM J5)."""
    patch.setattr(disconnected_subscribers, "drop_overdue", lambda *_: None)


def short_memory(patch: pytest.MonkeyPatch) -> None:
    """How a transaction ended is known for an hour (SEM X2)."""
    patch.setattr(transactions, "REMEMBERED_US", 3_600_000_000)


def endless_memory(patch: pytest.MonkeyPatch) -> None:
    """Producers are never forgotten."""
    patch.setattr(Remembered, "_prune", lambda *_: None)


SEEDS_MAX = 25
"""In as many every change is tried."""
RARE_SEEDS_MAX = 100
"""For what needs a connection that is cut in the milliseconds of one request."""
RAREST_SEEDS_MAX = 250
"""For what needs a power cut that tears the one block whose events somebody then reads."""
ROTS_MAX = 60


class Mutant(NamedTuple):
    mistake: str
    """What is wrong, for people."""
    spoil: Spoil
    scenes: tuple[str, ...] = ()
    """Scenes that are to notice, in a world of their own."""
    rots: str = ""
    """Or: the folder of the realm whose files are to be damaged."""
    says: str = ""
    """Part of what is complained of."""
    is_soon: bool = False
    """Whether it is noticed so quickly that every change can wait for it."""
    seeds: int = SEEDS_MAX
    """In how many it has to be noticed."""
    first: int = 0
    """One of them that notices it, which tests ask first. Another change may let it be another."""


MUTANTS: dict[str, Mutant] = {
    "ack before sync": Mutant("acknowledged before the sync", ack_before_sync, ("wired",)),
    "delivery before append": Mutant(
        "delivered before it is stored", delivery_before_append, ("wired",)
    ),
    "blind retry": Mutant(
        "a publish sent again as another one", blind_retry, ("wired",), seeds=RARE_SEEDS_MAX
    ),
    "forgotten gap": Mutant(
        "an acknowledgement that covers what others hold", forgotten_gap, ("wired",)
    ),
    "covered rollback": Mutant(
        "an acknowledgement that covers what was given back", covered_rollback, ("durables",)
    ),
    "lost rollback": Mutant("what a lost client held is not given back", lost_rollback, ("wired",)),
    "unsynced files": Mutant("files named before they are synced", unsynced_files, ("durables",)),
    "torn tail": Mutant(
        "a torn tail taken for whole",
        torn_tail,
        ("durables",),
        seeds=RAREST_SEEDS_MAX,
        first=10,
    ),
    "stale session": Mutant("an older connection of a session lives on", stale_session, ("wired",)),
    "taken seat": Mutant(
        "nobody waits for the seat an ended connection is about to take",
        taken_seat,
        ("wired",),
        seeds=RARE_SEEDS_MAX,
        first=70,
    ),
    "acknowledged and handed out": Mutant(
        "what is acknowledged while it waits is handed out all the same",
        acknowledged_and_handed_out,
        ("wired",),
        seeds=RARE_SEEDS_MAX,
        first=10,
    ),
    "late resume": Mutant("a reader goes on one event too late", late_resume, ("wired",)),
    "delta for whole": Mutant(
        "a client that merges takes what has changed for all there is",
        delta_for_whole,
        ("followed",),
    ),
    "consumed states": Mutant(
        "a state that a durable has acknowledged leaves", consumed_states, ("merged",)
    ),
    "time goes back": Mutant(
        "the realm's time goes back with the machine's", time_goes_back, ("timed",)
    ),
    "expired is seen": Mutant("what has expired is seen", expired_is_seen, ("timed",)),
    "lost recall": Mutant("nobody is told what is recalled", lost_recall, ("ordered",)),
    "open lanes": Mutant("a lane goes on behind a rolled-back event", open_lanes, ("ordered",)),
    "forgotten wait": Mutant(
        "a restart forgets until when an event waits", forgotten_wait, ("breathing",)
    ),
    "short wait": Mutant("an event comes again before its time", short_wait, ("breathing",)),
    "endless wait": Mutant("one of many events that wait is lost", endless_wait, ("breathing",)),
    "passed by": Mutant(
        "a serial durable goes on behind an event that waits", passed_by, ("breathing",)
    ),
    "lost to time": Mutant(
        "what was not acknowledged in time counts as acknowledged", lost_to_time, ("breathing",)
    ),
    **{name: Mutant(mistake, spoil, ("breathing",)) for name, (mistake, spoil) in REJECTED.items()},
    "any reply": Mutant("a reply is given to another request", any_reply, ("asked",)),
    "kept reply queues": Mutant(
        "the reply queues of lost sessions stay", kept_reply_queues, ("asked",)
    ),
    "hasty removal": Mutant(
        "a session that reconnects finds its reply queue removed", hasty_removal, ("asked",)
    ),
    "missed birth": Mutant("a channel made later is missed", born.missed_birth, ("born",)),
    "late birth": Mutant("a channel made later is read from its end", born.late_birth, ("born",)),
    "starved": Mutant("a busy channel starves others", born.starved, ("born",), says="behind"),
    "lost pattern": Mutant("a restart forgets patterns", born.forgotten_pattern, ("born",)),
    "childless": Mutant("a channel is made without its durable", born.childless_birth, ("born",)),
    "endless time": Mutant("clients may take as long as they like", endless_time, ("breathing",)),
    "late and taken": Mutant(
        "a late acknowledgement counts for the next delivery", late_and_taken, ("breathing",)
    ),
    "skipping seek": Mutant("a seek skips one event", skipping_seek, ("sought",)),
    "forgotten seek": Mutant("a restart forgets a seek", forgotten_seek, ("sought",)),
    "leaving seek": Mutant("a seek leaves one event in hand", leaving_seek, ("sought",)),
    "lost to a lease's time": Mutant(
        "what a lease did not settle in time is lost", lost_to_time, ("leased",)
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
        "a dead event moved in one block and removed in the next", late_dead, ("dead",), says="dead"
    ),
    "late dead chain": Mutant("the same along a chain of dead event stores", late_dead, ("chain",)),
    "late store": Mutant(
        "a transaction in two blocks",
        late_store,
        ("transfers",),
        says="stored in part",
        is_soon=True,
    ),
    "late due": Mutant(
        "a scheduled event removed in one block and published in the next",
        late_due,
        ("scheduled",),
        says="was never published",
        is_soon=True,
    ),
    "forgotten keys": Mutant(
        "a restart forgets the publish keys",
        forgotten_keys,
        ("keyed",),
        says="at most",
        is_soon=True,
    ),
    "late copy": Mutant(
        "the copy of a join in a block of its own", late_copy, ("joined",), says="has no copy"
    ),
    "unchecked journal": Mutant("no checksum of the journal", torn_tail, rots="journal"),
    "unchecked segments": Mutant("no checksum of segments", unchecked_segments, rots="segments"),
    "unchecked pages": Mutant("no checksum of pages", unchecked_pages, rots="pages"),
}


class Noticed(NamedTuple):
    seed: int
    complaint: str


def noticed(mutant: Mutant, first: int = 0) -> Noticed | None:
    """The first seed an oracle complains of, and what it says, from ``first`` on and then from the
    beginning; None when none of its seeds does."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.spoil(patch)
        if mutant.rots:
            return first_noticed(lambda seed: _rotten(seed, mutant.rots), range(ROTS_MAX))
        seeds = [*range(first, mutant.seeds), *range(first)]
        return first_noticed(lambda seed: life_of(seed, mutant.scenes), seeds)


def first_noticed(play: Callable[[int], object], seeds: Iterable[int]) -> Noticed | None:
    """The first of the seeds whose life fails, and with what."""
    for seed in seeds:
        try:
            play(seed)
        except Exception as group:  # noqa: BLE001  whatever it is, it was noticed
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            return Noticed(seed, repr(error))
    return None


def _rotten(seed: int, part: str) -> None:
    with TemporaryDirectory() as directory:
        rot_of(seed, Path(directory), part)


def row(mutant: Mutant, found: Noticed | None) -> str:
    """A row of the table in README.md."""
    by = "`rot`" if mutant.rots else ", ".join(f"`{name}`" for name in mutant.scenes)
    return f"| {mutant.mistake} | {by} | {'nobody' if found is None else found.seed} |"
