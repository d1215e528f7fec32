"""Turns between connections, counted in virtual time: one that floods does not keep others waiting.

What a connection has sent is read a piece at a time, and the others have their turn in between:
most of a flood still waits in its own connection while another's publish goes through.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import aio
from tests.client.simulated import URL, World, in_world

FLOOD = 3_000
"""Publishes that are sent at once."""
OVERTAKING_MAX = 750
"""So many of them may be answered between another's publish and its answer."""
TURNS_MAX = 2
"""Turns of the single writer that such a publish takes from when it is here to its answer: the one
under way may be too late for it, and its own."""


class Turns:
    """Counts those of the single writer, with events to store or without."""

    def __init__(self, realm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.waits: dict[int, list[int]] = {}
        """How many each publish has waited for, by channel."""
        serve, self._publish = realm.shard._serve_group, realm.publish

        async def counted() -> Any:
            self.count += 1
            return await serve()

        monkeypatch.setattr(realm.shard, "_serve_group", counted)
        monkeypatch.setattr(realm, "publish", self._published)

    def _published(self, number: int, bodies: Any, *given: Any, publisher: str) -> None:
        *others, reply = given
        arrived = self.count

        def replied(*answer: Any) -> None:
            self.waits.setdefault(number, []).append(self.count - arrived)
            reply(*answer)

        self._publish(number, bodies, *others, replied, publisher=publisher)


@pytest.mark.parametrize("kind", ["reliable", "persistent"])
@in_world
async def test_a_publish_beside_a_flood_waits_for_a_few_turns(
    world: World, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(world.listener.realm, monkeypatch)
    async with aio.connect(URL) as flooding, aio.connect(URL) as other:
        flooded = await flooding.channels.create("flooded", type=kind)
        quiet = await other.channels.create("quiet", type=kind)
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
