"""A journal on a replicated stream. Opening it fences earlier owners.

Every frame is stored only at the sequence that its owner expects, so a writer that has not seen the
newest frame cannot append. An owner begins with an ``EPOCH`` frame, after which no older owner can
append.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from penstock_cluster.storage.engine_appends import EngineAppends
from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.connection import UNDER_WAY_MAX, JetStreamRefusal, together
from penstock_cluster.storage.jetstream.frames import (
    BlockFrame,
    FrameIndex,
    FrameKind,
    decode_frame,
    encode_block,
    encode_frame,
    join_block,
)
from penstock_cluster.storage.jetstream.marks import Mark, Marks
from penstock_cluster.storage.jetstream.room import SEALING_RESERVE_BYTES, EngineRoom
from penstock_cluster.storage.jetstream.stream import (
    INCARNATION,
    REPLICATED,
    WRONG_SEQUENCE,
    NatsStream,
    StreamInfo,
    check_settings,
    pauses,
)
from penstock_core.vocabulary.errors import (
    Damaged,
    Deposed,
    PenstockError,
    StorageFailed,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock_core.vocabulary.ports import (
    READ_BYTES_MAX,
    Block,
    Buffer,
    Clock,
    DamagedBlock,
    JournalInfo,
)
from penstock_server.storage.journal_arguments import check_read, check_room, check_trim

_SENT_AT_ONCE: Final = 8
"""Largest number of unanswered frames. With many more, answers come so late that all frames are
sent again, without end."""
CACHED_BYTES_MAX: Final = 64 << 20
"""Bytes of blocks that stay in memory after opening: recovery reads them next."""
READ_ONLY_EPOCH: Final = 1 << 62
"""Epoch of a reader, which no owner's epoch exceeds."""
_POLLS_MAX: Final = 100
"""Polls of a stream that does not show an acknowledged frame, before this counts as damage."""
_RESTORE: Final = (
    "Data that its owner had acknowledged is missing. To fix: restore the stream from a backup "
    "of the engine, or the realm from a backup of the realm"
)


class JetStreamJournal:
    """The :class:`~penstock_core.vocabulary.ports.Journal` of one owner."""

    def __init__(
        self,
        stream: NatsStream,
        marks: Marks,
        epoch: int,
        *,
        clock: Clock,
        frame_bytes: int,
        room: EngineRoom,
        cached_bytes_max: int = CACHED_BYTES_MAX,
    ) -> None:
        self.stream: Final = stream
        self.subject = f"{stream.name}.frames"
        self._marks = marks
        self._epoch = epoch
        self._clock = clock
        self._frame_bytes = frame_bytes
        self._room = room
        self._index = FrameIndex()
        self._cached_blocks: dict[int, bytes] = {}
        """Blocks that recovery is likely to read, by number, the oldest first."""
        self._cached_bytes_max = cached_bytes_max
        self._cached_bytes = 0
        self._block_frames: list[BlockFrame] = []
        """Frames of the block that is being read while opening."""
        self._incarnation = ""
        """Identity of the stream, which a re-created stream does not have."""
        self._mark: Mark | None = None
        """The newest mark that this owner has written or read."""
        self._writing = asyncio.Lock()
        """Held while frames are stored or removed: both change the end of the index."""
        self._appends = EngineAppends(clock.steady_us)
        self._ended: PenstockError | None = None
        """Reason why appending is no longer possible."""

    async def open(self, begins: int = 0) -> JetStreamJournal:
        """Read the whole stream, and append an ``EPOCH`` frame, after which no older owner can
        append (:meth:`penstock_core.vocabulary.ports.StorageEngine.journal`)."""
        self._mark = mark = await self._marks.read()
        if mark is not None and not await self.stream.exists():
            self._check_was_never_created(mark)
        info = await self.stream.make(self._settings())
        self._incarnation = info.incarnation
        self._check_mark(info, mark)
        await self.stream.on_each_copy(self._read_all)
        # The fence is a frame at the end of the stream, so everything before it has to be read.
        await self._fence(begins)
        await self._renew_mark(mark.kept if mark is not None else 1)
        return self

    async def read_without_fence(self) -> bool:
        """Read the whole stream without a fence, so that appending is impossible. Returns whether
        the stream exists. Raises ``Unavailable`` and ``Damaged``."""
        self._mark = mark = await self._marks.read()
        if not await self.stream.exists():
            self._check_was_never_created(mark)
            return False
        info = await self.stream.info()
        self._incarnation = info.incarnation
        self._check_mark(info, mark)
        await self.stream.on_each_copy(self._read_all)
        self._ended = Deposed(f"stream {self.stream.name} was opened to be read only")
        return True

    @property
    def appends(self) -> bool:
        """Whether the journal is open for appends, as far as this node knows."""
        return self._ended is None and not self.stream.is_closed

    @property
    def settings(self) -> dict[str, object]:
        """Settings for creating the stream."""
        return self._settings()

    async def compare_mark(self) -> bool:
        """Compare an unopened stream with the mark that its owner has left. Returns whether the
        stream exists. Raises ``Unavailable``."""
        mark = await self._marks.read()
        if not await self.stream.exists():
            self._check_was_never_created(mark)
            return False
        self._check_mark(await self.stream.info(), mark)
        return True

    async def verify(self) -> int:
        """Read the leader's copy of an unopened stream, and compare numbers and checksums. Returns
        the number of blocks. No server steps down. Raises ``Damaged``."""
        self._incarnation = (await self.stream.info()).incarnation
        await self._read_all()
        self._clear_cache()
        return self._index.tail - self._index.floor

    async def inspect(self) -> None:
        """Check an unopened stream; a missing stream is fine before the first start. Raises
        ``Unavailable``; its text ends with the remedy."""
        mark = await self._marks.read()
        if not await self.stream.exists():
            self._check_was_never_created(mark)
            return
        info = await self.stream.info()
        check_settings(info, self._settings())
        self._check_mark(info, mark)

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        """Add a block after block ``expected``, which must be the last one; return its sequence
        (:meth:`penstock_core.vocabulary.ports.Journal.append`). On return the block is always on
        the disks of a majority."""
        async with self._writing:
            self._check_usable()
            data = b"".join(block)
            if expected != self._index.tail:  # a repetition, or the caller is not the owner
                return await self._find_appended(expected, data)
            frames = encode_block(
                data,
                self._frame_bytes,
                epoch=self._epoch,
                block=expected + 1,
                sequence=self._index.last + 1,
                previous=self._index.checksum,
            )
            await self._store(frames)
            # Recovery, which reads the kept blocks, is over once the owner appends.
            self._clear_cache()
            return expected + 1

    async def reserve(self, size: int) -> None:
        """Make sure that an append of ``size`` bytes will find room on the engine
        (:meth:`penstock_core.vocabulary.ports.Journal.reserve`)."""
        self._check_usable()
        check_room(size)
        self._room.check(size, SEALING_RESERVE_BYTES)

    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        """Read blocks, in order, from sequence ``first`` on
        (:meth:`penstock_core.vocabulary.ports.Journal.read`). If the leader's copy is damaged,
        another copy is read."""
        self._check_open()
        check_read(first, limit, floor=self._index.floor)
        chosen = self._choose(first, limit, bytes_max)
        bodies = {
            block: self._take_cached(block) for block in chosen if block in self._cached_blocks
        }
        damaged: dict[int, Damaged] = {}
        try:
            bodies |= await self._read_blocks([block for block in chosen if block not in bodies])
        except Damaged:
            damaged = await self._read_from_copies(chosen, bodies)
        except Trimmed:
            # Only an older owner removes blocks that this node has not trimmed.
            self._index.trim_below((await self.stream.info()).state.first_seq)
            raise
        return [
            Block(block, memoryview(bodies[block]))
            if block in bodies
            else self._damaged_block(block, damaged[block])
            for block in chosen
        ]

    async def sync(self) -> None:
        """Do nothing: appended blocks are already on the disks of a majority."""
        self._check_usable()

    async def free(self) -> None:
        """Do nothing: :meth:`trim` frees the room itself."""

    async def trim(self, through: int) -> None:
        """Drop the blocks up to and including ``through``
        (:meth:`penstock_core.vocabulary.ports.Journal.trim`)."""
        async with self._writing:
            self._check_usable()
            tail = self._index.tail
            check_trim(through, tail=tail)
            if through <= self._index.floor:
                return
            if through == tail:
                # An empty stream would forget the number of its newest block.
                await self._store(iter([self._encode(FrameKind.FLOOR)]))
            first_kept = self._index.keeps_from(through)
            # The mark comes first: a stream that begins after its mark is damaged, not trimmed.
            await self._renew_mark(first_kept)
            await self.stream.purge(below=first_kept)
            self._index.trim(through)

    def info(self) -> JournalInfo:
        index, appends = self._index, self._appends
        return JournalInfo(
            index.floor,
            index.tail,
            index.size,
            cut=0,
            durability="quorum",
            waiting_us=appends.waiting_us,
            appends=appends.timings,
            ambiguous=appends.ambiguous,
        )

    async def check(self) -> None:
        """Compare the stream with its state at the opening. If it differs, appending ends, and
        pending appends get no outcome."""
        try:
            info = await self.stream.try_info() if self.stream.was_seen else None
            if info is not None:
                check_settings(info, self._settings())
                self._check_mark(info, self._mark)
        except Unavailable as error:
            self.end(error)

    def end(self, reason: PenstockError) -> None:
        """End appending because of ``reason``. Pending appends get no outcome."""
        self._ended = self._ended or reason
        self.stream.close()

    async def close(self) -> None:
        """Close the stream. A pending append ends with ``Unknown``."""
        self.stream.close()

    # Opening

    def _settings(self) -> dict[str, object]:
        """Return the settings with which the stream of this journal is created."""
        # The incarnation is new each time; it has an effect only if the stream does not exist yet.
        return {
            **REPLICATED,
            "subjects": [self.subject],
            "max_msgs_per_subject": -1,
            "allow_rollup_hdrs": False,
            "metadata": {INCARNATION: secrets.token_hex(16)},
        }

    def _check_was_never_created(self, mark: Mark | None) -> None:
        """Raise ``Unavailable`` if a mark shows that the missing stream has existed."""
        if mark is not None:
            raise Unavailable(f"stream {self.stream.name} is missing. {_RESTORE}")

    def _check_mark(self, info: StreamInfo, mark: Mark | None) -> None:
        """Raise ``Unavailable`` if the stream was re-created, or ends before the mark."""
        if mark is None:
            return
        name, last = self.stream.name, info.state.last_seq
        if info.incarnation != mark.incarnation:
            raise Unavailable(f"stream {name} was re-created. {_RESTORE}")
        if last < mark.sequence:
            raise Unavailable(
                f"stream {name} is an older copy: it ends at sequence {last}, and its owner had "
                f"stored {mark.sequence}. {_RESTORE}"
            )

    async def _read_all(self) -> None:
        """Read the stream from its beginning; once more if an older owner trims it during the
        read."""
        while True:
            self._index, self._block_frames = FrameIndex(), []
            self._clear_cache()
            state = (await self.stream.info()).state
            # Read after the state: an older owner writes its mark before it trims.
            mark = await self._marks.read() or Mark(self._incarnation)
            if state.first_seq > mark.kept:
                raise Damaged(
                    f"sequences {mark.kept} to {state.first_seq - 1}, its beginning, are missing"
                )
            try:
                await self._read_on(max(1, state.first_seq), state.last_seq, mark)
            except Trimmed:
                continue
            return

    async def _read_on(self, first: int, last: int, mark: Mark | None = None) -> None:
        """Read the frames from ``first`` to ``last``, and compare the one at the mark. Raises
        ``Damaged``, ``Deposed``, ``Trimmed``."""
        for start in range(first, last + 1, UNDER_WAY_MAX):
            sequences = range(start, min(last + 1, start + UNDER_WAY_MAX))
            for frame in await together(self._frame(sequence) for sequence in sequences):
                self._add_frame(frame)
                is_marked = mark is not None and frame.sequence == mark.sequence
                if is_marked and mark is not None and frame.checksum != mark.checksum:
                    raise Damaged(f"sequence {frame.sequence} is not what its owner had stored")

    def _add_frame(self, frame: BlockFrame) -> None:
        """Add the next frame of the stream to the index, and keep a block that it completes. Raises
        ``Deposed`` for a frame of a newer owner, and ``Damaged``."""
        if frame.epoch > self._epoch:
            raise Deposed(
                f"stream {self.stream.name}: epoch {frame.epoch} has begun; this owner has epoch "
                f"{self._epoch}"
            )
        completed = self._index.take(frame)
        if frame.kind is not FrameKind.DATA or not frame.part:
            self._block_frames = []
        if frame.kind is FrameKind.DATA:
            self._block_frames.append(frame)
        if completed is not None:
            self._cache(completed, join_block(self._block_frames, completed))
            self._block_frames = []

    def _cache(self, block: int, data: bytes) -> None:
        """Keep a block in memory, and drop the oldest ones: recovery begins at a snapshot, not at
        the first block."""
        self._cached_blocks[block] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > self._cached_bytes_max:
            self._take_cached(next(iter(self._cached_blocks)))

    def _take_cached(self, block: int) -> bytes:
        """Remove a block from memory, and return it: recovery reads each block once."""
        data = self._cached_blocks.pop(block)
        self._cached_bytes -= len(data)
        return data

    def _clear_cache(self) -> None:
        self._cached_blocks.clear()
        self._cached_bytes = 0

    async def _fence(self, begins: int) -> None:
        """Append this owner's ``EPOCH`` frame. Raises ``Deposed`` if a newer owner has begun."""
        if not self._index.last:
            self._index.begin(begins)
        while True:
            # The random bytes distinguish two openings with the same epoch.
            raw = self._encode(FrameKind.EPOCH, secrets.token_bytes(16))
            try:
                await self._put(raw, self._index.last, self._index.last)
            except Deposed:
                state = (await self.stream.info()).state
                # Another owner was faster; its frames show whether it is older than this one.
                await self._read_on(self._index.last + 1, state.last_seq)
            else:
                self._add_frame(decode_frame(raw))
                return

    def _encode(self, kind: FrameKind, data: bytes = b"") -> bytes:
        """Return a frame that belongs to no block, for the end of the stream."""
        return encode_frame(
            kind,
            epoch=self._epoch,
            block=self._index.tail,
            sequence=self._index.last + 1,
            previous=self._index.checksum,
            data=data,
        )

    async def _renew_mark(self, kept: int) -> None:
        """Write the current end of the stream as the owner's mark; ``kept`` is the first sequence
        that remains. Raises ``Deposed``."""
        index = self._index
        mark = Mark(self._incarnation, index.last, index.checksum, kept=kept, epoch=self._epoch)
        try:
            await self._marks.write(mark)
        except Deposed as error:
            self._ended = error
            raise
        self._mark = mark

    # Appending

    async def _store(self, frames: Iterator[bytes]) -> None:
        """Store frames at the end of the stream, a few of them concurrently."""
        self.stream.begin_block()
        try:
            with self._appends.under_way():
                newest = await self._send(frames)
        except BaseException as failure:
            error = failure.exceptions[0] if isinstance(failure, BaseExceptionGroup) else failure
            ended = self._ended_by(error)
            if ended is failure or isinstance(failure, asyncio.CancelledError):
                raise
            raise ended from None
        self._index.take(newest)

    async def _send(self, frames: Iterator[bytes]) -> BlockFrame:
        """Store frames. Returns the newest one, which completes the block and is not in the index
        yet."""
        stored = self._index.last
        first, second = next(frames), next(frames, None)
        if second is None:  # a lone frame needs no task, which saves turns of the loop
            lone = decode_frame(first)
            await self._put(first, stored, stored)
            return lone
        window = asyncio.Semaphore(_SENT_AT_ONCE)
        newest: BlockFrame | None = None
        async with asyncio.TaskGroup() as group:
            for raw in chain((first, second), frames):
                await window.acquire()
                # The last frame is left to the caller, who adds it once all frames are stored.
                if newest is not None:
                    self._index.take(newest)
                newest = decode_frame(raw)
                task = group.create_task(self._put(raw, newest.sequence - 1, stored))
                task.add_done_callback(lambda _: window.release())
        assert newest is not None, "a block has a frame"
        return newest

    def _ended_by(self, failure: BaseException) -> BaseException:
        """Return the error that ends an append. Afterwards appending is impossible: only
        reopening shows the contents of the stream."""
        if isinstance(failure, Deposed | Damaged):
            self._ended = self._ended or failure
            return failure
        name = self.stream.name
        self._ended = self._ended or StorageFailed(
            f"stream {name}: the outcome of an append is unknown until the stream is opened again"
        )
        if self.stream.is_closed:
            return Unknown(f"stream {name} was closed while an append waited for its outcome")
        return failure

    async def _put(self, raw: bytes, expected: int, stored: int) -> None:
        """Store one frame after sequence ``expected``, and return once that is certain. All frames
        up to ``stored`` are known to be stored."""
        headers = {"Nats-Expected-Last-Sequence": f"{expected}"}
        self._room.note_sent(len(raw))
        inconsistent_polls = 0
        for pause in pauses():
            try:
                sequence = await self.stream.publish(self.subject, raw, headers)
            except Unanswered:
                self._appends.record_missing_answer()
            except JetStreamRefusal as refusal:
                if refusal.number in WRONG_SEQUENCE:
                    last = await self._last_unless_stored(raw, expected + 1)
                    if last is None:
                        return
                    inconsistent_polls = 0 if stored <= last <= expected else inconsistent_polls + 1
                    if inconsistent_polls > _POLLS_MAX:
                        unseen = stored if last < stored else expected + 1
                        raise Damaged(
                            f"stream {self.stream.name} ends at sequence {last}, and does not "
                            f"show {unseen}"
                        ) from refusal
            else:
                assert sequence == expected + 1, (sequence, expected)
                return
            await self.stream.pause(pause)

    async def _last_unless_stored(self, raw: bytes, sequence: int) -> int | None:
        """Return None if this frame lies at ``sequence``, or the stream's last sequence if none is
        visible there. Raises ``Deposed`` if another frame was stored there."""
        message = await self.stream.message(sequence)
        if message is not None and message.data == raw:
            return None
        state = (await self.stream.info()).state
        # A stream that ends later does not prove another owner: this frame may have been in
        # flight, and stored between the two requests.
        if message is not None or state.first_seq > sequence:
            raise Deposed(
                f"stream {self.stream.name}: another owner has stored sequence {sequence}"
            )
        return state.last_seq

    async def _find_appended(self, expected: int, data: bytes) -> int:
        """Return the number of a block that has already been appended. Raises ``Deposed``
        otherwise."""
        if self._index.floor <= expected < self._index.tail:
            (stored,) = await self.read(expected + 1, 1)
            if isinstance(stored, Block) and stored.data == data:
                return expected + 1
        raise Deposed(
            f"expected the tail to be {expected}, it is {self._index.tail}: another writer has "
            f"appended"
        )

    # Reading

    def _choose(self, first: int, limit: int, bytes_max: int) -> list[int]:
        """Return the blocks to read from ``first`` on: at most ``limit``, and ``bytes_max`` bytes
        unless the first block alone is larger."""
        chosen: list[int] = []
        for block in range(first, min(self._index.tail, first + limit - 1) + 1):
            bytes_max -= self._index.extent(block).size
            if chosen and bytes_max < 0:
                break
            chosen.append(block)
        return chosen

    async def _read_blocks(self, blocks: Sequence[int]) -> dict[int, bytes]:
        """Return the data of blocks, by number, from the leader's copy. Raises ``Damaged``,
        ``Trimmed``."""
        extents = {block: self._index.extent(block) for block in blocks}
        sequences = [
            extent.sequence + part for extent in extents.values() for part in range(extent.parts)
        ]
        frames: dict[int, BlockFrame] = {}
        for start in range(0, len(sequences), UNDER_WAY_MAX):
            batch = sequences[start : start + UNDER_WAY_MAX]
            read = await together(self._frame(sequence) for sequence in batch)
            frames |= {frame.sequence: frame for frame in read}
        return {
            block: join_block([frames[start + part] for part in range(parts)], block)
            for block, (start, parts, _) in extents.items()
        }

    async def _read_from_copies(
        self, blocks: Sequence[int], bodies: dict[int, bytes]
    ) -> dict[int, Damaged]:
        """Add to ``bodies`` the blocks that any copy holds. Returns the blocks that none holds."""
        damaged: dict[int, Damaged] = {}

        async def read_missing() -> None:
            for block in [block for block in blocks if block not in bodies]:
                try:
                    bodies.update(await self._read_blocks([block]))
                except Damaged as error:
                    damaged[block] = error
            missing = [block for block in blocks if block not in bodies]
            if missing:
                raise Damaged(f"block {missing[0]}: {damaged[missing[0]]}")

        try:
            await self.stream.on_each_copy(read_missing)
        except Damaged:
            return {block: error for block, error in damaged.items() if block not in bodies}
        return {}

    def _damaged_block(self, block: int, reason: Damaged) -> DamagedBlock:
        sequence, _, size = self._index.extent(block)
        return DamagedBlock(
            block, f"stream {self.stream.name}, sequence {sequence}", f"{reason}", size=size
        )

    async def _frame(self, sequence: int) -> BlockFrame:
        """Read the frame at a sequence of the stream. Raises ``Damaged``, ``Trimmed``."""
        message = await self.stream.message(sequence)
        if message is None:
            raise await self.stream.why_missing(sequence)
        try:
            frame = decode_frame(message.data)
        except Damaged as error:
            raise Damaged(f"sequence {sequence}: {error}") from error
        if frame.sequence != sequence:
            raise Damaged(f"sequence {sequence} holds the frame of sequence {frame.sequence}")
        return frame

    def _check_usable(self) -> None:
        """Raise the error that has ended appending, or ``StorageFailed`` after `close`."""
        if self._ended is not None:
            raise type(self._ended)(f"{self._ended}") from self._ended
        self._check_open()

    def _check_open(self) -> None:
        if self.stream.is_closed:
            raise StorageFailed("the journal is closed")
