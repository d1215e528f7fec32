"""The free space of an engine is the space that a majority of its servers has."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.engine_room import room_of_majority


@pytest.mark.parametrize(
    ("rooms", "servers", "room"),
    [
        ([30, 10, 20], 3, 20),
        ([0, 30, 20], 3, 20),
        ([0, 0, 30], 3, 0),
        ([30, 20], 3, 20),
        ([30], 3, None),
        ([], 3, None),
        ([7], 1, 7),
        ([5, 4, 3, 2, 1], 5, 3),
    ],
)
def test_it_is_what_enough_servers_have_at_least(
    rooms: list[int], servers: int, room: int | None
) -> None:
    assert room_of_majority(rooms, servers) == room
