"""Protocol Buffers on the command line: messages are JSON, in and out (SEM P3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.protocols import ORDER, shop

if TYPE_CHECKING:
    from tests.commands import Run

pytestmark = pytest.mark.spec("P3")


@pytest.fixture
def described(tmp_path: Path) -> str:
    path = tmp_path / "shop.pb"
    path.write_bytes(shop())
    return str(path)


@pytest.fixture(params=["channel", "queue"])
def store(penstock_command: Run, described: str, request: pytest.FixtureRequest) -> str:
    """The kind of a store named ``orders`` that knows the messages of a shop."""
    made = penstock_command(request.param, "create", "orders", "--descriptors", described)
    assert made.exit_code == 0
    return str(request.param)


def publishing(kind: str) -> tuple[str, ...]:
    return ("publish", "orders") if kind == "channel" else ("queue", "push", "orders")


def looking(kind: str) -> tuple[str, ...]:
    return ("browse", "orders") if kind == "channel" else ("queue", "peek", "orders")


def documents(kind: str, printed: str) -> list[dict[str, object]]:
    if kind == "channel":
        return [json.loads(line) for line in printed.splitlines()]
    documents_found: list[dict[str, object]] = json.loads(printed)["events"]
    return documents_found


def test_messages_are_published_and_shown_as_json(penstock_command: Run, store: str) -> None:
    sent = penstock_command(
        *publishing(store), "--message", "shop.Order", json.dumps(ORDER), "--tag", "new"
    )
    shown = penstock_command(*looking(store), "--selector", "total = 250", "--format", "json")
    table = penstock_command(*looking(store))

    assert sent.exit_code == 0
    (document,) = documents(store, shown.stdout)
    assert (document["message"], document["tag"]) == (ORDER, "new")
    headers = document["headers"]
    assert isinstance(headers, dict)
    assert headers["message_type"] == "shop.Order"
    assert "data" not in document
    assert '"total":"250"' in table.stdout


@pytest.mark.parametrize("more", [("--from", "earliest"), ("--durable", "billing")])
def test_messages_of_the_channels_of_a_pattern_are_shown_as_json(
    penstock_command: Run, described: str, more: tuple[str, ...]
) -> None:
    """Each event is shown by the descriptors of its channel; one channel has none."""
    penstock_command("channel", "create", "shop/eu", "--descriptors", described)
    penstock_command("channel", "create", "shop/us")
    penstock_command("durable", "create", "shop/*", "billing")
    penstock_command("publish", "shop/eu", "--message", "shop.Order", json.dumps(ORDER))
    penstock_command("publish", "shop/us", "plain")
    command = ("subscribe", "shop/*", *more, "--timeout", "0.3")

    lines = penstock_command(*command, "--format", "json").stdout.splitlines()
    documents_found = {document["channel"]: document for document in map(json.loads, lines)}
    assert documents_found["shop/eu"]["message"] == ORDER
    assert documents_found["shop/us"]["data"] == "plain"
    if "--from" in more:
        assert '"total":"250"' in penstock_command(*command).stdout


def test_lines_of_messages_are_published(penstock_command: Run, store: str, tmp_path: Path) -> None:
    lines = tmp_path / "orders.ndjson"
    lines.write_text('{"id": "a"}\n{"id": "b"}\n')

    sent = penstock_command(*publishing(store), "--message", "shop.Order", "--file", str(lines))
    shown = penstock_command(*looking(store), "--format", "json")

    assert "2 events" in sent.stdout
    assert [documents_found["message"] for documents_found in documents(store, shown.stdout)] == [
        {"id": "a"},
        {"id": "b"},
    ]


def test_a_printed_message_can_be_published_again(
    penstock_command: Run, described: str, tmp_path: Path
) -> None:
    for name in ("orders", "copies"):
        penstock_command("channel", "create", name, "--descriptors", described)
    penstock_command("publish", "orders", "--message", "shop.Order", json.dumps(ORDER))
    printed = penstock_command("browse", "orders", "--format", "json").stdout
    lines = tmp_path / "orders.ndjson"
    lines.write_text(printed)

    again = penstock_command("publish", "copies", "--file", str(lines))
    copied = penstock_command("browse", "copies", "--format", "json").stdout

    assert again.exit_code == 0
    assert json.loads(copied)["message"] == ORDER


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--message", "shop.Nothing", "{}"), "unknown message type 'shop.Nothing'"),
        (("--message", "shop.Order", '{"nope": 1}'), "not a shop.Order"),
        (("--message", "shop.Order"), "give the message as DATA or a --file"),
        (("--message", "shop.Order", "--file", "x.csv"), "x.csv cannot be read with --message"),
    ],
)
def test_data_that_is_not_such_a_message_is_not_published(
    penstock_command: Run, store: str, arguments: tuple[str, ...], complaint: str
) -> None:
    refused = penstock_command(*publishing(store), *arguments)

    assert refused.exit_code in (1, 2)
    assert complaint in refused.output
    assert documents(store, penstock_command(*looking(store), "--format", "json").stdout) == []


def test_a_bad_line_is_named(penstock_command: Run, store: str, tmp_path: Path) -> None:
    lines = tmp_path / "orders.ndjson"
    lines.write_text('{"id": "a"}\n{"nope": 1}\n')

    refused = penstock_command(*publishing(store), "--message", "shop.Order", "--file", str(lines))

    assert refused.exit_code == 1
    assert "line 2: not a shop.Order" in refused.output


def test_without_descriptors_the_error_has_a_remedy(
    penstock_command: Run, session: penstock.Session
) -> None:
    session.channels.create("bare")

    refused = penstock_command("publish", "bare", "--message", "shop.Order", "{}")

    assert refused.exit_code == 1
    assert "bare has no descriptors" in refused.output


def test_the_types_are_shown_and_may_be_taken_away(penstock_command: Run, store: str) -> None:
    facts = penstock_command(store, "show", "orders").stdout
    document = json.loads(penstock_command(store, "show", "orders", "--format", "json").stdout)
    penstock_command(store, "edit", "orders", "--descriptors", "")
    without = json.loads(penstock_command(store, "show", "orders", "--format", "json").stdout)

    assert "shop.Line, shop.Order, shop.Tree" in facts
    assert document["definition"]["message_types"][2] == "shop.Order"
    assert without["definition"]["message_types"] == []


@pytest.mark.spec("P4")
def test_a_file_that_is_no_descriptor_set_is_refused(penstock_command: Run, tmp_path: Path) -> None:
    bad = tmp_path / "shop.proto"
    bad.write_text("message Order {}")

    refused = penstock_command("channel", "create", "orders", "--descriptors", str(bad))
    missing = penstock_command("channel", "create", "orders", "--descriptors", "no-such-file")

    assert (refused.exit_code, missing.exit_code) == (1, 2)
    assert "not a FileDescriptorSet" in refused.output
    assert "no-such-file" in missing.output
    assert penstock_command("channel", "list", "--format", "json").stdout.strip() == "[]"
