"""Every implemented rule of the simulated chapters is covered by a scene or by a named test."""

from __future__ import annotations

import asyncio
from itertools import chain

from penstock_testing.loop import simulate
from tests.semantics.page import rules
from tests.sim.coverage import CHAPTERS, ELSEWHERE, MQTT, ROT, RULES
from tests.sim.scenes import SCENES
from tests.sim.world import World

PLAYED = {*chain.from_iterable(RULES.values()), *ROT, *MQTT}


def test_every_scene_says_what_it_plays() -> None:
    assert set(RULES) == set(SCENES)


def test_what_is_played_is_built() -> None:
    assert {rule for rule in PLAYED if rules()[rule].status == "planned"} == set()


def test_every_built_rule_is_played_or_looked_after_elsewhere() -> None:
    implemented = {
        rule_id
        for rule_id, rule in rules().items()
        if rule_id.rstrip("0123456789abcdefg") in CHAPTERS and rule.status != "planned"
    }

    assert implemented == PLAYED | set(ELSEWHERE)
    assert PLAYED & set(ELSEWHERE) == set()


class Opening(World):
    """Lets its scenes create their stores, and ends."""

    def __init__(self, scene: str) -> None:
        super().__init__(0, [scene])
        self.created: set[str] = set()

    async def live(self) -> str:
        async with asyncio.TaskGroup() as self.outside:
            await self._one_life(1.0)
        return self.hash

    async def clients(self, *, quiet: bool) -> None:
        for scene in self.scenes:
            await scene.prepare()
        self.created.update(self.numbers)


def test_no_two_scenes_have_a_store_of_one_name() -> None:
    """A world may play any scenes together."""
    users: dict[str, list[str]] = {}
    for scene in SCENES:
        world = Opening(scene)
        simulate(world.live(), world.random)
        assert world.created or scene == "born", f"{scene} has made nothing; born does that later"
        for store in world.created:
            users.setdefault(store, []).append(scene)

    assert {store: scenes for store, scenes in users.items() if len(scenes) > 1} == {}
