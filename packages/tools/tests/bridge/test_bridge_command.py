"""``penstock bridge`` at the command line."""

from __future__ import annotations

import json

import pytest

import penstock
from packages.tools.tests.bridge.mqtt_messages import messages
from packages.tools.tests.bridge.strange_mqtt import StrangeMqtt
from tests.commands import Run


def test_the_command_reports_what_it_has_stored(
    penstock_command: Run, session: penstock.Session
) -> None:
    session.queues.create("new", type="persistent")
    with StrangeMqtt(messages()) as broker:
        arguments = (broker.url, "new", "--name", "old", "--queue", "--until-empty")
        first = penstock_command("bridge", *arguments, "--idle", "200ms", "--format", "json")
        second = penstock_command("bridge", *arguments, "--idle", "200ms")

    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout) == {"stored": 20, "repeated": 0, "rejected": 0}
    assert "0 events stored, 0 delivered again" in second.stdout
    assert session.queues.get("new").info().events == 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mqtt://127.0.0.1:1/a", "new", "--name", "x", "--subscription"), "always keeps one"),
        (("mqtt://127.0.0.1:1/a", "new", "--name", "x"), "cannot be reached"),
        (("mqtt://127.0.0.1:1/a", "missing", "--name", "x"), "missing"),
        (("ftp://127.0.0.1:1/a", "new", "--name", "x"), "not the URL of a source"),
        (("mqtt://127.0.0.1:1/a", "new", "--name", "a\nb"), "control character"),
        (("mqtt://127.0.0.1:1/a", "new", "--name", "x", "--window", "0"), "window"),
        (("mqtt://127.0.0.1:1/a", "new"), "name"),
    ],
)
def test_errors_say_what_is_wrong(
    penstock_command: Run, session: penstock.Session, arguments: tuple[str, ...], said: str
) -> None:
    session.channels.create("new", type="persistent")
    result = penstock_command("bridge", *arguments)

    assert result.exit_code != 0
    assert said in result.output
