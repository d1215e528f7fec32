"""The program as the shell sees it: start-up time, Ctrl-C, closed pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import penstock
from penstock_core.vocabulary.errors import SessionClosed
from penstock_server.cli.program import Program, app
from penstock_testing.process import ServerProcess

if TYPE_CHECKING:
    from tests.plugin import Serve

pytestmark = pytest.mark.process

EVENTS = 20_000
"""More than a pipe takes."""


@pytest.fixture
def server(serve: Serve) -> ServerProcess:
    """A server with many events on ``orders``."""
    server = serve()
    with penstock.connect(server.url) as session:
        channel = session.channels.create("orders")
        channel.publish_many([penstock.Event(b"event %d" % n) for n in range(EVENTS)])
    return server


@contextmanager
def started(server: ServerProcess, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command as a separate process; it is ended after the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        env={**os.environ, "PENSTOCK_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        try:
            yield command
        finally:
            command.kill()


def test_a_command_reads_all_there_is(server: ServerProcess) -> None:
    with started(server, "browse", "orders", "--format", "json") as command:
        printed, complaints = command.communicate(timeout=60)

    assert (command.returncode, complaints) == (0, "")
    assert printed.count("\n") == EVENTS


def test_errors_while_ctrl_c_ends_a_command_are_not_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session that closes in the middle of a request may complain."""

    def interrupted(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise SessionClosed("the session was closed meanwhile")

    monkeypatch.setattr(Program.__mro__[1], "invoke", interrupted)

    ended = CliRunner().invoke(app, ["info"])

    assert (ended.exit_code, ended.stderr) == (130, "")


def test_ctrl_c_ends_a_subscription_quietly(server: ServerProcess) -> None:
    last = f"event {EVENTS - 1}"
    with started(server, "subscribe", "orders", "--from", "earliest") as command:
        assert command.stdout is not None
        next(line for line in command.stdout if last in line)  # it waits for more now

        command.send_signal(signal.SIGINT)
        _, complaints = command.communicate(timeout=60)

    assert (command.returncode, complaints) == (130, "")


@pytest.mark.parametrize("options", [[], ["--transactional"]])
def test_ctrl_c_ends_a_reader_and_unprinted_events_stay(
    server: ServerProcess, options: list[str]
) -> None:
    with penstock.connect(server.url) as session:
        queue = session.queues.create("work")
        queue.push(b"first")
        with started(server, "queue", "read", "work", *options) as command:
            assert command.stdout is not None
            next(line for line in command.stdout if "first" in line)  # it waits for more now

            command.send_signal(signal.SIGINT)
            _, complaints = command.communicate(timeout=60)
        queue.push(b"second")
        remaining = [event.data for event in queue.peek()]

    assert (command.returncode, complaints) == (130, "")
    assert remaining in ([b"second"], [b"first", b"second"])


def test_a_closed_pipe_ends_a_command_quietly(server: ServerProcess) -> None:
    with started(server, "browse", "orders") as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.readline()
        command.stdout.close()
        complaints = command.stderr.read()
        command.wait(timeout=60)

    assert (command.returncode, complaints) == (0, "")


def test_a_subscription_outlives_its_server(server: ServerProcess, serve: Serve) -> None:
    arguments = ("--from", str(EVENTS - 1), "--count", "2", "--format", "json")
    with started(server, "subscribe", "orders", *arguments) as command:
        assert command.stdout is not None
        command.stdout.readline()
        server.kill()
        successor = serve("--port", str(server.port))
        with penstock.connect(successor.url) as session:
            session.channels.get("orders").publish(b"later")

        printed, complaints = command.communicate(timeout=60)

    assert (command.returncode, complaints) == (0, "")
    assert '"data":"later"' in printed


def test_a_reader_of_a_queue_outlives_its_server(server: ServerProcess, serve: Serve) -> None:
    with penstock.connect(server.url) as session:
        session.queues.create("work", type="persistent").push(b"first")
    arguments = ("--transactional", "--count", "2", "--format", "json")
    with started(server, "queue", "read", "work", *arguments) as command:
        assert command.stdout is not None
        command.stdout.readline()
        server.kill()
        successor = serve("--port", str(server.port))
        with penstock.connect(successor.url) as session:
            session.queues.get("work").push(b"later")

        printed, _ = command.communicate(timeout=60)

    assert command.returncode == 0
    assert len(printed.splitlines()) == 1


def test_help_does_not_wait_for_arrow_or_the_server() -> None:
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "penstock", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}

    assert "penstock_server.cli.program" in loaded
    assert loaded.isdisjoint({"pyarrow", "numpy", "asyncio", "penstock_server.bootstrap"})
