"""Durables that go back and forward, on the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.sync.sync import Durable, Session

if TYPE_CHECKING:
    from tests.commands import Run

pytestmark = pytest.mark.spec("D20")


@pytest.fixture
def billing(session: Session) -> Durable:
    """Return a durable that has acknowledged three of four events; all four stay."""
    orders = session.channels.create("mail", retain_consumed=True)
    billing = orders.durables.create("billing")
    orders.publish_many([penstock.Event()] * 4)
    for event in billing.fetch(3, timeout=30):
        event.ack()
    billing.flush()
    billing.close()
    return billing


def test_a_preview_asks_nothing_and_changes_nothing(
    penstock_command: Run, billing: Durable
) -> None:
    preview = penstock_command("durable", "seek", "mail", "billing", "--to", "1", "--preview")

    assert "durable billing would continue from 1" in preview.stdout
    assert "2 events that were not outstanding" in preview.stdout
    assert billing.info().outstanding == 1


def test_the_question_names_the_changes(penstock_command: Run, billing: Durable) -> None:
    refused = penstock_command("durable", "seek", "mail", "billing", "--to", "latest")

    assert refused.exit_code != 0
    question = " ".join(refused.stderr.split())
    assert (
        "Move billing to 4, with 0 events delivered again, 1 skipped and 0 taken back" in question
    )
    assert billing.info().outstanding == 1


def test_it_goes_to_any_place(penstock_command: Run, billing: Durable) -> None:
    done = penstock_command("durable", "seek", "mail", "billing", "--to", "earliest", "--yes")
    assert "durable billing continues from 0" in done.stdout
    assert billing.info().outstanding == 4

    as_json = penstock_command(
        "durable", "seek", "mail", "billing", "--to", "2013-01-01", "--yes", "--format", "json"
    )
    assert json.loads(as_json.stdout)["outstanding"] == 4
