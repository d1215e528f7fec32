"""The usage line of a command has its words as they are typed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from penstock_server.cli.program import app


@pytest.mark.parametrize("command", ["grant", "revoke"])
def test_the_words_of_a_right_are_whole(command: str) -> None:
    help_text = " ".join(CliRunner().invoke(app, ["acl", command, "--help"]).output.split())

    usage = f"acl {command} [OPTIONS] realm|channel|queue|topic [NAME] SUBJECT [RIGHT]..."
    assert f"{usage} " in help_text
