"""Bytes of a peer that sends much are taken together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from penstock.frontends.amqp.gathering import GATHER_S, GATHERED_BYTES_MAX, MANY_BYTES, Gathering
from penstock.testing.loop import pass_time, simulate

MUCH = b"m" * MANY_BYTES
LITTLE = b"l"


def story(told: Callable[[Gathering, list[bytes]], Awaitable[None]]) -> None:
    async def life() -> None:
        taken: list[bytes] = []
        await told(Gathering(taken.append), taken)

    simulate(life(), Random(1))


def test_a_little_is_taken_at_once() -> None:
    async def told(gathering: Gathering, taken: list[bytes]) -> None:
        gathering.add(LITTLE)

        assert taken == [LITTLE]

    story(told)


def test_much_waits_a_moment_for_more() -> None:
    async def told(gathering: Gathering, taken: list[bytes]) -> None:
        gathering.add(MUCH)
        gathering.add(MUCH)
        assert taken == []
        await pass_time(2 * GATHER_S)

        assert taken == [MUCH + MUCH]

    story(told)


def test_a_little_behind_much_ends_the_waiting() -> None:
    async def told(gathering: Gathering, taken: list[bytes]) -> None:
        gathering.add(MUCH)
        gathering.add(LITTLE)
        assert taken == [MUCH + LITTLE]
        await pass_time(2 * GATHER_S)

        assert taken == [MUCH + LITTLE], "once"

    story(told)


def test_no_more_is_gathered_than_its_limit() -> None:
    async def told(gathering: Gathering, taken: list[bytes]) -> None:
        for _ in range(GATHERED_BYTES_MAX // MANY_BYTES):
            gathering.add(MUCH)

        assert [len(each) for each in taken] == [GATHERED_BYTES_MAX]

    story(told)


def test_what_is_here_can_be_taken_now() -> None:
    async def told(gathering: Gathering, taken: list[bytes]) -> None:
        gathering.flush()
        assert taken == []
        gathering.add(MUCH)
        gathering.flush()
        assert taken == [MUCH]
        await pass_time(2 * GATHER_S)

        assert taken == [MUCH], "once"

    story(told)
