"""Completion in the shell: commands, and names of what the realm has."""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.program import app
from penstock.client.sync import Channel, Queue


def offered(line: str, url: str) -> list[str]:
    """What bash would offer for the last word of a line."""
    environment = {
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "PENSTOCK_URL": url,
    }
    result = CliRunner().invoke(app, [], env=environment, prog_name="penstock")
    assert result.exit_code == 0
    assert result.stderr == ""
    return result.stdout.split()


@pytest.fixture
def url(realm: penstock.Realm, orders: Channel, work: Queue) -> str:
    orders.durables.create("billing")
    orders.durables.create("shipping")
    return realm.listen()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("penstock channel sh", ["show"]),
        ("penstock channel show ", ["orders"]),
        ("penstock channel show x", []),
        ("penstock queue show w", ["work"]),
        ("penstock durable show orders b", ["billing"]),
        ("penstock durable show orders ", ["billing", "shipping"]),
        ("penstock durable show nothing ", []),
        ("penstock join create orders ", ["orders", "work"]),
    ],
)
def test_names_of_the_realm_are_offered(url: str, line: str, names: list[str]) -> None:
    assert offered(line, url) == names


def test_without_a_realm_nothing_is_offered_and_nothing_fails() -> None:
    assert offered("penstock channel show o", "penstock://127.0.0.1:1") == []
    assert offered("penstock channel show o", "no url at all") == []


def test_a_realm_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.completing.WAIT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        assert offered("penstock channel show o", f"penstock://127.0.0.1:{port}") == []
