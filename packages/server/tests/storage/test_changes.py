"""Files are changed one step at a time, and no more once the content on disk is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock_core.vocabulary.errors import StorageFailed
from penstock_server.storage.embedded.changes import Changes


class Elsewhere:
    """Runs offloaded calls when the test says so."""

    def __init__(self) -> None:
        self.calls = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def offload(self, call: Callable[[], Any]) -> Any:
        self.calls += 1
        await self.may_go_on.wait()
        return call()


def failing() -> None:
    raise StorageFailed("the disk is full")


async def test_quick_changes_run_on_the_loop_and_others_in_a_thread() -> None:
    elsewhere, done = Elsewhere(), list[str]()
    changes = Changes("the files take nothing more", elsewhere.offload)
    await changes.make(lambda: done.append("quick"), inline=True)
    assert elsewhere.calls == 0
    await changes.make(lambda: done.append("slow"), inline=False)

    assert (done, elsewhere.calls) == (["quick", "slow"], 1)


@pytest.mark.parametrize("inline", [True, False])
async def test_changes_continue_after_one_that_failed_without_effect(inline: bool) -> None:
    changes, done = Changes("the files take nothing more", Elsewhere().offload), list[int]()
    with pytest.raises(StorageFailed, match="full"):
        await changes.make(failing, inline=inline)
    changes.check_idle()
    await changes.make(lambda: done.append(1), inline=inline)

    assert done == [1]


@pytest.mark.parametrize("inline", [True, False])
async def test_no_change_is_made_after_a_final_failure(inline: bool) -> None:
    changes, done = Changes("the files take nothing more", Elsewhere().offload), list[int]()
    changes.failed = "a sync has failed"
    with pytest.raises(StorageFailed, match="the files take nothing more: a sync has failed"):
        changes.check()
    with pytest.raises(StorageFailed, match="a sync has failed"):
        changes.check_idle()
    with pytest.raises(StorageFailed, match="a sync has failed"):
        await changes.make(lambda: done.append(1), inline=inline)

    assert done == []


@pytest.mark.parametrize("inline", [True, False])
async def test_a_change_left_midway_is_the_last_one(inline: bool) -> None:
    def broken() -> None:
        raise RuntimeError("nobody has expected this")

    changes = Changes("the files take nothing more", Elsewhere().offload)
    with pytest.raises(RuntimeError):
        await changes.make(broken, inline=inline)

    with pytest.raises(StorageFailed, match="cancelled midway"):
        changes.check()


async def test_a_change_that_is_cancelled_is_the_last_one_and_the_first_reason_stays() -> None:
    elsewhere = Elsewhere()
    elsewhere.may_go_on.clear()
    changes = Changes("the files take nothing more", elsewhere.offload)
    async with asyncio.TaskGroup() as tasks:
        changing = tasks.create_task(changes.make(lambda: None, inline=False))
        await asyncio.sleep(0)
        changing.cancel()
    with pytest.raises(StorageFailed, match="cancelled midway"):
        changes.check()

    def record_answer() -> None:
        again.failed = "the sync has failed"
        raise RuntimeError("and more")

    again = Changes("the files take nothing more", elsewhere.offload)
    with pytest.raises(RuntimeError):
        await again.make(record_answer, inline=True)

    assert again.failed == "the sync has failed"


async def test_one_change_waits_for_the_other_to_be_awaited() -> None:
    elsewhere = Elsewhere()
    elsewhere.may_go_on.clear()
    changes = Changes("the files take nothing more", elsewhere.offload)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(changes.make(lambda: None, inline=False))
        await asyncio.sleep(0)
        changes.check()
        with pytest.raises(AssertionError, match="one writer"):
            changes.check_idle()
        with pytest.raises(AssertionError, match="one writer"):
            await changes.make(lambda: None, inline=True)
        elsewhere.may_go_on.set()

    changes.check_idle()
