"""Rebuilds a realm's state from the newest snapshot and the journal after it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock_core.channel.event_sizes import EventSizes
from penstock_core.channel.state import RealmRules
from penstock_core.columns.events.batch import ids_of
from penstock_core.garbage import uncollected
from penstock_core.ids.ids import IdSet, Span
from penstock_core.loggers import logger
from penstock_core.messages.retention import Quarantine
from penstock_core.vocabulary.errors import (
    Damaged,
    NameDoesNotExist,
    NewerFormat,
    StorageFailed,
    Trimmed,
)
from penstock_core.vocabulary.ports import Blobs, Block, ChecksBlobs, Journal, Pages, PageSlot
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.store.file_names import (
    SNAPSHOTS,
    FileNames,
    block_of_snapshot,
    snapshot_age,
)
from penstock_server.runtime.store.large_blocks import decode_whole
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.merging import read_files
from penstock_server.runtime.store.records import decode_block
from penstock_server.runtime.store.state import RealmState

READ_BLOCKS = 256
"""Number of blocks that are read from the journal at once."""
ATTEMPTS_MAX = 10
"""Largest number of attempts of a recovery, if its snapshot or blocks are removed while it reads
them."""
KEPT = "realm/kept-"
"""Prefix of the names of blobs that list segments which must never be deleted as strays."""
INDEX_EVENTS = 65_536
"""Largest number of events that are read at once to find the newest event of each publish key."""

SLICE_S: Final = 0.05
"""Duration of a slice in seconds, during which a recovery blocks the event loop. A node of a
cluster renews its lease between slices: a renewal needs a few turns of the loop about every
second."""

_SNAPSHOT_ELSEWHERE = (
    "A cluster never serves such a realm. Check that this node reaches the store of cluster.blobs: "
    "the folder has to be mounted, and the URI has to be the same as on the other nodes"
)

_log = logger("penstock.recovery")


class Slices:
    """Divides a long piece of work into slices. The work checks :attr:`is_over` after each step,
    and awaits :meth:`next` if it is true.

    A slice is limited by time and not by a number of steps, because steps may be very short: other
    tasks would then run too often and delay the work.
    """

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._ends_s = self._time() + SLICE_S

    @property
    def is_over(self) -> bool:
        """Whether the slice has ended and other tasks should run."""
        return self._time() >= self._ends_s

    async def next(self) -> None:
        """Let other tasks run, and begin the next slice."""
        await asyncio.sleep(0)
        self._ends_s = self._time() + SLICE_S


class RecoveredRealm(Struct):
    """The state of a realm after recovery, with the damage that was detected."""

    state: RealmState
    events: int
    """Number of stored events."""
    blocks: int
    """Number of replayed journal blocks."""
    snapshot: int
    """Sequence of the last block that the snapshot includes; 0 without a snapshot."""
    damage: list[str]
    """Descriptions of unreadable data, for the log and for reports."""
    has_gaps: bool
    """Whether facts may be missing because of damage, so that files without a fact must be kept. A
    torn tail does not count, because it was never acknowledged."""
    unreadable: list[tuple[int, Quarantine]]
    """Stored events that are damaged and have to be quarantined, by channel."""
    newest_us: int = 0
    """The latest time of a readable block; 0 without a readable block."""
    last_us: int = 0
    """Time of the last readable block; 0 without a readable block. It is less than ``newest_us`` if
    the clock of an earlier start was ahead."""

    @property
    def quarantined(self) -> int:
        """Number of events that earlier starts have quarantined, or that this start quarantines."""
        earlier_count = sum(channel.state.lost for channel in self.state.channels.values())
        return earlier_count + sum(len(IdSet(command.spans)) for _, command in self.unreadable)


async def recover(
    journal: Journal, blobs: Blobs, pages: Pages, rules: RealmRules, *, epoch: int = 0
) -> RecoveredRealm:
    """Read all stored data, for an owner with this ``epoch``, which is 0 without a cluster. Damage
    is reported and not changed (SEM S1). Other tasks, such as the renewal of the owner's lease, run
    between slices of the work.

    Raises ``NewerFormat``, because serving without the data of a newer version would lose it; in a
    cluster also ``Damaged`` for a journal that was trimmed up to a snapshot which this node cannot
    read.
    """
    with uncollected():
        return await _recover_with_retries(journal, blobs, pages, rules=rules, epoch=epoch)


async def _recover_with_retries(
    journal: Journal, blobs: Blobs, pages: Pages, rules: RealmRules, epoch: int
) -> RecoveredRealm:
    """Recover, again if another owner removes data that is being read."""
    rules = replace(rules, is_cluster=bool(epoch))
    # Only in a cluster can another owner remove data while it is read.
    for _ in range(ATTEMPTS_MAX - 1 if epoch else 0):
        try:
            return await _recover(journal, blobs, pages, rules=rules, epoch=epoch)
        except (Trimmed, NameDoesNotExist) as error:
            # A deposed owner that does not know yet that it was deposed has written a last snapshot
            # and removed the blocks and files before it. The next attempt reads that snapshot.
            _log.info("recovery.repeated", reason=str(error))
    return await _recover(journal, blobs, pages, rules=rules, epoch=epoch)


async def _recover(
    journal: Journal, blobs: Blobs, pages: Pages, rules: RealmRules, epoch: int
) -> RecoveredRealm:
    damage: list[str] = []
    slices = Slices()
    state, sequence, newest_us = await _from_snapshot(
        blobs, pages, rules, damage=damage, slices=slices
    )
    last_us = newest_us
    state.file_names = FileNames(epoch)
    info = journal.info()
    if info.cut:
        damage.append(
            f"the journal ends in a torn tail of {info.cut} bytes, which was never acknowledged; "
            "a start cuts it off and keeps a copy in quarantine/"
        )
    if info.floor > sequence:
        gap = (
            f"the journal starts after block {info.floor}, the newest readable snapshot is of "
            f"block {sequence}: the blocks in between are missing"
        )
        if epoch:
            # Owners trim the journal only up to a snapshot that they have written. So the snapshot
            # exists, and serving without it would lose acknowledged events.
            raise Damaged(f"{gap}. {_SNAPSHOT_ELSEWHERE}")
        damage.append(gap)
        sequence = info.floor
    blocks = 0
    next_sequence = sequence + 1
    while next_sequence <= info.tail:
        read_blocks = await journal.read(next_sequence, READ_BLOCKS)
        if not read_blocks:
            break
        for block in read_blocks:
            next_sequence = block.seq + (1 if isinstance(block, Block) else block.count)
            if isinstance(block, Block):
                blocks += 1
                last_us = await _apply(
                    state, block, blobs, pages=pages, damage=damage, last_us=last_us, slices=slices
                )
                newest_us = max(newest_us, last_us)
            else:
                damage.append(f"{block.where}: {block.reason}")
    await _finish(state, slices)
    damage += state.contradictions.values()
    _free_read_buffers(state)
    # A torn tail is one entry in `damage`, but not a gap.
    has_gaps = bool(state.skipped) or len(damage) > bool(info.cut)
    keep_rest = bool(damage)  # a damaged block may have used further slots
    if isinstance(blobs, ChecksBlobs):
        blobs.check_against(state.file_sum)
    unreadable = await _complete_merges(state, blobs, damage)
    unreadable += await _check_pages(state, pages, damage)
    await pages.restore(_slots(state), keep_rest=keep_rest)
    state.forget_freed()  # `restore` freed these slots, and later bodies may use them again
    damage += [f"skipped, because an earlier block is damaged: {fact}" for fact in state.skipped]
    events = sum(len(channel.state.stored) for channel in state.channels.values())
    return RecoveredRealm(
        state,
        events,
        blocks,
        snapshot=sequence,
        damage=damage,
        has_gaps=has_gaps,
        unreadable=unreadable,
        newest_us=newest_us,
        last_us=last_us,
    )


async def _finish(state: RealmState, slices: Slices) -> None:
    """Compute the derived values of all channels, once every fact is applied."""
    state.schemas.forget_unused()
    for channel_id, channel in state.channels.items():
        channel.recovered()
        channel_state, store = channel.state, state.stores[channel_id]
        store.recount(channel_state.stored)
        channel_state.event_bytes = max(channel_state.event_bytes, store.event_bytes)
        channel_state.sizes = EventSizes.from_batches(store.event_sizes())
        if slices.is_over:
            await slices.next()


def _free_read_buffers(state: RealmState) -> None:
    """Copy bodies that keep much larger buffers in memory. Up to 64 MB of blocks are read into one
    buffer, and a single unsealed body would keep all of it in memory."""
    bodies = [
        (tail_batch, tail_batch.body)
        for store in state.stores.values()
        for tail_batch in store.tail
        if tail_batch.place is None and isinstance(tail_batch.body, memoryview)
    ]
    used_bytes: Counter[int] = Counter()
    for _, body in bodies:
        used_bytes[id(body.obj)] += body.nbytes
    for tail_batch, body in bodies:
        if 2 * used_bytes[id(body.obj)] < memoryview(body.obj).nbytes:
            tail_batch.moved_outside(memoryview(bytes(body)))


async def _complete_merges(
    state: RealmState, blobs: Blobs, damage: list[str]
) -> list[tuple[int, Quarantine]]:
    """Load the states of merge channels from their files; return the events that are missing
    (SEM K2)."""
    quarantines = []
    for channel_id, store in state.stores.items():
        if not isinstance(store, MergeStore):
            continue
        await read_files(store, blobs, damage)
        if missing := store.missing(state.channels[channel_id].state.stored):
            quarantines.append((channel_id, Quarantine(missing.spans)))
    return quarantines


def _slots(state: RealmState) -> dict[int, list[PageSlot]]:
    """Return the used slots in the pages of each channel."""
    return {
        channel_id: [tail_batch.place for tail_batch in store.tail if tail_batch.place is not None]
        for channel_id, store in state.stores.items()
        if state.channels[channel_id].state.type.home == "pages"
    }


async def _check_pages(
    state: RealmState, pages: Pages, damage: list[str]
) -> list[tuple[int, Quarantine]]:
    """Verify the bodies in pages; return the events of damaged ones, to be quarantined."""
    quarantines = []
    for channel_id, slots in _slots(state).items():
        damaged = {slot.place: slot for slot in await pages.check(channel_id, slots)}
        ids = IdSet()
        for tail_batch in state.stores[channel_id].tail:
            if tail_batch.place is not None and tail_batch.place in damaged:
                ids.add(Span(tail_batch.first, tail_batch.end))
                reason = f"{damaged[tail_batch.place].where}: {damaged[tail_batch.place].reason}"
                state.stores[channel_id].quarantined.append(reason)
                damage.append(reason)
        if ids:
            quarantines.append((channel_id, Quarantine(ids.spans)))
    return quarantines


async def _apply(
    state: RealmState,
    block: Block,
    blobs: Blobs,
    pages: Pages,
    damage: list[str],
    last_us: int,
    slices: Slices,
) -> int:
    """Apply a block and return its time in microseconds. ``last_us`` is the time of the block
    before, which is returned if this block is unreadable."""
    at_us = last_us
    try:
        header, bodies = await decode_whole(block.data, blobs)
        at_us = header.at_us
        if at_us < last_us:
            clock_set_back(state, last_us, at_us)
        for record in header.records:
            state.apply_stored(record, bodies, pages)
            if slices.is_over:
                await slices.next()
    except Damaged as error:
        damage.append(str(error))
    except NewerFormat as error:
        raise _newer(f"block {block.seq} of the journal", error) from error
    return at_us


def _newer(where: str, error: NewerFormat) -> NewerFormat:
    """Return the error for data in a newer format."""
    return NewerFormat(
        f"{where} holds {error}. Run the version that wrote it, or a newer one; the realm is not "
        "served, and its data is unchanged"
    )


async def _from_snapshot(
    blobs: Blobs, pages: Pages, rules: RealmRules, damage: list[str], slices: Slices
) -> tuple[RealmState, int, int]:
    """Return the state of the newest readable snapshot, the last block that it includes, and its
    time in microseconds."""
    names = [info.name for info in await blobs.list(SNAPSHOTS)]
    for name in sorted(names, key=snapshot_age, reverse=True):
        state = RealmState(rules)  # a damaged snapshot may have been applied in part
        try:
            header, bodies = decode_block(checked(await blobs.get(name), name))
            for record in header.records:
                state.apply_stored(record, bodies, pages)
                if slices.is_over:
                    await slices.next()
        except Damaged as error:
            damage.append(f"snapshot {name}: {error}")
            continue
        except NewerFormat as error:
            raise _newer(f"the snapshot {name}", error) from error
        return state, block_of_snapshot(name), header.at_us
    return RealmState(rules), 0, 0


def checked(blob: memoryview, name: str) -> memoryview:
    """Return the bytes of a snapshot without its checksum. Raises ``Damaged`` if the checksum does
    not match."""
    from xxhash import xxh3_64_intdigest

    body, checksum = blob[8:], int.from_bytes(blob[:8], "little")
    if xxh3_64_intdigest(body) != checksum:
        raise Damaged(f"{name} fails its checksum")
    return body


def clock_set_back(state: RealmState, last_us: int, now_us: int) -> None:
    """Adapt the state to a clock that shows ``now_us``, after an earlier run whose clock was ahead
    and last showed ``last_us``. TTLs begin again now (SEM T1), delayed events wait for their
    remaining time (SEM D18), and facts that are remembered for some time are remembered from now
    on."""
    for channel in state.channels.values():
        channel.clock_set_back(last_us, now_us)
    state.producers.lower(now_us)
    state.transactions.lower(now_us)


async def index_keys(recovered: RecoveredRealm, dispatch: Dispatch) -> None:
    """Build the indexes of the newest stored event of each publish key (SEM K1)."""
    state = recovered.state
    slices = Slices()
    unreadable = {channel_id: IdSet(command.spans) for channel_id, command in recovered.unreadable}
    for channel_id, channel in state.channels.items():
        store = state.stores[channel_id]
        if store.keys is None:
            continue
        remaining = channel.state.stored.copy()
        remaining.discard_all(unreadable.get(channel_id, IdSet()))
        while remaining:
            spans: list[Span] = []
            events_left = INDEX_EVENTS
            while events_left > 0 and (span := remaining.take(events_left)) is not None:
                spans.append(span)
                events_left -= span.size
            rows, _ = await dispatch.read(store, tuple(spans))
            for part in rows:
                store.keys.append([part.batch], ids_of(part.batch))
                if slices.is_over:
                    await slices.next()
        store.count_index()


def keep_unknown(recovered: RecoveredRealm) -> None:
    """Keep segments without stored events, because the facts about their events may be damaged
    (SEM S1). After a torn tail this is not needed, because the facts about all segments are before
    it."""
    for store in recovered.state.stores.values():
        for file in store.empty_files():
            store.keep_damaged(
                file,
                f"{file.name} is kept because the journal is damaged and has no record of its "
                f"events",
            )


async def remove_strays(recovered: RecoveredRealm, blobs: Blobs) -> None:
    """Delete the segments that no fact names, called strays.

    A state that was rebuilt with damage cannot distinguish the strays of a crash, whose events are
    still in the journal, from files whose facts are lost. It lists them in a blob instead, so that
    a later start, which may see no damage, also keeps them (SEM S1).

    An owner never deletes a file that a later owner may have written, because this process may have
    been suspended since it lost the ownership.
    """
    if recovered.damage and not recovered.has_gaps:
        return  # only a torn tail: the next start decides, without this damage
    recorded = {file.name for store in recovered.state.stores.values() for file in store.files}
    names = [info.name for info in await blobs.list("segments/")]
    strays = [name for name in names if name not in recorded]
    if not strays:
        return
    if recovered.has_gaps:
        await _list_as_kept(strays, blobs)
        return
    listed_names = await _kept_names(blobs)
    for name in strays:
        if name in listed_names:
            _log.warning("segment.stray_kept", name=name)
        elif recovered.state.file_names.may_remove(name):
            _log.info("segment.stray_removed", name=name)
            await blobs.delete(name)


async def _list_as_kept(strays: list[str], blobs: Blobs) -> None:
    """Store a list of strays, so that later starts keep them."""
    from xxhash import xxh3_64_hexdigest

    content = "\n".join(strays).encode()
    try:
        await blobs.put(f"{KEPT}{xxh3_64_hexdigest(content)}", [content])
    except StorageFailed as error:  # a realm on a full disk still starts
        _log.warning("segment.strays_not_listed", files=len(strays), reason=str(error))


async def _kept_names(blobs: Blobs) -> set[str]:
    names = set[str]()
    for info in await blobs.list(KEPT):
        names.update(bytes(await blobs.get(info.name)).decode().split("\n"))
    return names
