"""``penstock request`` and ``penstock reply``."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from penstock.client.sync.sync import Queue, Session
from penstock_server.cli.events import requesting

if TYPE_CHECKING:
    from tests.commands import Run

UPPER = f"{sys.executable} -c 'import sys; print(sys.stdin.read().upper(), end=str())'"
FAILING = f"{sys.executable} -c 'import sys; sys.exit(3)'"


@pytest.mark.spec("R1")
def test_a_request_prints_its_reply(penstock_command: Run, session: Session, work: Queue) -> None:
    rates = session.queues.create("rates")
    with ThreadPoolExecutor(1) as pool:
        for format in ("data", "json", "table"):
            pending_reply = pool.submit(
                penstock_command, "request", "rates", "EUR", "-p", "n=1", "--format", format
            )
            request = rates.pop(30.0)
            assert request is not None
            assert (request.data, request.properties) == (b"EUR", {"n": 1})
            request.reply(b"1.25", tag="now")
            shown = pending_reply.result(30.0).stdout

            if format == "data":
                assert shown == "1.25"
            elif format == "json":
                assert json.loads(shown)["data"] == "1.25"
            else:
                assert shown.split()[:4] == ["event_id", "published", "tag", "data"]
                assert shown.split()[-2:] == ["now", "1.25"]


@pytest.mark.spec("R1")
def test_a_request_without_a_reply_fails(penstock_command: Run, work: Queue) -> None:
    result = penstock_command("request", "work", "-", "--timeout", "0.01", stdin="hello")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: no reply to ")
    assert result.stderr.endswith(" on work arrived within 0.01 s [no-reply]\n")


@pytest.mark.spec("R2")
def test_replies_come_from_a_command_and_a_failure_rolls_the_request_back(
    penstock_command: Run, session: Session
) -> None:
    work = session.queues.create("work")
    answers = session.queues.create("answers")
    for data in (b"one", b"two"):
        work.push(data, headers={"reply_to": "answers", "correlation_id": data.decode()})
    failed = penstock_command("reply", "work", "--exec", FAILING, "--count", "1")
    assert "request 0: " in failed.stderr
    assert failed.stderr.endswith("ended with status 3\n0 requests answered, 1 failed\n")
    assert work.info().events == 2

    result = penstock_command("reply", "work", "--exec", UPPER, "--timeout", "0")

    assert result.stderr == "2 requests answered\n"
    replies = [(event.data, event.headers["correlation_id"]) for event in answers.peek()]
    assert replies == [(b"ONE", "one"), (b"TWO", "two")]
    assert work.info().events == 0


@pytest.mark.spec("R2")
def test_a_durable_keeps_the_requests_until_they_are_replied_to(
    penstock_command: Run, session: Session
) -> None:
    orders = session.channels.create("orders")
    team = orders.durables.create("team")
    session.queues.create("answers")
    orders.publish(b"a", headers={"reply_to": "answers"})
    orders.publish(b"b", headers={"reply_to": "gone"})
    orders.publish(b"c")

    result = penstock_command(
        "reply", "orders", "--durable", "team", "--data", "ok", "--timeout", "0"
    )

    assert "request 1: channel or queue gone, to which" in result.stderr
    assert "request 2 asks for no reply" not in result.stderr
    assert "event 2 asks for no reply" in result.stderr
    assert result.stderr.endswith("1 request answered\n")
    assert team.info().outstanding == 0


def test_invalid_requests_are_refused(penstock_command: Run, work: Queue) -> None:
    for arguments, expected_error in (
        (("reply", "work"), "give either --exec or --data"),
        (("reply", "work", "--data", "a", "--durable", "d"), "--durable works on channels only"),
        (("reply", "work", "--exec", "'"), "No closing quotation"),
        (("reply", "work", "--exec", ""), "--exec is empty"),
        (("reply", "work", "--exec", "no-such-command-at-all"), "cannot be run"),
        (("request", "nowhere", "a"), "nowhere"),
    ):
        result = penstock_command(*arguments)
        assert result.exit_code in (1, 2)
        assert expected_error in result.stderr.replace("\n", " ")


@pytest.mark.spec("R2")
def test_subscribers_of_a_channel_reply_without_a_durable(session: Session) -> None:
    orders = session.channels.create("orders")
    answers = session.queues.create("answers")
    coming = requesting._requests_of_channel(orders, "")
    assert next(coming) is None  # it is subscribed now
    orders.publish(b"a", headers={"reply_to": "answers"})
    limited = requesting._limited(coming, 1, None)
    ((request, settle),) = limited
    request.reply(b"b")
    settle(done=True)
    coming.close()
    assert [event.data for event in answers.peek()] == [b"b"]
