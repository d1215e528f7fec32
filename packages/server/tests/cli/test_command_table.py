"""Each command is built when it is asked for, and none is forgotten."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock_server.cli.program import ORDER, CommandTable, commands_of, places
from scripts.packages import ROOT
from scripts.weight.source import unparsed, workspace_sources


def test_modules_register_the_commands_of_the_table() -> None:
    registered = {
        name: module_name
        for module_name in set(places().values())
        for name in commands_of(module_name)
    }

    assert registered == places()
    assert {name: command.name for name, command in CommandTable().items()} == {
        name: name for name in ORDER
    }


def test_every_module_with_commands_is_in_the_table() -> None:
    modules_with_commands = {
        f"{source.module}:register"
        for source in workspace_sources(ROOT, unparsed)
        if "\ndef register(app:" in source.text
    }

    assert modules_with_commands == set(places().values())


@pytest.mark.process
def test_a_command_does_not_wait_for_the_modules_of_others() -> None:
    """The program prints the loaded modules at its end."""
    program = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr));"
    shown = subprocess.run(
        [sys.executable, "-c", f"{program} from penstock_server.cli import main; main()", "error"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(shown.stderr.split())
    modules = {place.partition(":")[0] for place in places().values()}
    others = modules - {"penstock_server.cli.serving.reference"}

    assert "penstock_server.cli.serving.reference" in loaded
    assert loaded.isdisjoint(others)
