"""The room of the engine is counted down between two looks, and some of it is kept."""

from __future__ import annotations

import pytest

from penstock_cluster.storage.jetstream.room import (
    MESSAGE_BYTES,
    REGISTER_RESERVE_BYTES,
    SEALING_RESERVE_BYTES,
    EngineRoom,
)
from penstock_core.vocabulary.errors import StorageFailed

MIB = 1 << 20


def room_of(size: int) -> EngineRoom:
    room = EngineRoom()
    room.note_reported(size, room.sent)
    return room


def test_what_is_sent_after_a_look_is_taken_from_the_room_until_the_next_look() -> None:
    room = room_of(SEALING_RESERVE_BYTES + 10 * MIB)
    room.check(8 * MIB, SEALING_RESERVE_BYTES)
    room.note_sent(8 * MIB)

    with pytest.raises(StorageFailed, match="max_file_store"):
        room.check(8 * MIB, SEALING_RESERVE_BYTES)
    room.note_reported(SEALING_RESERVE_BYTES + 10 * MIB, room.sent)
    room.check(8 * MIB, SEALING_RESERVE_BYTES)


def test_what_is_sent_while_the_servers_are_looked_at_counts() -> None:
    room = EngineRoom()
    began = room.sent
    room.note_sent(MIB)
    room.note_reported(4 * MIB, began)

    assert room.free_bytes == 3 * MIB - MESSAGE_BYTES


def test_segments_and_snapshots_have_room_when_events_are_refused() -> None:
    room = room_of(SEALING_RESERVE_BYTES)

    with pytest.raises(StorageFailed):
        room.check(1, SEALING_RESERVE_BYTES)
    room.check(SEALING_RESERVE_BYTES - REGISTER_RESERVE_BYTES, REGISTER_RESERVE_BYTES)
    with pytest.raises(StorageFailed):
        room.check(SEALING_RESERVE_BYTES - REGISTER_RESERVE_BYTES + 1, REGISTER_RESERVE_BYTES)


def test_nothing_is_refused_before_a_majority_has_said_how_much_room_it_has() -> None:
    room = EngineRoom()
    room.note_reported(None, 0)
    room.check(1 << 50, SEALING_RESERVE_BYTES)

    assert room.free_bytes is None
