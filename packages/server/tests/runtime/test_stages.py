"""Stages, and the limit on the bytes of one user."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.living import body
from penstock_core.access.name_owners import owned
from penstock_core.vocabulary.errors import MemoryLimit, NoSuchStage
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.writer.stages import STAGE_BYTES, Stages


class Clock:
    def now_us(self) -> int:
        return 0

    def steady_us(self) -> int:
        return self.now_us()


def stages(of: int) -> Stages:
    """Return stages with room for ``of`` bodies of :func:`one`."""
    return Stages(Clock(), of * (STAGE_BYTES + one().weight))


def one() -> Body:
    return body([b"x" * 100])


def test_a_user_may_stage_half_of_the_bytes_and_gets_them_back() -> None:
    kept = stages(of=4)
    kept.put(owned("a", "alice"), 1, [one()])
    kept.put(owned("b", "alice"), 1, [one()])
    with pytest.raises(MemoryLimit, match="allowed for one user"):
        kept.put(owned("c", "alice"), 1, [one()])
    kept.put(owned("a", "bob"), 1, [one()])

    kept.drop([owned("a", "alice")])
    kept.put(owned("c", "alice"), 1, [one()])
    assert kept.size == 3 * (STAGE_BYTES + one().weight)


def test_a_commit_drops_other_attempts_of_its_user_only() -> None:
    kept = stages(of=10)
    for user in ("alice", "bob"):
        for attempt in ("0", "1"):
            kept.put(owned(f"work/{attempt}", user), 1, [one()])

    kept.drop_published([owned("work/0", "alice")])

    assert len(kept.bodies_of([owned("work/1", "bob")], 1)) == 1
    with pytest.raises(NoSuchStage):
        kept.bodies_of([owned("work/1", "alice")], 1)


def test_without_users_all_bytes_may_be_staged() -> None:
    kept = stages(of=4)
    for name in "abcd":
        kept.put(name, 1, [one()])

    with pytest.raises(MemoryLimit, match="0 of"):
        kept.put("e", 1, [one()])


def test_many_small_stages_count_with_the_memory_that_each_takes() -> None:
    kept = stages(of=4)
    small = body([b""])
    fitting = 4 * (STAGE_BYTES + one().weight) // (STAGE_BYTES + small.weight)
    for number in range(fitting):
        kept.put(f"s{number}", 1, [small])

    with pytest.raises(MemoryLimit):
        kept.put("more", 1, [small])
