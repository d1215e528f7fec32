"""The README's five minutes, with real processes: what it says is what a stranger sees."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from penstock_testing.process import ServerProcess
from tests.docs.pages import README, Command, commands
from tests.docs.reading import Reader, environment

COMMAND_TIMEOUT_S = 120


@pytest.mark.slow
@pytest.mark.process
def test_the_tour_can_be_followed_against_a_real_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs: dict[str, str] = {}
    with ServerProcess(tmp_path / "tour") as server:

        def run(command: Command) -> None:
            outputs[" ".join(command.arguments[:2])] = penstock(command, server.url)

        with closing(Reader(server.url, run)) as reader:
            assert reader.follow(README) >= 3
        assert server.terminate() == 0

    assert "first order" in outputs["subscribe orders"]
    assert "shared, survives a restart" in outputs["durable show"]
    assert "2 published = 2 live" in outputs["channel show"]
    assert reader.names["table"].to_pydict() == {
        "event_id": [0, 1, 2],
        "price": [9.5, 3.0, 7.5],
        "sku": ["a1", "b7", None],
    }


def penstock(command: Command, url: str) -> str:
    """Return the output of a command, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *command.arguments],
        env={**environment(url), **command.variables},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command.place}: {command.text}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_tour_begins_with_a_server() -> None:
    first, *rest = commands(README)

    assert first.arguments[0] == "serve"
    assert rest
