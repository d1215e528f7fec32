"""A connection is not read while its owner has no room for received bytes."""

from __future__ import annotations

from packages.server.tests.frontends.transports import Scripted
from penstock_server.frontends.shared.backpressure import RECHECK_S, ReadThrottle
from penstock_testing.loop import pass_time, simulated


class Busy:
    """An owner of a connection that has room or not."""

    def __init__(self) -> None:
        self.has_room = True
        self.transport = Scripted()
        self.resumed_s: list[float] = []
        self.reading = ReadThrottle(lambda: self.has_room, self.resumed_s.append)
        self.reading.begin(self.transport)


@simulated
async def test_a_connection_with_room_is_read() -> None:
    busy = Busy()
    busy.reading.check()

    assert busy.transport.is_read
    assert not busy.reading.is_paused


@simulated
async def test_reading_stops_where_there_is_no_room_and_goes_on_where_there_is_again() -> None:
    busy = Busy()
    busy.has_room = False
    busy.reading.check()
    busy.reading.check()
    await pass_time(10 * RECHECK_S)
    assert not busy.transport.is_read
    assert busy.reading.is_paused
    assert busy.resumed_s == []

    busy.has_room = True
    await pass_time(2 * RECHECK_S)

    assert busy.transport.is_read
    assert not busy.reading.is_paused
    assert len(busy.resumed_s) == 1


@simulated
async def test_reading_pauses_as_often_as_there_is_no_room() -> None:
    busy = Busy()
    for _ in range(3):
        busy.has_room = False
        busy.reading.check()
        assert not busy.transport.is_read
        busy.has_room = True
        await pass_time(2 * RECHECK_S)
        assert busy.transport.is_read

    assert len(busy.resumed_s) == 3


@simulated
async def test_a_connection_lost_while_it_was_not_read_stays_alone() -> None:
    busy = Busy()
    busy.has_room = False
    busy.reading.check()
    busy.reading.end()
    busy.has_room = True
    await pass_time(1.0)

    assert not busy.transport.is_read
    assert busy.resumed_s == []
    busy.reading.check()


@simulated
async def test_a_connection_that_closes_is_neither_paused_nor_resumed() -> None:
    busy = Busy()
    busy.has_room = False
    busy.reading.check()
    busy.transport.close()
    busy.has_room = True
    await pass_time(1.0)
    assert not busy.transport.is_read

    closing = Busy()
    closing.transport.close()
    closing.has_room = False
    closing.reading.check()

    assert not closing.reading.is_paused


class Pieces(Busy):
    """An owner of a connection that takes received bytes in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.remaining = 0
        self.reading = ReadThrottle(lambda: self.has_room, self.resumed_s.append, self._take)
        self.reading.begin(self.transport)

    def _take(self) -> bool:
        self.remaining -= 1
        return self.remaining > 0


@simulated
async def test_nothing_more_is_read_while_there_is_a_rest() -> None:
    owner = Pieces()
    owner.remaining = 3
    owner.reading.data_arrived()
    assert owner.remaining == 2
    assert not owner.transport.is_read
    owner.remaining += 1
    owner.reading.data_arrived()
    assert owner.remaining == 3, "its turn will come"
    await pass_time(0.001)

    assert owner.remaining == 0
    assert owner.transport.is_read
    assert owner.resumed_s == [], "it was listened to all the time"


@simulated
async def test_a_rest_waits_for_room_and_is_taken_in_before_more_is_read() -> None:
    owner = Pieces()
    owner.remaining, owner.has_room = 3, False
    owner.reading.data_arrived()
    await pass_time(10 * RECHECK_S)
    assert owner.remaining == 2
    owner.has_room = True
    await pass_time(2 * RECHECK_S)

    assert owner.remaining == 0
    assert owner.transport.is_read
    assert len(owner.resumed_s) == 1


@simulated
async def test_the_rest_of_a_lost_connection_is_not_taken_in() -> None:
    owner = Pieces()
    owner.remaining = 3
    owner.reading.data_arrived()
    owner.reading.end()
    await pass_time(1.0)

    assert owner.remaining == 2
    assert not owner.transport.is_read
