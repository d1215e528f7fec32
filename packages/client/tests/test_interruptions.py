"""The reports of a session about a lost connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock.client.connection.session_listeners import SessionListeners
from penstock_core.vocabulary.errors import (
    CannotConnect,
    ConnectionLost,
    Elsewhere,
    NoQuorum,
    PenstockError,
)
from penstock_testing.relay import Relay
from tests.loops import on_a_loop

Told = list[PenstockError | None]
NO_QUORUM = NoQuorum("no majority")


async def turn() -> None:
    """Let the loop run its scheduled calls."""
    called = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(called.set_result, None)
    await called


@pytest.mark.spec("N2", "N4")
@on_a_loop
async def test_an_interruption_is_reported_once_and_again_when_its_reason_changes() -> None:
    listeners, reports = SessionListeners(), Told()
    listeners.on_interruption.append(reports.append)

    for reason in (None, NO_QUORUM, NO_QUORUM, Elsewhere("n2 may know"), None):
        listeners.report_interruption(reason, "it broke")
    listeners.report_resumption()
    listeners.report_resumption()
    await turn()

    assert [report and report.code for report in reports] == ["connection-lost", "no-quorum", None]
    assert "it broke" in str(reports[0])
    assert listeners.interruption is None


@pytest.mark.spec("N2")
@on_a_loop
async def test_that_another_node_may_know_more_is_no_reason_of_its_own() -> None:
    listeners = SessionListeners()
    listeners.report_interruption(Elsewhere("n2 serves now"), "n2 serves now")

    assert isinstance(listeners.interruption, ConnectionLost)
    assert "n2 serves now" in str(listeners.interruption)


@pytest.mark.spec("N2")
@on_a_loop
async def test_a_session_that_cannot_reconnect_ends_with_the_reason() -> None:
    listeners, failure = SessionListeners(), CannotConnect("nobody answered")

    assert listeners.ended_by(failure) is failure
    listeners.report_interruption(None, "it broke")
    assert listeners.ended_by(failure) is failure
    listeners.report_interruption(NO_QUORUM, "")
    ended = listeners.ended_by(failure)
    assert isinstance(ended, NoQuorum)
    assert "no majority" in str(ended)


@on_a_loop
async def test_an_error_in_a_listener_does_not_affect_the_session() -> None:
    listeners, reports = SessionListeners(), Told()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def raises(_: PenstockError | None) -> None:
        raise ValueError("not today")

    listeners.on_interruption += [raises, reports.append]
    listeners.report_interruption(NO_QUORUM, "")
    await turn()

    assert reports == [NO_QUORUM]
    assert [str(failure["exception"]) for failure in failures] == ["not today"]


@pytest.mark.slow
@pytest.mark.spec("N4")
def test_a_blocking_session_says_so_too(relay: Relay) -> None:
    with penstock.connect(relay.url) as session:
        reports = Told()
        session.on_interruption(reports.append)
        assert session.interruption is None

        relay.close_door()
        relay.cut()
        eventually(lambda: bool(reports))
        assert isinstance(reports[0], ConnectionLost)
        assert isinstance(session.interruption, ConnectionLost)
        relay.open_door()
        eventually(lambda: len(reports) == 2)

        assert reports[1] is None
        assert session.interruption is None
    assert len(reports) == 2, "who closes a session knows it"
