"""Commands that delete something permanently ask first; without a terminal they do nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import typer.main
from typer.testing import CliRunner, Result

import penstock
from penstock_server.cli.program import app
from tests.terminal import TerminalRunner

TAKES_AWAY = {
    "channel delete": ["orders"],
    "channel purge": ["orders", "--from", "1", "--to", "2"],
    "queue delete": ["work"],
    "queue purge": ["work", "--selector", "event_id = 0"],
    "durable delete": ["orders", "billing"],
    "durable purge": ["orders", "billing"],
    "durable unbind": ["orders", "billing"],
    "durable seek": ["orders", "billing", "--to", "1"],
    "join delete": ["orders", "copies"],
    "schedule cancel": ["orders", "0"],
    "user delete": ["ann"],
    "group delete": ["ops"],
}
"""Commands that take away what no other command puts back, and arguments for them."""

ASKED_ELSEWHERE = {
    "apply": "packages/tools/tests/cli/test_applying.py",
    "export": "packages/tools/tests/cli/test_applying.py",
    "topology from-rabbitmq": "packages/tools/tests/cli/test_converting.py",
    "topology from-um": "packages/tools/tests/cli/test_converting.py",
    "topology jndi": "packages/tools/tests/cli/test_converting.py",
    "cluster take-over": "packages/cluster/tests/cli/test_cluster_orders.py",
}
"""Commands that ask, too, and whose tests need more than a realm; and where these are."""

GIVES_BACK = {
    "cluster restore": "it refuses a cluster that has a realm",
    "cluster drain": "`cluster drain --end` takes it back",
    "cluster move": "it moves a duty, and can be moved back",
    "cluster remove": "it forgets a node that is gone, which comes back when it is started",
    "group remove": "`group add` puts it back",
    "acl revoke": "`acl grant` puts it back",
    "store repair": "it copies what it takes out",
    "store restore": "it refuses a folder that is not empty",
    "store copy": "what --prune removes is a copy of what the realm has no more",
    "user reset-admin": "it is for whoever has lost the password",
    "queue pop": "what it takes it prints",
    "queue read": "what it takes it prints",
    "redrive": "it moves, and has --dry-run",
    "topic forget": "devices publish their state again, and events stay on their channels",
    "bridge": "it settles at the source only what the realm has stored",
    "topic end": "it is for a client id that is taken; the client connects anew",
}
"""Commands that sound like it, and why they do not ask."""

MAKE_OR_SHOW = {
    "serve",
    "publish",
    "subscribe",
    "browse",
    "delivery",
    "audit",
    "info",
    "top",
    "health",
    "doctor",
    "request",
    "reply",
    "load",
    "settings",
    "error",
    "selector check",
    "realm show",
    "realm pause",
    "realm resume",
    *(f"channel {verb}" for verb in ("create", "list", "show", "state", "edit", "missing")),
    *(f"queue {verb}" for verb in ("create", "list", "show", "edit", "missing", "push", "peek")),
    *(f"{kind} {verb}" for kind in ("channel", "queue") for verb in ("maintain", "export")),
    "archive run",
    "channel import",
    "queue import",
    "join create",
    "join list",
    "schedule list",
    *(f"durable {verb}" for verb in ("create", "list", "show", "browse")),
    *(f"pipeline {verb}" for verb in ("run", "check", "list", "show")),
    *(f"user {verb}" for verb in ("create", "password", "list", "me")),
    "group create",
    "group add",
    "group list",
    "acl grant",
    "acl list",
    *(f"topic {verb}" for verb in ("list", "tail", "retained", "sessions")),
    "store verify",
    "store backup",
    "cluster demo",
    "cluster status",
    "cluster doctor",
    "cluster node",
    "cluster import",
    "cluster export",
    "cluster upgrade",
    "cluster backup",
}


def commands() -> dict[str, set[str]]:
    """Every command, and its options."""

    def below(group: object, path: str) -> Iterator[tuple[str, set[str]]]:
        for name, command in getattr(group, "commands", {}).items():
            if hasattr(command, "commands"):
                yield from below(command, f"{path}{name} ")
            else:
                yield f"{path}{name}", {parameter for p in command.params for parameter in p.opts}

    return dict(below(typer.main.get_command(app), ""))


@pytest.fixture(scope="module")
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(access__mode="optional") as running:
        yield running


@pytest.fixture(scope="module")
def url(realm: penstock.Realm) -> str:
    """URL of a realm that has something for each command to remove."""
    with realm.connect() as session:
        orders = session.channels.create("orders")
        session.channels.create("copies")
        orders.durables.create("billing")
        session.joins.create("orders", "copies")
        orders.publish_many([penstock.Event(b"x")] * 4)
        orders.publish(b"later", deliver_at=datetime.now(UTC) + timedelta(days=1))
        session.queues.create("work").push_many([penstock.Event(b"x")] * 4)
        session.access.create_user("ann", "a password of ann's")
        session.access.create_group("ops", ["ann"])
        session.access.grant("*@*", "full", "access")
    return realm.listen()


def state(realm: penstock.Realm) -> list[object]:
    """All that a command could take away."""
    with realm.connect() as session:
        orders = "orders" in session.channels.list() and session.channels.get("orders")
        work = "work" in session.queues.list() and session.queues.get("work")
        return [
            orders and (orders.info().events, [item.number for item in orders.scheduled.list()]),
            orders and [(item.name, item.outstanding) for item in orders.durables.list()],
            work and work.info().events,
            [(item.source, item.destination) for item in session.joins.list()],
            [item.name for item in session.access.users()],
            [item.name for item in session.access.groups()],
        ]


def run(
    url: str,
    command: str,
    *more: str,
    answer: str | None = None,
    runner: CliRunner = CliRunner(),  # noqa: B008 - without state
) -> Result:
    arguments = [*command.split(), *TAKES_AWAY[command], *more]
    return runner.invoke(app, arguments, env={"PENSTOCK_URL": url}, input=answer)


def test_every_command_is_known_to_take_away_or_not() -> None:
    known_commands = {*TAKES_AWAY, *ASKED_ELSEWHERE, *GIVES_BACK, *MAKE_OR_SHOW}

    assert set(commands()) == known_commands, (
        "say in this file whether the command takes something away"
    )
    asking = {name for name, options in commands().items() if "--yes" in options}
    assert asking == {*TAKES_AWAY, *ASKED_ELSEWHERE}


@pytest.mark.slow
@pytest.mark.parametrize("command", TAKES_AWAY)
def test_without_a_terminal_and_without_yes_nothing_is_done(
    realm: penstock.Realm, url: str, command: str
) -> None:
    before = state(realm)
    refused = run(url, command, answer="y\n")

    assert refused.exit_code == 2
    assert "There is no terminal to answer on; pass --yes" in " ".join(refused.stderr.split())
    assert state(realm) == before


@pytest.mark.slow
@pytest.mark.parametrize("command", TAKES_AWAY)
def test_at_a_terminal_a_person_may_say_no(realm: penstock.Realm, url: str, command: str) -> None:
    before = state(realm)
    declined = run(url, command, answer="n\n", runner=TerminalRunner())

    assert declined.exit_code == 1
    assert "? [y/N]" in declined.stderr
    assert "nothing was changed" in declined.stderr
    assert state(realm) == before


@pytest.mark.slow
def test_the_question_names_the_data_that_would_be_removed(url: str) -> None:
    def ask_question(command: str) -> str:
        return " ".join(run(url, command).stderr.split())

    assert "Delete orders with 4 events?" in ask_question("channel delete")
    assert "Remove ids 1 to 2 of the 4 events of orders?" in ask_question("channel purge")
    assert "Remove those that match 'event_id = 0' of the 4 events of work?" in ask_question(
        "queue purge"
    )
    assert "Remove all of the 4 outstanding events of billing?" in ask_question("durable purge")
    assert not sys.stdin.isatty()


@pytest.mark.slow
def test_with_a_yes_each_does_its_work(realm: penstock.Realm, url: str) -> None:
    """The last story of this file: nothing is left of the realm."""
    order = sorted(
        TAKES_AWAY,
        key=lambda command: (
            "delete" in command,
            command == "channel delete",
            command != "durable seek",  # a purge would leave it no place to go to
        ),
    )
    for number, command in enumerate(order):
        before = state(realm)
        if number % 2:
            done = run(url, command, answer="y\n", runner=TerminalRunner())
        else:
            done = run(url, command, "--yes")
        assert done.exit_code == 0, done.output
        assert command == "durable unbind" or state(realm) != before, command
