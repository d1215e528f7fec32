"""``penstock doctor``: what it finds, and that it changes nothing."""

from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock_server.cli.checks import checks
from penstock_server.cli.program import app
from penstock_server.settings.loading import load
from scripts.packages import WHOLE, extras_of, requirements_of
from tests.access.certificates import Authority

SETTINGS = """
[listen]
port = 0
[http]
port = 0
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "realm.toml"
    file.write_text(SETTINGS)
    return file


@pytest.fixture
def port_in_use() -> Iterator[int]:
    """A port that something else has, which says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", "--format", "json", *arguments])


def checks_by_name(result: Result) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in msgspec.json.decode(result.stdout)["checks"]}


def test_a_directory_that_is_not_there_is_fine_and_is_not_made(
    tmp_path: Path, settings: Path
) -> None:
    result = doctor("--data", str(tmp_path / "data"), "--settings", str(settings))

    assert result.exit_code == 0
    assert "creates it" in checks_by_name(result)["data"]["found"]
    assert not (tmp_path / "data").exists()


def test_a_realm_that_has_the_directory_open_is_named(tmp_path: Path, settings: Path) -> None:
    with penstock.Realm(tmp_path / "data"):
        held = doctor("--data", str(tmp_path / "data"), "--settings", str(settings))
    after = doctor("--data", str(tmp_path / "data"), "--settings", str(settings))

    assert "in use by the process" in checks_by_name(held)["lock"]["found"]
    assert checks_by_name(after)["lock"]["found"] == "no realm has it open"
    assert checks_by_name(after)["format"]["status"] == "ok"


def test_a_newer_format_is_a_failure_with_a_remedy() -> None:
    newer = checks.format_of(Path("/realm"), 9, 2)

    assert newer.status == "failed"
    assert newer.found == "9; this version reads up to 2"
    assert checks.format_of(Path("/realm"), 1, 2).status == "warning"
    assert checks.format_of(Path("/realm"), None, 2).status == "failed"


def test_a_missing_amqp_package_is_ok_and_has_its_install_command() -> None:
    without = checks.amqp(None)

    assert without.status == "ok"
    assert "pip install 'penstock-realm[amqp]'" in without.found
    assert checks.amqp("0.40.0").found == "python-qpid-proton 0.40.0"


@pytest.mark.parametrize("extra", extras_of(WHOLE))
def test_the_packages_of_each_extra_are_listed(extra: str) -> None:
    """They are derived from the metadata of the installed distributions."""
    required = {requirement.name for requirement in requirements_of(WHOLE, extra)}

    assert required
    assert required <= set(checks.required_packages())


def test_the_versions_of_optional_packages_are_shown(tmp_path: Path, settings: Path) -> None:
    result = doctor("--data", str(tmp_path / "data"), "--settings", str(settings))
    versions = checks_by_name(result)["packages"]["found"].split(", ")

    names = [text.partition(" ")[0] for text in versions]
    assert len(names) == len(set(names))
    assert {"msgspec", "nats-py", "asyncpg", "ldap3", "opentelemetry-sdk"} <= set(names)
    assert f"nats-py {importlib.metadata.version('nats-py')}" in versions


def test_packages_are_listed_without_the_distribution_of_all_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine may have `penstock-server` without `penstock-realm`."""
    requires = importlib.metadata.requires

    def requires_of_server(name: str) -> list[str] | None:
        if name == WHOLE:
            raise importlib.metadata.PackageNotFoundError(name)
        return requires(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires_of_server)
    names = set(checks.required_packages())

    assert {"msgspec", "ldap3", "pyiceberg"} <= names
    assert "nats-py" not in names


def test_a_directory_that_is_not_a_realm_is_a_failure(tmp_path: Path, settings: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.tex").write_text("")

    result = doctor("--data", str(tmp_path / "data"), "--settings", str(settings))

    assert result.exit_code == 1
    assert "thesis.tex" in checks_by_name(result)["data"]["found"]


def test_a_port_that_a_realm_has_is_fine_and_another_ones_is_not(port_in_use: int) -> None:
    with penstock.Realm(name="berlin") as realm:
        port = int(realm.listen().rpartition(":")[2])
        web = int(realm.listen_http().rpartition(":")[2])
        live = load(overrides={"listen.port": port, "http.port": web})
        answers = {check.name: check for check in checks.ports(live)}
    silent = load(overrides={"listen.port": 0, "http.port": port_in_use})
    refused = {check.name: check for check in checks.ports(silent)}

    assert "realm berlin" in answers["port"].found
    assert "a realm answers" in answers["http port"].found
    assert refused["http port"].status == "failed"
    assert "--http-port" in refused["http port"].remedy


def test_bad_settings_are_a_failure_and_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "realm.toml"
    file.write_text("[listen]\nporto = 1\n")

    result = doctor("--settings", str(file))

    assert result.exit_code == 1
    assert "porto" in checks_by_name(result)["settings"]["found"]
    assert "clock" in checks_by_name(result)


@pytest.mark.parametrize(("days", "status"), [(-1, "failed"), (5, "warning"), (100, "ok")])
def test_certificates_are_shown_with_their_expiry(tmp_path: Path, days: int, status: str) -> None:
    file = Authority(tmp_path, "authority").certificate("realm", days=days)
    wanted = {"listen.tls_certificate": str(file[0]), "listen.tls_key": str(file[1])}

    (check,) = checks.certificates(load(overrides=wanted))

    assert check.status == status
    assert f"{datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}" in check.found


def test_a_certificate_that_is_none_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "realm.pem"
    file.write_text("none")

    (check,) = checks.certificates(load(overrides={"listen.tls_certificate": str(file)}))

    assert check.status == "failed"
    assert str(file) in check.found


def test_people_get_a_line_a_check_and_a_sum(settings: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--settings", str(settings)])

    assert result.exit_code == 0
    assert result.stdout.startswith("ok       python")
    assert "0 failures" in result.stdout.splitlines()[-1]
