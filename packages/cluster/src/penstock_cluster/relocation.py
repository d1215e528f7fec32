"""Move a whole realm to other stores: from one machine onto the engine of a cluster, and back.

The realm is stopped, or only read: its state was recovered from its present stores. Events outside
of files are sealed, every file is copied under a name derived from its content, and a snapshot in
the form of the destination is written last. So ids, counters and durables are those of the source,
an interrupted copy continues with the files already copied, and nothing takes effect before the
snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from penstock_core.channel.recovery import at_once
from penstock_core.channel.state import RealmRules
from penstock_core.columns.files.growing_segment import end_of_batches, tail_or_rebuilt
from penstock_core.columns.files.segments import SegmentImage, SegmentIndex
from penstock_core.ids.ids import Span
from penstock_core.messages.definitions import ChannelCreated
from penstock_core.messages.retention import Removed
from penstock_core.messages.segments import Sealed
from penstock_core.messages.snapshots import Restored
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import Damaged, IllegalState
from penstock_core.vocabulary.ports import Blobs, Journal, Offload
from penstock_core.vocabulary.reach import (
    NewHome,
    durables_of,
    is_everywhere,
    leads_out,
    relocated,
)
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.file_names import SNAPSHOTS, FileNames
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.records import FactRecord, decode_block, encode_block
from penstock_server.runtime.store.sealed_file import SealedFile
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.upkeep.compaction import SPINDLE_ROWS
from penstock_server.runtime.upkeep.recovery import RecoveredRealm
from penstock_server.runtime.upkeep.sealed_rows import image_of, publishers_of
from penstock_server.runtime.upkeep.snapshot_image import with_checksum

SEGMENTS: Final = "segments/"
SEGMENT_BYTES: Final = 64 << 20
"""Bytes of events after which a file sealed for the move is full."""

OnProgress = Callable[[int], None]
"""Callback with the bytes of files copied so far."""


class RelocationPlan(Struct, frozen=True, kw_only=True):
    """The numbers of stores, events and files that a move copies."""

    channels: int
    queues: int
    durables: int
    events: int
    files: int
    """Number of sealed files."""
    bytes: int
    """Bytes in sealed files."""
    unsealed_bytes: int
    """Bytes of events that are in no file yet."""
    local: tuple[str, ...]
    """Names of the stores that will not be cluster-wide if the destination is a cluster (SEM N5);
    they are empty after each takeover."""


class Relocation:
    """The move of one realm."""

    def __init__(
        self, recovered: RecoveredRealm, source: Blobs, rules: RealmRules, offload: Offload
    ) -> None:
        """``rules`` are those of the destination. Raises ``Damaged`` for a realm that has lost
        data, and ``IllegalState`` for one that the destination cannot hold."""
        if recovered.has_gaps or recovered.unreadable:
            raise Damaged(
                f"the realm is damaged, and is not moved as it is: {recovered.damage[0]}. "
                f"`penstock store repair` sets the unreadable parts aside"
            )
        self._state = recovered.state
        self._newest_us = recovered.newest_us
        self._source = source
        self._rules = rules
        self._offload = offload
        _check_directory(self._state, self._definitions(), rules)

    def plan(self) -> RelocationPlan:
        """Count the stores, events and files that the move will copy."""
        machines = [machine.state for machine in self._state.channels.values()]
        stores = self._state.stores.values()
        local = [
            state.name
            for state, definition in zip(machines, self._definitions().values(), strict=True)
            if self._rules.is_cluster and not is_everywhere(definition) and state.name[0] != "$"
        ]
        return RelocationPlan(
            channels=sum(state.definition.kind == "channel" for state in machines),
            queues=sum(state.definition.kind == "queue" for state in machines),
            # Each queue has a durable for its readers, which users do not see.
            durables=sum(len(state.durables) for state in machines)
            - sum(state.definition.kind == "queue" for state in machines),
            events=sum(len(state.stored) for state in machines),
            files=sum(len(store.files) for store in stores),
            bytes=sum(store.sealed_bytes for store in stores),
            unsealed_bytes=sum(
                len(unsealed.body) for store in stores for unsealed in store.all_unsealed()
            ),
            local=tuple(sorted(local)),
        )

    async def copy_files(self, target: Blobs, on_progress: OnProgress = lambda _: None) -> int:
        """Copy the files that will never change, while the realm still runs, which shortens the
        move after the stop. Returns the number of files copied."""
        copied_sizes = {info.name: info.size for info in await target.list(SEGMENTS)}
        copied = copied_bytes = 0
        for file in self._files():
            if not file.grows:
                copied += await self._copy(file, target, copied_sizes) is not None
                copied_bytes += file.index.size
                on_progress(copied_bytes)
        return copied

    async def finish(
        self,
        target: Blobs,
        journal: Journal,
        names: FileNames,
        now_us: int,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        """Copy everything, and write the snapshot. The journal has been opened for this writer
        alone, in the epoch of ``names``. Raises ``Deposed`` if another process has opened the
        journal meanwhile, and ``NameDoesNotExist`` if the source has removed a file."""
        copied_sizes = {info.name: info.size for info in await target.list(SEGMENTS)}
        await self._seal_all(target, copied_sizes)
        copied_bytes = 0
        for store in self._state.stores.values():
            files = []
            for file in store.files:
                copied_bytes += file.index.size
                files.append(await self._move_file(file, target, copied_sizes))
                on_progress(copied_bytes)
            store.files = files
        # The time of a realm never goes back, even if the clock of this machine is behind.
        at_us = max(now_us, self._newest_us)
        image = self._image(at_us)
        # The empty block gives the snapshot a number that no other block has. Its append is refused
        # if this process is no longer the owner.
        sequence = await journal.append(journal.info().tail, encode_block(at_us, [], []))
        snapshot_names = names.snapshots(sequence)
        for info in await target.list(SNAPSHOTS):
            await target.delete(info.name)  # a snapshot of an interrupted attempt
        for name in snapshot_names:
            await target.put(name, image)
        referenced_names = {file.name for file in self._files()}
        for name in copied_sizes.keys() - referenced_names:
            await target.delete(name)

    def _files(self) -> Iterator[SealedFile]:
        """Yield the sealed files of all stores."""
        for store in self._state.stores.values():
            yield from store.files

    # --- files ---------------------------------------------------------------------------

    async def _seal_all(self, target: Blobs, copied_sizes: dict[str, int]) -> None:
        """Write all events that are in no file yet into files at the destination.
        ``copied_sizes`` has the size of each file there, by name."""
        for number, store in self._state.stores.items():
            if isinstance(store, MergeStore):
                continue  # its states are in the snapshot
            while pending := store.all_unsealed():
                end, pieces = store.unsealed(SPINDLE_ROWS, SEGMENT_BYTES) or (
                    pending[-1].end,
                    pending,
                )
                await self._seal(
                    number, store, target, copied_sizes=copied_sizes, end=end, pieces=pieces
                )
            self._leave_late_events(number, store)

    async def _seal(
        self,
        number: int,
        store: ChannelStore,
        target: Blobs,
        copied_sizes: dict[str, int],
        end: int,
        pieces: list,  # type: ignore[type-arg]
    ) -> None:
        """Write the events before ``end``, which are in ``pieces``, into a file, and record it in
        the state. Events that are not stored any more are left out."""
        state = self._state.channels[number].state
        compression = state.definition.storage.compression
        sealed_ids = state.stored.within(Span(max(pieces[0].first, store.sealed_end), end))
        fact = Sealed(end)
        if sealed_ids:
            image = await self._offload(
                lambda: image_of(pieces, sealed_ids, store.columns, compression=compression)
            )
            folder = f"{SEGMENTS}{store.folder(state.name, number)}"
            name = _file_name(folder, image.index)
            await self._put(name, image, target, copied_sizes=copied_sizes)
            index = msgspec.msgpack.encode(image.index)
            fact = Sealed(end, name, index, publishers=publishers_of(pieces, sealed_ids))
        self._state.apply(number, fact)

    def _leave_late_events(self, number: int, store: ChannelStore) -> None:
        """Leave events that were stored too late for a file (SEM J7) to the snapshot, or drop them
        if the channel does not survive a restart at the destination."""
        for unsealed in store.tail:
            unsealed.place = None  # its bytes are copied
        definition = self._definitions()[number]
        if store.late and not self._rules.type_of(definition).survives_restart:
            self._state.apply(number, Removed(store.late.spans, Cause.DROPPED))

    async def _move_file(
        self, file: SealedFile, target: Blobs, copied_sizes: dict[str, int]
    ) -> SealedFile:
        """Copy a file, and return its entry under the name that it has at the destination."""
        image = await self._copy(file, target, copied_sizes)
        index = file.index if image is None else image.index
        name = _file_name(file.name.rpartition("/")[0], index)
        return SealedFile(name, index, file.publishers)

    async def _copy(
        self, file: SealedFile, target: Blobs, copied_sizes: dict[str, int]
    ) -> SegmentImage | None:
        """Copy a file; None if it has already been copied. Raises ``Damaged``."""
        folder = file.name.rpartition("/")[0]
        if not file.grows and copied_sizes.get(_file_name(folder, file.index)) == file.index.size:
            return None
        data = await self._source.get(file.name)
        image = await self._offload(lambda: _image_from(file, data))
        await self._put(_file_name(folder, image.index), image, target, copied_sizes=copied_sizes)
        return image

    async def _put(
        self, name: str, image: SegmentImage, target: Blobs, copied_sizes: dict[str, int]
    ) -> None:
        if copied_sizes.get(name) != image.index.size:
            await target.put(name, image.chunks)
            copied_sizes[name] = image.index.size

    # --- the snapshot --------------------------------------------------------------------

    def _image(self, at_us: int) -> list:  # type: ignore[type-arg]
        """Return the snapshot in the form of the destination, after reading it back once."""
        records, bodies = self._state.snapshot()
        definitions = self._definitions()
        relocated_records = [_with_definition(record, definitions) for record in at_once(records)]
        block = b"".join(encode_block(at_us, relocated_records, bodies))
        # A snapshot that cannot be read back must not replace the source.
        state = RealmState(self._rules)
        header, read = decode_block(memoryview(block))
        for record in header.records:
            state.apply_stored(record, read)
        assert not state.skipped, state.skipped
        return with_checksum([block])

    def _definitions(self) -> dict[int, Definition]:
        """Return the attributes of each store at the destination."""
        directory = self._state.directory
        definitions = {}
        for number, machine in directory.channels.items():
            definition = machine.state.definition
            deciding = definition
            # A schedule moves to the same kind of store as the channel that it delivers to.
            if definition.kind == "schedule":
                parent = directory.channel_id_of(definition.dead_event_store)
                deciding = directory.channels[parent].state.definition
            clusterable = self._rules.types[deciding.type].clusterable
            home = NewHome(self._rules.is_cluster, clusterable)
            definitions[number] = relocated(definition, deciding, home)
        return definitions


def _file_name(folder: str, index: SegmentIndex) -> str:
    """Return a file name derived from the content, so that an existing copy need not be
    compared."""
    ids = f"{index.first_id:020d}-{index.end_id - 1:020d}"
    return f"{folder}/{ids}.{index.checksum:016x}.arrow"


def _image_from(file: SealedFile, data: memoryview) -> SegmentImage:
    """Return the content of a file with its index. A file that still grows is completed with its
    last bytes. Raises ``Damaged``."""
    index = file.index
    if file.grows:
        end = end_of_batches(index.batches)
        tail = tail_or_rebuilt(data, index)
        if xxh3_64_intdigest(tail) != index.checksum:
            raise Damaged(f"{file.name} ends in the middle of its events; nothing was moved")
        content = pa.py_buffer(b"".join((data[:end], tail)))
        index = replace(index, size=content.size, checksum=xxh3_64_intdigest(content))
        return SegmentImage(content, index)
    if len(data) != index.size or xxh3_64_intdigest(data) != index.checksum:
        raise Damaged(
            f"{file.name} fails its checksum. `penstock store repair` sets aside what cannot be "
            f"read; files already copied are kept"
        )
    return SegmentImage(pa.py_buffer(data), index)


def _with_definition(record: FactRecord, definitions: dict[int, Definition]) -> FactRecord:
    """Return a record of the snapshot with its store's attributes at the destination."""
    match record.fact:
        case ChannelCreated(number) as fact:
            return replace(record, fact=replace(fact, definition=definitions[number]))
        case Restored() as fact:
            definition = definitions[record.channel]
            durables = durables_of(definition, fact.durables)
            return replace(record, fact=replace(fact, definition=definition, durables=durables))
        case _:
            return record


def _check_directory(
    state: RealmState, definitions: dict[int, Definition], rules: RealmRules
) -> None:
    """Raise ``IllegalState`` if events of a cluster-wide store would go to a store of one node."""
    if not rules.is_cluster:
        return
    directory = state.directory
    connections = [(join.source, join.destination, "is joined to") for join in directory.joins]
    for number, definition in definitions.items():
        if definition.dead_event_store and definition.kind != "schedule":
            dead = directory.channel_id_of(definition.dead_event_store)
            connections.append((number, dead, "has the dead event store"))
    for source, destination, relation in connections:
        if leads_out(definitions[source], definitions[destination]):
            name, target = (directory.channels[end].state.name for end in (source, destination))
            raise IllegalState(
                f"{name} {relation} {target}, a {definitions[destination].type} channel, which "
                "cannot "
                f"be cluster-wide: it does not survive what {name} survives. Edit {name}, or "
                "remove the "
                f"join, before the realm is moved"
            )
