"""Merge channels on the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.client.sync.sync import Channel, Session
from penstock_core.columns.documents import document_of, event_of
from penstock_core.columns.events.event import Event
from penstock_server.cli.events.events import print_rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.commands import Run


@pytest.fixture
def rates(penstock_command: Run, session: Session) -> Channel:
    penstock_command("channel", "create", "rates", "--engine", "merge", "--key", "ccy")
    return session.channels.get("rates")


@pytest.mark.spec("K2", "K3")
def test_deltas_are_published_and_shown_merged(
    penstock_command: Run, rates: Channel, tmp_path: Path
) -> None:
    penstock_command("publish", "rates", "-p", "ccy=EUR", "-p", "bid=1.5", "-p", "ask=2.5")
    penstock_command("publish", "rates", "--delta", "-p", "ccy=EUR", "-p", "ask=5.5")
    file = tmp_path / "deltas.ndjson"
    file.write_text('{"ccy": "EUR", "mid": 3.5}\n{"ccy": "USD", "bid": 4.5}\n')
    penstock_command("publish", "rates", "--delta", "--file", str(file))
    table = tmp_path / "deltas.csv"
    table.write_text("ccy,bid\nUSD,7.5\n")
    penstock_command("publish", "rates", "--delta", "--file", str(table))

    printed = penstock_command("browse", "rates", "--format", "json")

    printed_events = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [event["properties"] for event in printed_events] == [
        {"ccy": "EUR", "bid": 1.5, "ask": 5.5, "mid": 3.5},
        {"ccy": "USD", "bid": 7.5},
    ]
    assert not any("is_delta" in event for event in printed_events)


@pytest.mark.spec("K3")
@pytest.mark.parametrize("merged", [False, True])
def test_a_subscriber_sees_which_events_are_deltas(
    penstock_command: Run, rates: Channel, merged: bool
) -> None:
    eur = rates.register("EUR", bid=1.5, ask=2.5)
    with rates.subscribe(start="earliest", timeout=5) as reading:
        reading.next_batch()
        eur.update(ask=5.5)
        batch = reading.next_batch()
        assert batch is not None
        assert [event.is_delta for event in batch] == [True]
    option = ["--merged"] if merged else []

    printed = penstock_command(
        "subscribe", "rates", "--from", "earliest", "--count", "1", "--format", "json", *option
    )

    (printed_events,) = [json.loads(line) for line in printed.stdout.splitlines()]
    assert printed_events["properties"] == {"ccy": "EUR", "bid": 1.5, "ask": 5.5}


@pytest.mark.spec("K5")
def test_the_state_of_a_key_now_and_before(
    penstock_command: Run, session: Session, rates: Channel
) -> None:
    session.channels.create("history")
    session.joins.create("rates", "history")
    rates.register("EUR", bid=1.5, ask=2.5).update(ask=5.5)

    now = penstock_command("channel", "state", "rates", "EUR")
    before = penstock_command(
        "channel",
        "state",
        "rates",
        "string:EUR",
        "--as-of",
        "0",
        "--archive",
        "history",
        "--format",
        "json",
    )
    as_of_output = penstock_command("channel", "state", "rates", "EUR", "--as-of", "0")

    assert now.stdout.startswith("event 1 of rates, published ")
    assert "ask" in now.stdout
    assert json.loads(before.stdout)["properties"] == {"ccy": "EUR", "bid": 1.5, "ask": 2.5}
    assert as_of_output.exit_code == 1
    assert "name an archive" in as_of_output.stderr


def test_wrong_usage_is_explained(penstock_command: Run, rates: Channel, session: Session) -> None:
    session.channels.create("plain")
    on_plain = penstock_command("publish", "plain", "--delta", "-p", "a=1")
    without_key = penstock_command("publish", "rates", "--delta", "-p", "a=1")
    rates.durables.create("d")
    on_durable = penstock_command("subscribe", "rates", "--durable", "d", "--merged")
    typed = penstock_command("channel", "state", "rates", "int:x")

    assert "engine default; only channels with engine merge accept updates" in on_plain.stderr
    assert "without a value of 'ccy'" in without_key.stderr
    assert "leave out --merged" in on_durable.stderr
    assert "'x' is not a valid int" in typed.stderr


@pytest.mark.spec("K3")
def test_a_delta_is_printed_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    delta = Event(properties={"ccy": "EUR", "ask": 5.5}, is_delta=True)
    document = document_of(delta)

    print_rows([delta])

    assert document["is_delta"] is True
    assert event_of(json.dumps(document, default=str)).is_delta
    assert "is_delta" in capsys.readouterr().out
