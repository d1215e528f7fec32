"""Format 2: scattered ids are packed in facts and snapshots. Both formats are read, as the same.

``records`` of either hold the same life of a channel: as facts, and as a snapshot.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock_core.channel.state import ChannelState
from penstock_core.ids.ids import IdSet
from penstock_core.messages.snapshots import Restored
from penstock_core.messages.unions import PackedIds
from penstock_core.vocabulary.ports import VersionedRecord
from penstock_server.bootstrap import rules
from penstock_server.runtime.store.records import decode_block
from penstock_server.runtime.store.state import RealmState
from penstock_server.storage.disk import RealDisk
from penstock_testing.stores import open_store
from tests.loops import on_a_loop

GOLDEN = Path(__file__).parent

pytestmark = pytest.mark.spec("S1", "D4")


def read(name: str) -> ChannelState:
    header, bodies = decode_block(memoryview((GOLDEN / name).read_bytes()))
    state = RealmState(rules())
    for record in header.records:
        state.apply_stored(record, bodies)
    assert state.skipped == []
    channel = state.channels[1]
    channel.recovered()
    return channel.state


@pytest.mark.parametrize("format", ["format-1/records", "format-2"])
@pytest.mark.parametrize("name", ["facts.block", "snapshot.block"])
def test_scattered_acknowledgements_and_counts_are_read_from_both_formats(
    format: str, name: str
) -> None:
    state = read(f"{format}/{name}")
    durable = state.durables["d"]
    unacknowledged = IdSet.from_ids(range(1, 1_000, 2))

    assert IdSet(durable.outstanding_spans(state.stored)) == unacknowledged
    assert durable.redeliveries(unacknowledged.spans) == (
        (1, IdSet.from_ids(range(1, 1_000, 10)).spans),
    )
    assert state.acked == IdSet.from_ids(range(0, 1_000, 2))
    assert (state.counters.published, state.counters.redelivered) == (1_000, 200)


def test_the_second_format_is_packed() -> None:
    facts, _ = decode_block(memoryview((GOLDEN / "format-2/facts.block").read_bytes()))
    snapshot, _ = decode_block(memoryview((GOLDEN / "format-2/snapshot.block").read_bytes()))
    restored = snapshot.records[-1].fact

    assert len([1 for record in facts.records if isinstance(record.fact, PackedIds)]) == 2
    assert isinstance(restored, Restored)
    assert isinstance(restored.durables[0].outstanding, bytes)


@on_a_loop
async def test_a_directory_of_the_first_format_is_of_the_second_once_it_was_opened(
    tmp_path: Path,
) -> None:
    shutil.copytree(GOLDEN / "format-1" / "realm", tmp_path / "realm")

    for _ in range(2):
        journal, _, registry, _ = open_store(f"{tmp_path}/realm", RealDisk())
        record = await registry.get("format")
        await journal.close()

        assert record == VersionedRecord(2, b'{"format": 2}')
