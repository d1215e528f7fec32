"""Stages for several stores are published together, and once in the realm (SEM X3, X4)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest

from packages.server.tests.runtime.lives import (
    ENDS,
    End,
    Lives,
    body_from_events,
    clock_now,
    datas,
    named,
)
from packages.server.tests.runtime.staged_parts import commit
from penstock_core.channel.producers import LASTING_REMEMBERED_MAX
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import (
    CapacityReached,
    IllegalState,
    NameDoesNotExist,
    NoSuchStage,
    PublishingPaused,
    SequenceTooOld,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.writer.stages import STAGE_BYTES
from penstock_server.runtime.writer.transactions import Spans
from penstock_testing.loop import pass_time, simulated

pytestmark = pytest.mark.spec("X1", "X3", "X4")

_names = map(str, itertools.count())


def stage(lives: Lives, name: str, *events: Event) -> tuple[int, list[str]]:
    """Stage events for a store, each in a separate stage."""
    names = []
    for event in events:
        names.append(next(_names))
        lives.realm.stages.put(names[-1], lives.number(name), [body_from_events([event])])
    return lives.number(name), names


async def write(lives: Lives, sequence: int, parts: Mapping[str, Sequence[Event]]) -> Spans:
    return await commit(lives, [stage(lives, n, *events) for n, events in parts.items()], sequence)


@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_repeated_commit_gets_the_first_answer_whatever_it_names(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        for name in ("a", "b", "c"):
            await lives.create(name)
        await lives.put("b", *named("before"))
        spans = await write(lives, 7, {"a": named("1", "2"), "b": named("3")})
        assert spans == ((1, Span(0, 2)), (2, Span(1, 2)))
    async with lives.life(end):
        assert await write(lives, 7, {"c": named("1", "2", "3")}) == spans
        assert await commit(lives, [], 7) == spans
        assert datas(await lives.stored("a")) == ["1", "2"]
        assert datas(await lives.stored("b")) == ["before", "3"]
        assert await lives.stored("c") == []
        await write(lives, 8, {"c": named("4")})
    async with lives.life(end):
        assert await commit(lives, [], 7) == spans
        assert datas(await lives.stored("c")) == ["4"]


@simulated
async def test_a_commit_that_one_channel_refuses_is_published_on_none() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("free")
        await lives.create("full", capacity=1, storage=Storage(honour_capacity=True))
        await lives.put("full", *named("it"))
        with pytest.raises(CapacityReached):
            await write(lives, 0, {"free": named("1"), "full": named("2")})
        assert await lives.stored("free") == []
        await lives.purge("full")
        await write(lives, 0, {"free": named("1"), "full": named("2", "3")})
        assert datas(await lives.stored("full")) == ["2", "3"]  # SEM T4: it was not full


@simulated
async def test_a_deleted_channel_refuses_a_new_commit_but_not_a_repeated_one() -> None:
    lives = Lives()
    async with lives.life():
        for name in ("here", "gone"):
            await lives.create(name)
        parts = [stage(lives, "here", *named("1")), stage(lives, "gone", *named("2"))]
        spans = await write(lives, 1, {"gone": named("0")})
        await lives.realm.delete_channel("gone")
        with pytest.raises(NameDoesNotExist):
            await commit(lives, parts, 2)
        assert await lives.stored("here") == []
        assert await commit(lives, parts, 1) == spans


@simulated
async def test_a_missing_stage_or_one_of_another_channel_refuses_the_commit() -> None:
    lives = Lives()
    async with lives.life():
        for name in ("a", "b"):
            await lives.create(name)
        a, b = stage(lives, "a", *named("1")), stage(lives, "b", *named("2"))
        for wrong in ([a, (2, ["lost"])], [a, (2, a[1])], [(1, b[1]), b]):
            with pytest.raises(NoSuchStage):
                await commit(lives, wrong, 0)
        assert await lives.stored("a") == []
        await commit(lives, [a, b], 0)
        assert datas(await lives.stored("b")) == ["2"]


@simulated
async def test_a_delta_for_a_channel_that_does_not_merge_refuses_the_commit() -> None:
    lives = Lives()
    async with lives.life():
        for name in ("a", "plain"):
            await lives.create(name)
        delta = Event(properties={"k": 1}, is_delta=True)
        with pytest.raises(IllegalState, match="whole events"):
            await write(lives, 0, {"a": named("1"), "plain": [delta]})
        later = Event(properties={"k": 1}, is_delta=True, deliver_at=clock_now())
        with pytest.raises(IllegalState, match="whole events"):
            await write(lives, 0, {"a": named("1"), "plain": [later]})
        assert await lives.stored("a") == []


@simulated
async def test_while_publishing_is_paused_only_repetitions_are_answered() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("a")
        spans = await write(lives, 0, {"a": named("1")})
        await lives.realm.pause(paused=True)
        assert await commit(lives, [], 0) == spans
        with pytest.raises(PublishingPaused):
            await write(lives, 1, {"a": named("2")})


@simulated
async def test_scheduled_events_of_a_commit_wait_and_the_others_do_not() -> None:
    lives = Lives()
    async with lives.life("power cut"):
        await lives.create("a")
        later = named("later", deliver_at=clock_now() + timedelta(seconds=5))
        events = {"a": [*named("1"), *later, *named("2")]}
        spans = await write(lives, 0, events)
        assert [span for _, span in spans] == [Span(0, 2), Span(0, 1)]
        assert datas(await lives.stored("a")) == ["1", "2"]
    async with lives.life():
        assert await write(lives, 0, {"a": named("1")}) == spans
        await pass_time(10)
        assert datas(await lives.stored("a")) == ["1", "2", "later"]


@simulated
async def test_a_channel_remembers_a_single_publish_with_the_same_sequence() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("a")
        body = body_from_events(named("1"))
        done: asyncio.Future[Span] = asyncio.get_running_loop().create_future()
        lives.realm.publish(
            ChannelId(1), [body], "txn:q", sequence=3, reply=lambda span, _: done.set_result(span)
        )
        span = await done
        assert await write(lives, 3, {"a": named("1")}) == ((1, span),)
        assert datas(await lives.stored("a")) == ["1"]


@simulated
async def test_a_forgotten_sequence_is_refused() -> None:
    lives = Lives()
    async with lives.life("snapshot"):
        await lives.create("a")
        for sequence in range(2 * LASTING_REMEMBERED_MAX):
            await write(lives, sequence, {"a": named("x")})
    async with lives.life():
        with pytest.raises(SequenceTooOld):
            await write(lives, 0, {"a": named("x")})
        assert (await lives.info("a")).events == 2 * LASTING_REMEMBERED_MAX


@simulated
async def test_a_commit_drops_the_stages_of_other_attempts() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("a")
        body = body_from_events(named("1"))
        stages = lives.realm.stages
        for name in ("q.1/used", "q.1/lost", "q.2/next", "alone"):
            stages.put(name, 1, [body])
        stages.drop_published(["q.1/used"])
        assert stages.size == 2 * (STAGE_BYTES + len(body.buffer))
        with pytest.raises(NoSuchStage):
            stages.bodies_of(["q.1/lost"], 1)
        stages.drop_published(["alone"])
        assert stages.bodies_of(["q.2/next"], 1) == [body]
