"""Turns between connections, counted in virtual time: one that floods does not keep others waiting.

What a connection has sent is read a piece at a time, and the others have their turn in between:
most of a flood still waits in its own connection while another's publish goes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from packages.client.tests.simulated import URL, World, in_world
from packages.server.tests.frontends.publishers import WatchedRealm, publishers, watched
from penstock import aio
from penstock_core.api.realm import Ping
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.wire.native import messages as wire
from penstock_server.frontends.native.connection import FRAMES_A_TURN
from penstock_server.runtime.store.bodies import Body
from penstock_testing.loop import pass_time, simulated

FLOOD = 3_000
"""Publishes that are sent at once."""
OVERTAKING_MAX = 400
"""Most publishes that may be answered between another client's publish and its answer."""
TURNS_MAX = 2
"""Turns of the single writer that such a publish takes from when it is here to its answer: the one
under way may be too late for it, and its own."""


class CountedTurns(WatchedRealm):
    """Counts the groups that its single writer has answered, with events to store or without."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.count = 0
        self.waits: dict[int, list[int]] = {}
        """Number of groups that each publish has waited for, with its own, by channel."""

    def on_answered(self, flush: Callable[[], None]) -> None:
        def counted() -> None:
            self.count += 1
            flush()

        super().on_answered(counted)

    def publish(
        self, channel_id: ChannelId, bodies: Sequence[Body], *args: Any, **more: Any
    ) -> None:
        arrived, reply = self.count, more.pop("reply")

        def replied(*answer: Any) -> None:
            self.waits.setdefault(channel_id, []).append(self.count - arrived + 1)
            reply(*answer)

        super().publish(channel_id, bodies, *args, reply=replied, **more)


@pytest.mark.parametrize("kind", ["reliable", "persistent"])
@simulated
async def test_a_publish_beside_a_flood_waits_for_a_few_turns(kind: Any) -> None:
    async with (
        watched(CountedTurns) as (world, turns),
        aio.connect(URL) as flooding,
        aio.connect(URL) as other_session,
    ):
        assert isinstance(turns, CountedTurns)
        flooded = await flooding.channels.create("flooded", type=kind)
        quiet = await other_session.channels.create("quiet", type=kind)
        answered = 0

        def count(_: object) -> None:
            nonlocal answered
            answered += 1

        loop = asyncio.get_running_loop()
        for _ in range(FLOOD):
            loop.create_task(flooded.publish(b"x" * 100)).add_done_callback(count)
        await world.until(lambda: answered > 0)
        overtaking: list[int] = []
        while answered < FLOOD // 2:
            before = answered
            await quiet.publish(b"y")
            overtaking.append(answered - before)
        await world.until(lambda: answered == FLOOD)

    assert sum(map(len, turns.waits.values())) == FLOOD + len(overtaking)
    waited = turns.waits[quiet.number]
    assert len(waited) == len(overtaking) >= FLOOD // 2 // OVERTAKING_MAX
    assert max(waited) <= TURNS_MAX
    assert max(overtaking) <= OVERTAKING_MAX


@simulated
async def test_connections_are_served_a_piece_each_in_turn() -> None:
    async with watched() as (world, realm):
        flooding, quiet = await publishers(world)
        flooding.publish(FLOOD)
        quiet.publish(2 * FRAMES_A_TURN)
        await flooding.answered(FLOOD)

        order, size = [number for number, _ in realm.arrivals], FRAMES_A_TURN
        turns = [set(order[start : start + size]) for start in range(0, len(order), size)]
        assert turns[:2] == [{1}, {2}]
        assert sorted(turns[2:4], key=min) == [{1}, {2}], "in any order within a turn of the loop"
        assert turns[4:] == [{1}] * (len(turns) - 4)
        assert await quiet.answered(2 * FRAMES_A_TURN) == list(range(2 * FRAMES_A_TURN))


@in_world
async def test_a_publish_is_overtaken_by_a_few_turns_of_a_flood_that_never_ends(
    world: World,
) -> None:
    flooding, other_publisher = await publishers(world)
    flooding.publish(FLOOD)
    answered, overtaking = 0, []
    for _ in range(20):
        other_publisher.publish(1)
        before = answered
        while not (heard := other_publisher.wire.heard()):
            await asyncio.sleep(0)
            confirmed = len(flooding.wire.heard())
            answered += confirmed
            flooding.publish(confirmed)
        assert [type(message) for message in heard] == [wire.Done]
        overtaking.append(answered - before)

    assert max(overtaking) <= 4 * FRAMES_A_TURN
    assert answered > FRAMES_A_TURN, "it was served, too"


@in_world
async def test_a_connection_with_a_rest_is_not_read_and_loses_none_of_it(world: World) -> None:
    flooding, other_publisher = await publishers(world)
    flooding.publish(FLOOD)
    assert not flooding.wire.is_read
    flooding.say(wire.Asked(FLOOD, Ping()))
    await flooding.answered(FLOOD + 1)
    assert flooding.wire.is_read
    other_publisher.say(*(wire.Asked(n, Ping()) for n in range(FRAMES_A_TURN)))
    assert other_publisher.wire.is_read, "it has said no more than is taken in at once"


@in_world
async def test_a_rest_is_not_taken_in_while_the_realm_has_no_room_or_the_connection_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    flooding, other_publisher = await publishers(world)
    listener = world.listener
    with monkeypatch.context() as patch:
        patch.setattr(type(listener), "is_congested", True)
        flooding.publish(FLOOD)
        other_publisher.publish(FLOOD)
        await pass_time(1.0)
        assert len(flooding.wire.heard()) == FRAMES_A_TURN
        other_publisher.connection.connection_lost(None)
    await pass_time(1.0)
    assert len(flooding.wire.heard()) == FLOOD - FRAMES_A_TURN
    assert flooding.wire.is_read
    quiet_channel = await listener.realm.describe_channel("quiet", "channel")
    assert quiet_channel.events == FRAMES_A_TURN
