"""``penstock join``, and what copies look like."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.sync.sync import Channel, Queue

if TYPE_CHECKING:
    from tests.commands import Run


@pytest.mark.spec("L1")
def test_a_join_copies_events_published_from_now_on(
    penstock_command: Run, session: penstock.Session, orders: Channel
) -> None:
    copies = session.channels.create("copies")

    made = penstock_command("join", "create", "orders", "copies", "--selector", "price > 5")
    for price in (9, 1):
        orders.publish(b"later", properties={"price": price})

    assert made.stdout == "join created: events that match from orders to copies, from now on\n"
    assert [event.properties for event in copies.browse()] == [{"price": 9}]


def test_the_list_has_a_line_for_each_join(
    penstock_command: Run, session: penstock.Session, orders: Channel, work: Queue
) -> None:
    session.channels.create("copies")
    penstock_command("join", "create", "orders", "copies", "--selector", "price > 5")
    penstock_command("join", "create", "orders", "work", "--archive")
    orders.publish(b"x", properties={"price": 9})

    _, copies, archive = penstock_command("join", "list").stdout.splitlines()

    assert copies.split() == ["orders", "copies", "join", "1", "0", "price", ">", "5"]
    assert archive.split() == ["orders", "work", "archive", "1", "0"]


def test_the_list_as_json_is_one_document(
    penstock_command: Run, orders: Channel, work: Queue
) -> None:
    penstock_command("join", "create", "orders", "work", "--archive")

    (listed,) = json.loads(penstock_command("join", "list", "--format", "json").stdout)

    assert (listed["source"], listed["destination"], listed["archive"]) == ("orders", "work", True)


def test_an_empty_list_shows_the_create_command(penstock_command: Run) -> None:
    assert "penstock join create" in penstock_command("join", "list").stdout


def test_a_deleted_join_copies_no_more(penstock_command: Run, orders: Channel, work: Queue) -> None:
    penstock_command("join", "create", "orders", "work")

    deleted = penstock_command("join", "delete", "orders", "work", "--yes")
    orders.publish(b"x")

    assert deleted.stdout == "join from orders to work deleted\n"
    assert work.info().events == 5


@pytest.mark.spec("E3")
def test_a_copy_is_printed_with_its_origin(
    penstock_command: Run, session: penstock.Session, orders: Channel
) -> None:
    session.channels.create("copies")
    penstock_command("join", "create", "orders", "copies")
    orders.publish(b"x")

    header, row = penstock_command("browse", "copies").stdout.splitlines()
    subscribed = penstock_command(
        "subscribe", "copies", "--from", "earliest", "--count", "1", "--format", "json"
    )
    origin = json.loads(subscribed.stdout)["origin"]

    assert header.split()[2] == "came_from"
    assert "orders 5, join" in row
    assert (origin["store"], origin["event_id"], origin["cause"]) == ("orders", 5, "join")
    assert origin["path"] == ["orders"]


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["create", "orders", "orders"], "to itself", "invalid-argument"),
        (["create", "work", "orders"], "source of a join must be a channel", "invalid-argument"),
        (["create", "orders", "nowhere"], "nowhere", "name-does-not-exist"),
        (["create", "orders", "held"], "already", "name-already-bound"),
        (["create", "orders", "work", "--selector", "a >"], "expected", "invalid-selector"),
        (["create", "orders", "dead", "--archive"], "must be a queue", "invalid-argument"),
        (
            ["delete", "orders", "work", "--yes"],
            "no join from orders to work",
            "name-does-not-exist",
        ),
    ],
)
def test_a_refusal_is_one_line_with_its_code(
    penstock_command: Run,
    session: penstock.Session,
    orders: Channel,
    work: Queue,
    arguments: list[str],
    message: str,
    code: str,
) -> None:
    session.channels.create("held")
    session.channels.create("dead")
    session.joins.create("orders", "held")

    refused = penstock_command("join", *arguments)

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert message in refused.stderr
    assert refused.stderr.splitlines()[0].endswith(f" [{code}]")
