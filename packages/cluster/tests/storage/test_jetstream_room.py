"""The room of the engine is counted down between two looks, and some of it is kept."""

from __future__ import annotations

import pytest

from penstock_cluster.storage.jetstream.room import (
    BLOBS_KEEP,
    EVENTS_KEEP,
    MESSAGE_BYTES,
    EngineRoom,
)
from penstock_core.vocabulary.errors import StorageFailed

MIB = 1 << 20


def room_of(size: int) -> EngineRoom:
    room = EngineRoom()
    room.note_reported(size, room.sent)
    return room


def test_what_is_sent_after_a_look_is_taken_from_the_room_until_the_next_look() -> None:
    room = room_of(EVENTS_KEEP + 10 * MIB)
    room.check(8 * MIB, EVENTS_KEEP)
    room.note_sent(8 * MIB)

    with pytest.raises(StorageFailed, match="max_file_store"):
        room.check(8 * MIB, EVENTS_KEEP)
    room.note_reported(EVENTS_KEEP + 10 * MIB, room.sent)
    room.check(8 * MIB, EVENTS_KEEP)


def test_what_is_sent_while_the_servers_are_looked_at_counts() -> None:
    room = EngineRoom()
    began = room.sent
    room.note_sent(MIB)
    room.note_reported(4 * MIB, began)

    assert room.free_bytes == 3 * MIB - MESSAGE_BYTES


def test_segments_and_snapshots_have_room_when_events_are_refused() -> None:
    room = room_of(EVENTS_KEEP)

    with pytest.raises(StorageFailed):
        room.check(1, EVENTS_KEEP)
    room.check(EVENTS_KEEP - BLOBS_KEEP, BLOBS_KEEP)
    with pytest.raises(StorageFailed):
        room.check(EVENTS_KEEP - BLOBS_KEEP + 1, BLOBS_KEEP)


def test_nothing_is_refused_before_a_majority_has_said_how_much_room_it_has() -> None:
    room = EngineRoom()
    room.note_reported(None, 0)
    room.check(1 << 50, EVENTS_KEEP)

    assert room.free_bytes is None
