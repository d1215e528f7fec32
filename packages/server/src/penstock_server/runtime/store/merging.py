"""Checks and merges deltas before they are stored, and keeps the states of merge channels in
snapshots (SEM K2, K4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from penstock_core.channel.state import ChannelState
from penstock_core.columns.events.batch import body_part
from penstock_core.columns.files.segments import SegmentReader
from penstock_core.columns.merge.states import DELTA, deltas_of
from penstock_core.columns.schema.ipc import stream_of
from penstock_core.columns.schema.layout import FIELDS
from penstock_core.ids.ids import IdSet
from penstock_core.messages.snapshots import KeptStates
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import Damaged, IllegalState, InvalidEvent
from penstock_core.vocabulary.ports import Blobs, Buffer
from penstock_server.runtime.store.bodies import Body, body_from
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.sealed_file import Publishers, SealedFile


def has_deltas(bodies: Sequence[Body]) -> bool:
    """Whether any of these batches has deltas."""
    return any(DELTA in body.names and body.batch.column(DELTA).true_count > 0 for body in bodies)


def refuse(
    state: ChannelState, store: ChannelStore, bodies: Sequence[Body], digest: Digest
) -> None:
    """Raise ``IllegalState`` for deltas on a channel that does not merge. Raise ``InvalidEvent``
    for a delta without the publish key, and for a transient event on a merge channel."""
    if not isinstance(store, MergeStore):
        if state.definition.kind != "schedule" and has_deltas(bodies):
            raise IllegalState(
                f"{state.name} has engine {state.definition.engine}; only channels with engine "
                f"merge accept updates: publish whole events"
            )
        return
    if digest.transient:
        raise InvalidEvent(
            f"event {digest.transient[0][0]} is transient, but {state.name} must store the events "
            f"that it merges; publish it without transient"
        )
    if not has_deltas(bodies):
        return
    assert store.keys is not None, "an engine that merges has a publish key"
    keyed = store.keys.key_masks([body.batch for body in bodies], state.stored).keyed
    keyless = np.flatnonzero(_deltas(bodies) & ~keyed)
    if len(keyless):
        (key,) = state.definition.keys
        raise InvalidEvent(
            f"event {keyless[0]} is a delta without a value of {key!r}, the publish key of "
            f"{state.name}; set it to the value of the event that the delta changes"
        )


def admitted(
    state: ChannelState, store: ChannelStore, bodies: Sequence[Body], digest: Digest
) -> tuple[Sequence[Body], Digest]:
    """Return the bodies and their digest as a merge channel stores them.

    A delta of a key without a stored event becomes a full event (SEM K4). Every event becomes as
    persistent as the channel, because later deltas build on it.
    """
    if not isinstance(store, MergeStore):
        return bodies, digest
    if digest.volatile:
        bodies = [_as_persistent(body) for body in bodies]
        digest = replace(digest, volatile=())
    if not has_deltas(bodies):
        return bodies, digest
    assert store.keys is not None, "an engine that merges has a publish key"
    masks = store.keys.key_masks([body.batch for body in bodies], state.stored)
    deltas = _deltas(bodies)
    without_state = deltas & ~masks.follows
    if not without_state.any():
        return bodies, digest
    flags, flagged, first = deltas & ~without_state, [], 0
    for body in bodies:
        end = first + body.batch.num_rows
        flagged.append(_flagged(body, flags[first:end]))
        first = end
    return flagged, digest


def merged_form(
    store: ChannelStore, bodies: Sequence[Body], first_id: int, at_us: int
) -> Sequence[Body]:
    """Return bodies with deltas replaced by the states that they lead to, for selectors and
    joins."""
    if not isinstance(store, MergeStore) or not has_deltas(bodies):
        return bodies
    return [body_from(body_part(store.merged_ahead([b.batch for b in bodies], first_id, at_us)))]


def _deltas(bodies: Sequence[Body]) -> np.ndarray:
    return np.concatenate([deltas_of(body.batch) for body in bodies])


def _flagged(body: Body, flags: np.ndarray) -> Body:
    """Return the body with ``flags`` as its marks of deltas; without the column if none is set."""
    batch = body.batch
    index = batch.schema.get_field_index(DELTA)
    if index < 0:
        return body
    if flags.any():
        marked = batch.set_column(index, FIELDS[DELTA], pa.array(flags))
        return body_from(marked, body.outcomes)
    names = [name for name in batch.schema.names if name != DELTA]
    return body_from(batch.select(names), body.outcomes)


def _as_persistent(body: Body) -> Body:
    """Return the body without its column of persistence, so that all events are persistent."""
    names = [name for name in body.batch.schema.names if name != "persistent"]
    if len(names) == len(body.batch.schema.names):
        return body
    if not names:  # Arrow forgets the number of rows of a batch without columns
        empty = pa.array([b""] * body.batch.num_rows, pa.binary())
        return body_from(pa.RecordBatch.from_arrays([empty], schema=pa.schema([FIELDS["data"]])))
    return body_from(body.batch.select(names), body.outcomes)


# --- snapshots and files --------------------------------------------------------------------


def kept_states(store: ChannelStore, stored: IdSet) -> Iterator[tuple[KeptStates, Buffer]]:
    """Yield the states of a merge channel for a snapshot; nothing for other channels."""
    if not isinstance(store, MergeStore):
        return
    rows = store.kept(stored)
    if not rows:
        # Also without rows: the restored channel then knows that it need not read its files.
        yield KeptStates(), b""
    for batch, publishers in rows:
        yield KeptStates(publishers), memoryview(stream_of(batch))


def restore_states(store: ChannelStore, fact: KeptStates, bodies: Sequence[Buffer]) -> None:
    """Load the states of a merge channel from a snapshot. Raises ``Damaged``."""
    assert isinstance(store, MergeStore), "only merge channels keep states"
    # The snapshot's states include the events of these files, so the files need not be read.
    store.lacks_files = False
    store.covered |= {file.name for file in store.files}
    if not len(bodies[0]):
        return
    try:
        batches = list(pa.ipc.open_stream(pa.py_buffer(bodies[0])))
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"the states in a snapshot cannot be read: {error}") from error
    for batch in batches:
        store.add_merged_rows(batch, fact.publishers)


async def read_files(store: MergeStore, blobs: Blobs, damage: list[str]) -> None:
    """Load at recovery the rows that only the files of an import have. Files that cannot be read
    are reported to ``damage``."""
    if not store.lacks_files:
        return
    store.lacks_files = False
    for file in store.files:
        try:
            for batch, publishers in rows_in(file, await blobs.get(file.name)):
                store.add_merged_rows(batch, publishers)
        except Damaged as error:
            damage.append(str(error))


def rows_in(file: SealedFile, data: memoryview) -> Iterator[tuple[pa.RecordBatch, Publishers]]:
    """Yield the rows of a file with their publishers. Raises ``Damaged``."""
    reader = SegmentReader(data, file.index, name=file.name)
    for number in range(len(file.index.batches)):
        yield reader.batch(number), file.publishers
