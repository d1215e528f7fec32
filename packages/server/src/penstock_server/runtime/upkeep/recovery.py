"""Building a realm's state from what is stored: the newest snapshot, then the journal."""

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
ATTEMPTS_MAX = 10
"""How often to begin again when something was removed that was about to be read."""
KEPT = "realm/kept-"
"""Begins the names of blobs that list segments which are never deleted as strays."""
INDEX_EVENTS = 65_536
"""Events read at once to find the newest of each publish key."""

SLICE_S: Final = 0.05
"""How long a recovery holds the event loop. A node of a cluster renews its lease between two
slices, with a few turns of the loop every second or so."""

_SNAPSHOT_ELSEWHERE = (
    "A cluster never serves such a realm. Check that this node sees the place of cluster.blobs: "
    "that the folder is mounted, and the URI is the one that the other nodes have"
)

_log = logger("penstock.recovery")


class Slices:
    """The slices of one piece of work, which asks :attr:`is_over` after each step and waits for
    :meth:`next` then.

    They are counted in time and not in steps: the more the others have to do in their turns, the
    more steps the work would fall behind.
    """

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._ends_s = self._time() + SLICE_S

    @property
    def is_over(self) -> bool:
        """Whether others are to have a turn."""
        return self._time() >= self._ends_s

    async def next(self) -> None:
        """Give the others a turn, and begin the next slice."""
        await asyncio.sleep(0)
        self._ends_s = self._time() + SLICE_S


class RecoveredRealm(Struct):
    state: RealmState
    events: int
    """Events stored."""
    blocks: int
    """Journal blocks replayed."""
    snapshot: int
    """Sequence of the block the snapshot was taken after; 0: there was none."""
    damage: list[str]
    """Descriptions of what could not be read, for people."""
    has_gaps: bool
    """Whether facts may be missing because of damage, so that what no fact mentions must be kept. A
    torn tail is no gap, because it was never acknowledged."""
    unreadable: list[tuple[int, Quarantine]]
    """By channel: stored events that are known to be damaged, to be quarantined."""
    newest_us: int = 0
    """The latest time at which a readable block was decided; 0: no block is readable."""
    last_us: int = 0
    """The time at which the last readable block was decided; 0: no block is readable. It is less
    than ``newest_us`` if the clock of an earlier start was ahead."""

    @property
    def quarantined(self) -> int:
        """Events this start has quarantined, or is about to."""
        lost = sum(channel.state.lost for channel in self.state.channels.values())
        return lost + sum(len(IdSet(command.spans)) for _, command in self.unreadable)


async def recover(
    journal: Journal, blobs: Blobs, pages: Pages, rules: RealmRules, *, epoch: int = 0
) -> RecoveredRealm:
    """Read everything that is stored, for an owner with this epoch (0: the realm is alone). Damage
    is reported and left where it is (SEM S1). Others have their turns meanwhile, such as the
    renewal of the owner's lease.

    Raises ``NewerFormat``: to serve without what a newer version has written would be to lose it;
    in a cluster also ``Damaged`` for a journal that was cut behind a snapshot which is not readable
    here.
    """
    with uncollected():
        return await _recover_whole(journal, blobs, pages, rules=rules, epoch=epoch)


async def _recover_whole(
    journal: Journal, blobs: Blobs, pages: Pages, rules: RealmRules, epoch: int
) -> RecoveredRealm:
    rules = replace(rules, is_cluster=bool(epoch))
    for _ in range(ATTEMPTS_MAX - 1 if epoch else 0):
        try:
            return await _recover(journal, blobs, pages, rules=rules, epoch=epoch)
        except (Trimmed, NameDoesNotExist) as gone:
            # A deposed owner does not know of it yet: it has taken a last snapshot of its own, and
            # removed what that one made needless. It is there to be read.
            _log.info("recovery.repeated", reason=str(gone))
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
            f"block {sequence}: what lies between is missing"
        )
        if epoch:
            # Owners cut the journal only behind a snapshot that they have written: it exists, and
            # going on without it would serve a realm that has forgotten what was acknowledged.
            raise Damaged(f"{gap}. {_SNAPSHOT_ELSEWHERE}")
        damage.append(gap)
        sequence = info.floor
    blocks = 0
    at = sequence + 1
    while at <= info.tail:
        found = await journal.read(at, READ_BLOCKS)
        if not found:
            break
        for block in found:
            at = block.seq + (1 if isinstance(block, Block) else block.count)
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
    has_gaps = bool(state.skipped) or len(damage) > bool(info.cut)
    keep_rest = bool(damage)  # a damaged block may have named other slots
    if isinstance(blobs, ChecksBlobs):
        blobs.check_against(state.file_sum)
    unreadable = await _merged(state, blobs, damage)
    unreadable += await _unreadable(state, pages, damage)
    await pages.restore(_places(state), keep_rest=keep_rest)
    state.forget_freed()  # `restore` freed these slots, and later bodies may use them again
    damage += [f"skipped, because an earlier block is damaged: {what}" for what in state.skipped]
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
    """Bring all channels to where they can go on, once every fact is applied."""
    state.schemas.forget_unused()
    for channel_id, channel in state.channels.items():
        channel.recovered()
        own, store = channel.state, state.stores[channel_id]
        store.recount(own.stored)
        own.event_bytes = max(own.event_bytes, store.event_bytes)
        own.sizes = EventSizes.from_batches(store.event_sizes())
        own.sizes = EventSizes.from_batches(store.event_sizes())
        if slices.is_over:
            await slices.next()


def _free_read_buffers(state: RealmState) -> None:
    """Copy the bodies that keep much larger buffers in memory: blocks are read up to 64 MB at a
    time, and one unsealed body would keep all of these bytes."""
    read = [
        (piece, piece.body)
        for store in state.stores.values()
        for piece in store.tail
        if piece.place is None and isinstance(piece.body, memoryview)
    ]
    used: Counter[int] = Counter()
    for _, body in read:
        used[id(body.obj)] += body.nbytes
    for piece, body in read:
        if 2 * used[id(body.obj)] < memoryview(body.obj).nbytes:
            piece.moved_outside(memoryview(bytes(body)))


async def _merged(
    state: RealmState, blobs: Blobs, damage: list[str]
) -> list[tuple[int, Quarantine]]:
    """Make the states of merge channels whole; gives the events nothing is left of (SEM K2)."""
    found = []
    for channel_id, store in state.stores.items():
        if not isinstance(store, MergeStore):
            continue
        await read_files(store, blobs, damage)
        if gone := store.missing(state.channels[channel_id].state.stored):
            found.append((channel_id, Quarantine(gone.spans)))
    return found


def _places(state: RealmState) -> dict[int, list[PageSlot]]:
    """The places in use in the pages of each channel."""
    return {
        channel_id: [piece.place for piece in store.tail if piece.place is not None]
        for channel_id, store in state.stores.items()
        if state.channels[channel_id].state.type.home == "pages"
    }


async def _unreadable(
    state: RealmState, pages: Pages, damage: list[str]
) -> list[tuple[int, Quarantine]]:
    """Bodies in pages that are not what was put there: their events are to be quarantined."""
    found = []
    for channel_id, places in _places(state).items():
        bad = {each.place: each for each in await pages.check(channel_id, places)}
        ids = IdSet()
        for piece in state.stores[channel_id].tail:
            if piece.place is not None and piece.place in bad:
                ids.add(Span(piece.first, piece.end))
                reason = f"{bad[piece.place].where}: {bad[piece.place].reason}"
                state.stores[channel_id].quarantined.append(reason)
                damage.append(reason)
        if ids:
            found.append((channel_id, Quarantine(ids.spans)))
    return found


async def _apply(
    state: RealmState,
    block: Block,
    blobs: Blobs,
    pages: Pages,
    damage: list[str],
    last_us: int,
    slices: Slices,
) -> int:
    """Apply a block behind one that was decided at ``last_us``; return its own time, or ``last_us``
    if it is not readable."""
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
    return NewerFormat(
        f"{where} holds {error}. Run the version that wrote it, or a newer one; nothing is served, "
        "set aside or removed"
    )


async def _from_snapshot(
    blobs: Blobs, pages: Pages, rules: RealmRules, damage: list[str], slices: Slices
) -> tuple[RealmState, int, int]:
    """The state of the newest snapshot that can be read, the block it stands for, and its time."""
    names = [info.name for info in await blobs.list(SNAPSHOTS)]
    for name in sorted(names, key=snapshot_age, reverse=True):
        state = RealmState(rules)
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
    """The bytes of a snapshot without its checksum. Raises ``Damaged``."""
    from xxhash import xxh3_64_intdigest

    body, checksum = blob[8:], int.from_bytes(blob[:8], "little")
    if xxh3_64_intdigest(body) != checksum:
        raise Damaged(f"{name} fails its checksum")
    return body


def clock_set_back(state: RealmState, last_us: int, now_us: int) -> None:
    """Note that the realm starts at ``now_us`` after one that showed ``last_us``, which is later:
    the clock of an earlier start was ahead. TTLs run from now on (SEM T1), what waits after a
    rollback waits no longer than it still had to (SEM D18), and what is remembered for a time is
    remembered from now on."""
    for channel in state.channels.values():
        channel.clock_set_back(last_us, now_us)
    state.producers.lower(now_us)
    state.transactions.lower(now_us)


async def index_keys(recovered: RecoveredRealm, dispatch: Dispatch) -> None:
    """Find out which stored events are the newest of their publish keys (SEM K1)."""
    state = recovered.state
    slices = Slices()
    unreadable = {channel_id: IdSet(command.spans) for channel_id, command in recovered.unreadable}
    for channel_id, channel in state.channels.items():
        store = state.stores[channel_id]
        if store.keys is None:
            continue
        left = channel.state.stored.copy()
        left.discard_all(unreadable.get(channel_id, IdSet()))
        while left:
            spans: list[Span] = []
            room = INDEX_EVENTS
            while room > 0 and (span := left.take(room)) is not None:
                spans.append(span)
                room -= span.size
            rows, _ = await dispatch.read(store, tuple(spans))
            for part in rows:
                store.keys.append([part.batch], ids_of(part.batch))
                if slices.is_over:
                    await slices.next()
        store.count_index()


def keep_unknown(recovered: RecoveredRealm) -> None:
    """Keep segments none of whose events are known, because the fact about them may be damaged (SEM
    S1). A tail torn by a crash is no reason: it comes after the facts about all segments."""
    for store in recovered.state.stores.values():
        for file in store.empty_files():
            store.keep_damaged(
                file,
                f"{file.name} is kept because the journal is damaged and has no record of its "
                f"events",
            )


async def remove_strays(recovered: RecoveredRealm, blobs: Blobs) -> None:
    """Delete the segments that no fact names; write down those of a state that was rebuilt with
    damage, which cannot tell the strays of a crash, whose events are still in the journal, from
    files whose facts it has lost. A later start, which may see no damage any more, keeps them, too
    (SEM S1).

    An owner deletes nothing that a later owner may have written: it may have been frozen since.
    """
    if recovered.damage and not recovered.has_gaps:
        return  # a torn tail: the next start sees whole blocks only
    known = {file.name for store in recovered.state.stores.values() for file in store.files}
    names = [info.name for info in await blobs.list("segments/")]
    strays = [name for name in names if name not in known]
    if not strays:
        return
    if recovered.has_gaps:
        await _write_down(strays, blobs)
        return
    kept = await _written_down(blobs)
    for name in strays:
        if name in kept:
            _log.warning("segment.stray_kept", name=name)
        elif recovered.state.file_names.may_remove(name):
            _log.info("segment.stray_removed", name=name)
            await blobs.delete(name)


async def _write_down(strays: list[str], blobs: Blobs) -> None:
    from xxhash import xxh3_64_hexdigest

    content = "\n".join(strays).encode()
    try:
        await blobs.put(f"{KEPT}{xxh3_64_hexdigest(content)}", [content])
    except StorageFailed as error:  # a realm on a full disk still starts
        _log.warning("segment.strays_not_listed", files=len(strays), reason=str(error))


async def _written_down(blobs: Blobs) -> set[str]:
    kept = set[str]()
    for info in await blobs.list(KEPT):
        kept.update(bytes(await blobs.get(info.name)).decode().split("\n"))
    return kept
