"""Export files: damage of one file, and missing or wrong files of an export, are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock_core.channel.channel import ChannelMachine
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.files.exports import (
    FILE_BYTES_MAX,
    FileFacts,
    Manifest,
    StateFile,
    check_whole,
    described,
    described_state,
    events_from,
    manifest_from,
    state_bytes,
    state_from,
)
from penstock_core.columns.files.segments import SegmentImage, encode_segment
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.publishing import Appended
from penstock_core.realm.exports import export_state
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import DamagedExport
from penstock_server.bootstrap import rules

pytestmark = pytest.mark.spec("C7")

NOW_US = 1_700_000_000_000_000


def image(ids: Sequence[int], *, schema: pa.Schema | None = None) -> SegmentImage:
    body = body_of_columns([b"%d" % n for n in ids], properties=[{"n": n} for n in ids])
    batch = stamp(body, np.array(ids, dtype=np.int64), NOW_US)
    if schema is not None:
        return encode_segment([batch.cast(schema)])
    return encode_segment([ChannelSchema.empty().grown(batch.schema).conform(batch)])


FIRST, SECOND = image(range(4)), image(range(4, 10))


def state_file(**durable: Any) -> StateFile:
    """Return the state of an export with ten events in two files."""
    channel = ChannelMachine("orders", Definition(type="persistent"), rules())
    for fact in channel.decide(AddDurable("d", "exclusive"), NOW_US).facts:
        channel.apply(fact)
    channel.apply(Appended(Span(0, 10), NOW_US, 100))
    state = export_state(channel.state)
    (stored_durable,) = state.restored.durables
    restored = replace(state.restored, durables=(replace(stored_durable, **durable),))
    facts = tuple(FileFacts(image.index, ()) for image in (FIRST, SECOND))
    return StateFile(replace(state, restored=restored), facts)


def manifest(state_file: StateFile, /, **changes: Any) -> Manifest:
    complete = Manifest(
        format=1,
        name="orders",
        kind="channel",
        definition=Definition(type="persistent"),
        realm="r",
        exported="2026-01-01T00:00:00+00:00",
        events=10,
        state=described_state(state_bytes(state_file)),
        files=tuple(described(image, in_memory=False) for image in (FIRST, SECOND)),
    )
    return replace(complete, **changes)


def test_what_was_written_is_read_again() -> None:
    state = state_file()
    complete = manifest(state)
    again = manifest_from(complete.encoded())

    assert replace(again, checksum="") == complete
    assert state_from(again, state_bytes(state)) == state
    ids = [
        events_from(file, facts, bytes(image.buffer)).ids
        for file, facts, image in zip(again.files, state.files, (FIRST, SECOND), strict=True)
    ]
    check_whole(state, again, ids)
    assert [list(file_ids) for file_ids in ids] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]


def test_any_change_to_a_manifest_is_noticed() -> None:
    content = manifest(state_file()).encoded()
    for position in range(0, len(content), 7):
        with pytest.raises(DamagedExport):
            manifest_from(
                content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
            )


def test_an_export_of_a_newer_version_is_refused_as_such() -> None:
    with pytest.raises(DamagedExport, match=r"format 2; .* import it with a newer one"):
        manifest_from(b'{"format": 2, "contents": "unknown"}')


def names(name: str) -> Any:
    files = manifest(state_file()).files
    return {"files": (replace(files[0], name=name), files[1])}


WRONG_MANIFESTS: dict[str, dict[str, Any]] = {
    "neither a channel nor a queue": {"kind": "schedule"},
    "a channel that is a queue": {"kind": "queue"},
    "a file outside the folder": names("../events.arrow"),
    "one file twice": {"files": manifest(state_file()).files[:1] * 2},
    "another state": {"state": described(FIRST, in_memory=False)},
    "a count that is wrong": {"events": 11},
    "a file too large": {"state": replace(described_state(b"x"), size=FILE_BYTES_MAX + 1)},
    "an empty file": {"state": replace(described_state(b"x"), size=0)},
}


@pytest.mark.parametrize("what", WRONG_MANIFESTS)
def test_a_manifest_that_cannot_be_is_refused(what: str) -> None:
    with pytest.raises(DamagedExport, match=r"manifest\.json|state\.msgpack|events"):
        manifest_from(manifest(state_file(), **WRONG_MANIFESTS[what]).encoded())


def test_a_state_has_to_fit_its_manifest() -> None:
    state = state_file()
    content = state_bytes(state)
    for changes, reason in (
        ({"definition": Definition(type="mixed")}, "define the channel differently"),
        ({"files": ()}, "describes 2 files"),
        ({"state": described_state(b"\xc1")}, "the manifest says 1"),
    ):
        with pytest.raises(DamagedExport, match=reason):
            state_from(manifest(state, **changes), content)
    garbage = manifest(state, state=described_state(b"\xc1"))
    with pytest.raises(
        DamagedExport, match=r"state\.msgpack cannot be read: the state: MessagePack data is"
    ):
        state_from(garbage, b"\xc1")


def test_a_durable_with_an_invalid_selector_is_refused() -> None:
    state = state_file(selector="price <")

    with pytest.raises(DamagedExport, match="durable d"):
        state_from(manifest(state), state_bytes(state))


def with_events(content: SegmentImage, **changes: Any) -> tuple[Any, FileFacts, bytes]:
    """Return a file whose index does not agree with its events."""
    index = replace(content.index, **changes)
    return described(content, in_memory=False), FileFacts(index, ()), bytes(content.buffer)


def test_a_file_must_match_its_index() -> None:
    first = FIRST.index.batches[0]
    wrong: dict[str, dict[str, Any]] = {
        "describe it differently": {"rows": 5},
        "describes another file": {"batches": ()},
        "has no position in the file": {"batches": (replace(first, offset=-1),)},
        "fail their checksum": {"batches": (replace(first, offset=8),)},
        "does not have the events listed": {"batches": (replace(first, end_id=9),)},
        "is not a file of events": {"schema": b"none"},
        "file ends at byte": {"batches": (replace(first, length=1 << 30),)},
    }
    for reason, changes in wrong.items():
        with pytest.raises(DamagedExport, match=reason):
            events_from(*with_events(FIRST, **changes))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_file_is_refused_that_is_far_larger_unpacked(compression: Compression) -> None:
    def zeros(size: int) -> SegmentImage:
        batch = stamp(body_of_columns([bytes(size)]), np.array([0], dtype=np.int64), NOW_US)
        conformed = ChannelSchema.empty().grown(batch.schema).conform(batch)
        return encode_segment([conformed], compression=compression)

    small, large = with_events(zeros(1_000_000)), with_events(zeros(20_000_000))
    assert len(events_from(*small, unpacked_bytes_max=1 << 20).ids) == 1
    with pytest.raises(DamagedExport, match=r"has 20000\d\d\d bytes unpacked; a file may have up"):
        events_from(*large, unpacked_bytes_max=1 << 20)


def test_only_columns_of_stored_events_are_accepted() -> None:
    fields = [*ChannelSchema.empty().arrow, pa.field("data", pa.string())]
    batch = pa.record_batch(
        [pa.array([1]), pa.array([0], fields[1].type), pa.array(["x"])], schema=pa.schema(fields)
    )
    strange = encode_segment([batch])

    with pytest.raises(DamagedExport, match="columns are not the columns of stored events"):
        events_from(*with_events(strange))


def test_files_together_have_each_stored_event_once() -> None:
    state = state_file()
    complete = manifest(state)
    ids = [
        events_from(file, facts, bytes(image.buffer)).ids
        for file, facts, image in zip(complete.files, state.files, (FIRST, SECOND), strict=True)
    ]
    for files, image in (
        (complete.files[:1], ids[:1]),
        (complete.files * 2, ids * 2),
        (tuple(replace(file, in_memory=True) for file in complete.files), ids),
    ):
        with pytest.raises(DamagedExport, match=r"counts (10|0) events"):
            check_whole(state, replace(complete, files=files), image)
    with pytest.raises(DamagedExport, match="overlap"):
        check_whole(state, replace(complete, files=complete.files[::-1]), ids[::-1])
