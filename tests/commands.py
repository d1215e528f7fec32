"""Runs commands in this process, against a realm in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock.client.sync.sync import Channel, Queue
from penstock_server.cli.program import app

Run = Callable[..., Result]


@pytest.fixture
def orders(session: penstock.Session) -> Channel:
    """A channel with five events, whose property ``price`` is 0 to 4."""
    channel = session.channels.create("orders", type="persistent")
    channel.publish_many(
        [penstock.Event(b"event %d" % n, properties={"price": n}) for n in range(5)]
    )
    return channel


@pytest.fixture
def work(session: penstock.Session) -> Queue:
    """A queue with five events, whose property ``minutes`` is 0 to 4."""
    queue = session.queues.create("work", type="persistent")
    queue.push_many([penstock.Event(b"job %d" % n, properties={"minutes": n}) for n in range(5)])
    return queue


def commands_of(realm: penstock.Realm) -> Run:
    """Return a function that runs a command. The command gets the realm's URL from the environment,
    and ``stdin`` as its standard input."""
    runner = CliRunner()
    environment = {"PENSTOCK_URL": realm.listen()}

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return runner.invoke(app, list(arguments), input=stdin, env=environment)

    return run


@pytest.fixture
def penstock_command(realm: penstock.Realm) -> Run:
    return commands_of(realm)
