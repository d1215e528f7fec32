"""Unexpected errors in background tasks of a client are reported at once, without an await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock_core.tasks import start_task
from penstock_server.frontends.shared.peer import PeerConnection
from penstock_testing.loop import simulated
from penstock_testing.relay import Relay
from tests.patience import PATIENCE_S


async def fail(error: BaseException) -> None:
    raise error


async def ended(work: Coroutine[Any, Any, None], **more: Any) -> None:
    await asyncio.wait([start_task(work, **more)])


@simulated
async def test_a_failure_is_reported_when_it_happens_and_not_at_an_await() -> None:
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    heard: list[BaseException] = []
    one, second_error = LookupError("one"), LookupError("other")

    await ended(fail(one), name="looking-up")
    await ended(fail(second_error), on_failure=heard.append)

    assert [(report["message"], report["exception"]) for report in reports] == [
        ("looking-up has failed", one)
    ]
    assert heard == [second_error]


@simulated
async def test_a_task_that_is_done_or_cancelled_has_not_failed() -> None:
    heard: list[BaseException] = []
    waiting = start_task(asyncio.Event().wait(), on_failure=heard.append)

    await ended(asyncio.sleep(0), on_failure=heard.append)
    waiting.cancel()
    await asyncio.wait([waiting])

    assert heard == []


class Unlistable(dict[PeerConnection, None]):
    """Connections that cannot be listed at the first attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.was_listed = threading.Event()

    def __iter__(self) -> Iterator[PeerConnection]:
        if not self.was_listed.is_set():
            self.was_listed.set()
            raise LookupError("no connection to look at")
        return super().__iter__()


def test_an_embedded_realm_says_at_close_what_its_listener_failed_with_and_is_over(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "realm"
    realm = penstock.Realm(folder)
    realm.listener.connections = connections = Unlistable()
    assert connections.was_listed.wait(PATIENCE_S), "connections are checked regularly"

    with pytest.raises(LookupError, match="no connection to look at"):
        realm.close()
    realm.close()  # it was told

    with penstock.Realm(folder) as again, again.connect() as session:
        assert session.channels.list() == []


def test_a_session_ends_when_there_is_no_token_to_connect_again_with(relay: Relay) -> None:
    tokens = [""]  # none is asked for here

    with penstock.connect(relay.url, token=lambda: tokens.pop()) as session:
        heard: list[penstock.PenstockError] = []
        session.on_error(heard.append)
        relay.cut()

        eventually(lambda: bool(heard))
        with pytest.raises(penstock.SessionClosed, match="pop from empty list"):
            session.channels.list()

    assert [type(report) for report in heard] == [penstock.SessionClosed]
    assert isinstance(heard[0].__cause__, IndexError)


class Spent(Mapping[str, int]):
    """Properties that can be read once."""

    def __init__(self) -> None:
        self._names = ["n"]

    def __getitem__(self, name: str) -> int:
        return 1

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        yield self._names.pop()


def test_a_producer_tells_of_events_that_it_cannot_even_encode(session: penstock.Session) -> None:
    channel = session.channels.create("orders")
    reports: list[penstock.PenstockError] = []

    with channel.producer(on_error=lambda error, _: reports.append(error)) as producer:
        producer.send(b"", properties=Spent())
        eventually(lambda: bool(reports))
        producer.flush()

    assert "pop from empty list" in str(reports[0])
    assert isinstance(reports[0].__cause__, IndexError)


def test_a_handler_that_receives_no_more_events_is_reported(session: penstock.Session) -> None:
    channel = session.channels.create("orders")
    durable = channel.durables.create("d")
    channel.publish(b"")
    reports: list[penstock.PenstockError] = []

    def listen(error: penstock.PenstockError) -> None:
        reports.append(error)
        if len(reports) == 1:
            raise LookupError("where it is written down is full")

    def handle(_: penstock.DeliveredEvent) -> None:
        raise ValueError("not today")

    session.on_error(listen)
    with durable.subscribe(handle):
        eventually(lambda: len(reports) == 2)

    assert "ValueError('not today')" in str(reports[0])
    assert str(reports[1]).startswith(
        "the handler of durable d receives no more events: LookupError"
    )
