"""``penstock settings``, ``error``, and help on every command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

import penstock
from penstock_core.vocabulary.errors import error_classes
from penstock_server.cli.program import app
from penstock_server.settings.loading import described

if TYPE_CHECKING:
    from tests.commands import Run

pytestmark = pytest.mark.slow


def test_every_setting_is_listed_with_its_variable(penstock_command: Run) -> None:
    listed = json.loads(penstock_command("settings", "--list", "--format", "json").stdout)

    assert [setting["option"] for setting in listed] == [path for path, *_ in described()]
    assert all(setting["help"] for setting in listed)
    assert {"option": "listen.port", "variable": "PENSTOCK_LISTEN_PORT"}.items() <= next(
        setting for setting in listed if setting["option"] == "listen.port"
    ).items()


def test_the_list_of_settings_explains_each(penstock_command: Run) -> None:
    shown = penstock_command("settings", "--list").stdout

    assert all(path in shown and sentence in shown for path, _, sentence in described())
    assert "PENSTOCK_LIMITS_MAX_EVENT_BYTES\n" in shown


def test_settings_in_force_are_shown_with_unit_and_origin(
    penstock_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "realm.toml"
    file.write_text("[listen]\nport = 9001\nhost = '::1'\ntls_key = 'realm.key'\n")
    monkeypatch.setenv("PENSTOCK_LISTEN_HOST", "127.0.0.2")
    flags = ("settings", "--settings", str(file), "--http-port", "9081", "--no-http")

    shown = json.loads(penstock_command(*flags, "--format", "json").stdout)
    table = penstock_command(*flags).stdout.splitlines()

    values_by_option = {
        setting["option"]: (setting["value"], setting["unit"], setting["from"]) for setting in shown
    }
    assert values_by_option["listen.port"] == (9_001, "", "file")
    assert values_by_option["listen.host"] == ("127.0.0.2", "", "environment")
    assert values_by_option["listen.tls_key"] == (str(tmp_path / "realm.key"), "", "file")
    assert values_by_option["listen.idle_timeout_s"] == (45.0, "s", "default")
    assert values_by_option["http.port"] == (9_081, "", "flag")
    assert len(values_by_option) == len(described()) == len(table) - 1
    rows = {line.split()[0]: line.split() for line in table}
    assert rows["listen.port"] == ["listen.port", "9001", "file", str(file)]
    assert rows["listen.host"][-2:] == ["environment", "PENSTOCK_LISTEN_HOST"]
    assert rows["listen.tls_key"][1] == str(tmp_path / "realm.key")
    assert rows["http.enabled"] == ["http.enabled", "false", "flag"]
    assert rows["limits.memory_bytes"][2:] == ["bytes", "default"]


def test_a_settings_file_that_does_not_do_is_refused(penstock_command: Run, tmp_path: Path) -> None:
    file = tmp_path / "realm.toml"
    file.write_text("[listen]\nporto = 9001\n")

    refused = penstock_command("settings", "--settings", str(file))

    assert refused.exit_code == 1
    assert "porto" in refused.stderr


@pytest.mark.parametrize("code", sorted(error_classes()))
def test_every_error_is_explained(penstock_command: Run, code: str) -> None:
    shown = penstock_command("error", code)

    assert shown.exit_code == 0
    assert f"penstock.{error_classes()[code].__name__}\n" in shown.stdout


def test_all_errors_are_listed(penstock_command: Run) -> None:
    lines = penstock_command("error").stdout.splitlines()

    assert [line.split()[0] for line in lines] == sorted(error_classes())


def test_an_unknown_error_suggests_one(penstock_command: Run) -> None:
    refused = penstock_command("error", "durable-inuse")

    assert refused.exit_code == 1
    assert "did you mean durable-in-use?" in refused.stderr


def commands() -> Iterator[tuple[str, ...]]:
    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        children = getattr(command, "commands", {})
        if not children:
            yield path
        for name, child in children.items():
            yield from below(child, (*path, name))

    yield from below(typer.main.get_command(app), ())


@pytest.mark.parametrize("command", [*commands()])
def test_every_command_has_help_with_an_example(
    penstock_command: Run, command: tuple[str, ...]
) -> None:
    shown = penstock_command(*command, "--help")

    assert shown.exit_code == 0
    assert f"  penstock {' '.join(command)}" in shown.stdout
    assert "Example" in shown.stdout


def test_the_commands_are_listed_in_the_order_of_use(penstock_command: Run) -> None:
    listed = penstock_command("--help").stdout.partition("Commands:\n")[2].splitlines()

    assert [line.split()[0] for line in listed][:4] == ["serve", "channel", "publish", "subscribe"]


def test_the_version_is_printed(penstock_command: Run) -> None:
    assert penstock_command("--version").stdout == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize("url", ["penstock://localhost:1", "penstock://127.0.0.1:1,[::1]:1"])
def test_a_realm_that_does_not_answer_is_said_once(penstock_command: Run, url: str) -> None:
    refused = penstock_command("info", "--url", url)

    assert refused.exit_code == 1
    assert refused.stderr.count("\n") == 1
    assert "penstock serve --data DIR" in refused.stderr
    assert refused.stderr.endswith("[cannot-connect]\n")


def test_a_url_that_is_none_is_refused(penstock_command: Run) -> None:
    refused = penstock_command("info", "--url", "http://localhost")

    assert refused.exit_code == 1
    assert "a URL looks like penstock://localhost:9000" in refused.stderr
