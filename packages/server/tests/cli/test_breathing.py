"""Time to breathe after a failure, on the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import typer

from penstock.client.sync.sync import Queue, Session
from penstock_server.cli.shared import parsers

if TYPE_CHECKING:
    from tests.commands import Run

ALL = "first=1s,factor=3,most=2h,jitter=0.25,seed=7"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("1s", {"first": 1_000}),
        ("250", {"first": 250}),
        ("1s,most=5m", {"first": 1_000, "most": 300_000}),
        (
            ALL,
            {"first": 1_000, "factor": 3.0, "most": 7_200_000, "jitter": 0.25, "seed": 7},
        ),
    ],
)
def test_a_backoff_is_one_text(text: str, expected: dict[str, Any] | None) -> None:
    assert parsers.backoff(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("often", "'often' is not a duration"),
        (
            "1s,2s",
            "'2s' is not valid in a backoff; use each field at most once, as in first=1s,factor=2",
        ),
        ("1s,first=2s", "'first=2s' is not valid in a backoff"),
        ("1s,tries=5", "'tries=5' is not valid in a backoff"),
        ("1s,factor=much", "'much' is not a valid factor of a backoff"),
        ("most=5m", "lacks the length of the first wait; add it, as in first=1s"),
    ],
)
def test_an_invalid_backoff_is_refused_and_named(text: str, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        parsers.backoff(text)


@pytest.mark.spec("D18", "D17")
def test_a_durable_with_a_backoff_shows_its_waiting_events(
    penstock_command: Run, session: Session
) -> None:
    orders = session.channels.create("mail")
    penstock_command("durable", "create", "mail", "d", "--backoff", ALL)
    orders.publish(b"x")
    (event,) = orders.durables.get("d").fetch(1, timeout=30)
    event.rollback(delay="1h")
    orders.durables.get("d").flush()
    shown = penstock_command("durable", "show", "mail", "d").stdout
    durable_document = json.loads(
        penstock_command("durable", "show", "mail", "d", "--format", "json").stdout
    )

    assert (
        "backoff       1 s, then 3 times longer each time, at most 2 h, up to 0.25 of it less\n"
    ) in shown
    assert "waiting       1 event, the first until 2" in shown
    assert durable_document["backoff"] == {
        "first": 1_000,
        "factor": 3.0,
        "most": 7_200_000,
        "jitter": 0.25,
        "seed": 7,
    }
    assert durable_document["waiting"] == 1
    assert durable_document["waiting_until_us"] > 1_600_000_000_000_000


@pytest.mark.spec("D18")
def test_a_durable_without_a_backoff_shows_none(penstock_command: Run, session: Session) -> None:
    session.channels.create("mail")
    penstock_command("durable", "create", "mail", "d")
    shown = penstock_command("durable", "show", "mail", "d").stdout

    assert "backoff       none; a rolled-back event is redelivered immediately\n" in shown
    assert "waiting       none\n" in shown


@pytest.mark.spec("D18", "C3")
def test_a_queue_has_one_and_it_can_be_edited(penstock_command: Run, session: Session) -> None:
    penstock_command("queue", "create", "jobs", "--backoff", "1s,most=1m")
    shown = penstock_command("queue", "show", "jobs").stdout
    assert "backoff       1 s, then 2 times longer each time, at most 1 min\n" in shown
    queue_document = json.loads(
        penstock_command("queue", "show", "jobs", "--format", "json").stdout
    )
    assert queue_document["definition"]["backoff"]["most"] == 60_000

    penstock_command("queue", "edit", "jobs", "--backoff", "")

    assert session.queues.get("jobs").info().definition.backoff is None
    shown = penstock_command("queue", "show", "jobs").stdout
    assert "backoff       none; a rolled-back event is redelivered immediately\n" in shown


@pytest.mark.spec("D18", "Q3")
def test_rolled_back_events_may_wait(penstock_command: Run, work: Queue) -> None:
    read = ("queue", "read", "work", "--transactional", "--rollback", "--window", "2")
    penstock_command(*read, "--delay", "1h", "--timeout", "30")

    assert (work.info().waiting, work.info().redelivered) == (2, 2)
    assert "2 events, the first until 2" in penstock_command("queue", "show", "work").stdout
    refused = penstock_command("queue", "read", "work", "--delay", "1h")
    assert "--delay needs --rollback" in refused.stderr


@pytest.mark.spec("T11")
def test_read_events_may_be_rejected(penstock_command: Run, session: Session, work: Queue) -> None:
    session.channels.create("dead")
    read = ("queue", "read", "work", "--transactional", "--count", "2")
    refused = penstock_command(*read, "--reject", "too late")
    assert "work has no dead event store" in refused.stderr
    assert work.info().events == 5
    work.edit(dead_event_store="dead")

    penstock_command(*read, "--reject", "too late", "--timeout", "30")

    origins = [event.origin for event in session.channels.get("dead").browse()]
    assert [(origin.event_id, origin.cause, origin.reason) for origin in origins if origin] == [
        (0, "rejected", "too late"),
        (1, "rejected", "too late"),
    ]
    assert work.info().events == 3
    refused = penstock_command(*read, "--reject", "x", "--commit")
    assert "--reject excludes --commit and --rollback" in refused.stderr


@pytest.mark.spec("D19", "Q2")
def test_events_not_committed_in_time_go_back(penstock_command: Run, session: Session) -> None:
    session.queues.create("slow").push(b"one")
    read = ("queue", "read", "slow", "--window", "2", "--ack-timeout", "100ms")

    done = penstock_command(*read, "--transactional", "--rollback", "--format", "json")

    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["event_id"], one.get("redelivery_count", 0)) for one in events] == [(0, 0), (0, 1)]
    refused = penstock_command(*read)
    assert "--window and --ack-timeout need --transactional" in refused.stderr
    too_short = penstock_command(*read[:-1], "5ms", "--transactional")
    assert "ack_timeout is 5 ms; allowed are 100" in too_short.stderr


@pytest.mark.spec("D19")
def test_a_durable_is_made_with_a_timeout(penstock_command: Run, session: Session) -> None:
    session.channels.create("mail")
    penstock_command("durable", "create", "mail", "d", "--ack-timeout", "30s")
    penstock_command("durable", "create", "mail", "e")

    assert session.channels.get("mail").durables.get("d").info().ack_timeout == 30_000
    assert "ack timeout   30 s\n" in penstock_command("durable", "show", "mail", "d").stdout
    assert "ack timeout   none\n" in penstock_command("durable", "show", "mail", "e").stdout
    refused = penstock_command(
        "durable", "create", "mail", "f", "--type", "exclusive", "--ack-timeout", "30s"
    )
    assert "type exclusive takes no ack_timeout" in refused.stderr
