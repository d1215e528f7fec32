"""The pytest plugin of this repository: options, marks and fixtures for all tests."""

from __future__ import annotations

import gc
import re
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import penstock
from penstock_core.garbage import uncollected
from penstock_server.logs import configure_unless_done
from penstock_server.parts import registered
from penstock_testing.process import ServerProcess
from scripts.packages import ROOT, projects
from tests.thorough import QUICK

Serve = Callable[..., ServerProcess]

DOORS = (
    "packages/amqp/tests",
    "packages/cluster/tests/cli",
    "packages/mqtt/tests",
    "packages/server/tests/cli",
    "packages/server/tests/frontends",
    "packages/spark/tests/cli",
    "packages/tools/tests/cli",
    "tests/access",
)
"""Folders whose tests use a whole realm through a port or a command, which takes fifty times as
long as a simulated test. They get the mark ``door``."""
CODECS = ("packages/amqp/tests/wire", "packages/mqtt/tests/wire")
"""Folders in ``DOORS`` whose tests only encode and decode bytes; they do not get the mark."""

_STARTING = re.compile(r"\bmark\.process\b|\bspark\b|\bjava\b")

# Without a deadline, because the time of an example depends on how busy the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(QUICK, settings.get_profile("any machine"), max_examples=25)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rule",
        action="append",
        default=[],
        help="only tests of this rule, such as D7; repeatable",
    )
    parser.addoption(
        "--through-a-node",
        action="store_true",
        help="reach every realm that listens through another node, which relays",
    )
    parser.addoption(
        "--whole-celery",
        action="store_true",
        help="run all integration tests of Celery that apply to a transport, also those that take "
        "long",
    )
    parser.addoption(
        "--through-a-cluster",
        action="store_true",
        help="make every realm a cluster, reached through a node that does not serve",
    )
    parser.addoption(
        "--moving-every",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how often the owner hands the realm over, with --through-a-cluster",
    )
    parser.addoption(
        "--moving-seed",
        type=int,
        default=0,
        metavar="SEED",
        help="seed of the times of these handovers",
    )
    parser.addoption(
        "--takeovers",
        type=int,
        default=4,
        metavar="COUNT",
        help="micro-batches of packages/spark/tests/test_takeovers.py, in each of which an "
        "owner is killed",
    )
    parser.addoption(
        "--processes",
        action="store_true",
        help="collect only files whose tests may start processes; select tests with -m",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Handle Ctrl-C again if the shell started this run in the background, where it is ignored.
    Processes that a test starts and interrupts would otherwise also ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _check_entry_points(config)


def _check_entry_points(config: pytest.Config) -> None:
    """Fail if this tree was installed before the present entry points were added to its
    pyproject.toml files, because the server would not find the parts that they name."""
    for distribution, project in projects().items():
        for group, declared in project.get("entry-points", {}).items():
            installed = {name: part.place for name, part in registered(group).items()}
            if not group.startswith(
                "penstock."
            ):  # other programs read these with importlib.metadata
                installed = {part.name: part.value for part in entry_points(group=group)}
            if group == "pytest11":  # the user may have told pytest not to load a plugin
                plugins = config.pluginmanager
                installed = {
                    name: place
                    for name, place in declared.items()
                    if plugins.has_plugin(name) or plugins.is_blocked(name)
                }
            if not declared.items() <= installed.items():
                raise pytest.UsageError(
                    f"{group} in the pyproject.toml of {distribution} differs from the installed "
                    "one: run `make setup`"
                )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the million objects that collecting all tests creates out of garbage collections, which
    would visit all of them again and again. Tests that need an unfrozen heap use
    ``tests.frozen_heap``."""
    with uncollected():
        result = yield
    gc.collect()
    gc.freeze()
    return result


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files without a selected test, because importing some takes seconds: those in
    ``DOORS`` with ``-m "not door"``, and with ``--processes`` those that start no processes."""
    if config.getoption("processes") and collection_path.suffix == ".py":
        return None if _may_start_processes(collection_path) else True
    expression: str = config.getoption("markexpr")
    without_doors = " or " not in expression and "not door" in expression.split(" and ")
    return True if without_doors and _is_door(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the mark ``door`` by folder, skip tests that cannot run through a cluster, and select the
    tests of the rules in ``--rule``."""
    for item in items:
        if _is_door(item.path):
            item.add_marker(pytest.mark.door)
        starts = any(item.get_closest_marker(mark) for mark in ("process", "spark"))
        if starts and not _may_start_processes(item.path):
            raise pytest.UsageError(f"{item.nodeid}: --processes does not find {item.path}")
    if config.getoption("through_a_cluster"):
        from tests.through_a_cluster import why_not

        for item in items:
            if reason := why_not(item):
                item.add_marker(pytest.mark.skip(reason=reason))
    if rules := set(config.getoption("rule")):
        config.hook.pytest_deselected(items=[item for item in items if not rules & _rules_of(item)])
        items[:] = [item for item in items if rules & _rules_of(item)]


def _rules_of(item: pytest.Item) -> set[str]:
    """Return the rules of the semantics in the marks ``spec`` of a test and of its module."""
    return {rule for mark in item.iter_markers("spec") for rule in mark.args}


@cache
def _may_start_processes(file: Path) -> bool:
    """Whether a file contains the mark ``process``, or mentions Spark or Java."""
    return bool(_STARTING.search(f"{file}\n{file.read_text()}"))


def _is_door(path: Path) -> bool:
    """Whether tests of this file or folder get the mark ``door``."""
    name = f"{path.relative_to(ROOT).as_posix()}/"
    below = [folder for folder in DOORS if name.startswith(f"{folder}/")]
    return bool(below) and not name.startswith(tuple(f"{folder}/" for folder in CODECS))


@pytest.fixture(scope="session", autouse=True)
def _through_a_node(request: pytest.FixtureRequest) -> Iterator[None]:
    """Apply the option ``--through-a-node``."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("through_a_node"):
            from tests.through_a_node import serve_all_through_a_node

            serve_all_through_a_node(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _through_a_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """Apply the option ``--through-a-cluster``."""
    with ExitStack() as stack:
        if request.config.getoption("through_a_cluster"):
            from tests.through_a_cluster import all_through_a_cluster

            every_s = request.config.getoption("moving_every")
            seed = request.config.getoption("moving_seed")
            stack.enter_context(all_through_a_cluster(every_s, seed))
        yield


@pytest.fixture(scope="session", autouse=True)
def _logs_on_standard_error() -> None:
    """Configure logs as the first realm of a process does. Otherwise structlog's ``capture_logs``
    would count as a configuration, and all realms after it would log on standard output, between
    the lines of the commands that tests read there."""
    configure_unless_done()


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    """A realm in this process and in memory, with the default settings."""
    with penstock.Realm() as running:
        yield running


@pytest.fixture
def session(realm: penstock.Realm) -> Iterator[penstock.Session]:
    """A session with the realm."""
    with realm.connect() as opened:
        yield opened


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A function that starts ``penstock serve`` in a process: ``serve("--log-level", "debug")``.

    All servers of a test use the same data directory, so the second recovers the data of the first.
    """
    with ExitStack() as running:

        def start(*arguments: str) -> ServerProcess:
            return running.enter_context(ServerProcess(tmp_path / "realm", *arguments))

        yield start
