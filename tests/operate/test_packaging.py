"""The systemd unit and the Dockerfile: nothing is built here, both are linted."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import penstock
from penstock_server.cli.program import app
from penstock_server.settings.loading import described, load, variable_of
from tests.operate.command_lines import parse

FOLDER = Path(__file__).parents[2] / "packaging"
UNIT = FOLDER / "penstock.service"
DOCKERFILE = FOLDER / "Dockerfile"
PACKAGES = FOLDER.parent / "packages"

DIRECTIVES = {
    "Unit": {"Description", "After", "Wants", "StartLimitIntervalSec", "StartLimitBurst"},
    "Service": {
        "Type",
        "NotifyAccess",
        "User",
        "Group",
        "ExecStart",
        "ExecReload",
        "KillSignal",
        "TimeoutStopSec",
        "TimeoutStartSec",
        "Restart",
        "RestartSec",
        "LimitNOFILE",
        "StateDirectory",
        "StateDirectoryMode",
        "ConfigurationDirectory",
        "UMask",
        "NoNewPrivileges",
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "LockPersonality",
        "ProtectKernelTunables",
        "ProtectKernelModules",
        "ProtectControlGroups",
        "RestrictAddressFamilies",
        "RestrictSUIDSGID",
        "RestrictRealtime",
        "SystemCallArchitectures",
        "SystemCallFilter",
        "SystemCallErrorNumber",
        "CapabilityBoundingSet",
        "MemoryMax",
    },
    "Install": {"WantedBy"},
}
"""Names systemd knows, of those in use: a misspelt one is passed over by it in silence."""


def unit() -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {"": {}}
    name = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            sections[name] = {}
        elif line and not line.startswith("#"):
            directive, equals, value = line.partition("=")
            assert equals, f"{line!r} is no directive"
            assert directive not in sections[name], f"{directive} is said twice"
            sections[name][directive] = value
    assert sections.pop("") == {}, "a directive stands in no section"
    return sections


def test_the_unit_has_only_directives_that_systemd_knows() -> None:
    assert {section: set(names) for section, names in unit().items()} == DIRECTIVES


def test_the_unit_starts_a_realm_where_systemd_makes_its_folder() -> None:
    service = unit()["Service"]
    program, serve, *arguments = shlex.split(service["ExecStart"])

    assert Path(program).is_absolute()
    assert parse([serve, *arguments])["data"] == Path("/var/lib") / service["StateDirectory"]
    assert service["User"] != "root"
    assert int(service["LimitNOFILE"]) >= load().listen.connections_max + 1_024


def test_the_unit_is_ready_when_the_realm_is_and_gives_up_in_the_end() -> None:
    """What the realm tells systemd is tested in ``test_notifying.py``."""
    service, limits = unit()["Service"], unit()["Unit"]
    restart_s, burst = int(service["RestartSec"]), int(limits["StartLimitBurst"])

    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert "$MAINPID" in service["ExecReload"]
    assert burst * restart_s < int(limits["StartLimitIntervalSec"])  # else it never gives up


def test_the_unit_bounds_memory_and_system_calls() -> None:
    service = unit()["Service"]

    assert 50 <= int(service["MemoryMax"].removesuffix("%")) <= 90
    assert service["SystemCallFilter"] == "@system-service"
    assert service["SystemCallErrorNumber"] == "EPERM"  # the call fails, and the realm goes on


def complaints(file: Path) -> list[str]:
    """Return the findings of systemd about a unit. Without systemd, only the test before this one
    checks the unit."""
    if shutil.which("systemd-analyze") is None:
        return []
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )
    return [line for line in verified.stderr.splitlines() if file.name in line]


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Its program and user need not be on this machine."""
    text = UNIT.read_text().replace("/opt/penstock/bin/penstock", sys.executable)
    copy = tmp_path / UNIT.name
    copy.write_text(re.sub(r"^(User|Group)=.*$", r"\1=daemon", text, flags=re.MULTILINE))

    assert complaints(copy) == []


def instructions() -> list[tuple[str, str]]:
    """Each instruction with all of its lines as one."""
    kept = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(kept).replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in joined.splitlines() if line.strip()]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def all_of(name: str) -> list[str]:
    return [text for instruction, text in instructions() if instruction == name]


def last_stage() -> list[tuple[str, str]]:
    steps = instructions()
    begins = max(index for index, (name, _) in enumerate(steps) if name == "FROM")
    return steps[begins:]


def test_the_image_is_of_a_fixed_version_and_built_in_two_stages() -> None:
    images = all_of("FROM")

    assert len(images) == 2
    assert len({image.partition(" ")[0] for image in images}) == 1
    assert all(
        re.match(r"python:3\.\d+\.\d+-[\w-]+@sha256:[0-9a-f]{64}", image) for image in images
    )


def test_the_image_does_not_run_as_root() -> None:
    stage = last_stage()
    (user,) = [text for name, text in stage if name == "USER"]
    order = [name for name, _ in stage]

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert order.index("USER") > max(index for index, name in enumerate(order) if name == "RUN")


def test_the_image_has_every_package_but_those_of_workers() -> None:
    """They are installed without dependencies, so a package that is missing here stays missing."""
    *_, own_install = installs()
    in_image = {argument for argument in own_install if argument.startswith("packages/")}
    in_repository = {f"packages/{path.parent.name}" for path in PACKAGES.glob("*/pyproject.toml")}

    assert in_image == in_repository - {
        "packages/airflow",
        "packages/celery",
        "packages/faststream",
        "packages/spark",
    }


def test_the_image_copies_only_what_is_in_the_repository() -> None:
    sources = [text.split()[:-1] for text in all_of("COPY") if not text.startswith("--from")]

    assert all((FOLDER.parent / name).exists() for names in sources for name in names)
    assert all_of("ADD") == []


def installs() -> list[list[str]]:
    """The arguments of each `pip install`, in their order."""
    steps = [step for text in all_of("RUN") for step in text.split(" && ")]
    return [shlex.split(step)[2:] for step in steps if "pip install" in step]


def test_pip_keeps_no_cache_and_takes_only_what_has_a_hash_in_a_lock() -> None:
    *locked, package = installs()

    assert all("--no-cache-dir" in arguments for arguments in installs())
    assert all("--require-hashes" in arguments for arguments in locked)
    files = [name for arguments in locked for name in arguments if name.endswith(".lock")]
    assert files == ["requirements-image.lock", "requirements-build.lock", "requirements-amqp.lock"]
    assert {"--no-deps", "--no-index", "--no-build-isolation", "packages/realm"} <= set(package)
    assert all("sudo" not in text and "chmod 777" not in text for text in all_of("RUN"))


def test_nothing_is_built_with_tools_that_have_no_hash() -> None:
    """With isolation pip would fetch what builds a source package by itself, unchecked."""
    _, engine, package = installs()

    assert "requirements-amqp.lock" in engine
    assert "--no-build-isolation" in engine
    assert "--no-build-isolation" in package


def test_the_image_has_amqp_and_no_compiler() -> None:
    (install,) = [text for text in all_of("RUN") if "pip install" in text]
    last = " ".join(text for _, text in last_stage())

    assert "requirements-amqp.lock" in install
    assert "pip uninstall --yes -r requirements-build.lock" in install
    assert any("apt-get install" in text and "gcc" in text for text in all_of("RUN"))
    assert "apt-get" not in last
    assert "gcc" not in last


def test_what_builds_the_package_is_of_one_version_and_the_one_in_the_lock() -> None:
    texts = [path.read_text() for path in FOLDER.parent.glob("packages/*/pyproject.toml")]
    lock = (FOLDER.parent / "requirements-build.lock").read_text()
    workspace = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())
    (backend,) = {
        require for text in texts for require in tomllib.loads(text)["build-system"]["requires"]
    }

    assert re.fullmatch(r"hatchling==[\d.]+", backend)
    assert f"{backend} " in lock
    assert backend in workspace["dependency-groups"]["build"]


@pytest.mark.slow
def test_the_image_asks_for_health_where_the_realm_answers() -> None:
    (check,) = all_of("HEALTHCHECK")
    ports = {int(port) for text in all_of("EXPOSE") for port in text.split()}
    program, *arguments = msgspec.json.decode(check.partition("CMD ")[2])
    settings = load(environment=image_environment())

    assert program == "penstock"
    assert parse(arguments) | {"timeout": None} == parse(["health"]) | {"timeout": None}
    assert ports == {settings.listen.port, settings.http.port}
    (limit,) = re.findall(r"--timeout=(\d+)s", check)
    assert parse(["health"])["timeout"] * len(ports) < int(limit)


def image_environment() -> dict[str, str]:
    """The environment of the image."""
    return dict(pair.split("=", 1) for text in all_of("ENV") for pair in shlex.split(text))


@pytest.mark.slow
def test_a_realm_with_the_settings_of_the_image_is_healthy_over_tls(tmp_path: Path) -> None:
    """As in a container: the same environment, but for the ports, for both commands."""
    environment = {
        name: text for name, text in image_environment().items() if name.startswith("PENSTOCK_")
    }
    free = {"PENSTOCK_LISTEN_PORT": "0", "PENSTOCK_HTTP_PORT": "0"}
    settings = load(environment=environment | free)
    overrides = {
        path.replace(".", "__"): value
        for path, value in (
            ("access.mode", settings.access.mode),
            ("access.password_rounds", 4_096),
            ("listen.tls_self_signed", settings.listen.tls_self_signed),
        )
    }
    with penstock.Realm(tmp_path / "data", **overrides) as realm:
        ports = {
            "PENSTOCK_LISTEN_PORT": realm.listen().rpartition(":")[2],
            "PENSTOCK_HTTP_PORT": realm.listen_http().rpartition(":")[2],
        }
        run = CliRunner().invoke(app, ["health"], env=environment | ports)

    assert run.exit_code == 0, run.output
    assert run.output.count("ok ") == 2


def test_the_image_starts_a_realm_that_may_listen_on_all_addresses() -> None:
    variables = {variable_of(path) for path, _, _ in described()}
    settings = load(environment=image_environment())
    (command,) = all_of("CMD")

    assert {name for name in image_environment() if name.startswith("PENSTOCK_")} <= variables
    assert settings.access.mode == "mandatory"
    assert settings.listen.host == "0.0.0.0"
    assert settings.listen.tls_self_signed  # and nobody's password is read on the way
    assert str(parse(msgspec.json.decode(command))["data"]) in all_of("VOLUME")[0]
    assert all_of("ENTRYPOINT") == ['["penstock"]']
