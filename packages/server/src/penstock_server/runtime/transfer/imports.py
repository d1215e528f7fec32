"""Imports in progress: files are checked as they come, and take effect in one step (SEM C7).

Until then nothing of it is visible: its files lie beside those of the realm under names that no
fact refers to. They are deleted if the import ends early, and after a crash at the next start.
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
from penstock_core.vocabulary.reach import durables_of, on_one_node, undecided
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
"""Characters of a channel's name in the name of a folder that tells it by its time."""
IMPORTED = "imported:"
"""Before the publisher of an event that was imported."""
PUBLISHER_CHARACTERS_MAX = 1_024
IMPORTS_MAX = 4
"""Imports under way at a time; each may hold one file in memory."""


_NOTHING = Digest(0, 0, 0)

_log = logger("penstock.importing")


class _Batch(Struct):
    """Events that will live in memory: one piece to be."""

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
        """The folder of its files in the store."""
        self.is_orphan = False
        """Whether its connection has ended during a request."""
        self.state: StateFile | None = None
        self.ids: list[IdSet] = []
        """The ids in each file that has come."""
        self.blobs: list[str] = []
        """Names of files that may lie in the store already."""
        self.files: list[SealedFile] = []
        """Files in the store."""
        self.fleeting: list[_Batch] = []
        self.chunks: list[memoryview] = []
        """Parts of the file that is coming."""
        self.size = 0

    @property
    def expected(self) -> int:
        """The number of the file that has to come next."""
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
        """Who is asked about the names of new stores."""
        self._left: list[str] = []
        """Files of imports that ended early."""
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Remove what imports leave whose connection has ended, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._left:
                await self._delete(self._left.pop())

    # --- what a session asks for ---------------------------------------------------------

    async def begin(self, session: str, name: str, manifest: bytes) -> str:
        """Start an import into ``name``; gives a name for it.

        Raises ``DamagedExport``, ``NameAlreadyBound``, ``InvalidName``, ``InvalidArgument`` for
        a type or engine this realm does not have, ``NameDoesNotExist`` for a dead event store it
        does not have, ``Unavailable``.
        """
        whole = manifest_from(manifest)
        checked_descriptors(whole.definition.descriptors)
        self.check_room()
        created: ChannelCreated = await self._shard.act(
            lambda group: group.state.directory.decide_create(name, _wanted(whole, self._rules))
        )
        # The time makes the name unique; the rest is for people, and may be cut.
        shown = file_part(created.name)[:_SHOWN_MAX]
        folder = f"segments/{shown}.import-{self._clock.now_us()}-{self.next}"
        return self.add(_Import(session, created.name, manifest=whole, folder=folder))

    async def put(
        self, session: str, name: str, file: int, offset: int, content: memoryview
    ) -> None:
        """Bytes of a file: the state first, then the events, each file from its beginning.

        Raises ``DamagedExport``, ``MemoryLimit``, ``StorageFailed``, ``IllegalState``: the import
        is over then, and nothing is left of it.
        """
        under_way = self._idle(session, name)
        async with self._whole_or_nothing(name):
            with self.at_work(under_way):
                await self._put(under_way, file, offset, content=content)
        if under_way.is_orphan:
            self._forget(name, under_way)

    async def commit(self, session: str, name: str) -> ChannelOpened:
        """Create the channel or queue, in one step. Raises what :meth:`begin` and :meth:`put`
        raise."""
        under_way = self._idle(session, name)
        async with AsyncExitStack() as named:
            named.enter_context(self.at_work(under_way))
            async with self._whole_or_nothing(name):
                state = _whole(under_way)
                keys = await self._key_index(under_way)
                rows = await self._merged_rows(under_way)
                check_whole(state, under_way.manifest, under_way.ids)
                own = undecided(under_way.manifest.definition)
                await named.enter_async_context(self.names.making(under_way.name, own))
            try:
                async with self._whole_or_nothing(name, Refused):
                    opened: ChannelOpened = await self._shard.act(
                        lambda group: _created(
                            group, under_way, state.channel, keys=keys, rows=rows, rules=self._rules
                        )
                    )
            finally:
                # If storing the block failed, it is unknown whether it is on disk: the files stay,
                # and the next start decides.
                self.remove(name)
        _log.info("channel.imported", channel=opened.name, events=under_way.manifest.events)
        return opened

    async def abort(self, session: str, name: str) -> None:
        """End an import and delete everything of it."""
        self._idle(session, name)
        await self._drop(name)

    # --- coming and going ----------------------------------------------------------------

    def _idle(self, session: str, name: str) -> _Import:
        under_way = self.known(session, name)
        if under_way.users:
            raise IllegalState(f"{name} is busy; only one request at a time is possible")
        return under_way

    def _log_expired(self, transfer: _Import) -> None:
        _log.info("import.expired", channel=transfer.name)

    def _forget(self, name: str, transfer: _Import) -> None:
        if transfer.users:
            transfer.is_orphan = True
            return
        self.remove(name)
        self._left += transfer.blobs
        self._wake.set()

    @asynccontextmanager
    async def _whole_or_nothing(
        self, name: str, errors: type[BaseException] = BaseException
    ) -> AsyncIterator[None]:
        """Delete everything of an import if this step of it fails."""
        try:
            yield
        except errors:
            await self._drop(name)
            raise

    async def _drop(self, name: str) -> None:
        """Delete everything of an import."""
        under_way = self.remove(name)
        for blob in under_way.blobs if under_way else ():
            await self._delete(blob)

    async def _delete(self, blob: str) -> None:
        try:
            await self._blobs.delete(blob)
        except PenstockError as error:
            # stays until the next start
            _log.warning("import.file_left", name=blob, reason=str(error))

    # --- what comes ----------------------------------------------------------------------

    async def _put(self, under_way: _Import, file: int, offset: int, content: memoryview) -> None:
        if under_way.is_complete or file != under_way.expected or offset != under_way.size:
            raise IllegalState(
                f"byte {offset} of file {file} came, byte {under_way.size} of file "
                f"{under_way.expected} was expected"
            )
        manifest = under_way.manifest
        wanted = manifest.state if under_way.state is None else manifest.files[file]
        under_way.chunks.append(content)
        under_way.size += len(content)
        if under_way.size > wanted.size:
            raise DamagedExport(f"{wanted.name} has more than its {wanted.size} bytes")
        if under_way.size < wanted.size:
            return
        whole = b"".join(under_way.chunks)
        under_way.chunks, under_way.size = [], 0
        if under_way.state is None:
            state = await self._offload(lambda: state_from(manifest, whole))
            check(state.channel, self._rules)
            under_way.state = state
        else:
            await self._put_events(under_way, wanted, under_way.state.files[file], whole=whole)

    async def _put_events(
        self, under_way: _Import, file: ExportedFile, facts: FileFacts, whole: bytes
    ) -> None:
        checked: CheckedEvents = await self._offload(lambda: events_from(file, facts, whole))
        publishers = _marked(publishers_within(facts.publishers, checked.ids))
        if file.in_memory:
            under_way.fleeting += await self._offload(
                lambda: [each for batch in checked.batches for each in _pieces(batch, publishers)]
            )
            _refuse_beyond(self._limits, self._shard.state.meter, under_way, rules=self._rules)
        else:
            plain = f"{under_way.folder}/{file.name.rpartition('/')[2]}"
            blob = self._shard.state.file_names.segment(plain)
            under_way.blobs.append(blob)
            await self._blobs.put(blob, [whole])
            under_way.files.append(SealedFile(blob, facts.index, publishers))
        under_way.ids.append(checked.ids)

    async def _key_index(self, under_way: _Import) -> KeyIndex | None:
        """The newest events of each publish key (SEM K1)."""
        keys = under_way.manifest.definition.keys
        if not keys:
            return None
        batches = [_keyed(batch_from(each.body, each.schema), each) for each in under_way.fleeting]
        for file in under_way.files:
            batches += [batch for batch, _ in rows_in(file, await self._blobs.get(file.name))]
        found: KeyIndex = await self._offload(lambda: _indexed(keys, batches))
        return found

    async def _merged_rows(self, under_way: _Import) -> list[tuple[pa.RecordBatch, Publishers]]:
        """The events in files of a merge channel, whose states live in memory (SEM K2)."""
        if not self._rules.engines[under_way.manifest.definition.engine].merges:
            return []
        found: list[tuple[pa.RecordBatch, Publishers]] = []
        for file in under_way.files:
            found += rows_in(file, await self._blobs.get(file.name))
        return found


def _whole(under_way: _Import) -> StateFile:
    if under_way.state is None or not under_way.is_complete:
        missing = under_way.manifest.files[under_way.expected :]
        name = missing[0].name if missing and under_way.state is not None else STATE
        raise DamagedExport(f"{name} is missing: the export is incomplete")
    return under_way.state


def _wanted(manifest: Manifest, rules: RealmRules) -> Definition:
    """What the channel is to be. Events that were in memory only are so here, too, and a channel
    that has them cannot be cluster-wide. Where there is no cluster nothing is."""
    if not rules.is_cluster:
        return rules.counting(manifest.definition)
    if any(file.in_memory for file in manifest.files):
        return on_one_node(manifest.definition)
    return manifest.definition


def _home(definition: Definition, rules: RealmRules) -> Home:
    """The place that keeps events which live in memory only (SEM C6)."""
    return "off_heap" if rules.type_of(definition).home == "off_heap" else "heap"


def _refuse_beyond(
    limits: MemoryLimits, meter: Meter, under_way: _Import, rules: RealmRules
) -> None:
    size = sum(len(each.body) for each in under_way.fleeting)
    left = limits.free_bytes(_home(_wanted(under_way.manifest, rules), rules), _NOTHING, meter)
    if size > left:
        raise MemoryLimit(
            f"{under_way.name} has {size} bytes of events that live in memory; "
            f"{max(left, 0)} are free"
        )


def _refuse_large_index(limits: MemoryLimits, meter: Meter, name: str, index_bytes: int) -> None:
    left = limits.free_bytes_of_index(None, meter)
    if index_bytes > left:
        raise MemoryLimit(
            f"{name} has {index_bytes} bytes of publish keys and states; "
            f"{max(left, 0)} bytes of memory are free for them (limits.index_bytes, of which a "
            f"channel has half of what the others leave): raise the limit"
        )


# --- away from the loop -------------------------------------------------------------------


def _marked(publishers: Publishers) -> Publishers:
    """Mark publishers as named by another realm, or by the author of the export: this realm has
    authenticated none of them (SEM E3). Raises ``DamagedExport``."""
    marked = []
    for name, spans in publishers:
        if len(name) > PUBLISHER_CHARACTERS_MAX or not name.isprintable():
            raise DamagedExport(f"{name[:40]!r} is not a valid publisher's name")
        marked.append((IMPORTED + name.removeprefix(IMPORTED), spans))
    return tuple(marked)


def _pieces(batch: pa.RecordBatch, publishers: Publishers) -> Iterator[_Batch]:
    """Rows of one time and publisher, as they were published."""
    ids = ids_of(batch)
    times = batch.column("published").cast(pa.int64()).to_numpy()
    who = np.zeros(len(ids), dtype=np.int64)
    for at, (_, spans) in enumerate(publishers, start=1):
        for first, end in np.searchsorted(ids, np.array(spans, dtype=np.int64).reshape(-1, 2)):
            who[first:end] = at
    changes = np.flatnonzero((np.diff(times) != 0) | (np.diff(who) != 0)) + 1
    edges = [0, *changes.tolist(), len(ids)]
    body = body_part(batch)
    names = ["", *(publisher for publisher, _ in publishers)]
    for start, stop in pairwise(edges):
        rows = body.slice(start, stop - start)
        buffer = memoryview(batch_bytes(rows))
        own = id_set(ids[start:stop])
        yield _Batch(
            own, int(times[start]), names[int(who[start])], schema=rows.schema, body=buffer
        )


def _keyed(body: pa.RecordBatch, batch: _Batch) -> pa.RecordBatch:
    ids = np.concatenate([np.arange(*span, dtype=np.int64) for span in batch.ids.spans])
    return stamp(body, ids, batch.at_us)


def _indexed(keys: Mapping[str, int], batches: Sequence[pa.RecordBatch]) -> KeyIndex:
    """Batches may interleave: those in files with those in memory."""
    index = KeyIndex(keys)
    having = [batch for batch in batches if "properties" in batch.schema.names]
    if not having:
        return index
    narrow = [batch.select(["event_id", "properties"]) for batch in having]
    narrow.sort(key=lambda batch: int(ids_of(batch)[0]))
    if any(ids_of(left)[-1] > ids_of(right)[0] for left, right in pairwise(narrow)):
        narrow = pa.Table.from_batches(narrow).sort_by("event_id").combine_chunks().to_batches()
    for batch in narrow:
        index.append([batch], ids_of(batch))
    return index


# --- in the shard's turn ------------------------------------------------------------------


def _created(
    group: Group,
    under_way: _Import,
    taken: ExportedState,
    keys: KeyIndex | None,
    rows: Sequence[tuple[pa.RecordBatch, Publishers]],
    rules: RealmRules,
) -> ChannelOpened:
    """The channel, with all that is in it: one block."""
    state = group.state
    wanted = _wanted(under_way.manifest, rules)
    created = state.directory.decide_create(under_way.name, wanted)
    index_bytes = 0 if keys is None else keys.nbytes
    if rules.type_of(wanted).home == "journal":
        index_bytes += sum(merged.nbytes for merged, _ in rows)
    _refuse_beyond(group.limits, state.meter, under_way, rules=rules)
    _refuse_large_index(group.limits, state.meter, under_way.name, index_bytes=index_bytes)
    number, definition = created.number, created.definition
    durables = durables_of(definition, taken.restored.durables)
    missing = check_new(group, created.name, definition, already=durables)
    group.realm_fact(0, created)
    channel, store = state.channels[number], state.stores[number]
    restored = replace(taken.restored, definition=definition, durables=durables)
    take_over(channel.state, ExportedState(restored, taken.volatile))
    group.record(number, channel.snapshot())
    for file in under_way.files:
        index = msgspec.msgpack.encode(file.index)
        fact = Sealed(file.index.end_id, file.name, index, publishers=file.publishers)
        group.realm_fact(number, fact)
    if under_way.files:
        # Later events lie behind; earlier ones in no file are in memory only.
        group.realm_fact(number, Sealed(restored.next_id))
    if isinstance(store, MergeStore):
        store.lacks_files = False
        for merged, publishers in rows:
            store.loaded(merged, publishers)
    home = _home(definition, rules)
    for batch in under_way.fleeting:
        store.add(_piece(group, batch, home))
    if isinstance(store, MergeStore):
        store.index()
    elif keys is not None:
        store.keys = keys
        store.count_index()
    make_own(group, number, missing)
    return state.opened(number)


def _piece(group: Group, batch: _Batch, home: Home) -> TailBatch:
    lowest, highest = batch.ids.lowest, batch.ids.highest
    assert lowest is not None, "a piece has at least one event"
    assert highest is not None, "so it has a last one"
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
        schema_weight=group.state.schemas.first_weight(number),
    )
