"""Iterations that are left early: no caller remains to get an error of their end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.connection.threads import LoopThread
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import StorageFailed

LEFT: dict[str, Callable[[Session], Iterator[object]]] = {
    "events": lambda session: iter(session.channels.get("orders").subscribe(start="earliest")),
    "columns": lambda session: session.channels.get("orders").subscribe(start="earliest").batches(),
    "durable": lambda session: iter(session.channels.get("orders").durables.get("b").subscribe()),
    "queue": lambda session: iter(session.queues.get("work").reader()),
}
"""Functions that each start an iteration that does not end."""


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """Errors of finalizers, which Python would print."""
    exceptions: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failed: exceptions.append(failed.exc_value))
    return exceptions


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with penstock.Realm(tmp_path / "realm") as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.durables.create("b", start="earliest")
        orders.publish_many([penstock.Event(b"1"), penstock.Event(b"2")])
        session.queues.create("work").push(b"1")
        yield session


@pytest.mark.parametrize("kind", LEFT)
def test_a_loop_that_outlives_its_session_ends_without_a_word(
    session: Session, printed: list[BaseException | None], kind: str
) -> None:
    loop = LEFT[kind](session)
    next(loop)
    session.close()

    del loop

    assert printed == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEFT)
def test_an_error_of_closing_is_not_raised_in_a_finalizer(
    session: Session,
    printed: list[BaseException | None],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    loop = LEFT[kind](session)
    next(loop)
    closings: list[object] = []

    def refuse(_: LoopThread, work: object) -> None:
        closings.append(work)
        work.close()  # type: ignore[attr-defined]
        raise StorageFailed("the disk is full")

    with monkeypatch.context() as changed:
        changed.setattr(LoopThread, "call", refuse)
        del loop

    assert len(closings) == 1
    assert printed == []


def test_a_loop_that_is_left_early_gives_back_what_it_had(session: Session) -> None:
    durable = session.channels.get("orders").durables.get("b")
    for event in durable.subscribe():
        assert event.data == b"1"
        break

    assert [event.data for event in session.channels.get("orders").browse()] == [b"1", b"2"]
    assert durable.info().in_flight == 0


def test_nothing_is_done_once_the_interpreter_has_emptied_its_modules(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.client.connection import threads

    loop = LoopThread()
    try:
        with monkeypatch.context() as changed:
            changed.setattr(threads, "os", None)
            loop.call_from_finalizer(lambda: pytest.fail("closing was begun"))
    finally:
        loop.close()


def test_a_finalizer_in_the_loops_own_thread_does_not_wait_for_itself(session: Session) -> None:
    loop = LoopThread()
    closed: list[str] = []

    async def close() -> None:
        closed.append("closed")

    async def collect() -> None:
        loop.call_from_finalizer(close)

    async def read_names() -> list[str]:
        return closed

    try:
        loop.call(collect())
        assert loop.call(read_names()) == ["closed"]
    finally:
        loop.close()
