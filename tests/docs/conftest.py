"""A realm for the pages, and commands run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.program import app
from tests.docs.pages import Command
from tests.docs.reading import Reader, environment


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a realm listens that keeps its files in ``data``, below the current directory."""
    monkeypatch.chdir(tmp_path)
    with penstock.Realm("data") as realm:
        yield realm.listen()


@pytest.fixture
def reader(url: str) -> Iterator[Reader]:
    """Somebody who follows pages against a realm of their own."""

    def run(command: Command) -> None:
        result = CliRunner().invoke(app, command.arguments, env=environment(url))
        assert result.exit_code == 0, f"{command.place}: {command.text}\n{result.output}"

    with closing(Reader(url, run)) as somebody:
        yield somebody
