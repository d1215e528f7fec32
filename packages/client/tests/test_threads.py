"""Calls of blocking callers that are broken off on their way to the client's loop."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from penstock.client.connection.threads import LoopThread
from penstock_core.vocabulary.errors import SessionClosed

hand_over = asyncio.run_coroutine_threadsafe


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


async def commit(done: list[str]) -> str:
    await asyncio.sleep(0)
    done.append("committed")
    return "committed"


def test_a_ctrl_c_before_the_loop_has_the_work_leaves_nothing_to_complain_of(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    done: list[str] = []
    work = commit(done)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupt)

    with pytest.raises(KeyboardInterrupt):
        loop.call(work)
    monkeypatch.undo()
    for _ in range(2):  # the loop has ended it before it does what comes later
        loop.call(asyncio.sleep(0))

    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    del work
    gc.collect()
    assert done == []
    assert [str(warning.message) for warning in recwarn] == []


def test_a_ctrl_c_when_the_loop_has_the_work_already_lets_it_go_on(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def interrupt(work: Coroutine[Any, Any, str], where: asyncio.AbstractEventLoop) -> None:
        hand_over(work, where)
        raise KeyboardInterrupt

    done: list[str] = []
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupt)

    with pytest.raises(KeyboardInterrupt):
        loop.call(commit(done))
    monkeypatch.undo()

    assert loop.call(commit([])) == "committed", "the loop is as well as before"
    assert done == ["committed"]
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_a_loop_that_another_thread_closes_meanwhile_is_a_closed_session(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def close_first(work: Coroutine[Any, Any, str], where: asyncio.AbstractEventLoop) -> Any:
        loop.close()
        return hand_over(work, where)

    work = commit([])
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", close_first)

    with pytest.raises(SessionClosed, match="the session is closed"):
        loop.call(work)

    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    assert [str(warning.message) for warning in recwarn] == []
