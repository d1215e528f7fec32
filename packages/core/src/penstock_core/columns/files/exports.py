"""The files of an exported channel, and the checks that an export is complete (SEM C7).

::

    manifest.json               the channel, and size and checksum of all other files
    state.msgpack               durables, producers, counters, ages
    events/<first>-<last>.arrow plain Arrow files, one row per event, with ``event_id``

The manifest is written last: a folder without one is an unfinished export. The importing client
checks a folder with this code before it sends anything, and the realm checks again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_64_hexdigest

from penstock_core.api.transfers import ExportBegun
from penstock_core.columns.events.batch import runs_of
from penstock_core.columns.files.segments import (
    SegmentBatch,
    SegmentImage,
    SegmentIndex,
    SegmentReader,
    ids_of_column,
)
from penstock_core.columns.schema.moments import moment_of
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.realm.exported_file import ExportedFile
from penstock_core.realm.exports import ExportedState
from penstock_core.vocabulary import stored_ids
from penstock_core.vocabulary.argument_errors import decode_json, explain
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import DamagedExport, InvalidSelector, PenstockError

FORMAT: Final = 1
"""Format version of the folder. A newer version of Penstock may write a larger number."""

MANIFEST: Final = "manifest.json"
"""Name of the file with the manifest."""
STATE: Final = "state.msgpack"
"""Name of the file with the state of the channel."""
EVENTS: Final = "events"
"""Name of the folder with the files of events."""

FILE_BYTES_MAX: Final = 256 << 20
"""Largest size of a file in an export, in bytes. The limit exists because a file is read into
memory to check it."""

_EVENTS_NAME: Final = re.compile(rf"{EVENTS}/\d{{20}}-\d{{20}}\.arrow")

T = TypeVar("T")


class Manifest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The description of an export, stored as ``manifest.json`` exactly as :meth:`encoded` returns
    it."""

    format: int
    name: str
    kind: str
    """``channel`` or ``queue``."""
    definition: Definition
    realm: str
    """Identity of the exporting realm."""
    exported: str
    """Time of the export, in ISO format and UTC. The export contains every event and settlement
    before this time, and none after it."""
    events: int
    """Number of events in the export."""
    state: ExportedFile
    files: tuple[ExportedFile, ...]
    checksum: str = ""
    """xxh3_64 of this manifest, computed with an empty checksum."""

    def encoded(self) -> bytes:
        """Return the bytes of ``manifest.json``."""
        checksum = xxh3_64_hexdigest(_json(replace(self, checksum="")))
        return _json(replace(self, checksum=checksum))

    def in_order(self) -> Iterator[tuple[int, ExportedFile]]:
        """Yield each file with its number, in the order of an import: the state first."""
        yield len(self.files), self.state
        yield from enumerate(self.files)


def manifest_of(begun: ExportBegun, kind: str, files: Sequence[ExportedFile]) -> Manifest:
    """Return the manifest of an export whose files, in the order of their numbers, were all
    read."""
    return Manifest(
        format=FORMAT,
        name=begun.name,
        kind=kind,
        definition=begun.definition,
        realm=begun.realm,
        exported=moment_of(begun.at_us).isoformat(),
        events=begun.events,
        state=files[-1],
        files=tuple(files[:-1]),
    )


class _Versioned(Struct):
    """The part of a manifest that every version has."""

    format: int


class FileFacts(Struct, frozen=True, array_like=True):
    """The index and publishers of a file of events, which the file itself does not contain."""

    index: SegmentIndex
    publishers: tuple[tuple[str, Spans], ...]
    """Publishers, each with the ids of its events (SEM E3)."""


class StateFile(Struct, frozen=True, array_like=True):
    """The content of ``state.msgpack``."""

    channel: ExportedState
    files: tuple[FileFacts, ...]
    """Facts about each file of events, in the order of the manifest."""


_state_decoder = msgspec.msgpack.Decoder(StateFile)


def state_bytes(state: StateFile) -> bytes:
    """Return the bytes of ``state.msgpack``."""
    return msgspec.msgpack.encode(state)


def events_name(index: SegmentIndex) -> str:
    """Return the path, below the folder of the export, of the file with the events of a segment."""
    return f"{EVENTS}/{index.first_id:020d}-{index.end_id - 1:020d}.arrow"


def described(image: SegmentImage, *, in_memory: bool) -> ExportedFile:
    """Return the manifest entry for a file of events."""
    index = image.index
    return ExportedFile(
        name=events_name(index),
        size=index.size,
        checksum=f"{index.checksum:016x}",
        rows=index.rows,
        first_id=index.first_id,
        last_id=index.end_id - 1,
        in_memory=in_memory,
    )


def described_state(content: bytes) -> ExportedFile:
    """Return the manifest entry for ``state.msgpack``."""
    return ExportedFile(name=STATE, size=len(content), checksum=xxh3_64_hexdigest(content))


# --- checking -----------------------------------------------------------------------------


def manifest_from(content: bytes) -> Manifest:
    """Decode a manifest. Raises ``DamagedExport`` if it is damaged or incomplete."""
    # The version is read first, because a newer manifest may have other fields.
    version = _decoded(content, _Versioned, MANIFEST).format
    if version != FORMAT:
        raise DamagedExport(
            f"{MANIFEST}: format {version}; this version reads format {FORMAT}"
            + (": import it with a newer one" if version > FORMAT else "")
        )
    manifest = _decoded(content, Manifest, MANIFEST)
    # Comparing all bytes also detects changes that decoding ignores, such as the order of fields.
    if manifest.encoded() != content:
        raise DamagedExport(f"{MANIFEST} fails its checksum: it was changed")
    _check_lines(manifest)
    return manifest


def _check_lines(manifest: Manifest) -> None:
    """Raise ``DamagedExport`` for a manifest that contradicts itself or the format."""
    if manifest.kind not in ("channel", "queue") or manifest.definition.kind != manifest.kind:
        raise DamagedExport(f"{MANIFEST}: kind must be channel or queue, not {manifest.kind}")
    names = [file.name for file in manifest.files]
    wrong = [name for name in names if not _EVENTS_NAME.fullmatch(name)]
    if manifest.state.name != STATE or wrong or len(set(names)) < len(names):
        raise DamagedExport(
            f"{MANIFEST} names files that cannot be part of an export: {', '.join(names[:3])}"
        )
    for file in (manifest.state, *manifest.files):
        if not 0 < file.size <= FILE_BYTES_MAX:
            raise DamagedExport(
                f"{file.name} has {file.size} bytes; a file may have 1 to {FILE_BYTES_MAX}"
            )
    if manifest.events != sum(file.rows for file in manifest.files):
        raise DamagedExport(f"{MANIFEST}: its files do not have {manifest.events} events")


def check_file(file: ExportedFile, *, is_state: bool) -> None:
    """Raise ``DamagedExport`` for a manifest entry that no valid export contains."""
    is_expected = file.name == STATE if is_state else _EVENTS_NAME.fullmatch(file.name) is not None
    if not is_expected or not 0 < file.size <= FILE_BYTES_MAX:
        raise DamagedExport(
            f"the realm sent a file {file.name[:200]!r} of {file.size} bytes, which cannot be "
            f"part of an export; the file was not written"
        )


def check_bytes(file: ExportedFile, content: bytes | memoryview) -> None:
    """Raise ``DamagedExport`` unless ``content`` has the size and checksum of ``file``."""
    if len(content) != file.size:
        raise DamagedExport(f"{file.name} has {len(content)} bytes; the manifest says {file.size}")
    if xxh3_64_hexdigest(content) != file.checksum:
        raise DamagedExport(f"{file.name} fails its checksum: it was changed")


def state_from(manifest: Manifest, content: bytes | memoryview) -> StateFile:
    """Decode ``state.msgpack``. Raises ``DamagedExport`` if it does not match the manifest."""
    check_bytes(manifest.state, content)
    try:
        state = _state_decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = explain(error, whole="the state")
        raise DamagedExport(f"{STATE} cannot be read: {reason}") from error
    if state.channel.restored.definition != manifest.definition:
        raise DamagedExport(f"{STATE} and {MANIFEST} define the channel differently")
    for durable in state.channel.restored.durables:
        try:
            if durable.selector:
                Selector(durable.selector)
        except InvalidSelector as error:
            raise DamagedExport(f"{STATE}: durable {durable.name}: {error}") from error
    if len(state.files) != len(manifest.files):
        raise DamagedExport(
            f"{STATE} describes {len(state.files)} files, {MANIFEST} {len(manifest.files)}"
        )
    return state


class CheckedEvents(Struct, frozen=True):
    """A file of events that passed all checks."""

    ids: IdSet
    batches: tuple[pa.RecordBatch, ...]


def events_from(
    file: ExportedFile,
    facts: FileFacts,
    content: bytes | memoryview,
    *,
    unpacked_bytes_max: int = FILE_BYTES_MAX,
) -> CheckedEvents:
    """Read and check a file of events, which may have ``unpacked_bytes_max`` bytes after
    decompression. Raises ``DamagedExport`` if it is damaged."""
    check_bytes(file, content)
    index = facts.index
    declared = (file.size, file.checksum, file.rows, file.first_id, file.last_id)
    recorded = (index.size, f"{index.checksum:016x}", index.rows, index.first_id, index.end_id - 1)
    if declared != recorded or events_name(index) != file.name:
        raise DamagedExport(f"{file.name}: {STATE} and {MANIFEST} describe it differently")
    try:
        return _checked(file, index, content, unpacked_bytes_max=unpacked_bytes_max)
    except DamagedExport:
        raise
    except (PenstockError, pa.ArrowException, ValueError, OSError) as error:
        raise DamagedExport(f"{file.name} is not a file of events: {error}") from error


def _checked(
    file: ExportedFile,
    index: SegmentIndex,
    content: bytes | memoryview,
    *,
    unpacked_bytes_max: int,
) -> CheckedEvents:
    """Return the events of a file whose index has passed the first checks. Raises
    ``DamagedExport``."""
    buffer = pa.py_buffer(content)
    schema = pa.ipc.read_schema(pa.py_buffer(index.schema))
    columns = ChannelSchema.from_bytes(index.schema).arrow
    ChannelSchema.of_file(index.schema)  # raises an error if the note in its metadata is invalid
    if not columns.equals(schema.remove_metadata(), check_metadata=True):
        raise DamagedExport(f"{file.name}: its columns are not the columns of stored events")
    arrow_file = pa.ipc.open_file(buffer)
    if not arrow_file.schema.equals(schema) or arrow_file.num_record_batches != len(index.batches):
        raise DamagedExport(f"{file.name}: {STATE} describes another file")
    # The index may come from a client. A negative offset would address the end of the file.
    if any(place.offset < 0 or place.length <= 0 for place in index.batches):
        raise DamagedExport(f"{file.name}: a batch has no position in the file")
    reader = SegmentReader(buffer, index, name=file.name)
    numbers = range(len(index.batches))
    # Checked before decompression, because a small file could expand to fill the memory.
    unpacked_bytes = sum(map(reader.unpacked_size, numbers))
    if unpacked_bytes > unpacked_bytes_max:
        raise DamagedExport(
            f"{file.name} has {unpacked_bytes} bytes unpacked; a file may have up to "
            f"{unpacked_bytes_max}"
        )
    batches = [reader.batch(number) for number in numbers]
    for place, batch in zip(index.batches, batches, strict=True):
        batch.validate(full=True)
        _check_ids(file, place, batch)
    ids = np.concatenate([ids_of_column(batch.column(0)) for batch in batches])
    if len(ids) != file.rows or ids[0] != file.first_id or ids[-1] != file.last_id:
        raise DamagedExport(f"{file.name} does not have the events listed in {STATE}")
    if ids[0] < 0 or not bool(np.all(np.diff(ids) > 0)):
        raise DamagedExport(f"{file.name}: its ids do not ascend")
    return CheckedEvents(id_set(ids), tuple(batches))


def _check_ids(file: ExportedFile, place: SegmentBatch, batch: pa.RecordBatch) -> None:
    """Raise ``DamagedExport`` unless the ids of a batch match its entry in the index."""
    if batch.num_rows == 0 or any(batch.column(i).null_count for i in (0, 1)):
        raise DamagedExport(f"{file.name}: an event has no id or no time")
    ids = ids_of_column(batch.column(0))
    actual = (int(ids[0]), int(ids[-1]) + 1, batch.num_rows)
    if actual != (place.first_id, place.end_id, place.rows):
        raise DamagedExport(f"{file.name}: a batch does not have the events listed in {STATE}")


def id_set(ids: npt.NDArray[np.int64]) -> IdSet:
    """Return ascending ids as an id set."""
    firsts, ends = runs_of(ids)
    return IdSet(map(Span, firsts.tolist(), ends.tolist()))


def check_whole(state: StateFile, manifest: Manifest, ids: Sequence[IdSet]) -> None:
    """Raise ``DamagedExport`` unless the files together have each stored event exactly once.

    ``ids`` are the ids in each file, in the order of the manifest.
    """
    stored = stored_ids.id_set(state.channel.restored.stored)
    volatile = IdSet(state.channel.volatile)
    for in_memory, expected in ((True, volatile), (False, _without(stored, volatile))):
        present = IdSet()
        count = 0
        for file, file_ids in zip(manifest.files, ids, strict=True):
            if file.in_memory == in_memory:
                present.add_all(file_ids)
                count += len(file_ids)
        # The count detects ids that are in several files.
        if present != expected or count != len(expected):
            place = "in memory" if in_memory else "in files"
            raise DamagedExport(
                f"{STATE} counts {len(expected)} events {place}; the files have {count}"
            )
    # Files of events in memory are excluded: their ids lie between the ids of other files.
    lasting = [file for file in manifest.files if not file.in_memory]
    if any(earlier.last_id >= later.first_id for earlier, later in pairwise(lasting)):
        raise DamagedExport("the files of events overlap, or are not in the order of their ids")


def _without(ids: IdSet, others: IdSet) -> IdSet:
    """Return the ids that are not in ``others``."""
    remaining = ids.copy()
    remaining.discard_all(others)
    return remaining


def _json(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def _decoded(content: bytes, kind: type[T], name: str) -> T:
    """Decode a JSON file of an export. Raises ``DamagedExport``, which names the file."""
    return decode_json(
        content,
        kind,
        whole="the document",
        refuse=lambda why: DamagedExport(f"{name} cannot be read: {why}"),
    )
