"""Imports in progress: files are checked on arrival, and take effect in one step (SEM C7).

Before that step the import is invisible: no fact refers to the names of its files. The files are
deleted if the import ends early; after a crash, the next start deletes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from penstock_core.api.channels import ChannelOpened
from penstock_core.channel.channel_type import Home
from penstock_core.channel.state import RealmRules
from penstock_core.columns.events.batch import body_part, ids_of, stamp
from penstock_core.columns.files.exports import (
    STATE,
    CheckedEvents,
    FileFacts,
    Manifest,
    StateFile,
    check_whole,
    events_from,
    id_set,
    manifest_from,
    state_from,
)
from penstock_core.columns.keys.keys import KeyIndex
from penstock_core.columns.protobuf import checked_descriptors
from penstock_core.columns.schema.ipc import batch_bytes, batch_from, schema_bytes
from penstock_core.ids.ids import IdSet, Span
from penstock_core.loggers import logger
from penstock_core.messages.definitions import ChannelCreated
from penstock_core.messages.segments import Sealed
from penstock_core.realm.exported_file import ExportedFile
from penstock_core.realm.exports import ExportedState, check, take_over
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import (
    DamagedExport,
    IllegalState,
    MemoryLimit,
    PenstockError,
    Refused,
)
from penstock_core.vocabulary.names import file_part
from penstock_core.vocabulary.ports import Blobs, Clock, Offload
from penstock_core.vocabulary.reach import durables_of, on_one_node, with_open_reach
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.merging import rows_in
from penstock_server.runtime.store.sealed_file import Publishers, SealedFile, publishers_within
from penstock_server.runtime.store.tail_batch import Meter, TailBatch
from penstock_server.runtime.transfer.transfer_registry import Transfer, TransferRegistry
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.pattern_durables import check_new, make_own
from penstock_server.runtime.writer.placement import MemoryLimits
from penstock_server.runtime.writer.shard import Shard
from penstock_server.runtime.writer.store_names import StoreNames

_SHOWN_MAX = 200
"""Largest number of characters of the channel's name in the name of an import's folder. The folder
also has the time in its name, which makes it unique."""
IMPORTED = "imported:"
"""Prefix of the publishers of imported events."""
PUBLISHER_CHARACTERS_MAX = 1_024
"""Largest number of characters of a publisher in an export."""
IMPORTS_MAX = 4
"""Largest number of imports at the same time, because each may have one file in memory."""

_NOTHING = Digest(0, 0, 0)
"""The digest of no events."""

_log = logger("penstock.importing")


class _Batch(Struct):
    """Imported events of one time and publisher that will be in memory only."""

    ids: IdSet
    at_us: int
    publisher: str
    schema: pa.Schema
    body: memoryview


class _Import(Transfer):
    def __init__(self, session: str, name: str, manifest: Manifest, folder: str) -> None:
        super().__init__(session)
        self.name = name
        self.manifest = manifest
        self.folder = folder
        """The folder of the import's files in the blob store."""
        self.is_orphan = False
        """Whether the connection of the import has ended during a request."""
        self.state: StateFile | None = None
        self.ids: list[IdSet] = []
        """The ids in each complete file."""
        self.blobs: list[str] = []
        """Names of blobs that were stored, or whose storing has begun."""
        self.files: list[SealedFile] = []
        """Stored files."""
        self.transient: list[_Batch] = []
        self.chunks: list[memoryview] = []
        """Received parts of the current file."""
        self.size = 0
        """Received bytes of the current file."""

    @property
    def expected(self) -> int:
        """Number of the file that the client has to send next."""
        return len(self.manifest.files) if self.state is None else len(self.ids)

    @property
    def is_complete(self) -> bool:
        return self.state is not None and len(self.ids) == len(self.manifest.files)


class Imports(TransferRegistry[_Import]):
    """All imports in progress."""

    def __init__(
        self,
        shard: Shard,
        blobs: Blobs,
        clock: Clock,
        offload: Offload,
        rules: RealmRules,
        limits: MemoryLimits,
    ) -> None:
        super().__init__(
            "import",
            IMPORTS_MAX,
            clock,
            ends="was refused, ended with its connection, or got no data",
        )
        self._shard = shard
        self._blobs = blobs
        self._offload = offload
        self._rules = rules
        self._limits = limits
        self.names = StoreNames()
        """Reserves the names of new stores in a cluster."""
        self._abandoned: list[str] = []
        """Names of blobs of imports that ended early."""
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Delete the files of imports that ended early, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._abandoned:
                await self._delete(self._abandoned.pop())

    # --- requests of a session -----------------------------------------------------------

    async def begin(self, session: str, name: str, manifest: bytes) -> str:
        """Start an import into the channel or queue ``name``; return the import's name.

        Raises ``DamagedExport``, ``NameAlreadyBound``, ``InvalidName``, ``InvalidArgument`` for
        a type or engine that this realm does not have, ``NameDoesNotExist`` for a dead event store
        that it does not have, ``Unavailable``.
        """
        parsed = manifest_from(manifest)
        checked_descriptors(parsed.definition.descriptors)
        self.check_room()
        # Decided now so that an impossible import is refused before its upload; `commit` decides
        # again.
        created: ChannelCreated = await self._shard.act(
            lambda group: group.state.directory.decide_create(
                name, _new_definition(parsed, self._rules)
            )
        )
        # The time makes the name of the folder unique; the channel's name is for readers and may be
        # cut.
        shown = file_part(created.name)[:_SHOWN_MAX]
        folder = f"segments/{shown}.import-{self._clock.now_us()}-{self.next}"
        return self.add(_Import(session, created.name, manifest=parsed, folder=folder))

    async def put(
        self, session: str, name: str, file: int, offset: int, content: memoryview
    ) -> None:
        """Add bytes of a file. The client has to send the state first and then the files of events
        in order, each from its beginning.

        Raises ``DamagedExport``, ``MemoryLimit``, ``StorageFailed``, ``IllegalState``. Each of
        these errors ends the import and deletes its files.
        """
        transfer = self._idle(session, name)
        async with self._dropping_on(name):
            with self.at_work(transfer):
                await self._put(transfer, file, offset, content=content)
        if transfer.is_orphan:
            self._forget(name, transfer)

    async def commit(self, session: str, name: str) -> ChannelOpened:
        """Create the channel or queue in one step. Raises the errors of :meth:`begin` and
        :meth:`put`."""
        transfer = self._idle(session, name)
        async with AsyncExitStack() as reservation:
            reservation.enter_context(self.at_work(transfer))
            async with self._dropping_on(name):
                state = _complete_state(transfer)
                keys = await self._key_index(transfer)
                rows = await self._merged_rows(transfer)
                check_whole(state, transfer.manifest, transfer.ids)
                definition = with_open_reach(transfer.manifest.definition)
                await reservation.enter_async_context(self.names.making(transfer.name, definition))
            try:
                async with self._dropping_on(name, Refused):
                    opened: ChannelOpened = await self._shard.act(
                        lambda group: _created(
                            group, transfer, state.channel, keys=keys, rows=rows, rules=self._rules
                        )
                    )
            finally:
                # If storing the block failed, the block may still be on disk. So the files stay,
                # and the next start deletes them if no fact names them.
                self.remove(name)
        _log.info("channel.imported", channel=opened.name, events=transfer.manifest.events)
        return opened

    async def abort(self, session: str, name: str) -> None:
        """End an import and delete its files."""
        self._idle(session, name)
        await self._drop(name)

    # --- ends ----------------------------------------------------------------------------

    def _idle(self, session: str, name: str) -> _Import:
        """Return the import ``name``. Raises ``IllegalState`` while a request works on it, and if
        it has ended."""
        transfer = self.find(session, name)
        if transfer.users:
            raise IllegalState(f"{name} is busy; only one request at a time is possible")
        return transfer

    def _log_expired(self, transfer: _Import) -> None:
        _log.info("import.expired", channel=transfer.name)

    def _forget(self, name: str, transfer: _Import) -> None:
        if transfer.users:
            transfer.is_orphan = True
            return
        self.remove(name)
        self._abandoned += transfer.blobs
        self._wake.set()

    @asynccontextmanager
    async def _dropping_on(
        self, name: str, errors: type[BaseException] = BaseException
    ) -> AsyncIterator[None]:
        """Delete the import with its files if the ``async with`` block fails with one of
        ``errors``."""
        try:
            yield
        except errors:
            await self._drop(name)
            raise

    async def _drop(self, name: str) -> None:
        """Delete an import with its files."""
        transfer = self.remove(name)
        for blob in transfer.blobs if transfer else ():
            await self._delete(blob)

    async def _delete(self, blob: str) -> None:
        try:
            await self._blobs.delete(blob)
        except PenstockError as error:
            # The file stays until the next start, which deletes it.
            _log.warning("import.file_left", name=blob, reason=str(error))

    # --- received files ------------------------------------------------------------------

    async def _put(self, transfer: _Import, file: int, offset: int, content: memoryview) -> None:
        """Add bytes to the current file, and check the file when it is complete."""
        if transfer.is_complete or file != transfer.expected or offset != transfer.size:
            raise IllegalState(
                f"byte {offset} of file {file} was sent, but byte {transfer.size} of file "
                f"{transfer.expected} was expected; send the files in the order of the manifest"
            )
        manifest = transfer.manifest
        entry = manifest.state if transfer.state is None else manifest.files[file]
        transfer.chunks.append(content)
        transfer.size += len(content)
        if transfer.size > entry.size:
            raise DamagedExport(
                f"{entry.name} has more than the {entry.size} bytes that the manifest says"
            )
        if transfer.size < entry.size:
            return
        complete = b"".join(transfer.chunks)
        transfer.chunks, transfer.size = [], 0
        if transfer.state is None:
            state = await self._offload(lambda: state_from(manifest, complete))
            check(state.channel, self._rules)
            transfer.state = state
        else:
            facts = transfer.state.files[file]
            await self._put_events(transfer, entry, facts, content=complete)

    async def _put_events(
        self, transfer: _Import, file: ExportedFile, facts: FileFacts, content: bytes
    ) -> None:
        """Check a file of events and store it, or keep its events that live in memory only."""
        checked: CheckedEvents = await self._offload(lambda: events_from(file, facts, content))
        publishers = _marked(publishers_within(facts.publishers, checked.ids))
        if file.in_memory:
            transfer.transient += await self._offload(
                lambda: [part for batch in checked.batches for part in _split(batch, publishers)]
            )
            _refuse_beyond(self._limits, self._shard.state.meter, transfer, rules=self._rules)
        else:
            plain = f"{transfer.folder}/{file.name.rpartition('/')[2]}"
            blob = self._shard.state.file_names.segment(plain)
            # Recorded before it is stored, so that the file of a failed or cancelled store is
            # also deleted.
            transfer.blobs.append(blob)
            await self._blobs.put(blob, [content])
            transfer.files.append(SealedFile(blob, facts.index, publishers))
        transfer.ids.append(checked.ids)

    async def _key_index(self, transfer: _Import) -> KeyIndex | None:
        """Return the index of the newest events of each publish key (SEM K1)."""
        keys = transfer.manifest.definition.keys
        if not keys:
            return None
        batches = [
            _stamped(batch_from(part.body, part.schema), part) for part in transfer.transient
        ]
        for file in transfer.files:
            batches += [batch for batch, _ in rows_in(file, await self._blobs.get(file.name))]
        index: KeyIndex = await self._offload(lambda: _indexed(keys, batches))
        return index

    async def _merged_rows(self, transfer: _Import) -> list[tuple[pa.RecordBatch, Publishers]]:
        """Return the events in the files of a merge channel, which has its states in memory (SEM
        K2); empty for other channels."""
        if not self._rules.engines[transfer.manifest.definition.engine].merges:
            return []
        rows: list[tuple[pa.RecordBatch, Publishers]] = []
        for file in transfer.files:
            rows += rows_in(file, await self._blobs.get(file.name))
        return rows


def _complete_state(transfer: _Import) -> StateFile:
    """Return the state of an import. Raises ``DamagedExport`` if files are missing."""
    if transfer.state is None or not transfer.is_complete:
        missing = transfer.manifest.files[transfer.expected :]
        name = missing[0].name if missing and transfer.state is not None else STATE
        raise DamagedExport(f"{name} is missing: the export is incomplete; export it again")
    return transfer.state


def _new_definition(manifest: Manifest, rules: RealmRules) -> Definition:
    """Return the definition of the new channel. In a cluster, a channel with events that are in
    memory only cannot belong to the whole cluster, so it becomes a channel of one node. Without a
    cluster all channels are local."""
    if not rules.is_cluster:
        return rules.counting(manifest.definition)
    if any(file.in_memory for file in manifest.files):
        return on_one_node(manifest.definition)
    return manifest.definition


def _home(definition: Definition, rules: RealmRules) -> Home:
    """Return the kind of memory for events that are in memory only (SEM C6)."""
    return "off_heap" if rules.type_of(definition).home == "off_heap" else "heap"


def _refuse_beyond(
    limits: MemoryLimits, meter: Meter, transfer: _Import, rules: RealmRules
) -> None:
    """Raise ``MemoryLimit`` if the imported events that stay in memory need more bytes than are
    free."""
    size = sum(len(batch.body) for batch in transfer.transient)
    free = limits.free_bytes(
        _home(_new_definition(transfer.manifest, rules), rules), _NOTHING, meter
    )
    if size > free:
        raise MemoryLimit(
            f"{transfer.name} has {size} bytes of events that are in memory only; "
            f"{max(free, 0)} bytes are free: raise the memory limits, or free memory"
        )


def _refuse_large_index(limits: MemoryLimits, meter: Meter, name: str, index_bytes: int) -> None:
    free = limits.free_bytes_of_index(None, meter)
    if index_bytes > free:
        raise MemoryLimit(
            f"{name} has {index_bytes} bytes of publish keys and states; {max(free, 0)} bytes of "
            f"memory are free for them (limits.index_bytes, of which a channel gets half of the "
            f"bytes that others leave): raise the limit"
        )


# --- in a thread --------------------------------------------------------------------------


def _marked(publishers: Publishers) -> Publishers:
    """Return publishers with a prefix that marks them as imported, because this realm has not
    authenticated the users that an export names (SEM E3). Raises ``DamagedExport``."""
    marked = []
    for name, spans in publishers:
        if len(name) > PUBLISHER_CHARACTERS_MAX or not name.isprintable():
            raise DamagedExport(f"{name[:40]!r} is not a valid publisher's name")
        marked.append((IMPORTED + name.removeprefix(IMPORTED), spans))
    return tuple(marked)


def _split(batch: pa.RecordBatch, publishers: Publishers) -> Iterator[_Batch]:
    """Split a batch where time or publisher change, as the events were published."""
    ids = ids_of(batch)
    times = batch.column("published").cast(pa.int64()).to_numpy()
    # The publisher of each row, as an index into `names`; 0 for rows without one.
    publisher_indexes = np.zeros(len(ids), dtype=np.int64)
    for index, (_, spans) in enumerate(publishers, start=1):
        for first, end in np.searchsorted(ids, np.array(spans, dtype=np.int64).reshape(-1, 2)):
            publisher_indexes[first:end] = index
    changes = np.flatnonzero((np.diff(times) != 0) | (np.diff(publisher_indexes) != 0)) + 1
    edges = [0, *changes.tolist(), len(ids)]
    body = body_part(batch)
    names = ["", *(publisher for publisher, _ in publishers)]
    for start, stop in pairwise(edges):
        rows = body.slice(start, stop - start)
        buffer = memoryview(batch_bytes(rows))
        yield _Batch(
            id_set(ids[start:stop]),
            int(times[start]),
            names[int(publisher_indexes[start])],
            schema=rows.schema,
            body=buffer,
        )


def _stamped(body: pa.RecordBatch, batch: _Batch) -> pa.RecordBatch:
    """Return imported events as a stored batch, with ids and publish times."""
    ids = np.concatenate([np.arange(*span, dtype=np.int64) for span in batch.ids.spans])
    return stamp(body, ids, batch.at_us)


def _indexed(keys: Mapping[str, int], batches: Sequence[pa.RecordBatch]) -> KeyIndex:
    """Return the key index of batches. The ids of files and of memory may interleave."""
    index = KeyIndex(keys)
    with_properties = [batch for batch in batches if "properties" in batch.schema.names]
    if not with_properties:
        return index
    narrow = [batch.select(["event_id", "properties"]) for batch in with_properties]
    narrow.sort(key=lambda batch: int(ids_of(batch)[0]))
    # The index needs ascending ids; sorting all rows is needed only if batches overlap.
    if any(ids_of(before)[-1] > ids_of(after)[0] for before, after in pairwise(narrow)):
        narrow = pa.Table.from_batches(narrow).sort_by("event_id").combine_chunks().to_batches()
    for batch in narrow:
        index.append([batch], ids_of(batch))
    return index


# --- in the shard's turn ------------------------------------------------------------------


def _created(
    group: Group,
    transfer: _Import,
    exported_state: ExportedState,
    keys: KeyIndex | None,
    rows: Sequence[tuple[pa.RecordBatch, Publishers]],
    rules: RealmRules,
) -> ChannelOpened:
    """Create the channel with its state and events in one block, and return it."""
    state = group.state
    new_definition = _new_definition(transfer.manifest, rules)
    created = state.directory.decide_create(transfer.name, new_definition)
    index_bytes = 0 if keys is None else keys.nbytes
    if rules.type_of(new_definition).home == "journal":
        index_bytes += sum(merged.nbytes for merged, _ in rows)
    _refuse_beyond(group.limits, state.meter, transfer, rules=rules)
    _refuse_large_index(group.limits, state.meter, transfer.name, index_bytes=index_bytes)
    number, definition = created.number, created.definition
    durables = durables_of(definition, exported_state.restored.durables)
    missing = check_new(group, created.name, definition, already=durables)
    group.realm_fact(0, created)
    channel, store = state.channels[number], state.stores[number]
    restored = replace(exported_state.restored, definition=definition, durables=durables)
    take_over(channel.state, ExportedState(restored, exported_state.volatile))
    group.record(number, channel.snapshot())
    for file in transfer.files:
        index = msgspec.msgpack.encode(file.index)
        fact = Sealed(file.index.end_id, file.name, index, publishers=file.publishers)
        group.realm_fact(number, fact)
    if transfer.files:
        # All ids below `next_id` count as sealed. Events with lower ids that are not in a file are
        # in memory only.
        group.realm_fact(number, Sealed(restored.next_id))
    if isinstance(store, MergeStore):
        # Recording the files has set this flag, but their rows are loaded right here.
        store.lacks_files = False
        for merged, publishers in rows:
            store.add_merged_rows(merged, publishers)
    home = _home(definition, rules)
    for batch in transfer.transient:
        store.add(_tail_batch(group, batch, home))
    if isinstance(store, MergeStore):
        store.index()
    elif keys is not None:
        store.keys = keys
        store.count_index()
    make_own(group, number, missing)
    return state.opened(number)


def _tail_batch(group: Group, batch: _Batch, home: Home) -> TailBatch:
    """Return imported events in the form in which a store keeps events that are not in files."""
    lowest, highest = batch.ids.lowest, batch.ids.highest
    assert lowest is not None, "a batch has at least one event"
    assert highest is not None, "a set that is not empty has a highest id"
    span = Span(lowest, highest + 1)
    number, schema = group.record_schema(schema_bytes(batch.schema))
    return TailBatch(
        span,
        batch.at_us,
        number,
        schema=schema,
        body=group.placing.outside(batch.body) if home == "off_heap" else batch.body,
        ids=None if len(batch.ids) == span.size else batch.ids,
        home=home,
        publisher=batch.publisher,
        schema_weight=group.state.schemas.take_weight(number),
    )
