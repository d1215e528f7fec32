"""``penstock selector check``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.client.sync.sync import Channel, Session
from tests.protocols import ORDER, shop

if TYPE_CHECKING:
    from tests.commands import Run


def test_a_selector_is_explained_without_a_realm(penstock_command: Run) -> None:
    result = penstock_command(
        "selector", "check", "price>5 and sku like 'a%'", "--url", "penstock://127.0.0.1:1"
    )

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "selector  price > 5 AND sku LIKE 'a%'",
        "chooses   events where all of these hold:",
        "            price is greater than 5",
        "            sku begins with 'a'",
        "",
        "name   kind",
        "price  property",
        "sku    property",
    ]


@pytest.mark.spec("F5")
def test_on_a_channel_matching_events_are_shown(penstock_command: Run, orders: Channel) -> None:
    result = penstock_command("selector", "check", "price >= 3", "--channel", "orders")

    assert result.stdout.splitlines()[2:] == [
        "",
        "name   kind      stored as",
        "price  property  int64",
        "",
        "matches 2 of 5 events on orders: events 3, 4",
    ]


def test_many_matches_are_counted_and_a_few_shown(penstock_command: Run, orders: Channel) -> None:
    orders.publish(b"", properties={"price": 5})

    result = penstock_command("selector", "check", "price < 100", "--channel", "orders")

    last = result.stdout.splitlines()[-1]
    assert last == "matches 6 of 6 events on orders: events 0, 1, 2, 3, 4, …"


def test_a_misspelt_name_and_a_wrong_type_are_reported(
    penstock_command: Run, orders: Channel
) -> None:
    result = penstock_command(
        "selector", "check", "prise > 3 OR price = 'x'", "--channel", "orders"
    )

    assert "prise  property  not seen yet" in result.stdout
    assert "note: no event on this channel has had prise" in result.stdout
    assert "note: price = 'x' never matches on this channel: price is a number" in result.stdout
    assert result.stdout.endswith("matches 0 of 5 events on orders\n")


@pytest.mark.spec("F4")
def test_bad_text_is_shown_with_its_place(penstock_command: Run) -> None:
    result = penstock_command("selector", "check", "price > 5 AND")

    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "error: selector line 1, column 14: expected a value after 'AND', found end of text "
        "[invalid-selector]",
        "  price > 5 AND",
        "               ^",
    ]


@pytest.mark.spec("F4")
def test_bad_text_as_json_has_its_place_as_numbers(penstock_command: Run) -> None:
    result = penstock_command("selector", "check", "a = 1\nAND ?", "--format", "json")

    fault = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (fault["valid"], fault["line"], fault["column"]) == (False, 2, 5)
    assert fault["expected"] == "a name, a value or an operator"


def test_as_json_it_is_one_document(penstock_command: Run, orders: Channel) -> None:
    result = penstock_command(
        "selector", "check", "price>3", "--channel", "orders", "--format", "json"
    )

    assert json.loads(result.stdout) == {
        "selector": "price > 3",
        "valid": True,
        "chooses": ["price is greater than 3"],
        "names": [{"name": "price", "kind": "property", "types": ["int64"]}],
        "remarks": [],
        "channel": "orders",
        "events": 5,
        "matches": 1,
        "first_ids": [4],
    }


def test_a_channel_that_is_not_there_is_an_error(penstock_command: Run) -> None:
    result = penstock_command("selector", "check", "a = 1", "--channel", "nowhere")

    assert result.exit_code == 1
    assert "nowhere" in result.stderr


@pytest.mark.spec("P1")
def test_the_fields_of_messages_are_known(penstock_command: Run, session: Session) -> None:
    channel = session.channels.create("shop", descriptors=shop())
    channel.publish_many([channel.messages().event("shop.Order", ORDER)])

    shown = penstock_command(
        "selector", "check", "total > 5 AND lines[].sku = 'nut'", "--channel", "shop"
    )
    other_result = penstock_command("selector", "check", "nothing = 5", "--channel", "shop")

    assert "matches 1 of 1 event" in shown.stdout
    assert "note:" not in shown.stdout
    assert "int64" in shown.stdout
    assert "no event on this channel has had nothing" in other_result.stdout
