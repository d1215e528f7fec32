"""Parts that packages register as entry points, and servers without some of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
from msgspec import Meta
from typer.testing import CliRunner

import penstock
from penstock_core.api.topics import DescribeMqtt
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_server.cli.program import app, places
from penstock_server.frontends.front_end import GROUP, front_end_named, front_ends
from penstock_server.parts import loaded, registered
from penstock_server.runtime.operations.handlers import registered_handler
from penstock_server.serving import SERVERS
from penstock_server.serving.lifecycle import wanted_front_ends
from penstock_server.settings import Section
from penstock_server.settings.loading import described, load
from scripts.packages import projects, requirements_of
from tests.operate.workspace import Workspace

SERVER = "penstock_server-0.1.0"
NATIVE = "native = penstock_server.frontends.native_front_end:FRONT_END"
AMQP = "amqp = penstock_amqp.front_end:FRONT_END"

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes distributions that come before those that are installed, and in place of them if they
    have the same name. The server's is in place of all packages of this project."""
    monkeypatch.setattr(sys, "path", [f"{tmp_path}", *sys.path])

    def made(*entry_points: str, distribution: str = SERVER, group: str = GROUP) -> None:
        if distribution == SERVER:
            for name in projects():
                hidden = tmp_path / f"{name.replace('-', '_')}-0.1.0.dist-info"
                hidden.mkdir()
                (hidden / "entry_points.txt").touch()
        folder = tmp_path / f"{distribution}.dist-info"
        folder.mkdir(exist_ok=True)
        lines = (
            "[console_scripts]",
            "penstock = penstock_server.cli:main",
            f"[{group}]",
            *entry_points,
        )
        (folder / "entry_points.txt").write_text("\n".join(lines))

    return made


def test_each_front_end_of_this_package_is_registered_by_its_name() -> None:
    assert {name: front_end.name for name, front_end in front_ends().items()} == {
        name: name for name in ("native", "amqp", "mqtt", "http")
    }


def test_the_native_protocol_is_opened_first_and_http_last() -> None:
    names = list(front_ends())

    assert (names[0], names[-1]) == ("native", "http")


def test_a_server_without_a_part_serves_the_rest(install: Install) -> None:
    install(NATIVE)
    with penstock.Realm() as realm:
        with realm.connect() as session:
            session.channels.create("orders").publish(b"1")
        with pytest.raises(InvalidArgument, match=r"no installed package serves amqp.*\[amqp\]"):
            realm.listen_amqp()


def test_a_port_of_a_front_end_that_is_not_installed_is_refused(install: Install) -> None:
    install(NATIVE, AMQP)
    settings = load(overrides={"listen.mqtt_port": 0, "listen.amqp_port": 0})

    with pytest.raises(InvalidArgument, match=r"listen.mqtt_port is 0.*pip install penstock-mqtt"):
        wanted_front_ends(settings)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("penstock.no_module:FRONT_END", "ModuleNotFoundError: No module named 'penstock.no_m"),
        (
            "penstock_core.version:FRONT_END",
            "AttributeError: module 'penstock_core.version' has no attr",
        ),
    ],
)
def test_a_part_that_cannot_be_loaded_is_named_with_its_distribution(
    install: Install, place: str, reason: str
) -> None:
    install(f"lines = {place}", distribution="penstock_lines-2.0")

    with pytest.raises(InvalidArgument) as refused:
        front_end_named("lines")
    assert f"'lines' of {GROUP} cannot be loaded from {place} ({reason}" in str(refused.value)
    assert "penstock_lines-2.0 registers it: reinstall or uninstall" in str(refused.value)


def test_a_name_that_two_distributions_register_is_refused(install: Install) -> None:
    install(NATIVE)
    install("native = lines:FRONT_END", distribution="penstock_lines-2.0")

    with pytest.raises(InvalidArgument, match=r"by penstock_.* and by penstock_.*; uninstall one"):
        registered(GROUP)


def test_of_two_installations_of_one_distribution_the_first_counts(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(NATIVE)
    later = tmp_path / "later" / "penstock_server-0.0.9.dist-info"
    later.mkdir(parents=True)
    (later / "entry_points.txt").write_text(f"[{GROUP}]\nold = penstock.old:FRONT_END\n")
    monkeypatch.setattr(sys, "path", [f"{tmp_path}", f"{later.parent}", "/nowhere.zip"])

    assert list(registered(GROUP)) == ["native"]


def test_a_request_whose_handler_is_not_installed_is_refused(install: Install) -> None:
    install(NATIVE)

    with pytest.raises(IllegalState, match="DescribeMqtt is not served here: the package"):
        registered_handler(DescribeMqtt)


def test_a_cluster_that_is_not_installed_is_refused(install: Install) -> None:
    install(NATIVE)

    with pytest.raises(InvalidArgument, match=r"asks for a cluster, but no .*realm\[cluster\]"):
        loaded(SERVERS, "cluster", use="cluster.engine asks for a cluster")


def test_commands_that_are_not_installed_are_not_listed(install: Install) -> None:
    install(NATIVE)

    assert {"serve", "publish"} <= set(places())
    assert not {"topic", "cluster", "pipeline", "top"} & set(places())


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("cluster", "pip install 'penstock-realm[cluster]'"),
        ("pipeline", "pip install 'penstock-realm[spark]'"),
        ("topic", "pip install penstock-mqtt"),
        ("top", "pip install penstock-tools"),
    ],
)
def test_a_command_that_is_not_installed_names_the_line_that_installs_it(
    install: Install, command: str, line: str
) -> None:
    install(NATIVE)

    ended = CliRunner().invoke(app, [command, "--help"])

    assert ended.exit_code == 2
    assert f"the package with '{command}' is not installed: {line}" in ended.output


class LineSettings(Section, frozen=True, kw_only=True):
    """Settings of a part that only these tests have."""

    port: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Port of lines.")] = None


LINES = f"lines = {__name__}:LineSettings"


def test_a_part_has_settings_of_its_own(install: Install) -> None:
    install(LINES, distribution="penstock_lines-2.0", group="penstock.settings")

    from_file = load("[lines]\nport = 7000\n")
    from_environment = load(environment={"PENSTOCK_LINES_PORT": "7001"})

    assert getattr(from_file, "lines").port == 7_000  # noqa: B009  the type has no such field
    assert getattr(from_environment, "lines").port == 7_001  # noqa: B009
    assert ("lines.port", None, "Port of lines.") in described()
    with pytest.raises(InvalidArgument, match=r"lines\.port"):
        load(overrides={"lines.port": -1})


def test_without_the_part_its_settings_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"lines"):
        load("[lines]\nport = 7000\n")


def test_a_section_that_the_settings_have_is_refused(install: Install) -> None:
    install(f"listen = {__name__}:LineSettings", distribution="b-1", group="penstock.settings")

    with pytest.raises(InvalidArgument, match="b-1 registers the settings section 'listen'"):
        load()


@pytest.mark.process
@pytest.mark.parametrize("package", ["amqp", "mqtt", "cluster", "spark", "testing", "tools"])
def test_a_package_is_removed_with_its_folder_and_its_line(package: str, tmp_path: Path) -> None:
    without = Workspace(tmp_path, package)

    done = without.run("-m", "tests.operate.without_a_package")

    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_the_tests_of_the_server_pass_without_the_packages(tmp_path: Path) -> None:
    """Its fast tests: those that start processes or open doors take minutes.

    One run without all of them does for each: a package that stays requires all that it imports
    (``tests/tidy/test_packages.py``), so it goes with what it requires.
    """
    fast = "not slow and not spark and not process and not door"
    options = ["-p", "no:cacheprovider", "--hypothesis-profile=quick", "-m", fast]
    without = Workspace(tmp_path, "amqp", "mqtt", "cluster", "spark", "tools")

    done = without.run("-m", "pytest", "-q", *options, "packages/server/tests")

    assert done.returncode == 0, f"{done.stdout[-4_000:]}{done.stderr[-1_000:]}"
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 1_000


CLIENT = """
import sys
from pathlib import Path

import penstock

with penstock.connect(sys.argv[1]) as session:
    session.channels.get("orders").publish(b"1", properties={"price": 9.5})
    assert session.channels.get("orders").read().num_rows == 1
for name in ("Realm", "aio.Realm"):
    try:
        value = penstock
        for part in name.split("."):
            value = getattr(value, part)
    except ModuleNotFoundError as error:
        print(error)
for name in ("penstock.testing", "penstock.topology"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        print(error)
places = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
site = Path(sys.argv[2])
print(*{Path(place).relative_to(site).parts[0] for place in places if place.startswith(f"{site}/")})
"""


@pytest.mark.process
def test_the_client_alone_talks_to_a_realm_elsewhere(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, "server")
    with penstock.Realm() as realm, realm.connect() as session:
        session.channels.create("orders")
        done = workspace.run("-c", CLIENT, realm.listen(), f"{workspace.site}")

    assert done.returncode == 0, done.stderr
    *refused, used = done.stdout.splitlines()
    assert refused == [
        "penstock-server is not installed: pip install penstock-realm",
        "penstock-server is not installed: pip install penstock-realm",
        "penstock-testing is not installed: pip install penstock-testing",
        "penstock-tools is not installed: pip install penstock-tools",
    ]
    required = {requirement.name for requirement in requirements_of("penstock-client")}
    required.add("typing_extensions")  # msgspec takes it if it is there
    assert set(used.replace(".py", "").split()) <= required
    assert refused[0] in workspace.run("-m", "penstock", "--version").stderr
