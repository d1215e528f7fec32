"""What tests of several areas share: options, marks and fixtures."""

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
"""Folders whose tests go through a whole realm's front door: fifty times the time of a story."""
CODECS = ("packages/amqp/tests/wire", "packages/mqtt/tests/wire")
"""Folders below them whose tests only read and write bytes."""

_STARTING = re.compile(r"\bmark\.process\b|\bspark\b|\bjava\b")

# How long an example takes says how busy the machine is, not whether the code is right.
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
        help="how often the owner hands over, with --through-a-cluster",
    )
    parser.addoption(
        "--moving-seed",
        type=int,
        default=0,
        metavar="SEED",
        help="draws when it does",
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
        help="look only at files whose tests may start processes; -m says at which of these tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A run that a shell started in the background ignores Ctrl-C, and so would every process that
    a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _check_entry_points(config)


def _check_entry_points(config: pytest.Config) -> None:
    """Fail if the installation of this tree is older than the entry points in its pyproject.toml:
    parts that the server finds by name would be missing."""
    for distribution, project in projects().items():
        for group, declared in project.get("entry-points", {}).items():
            installed = {name: part.place for name, part in registered(group).items()}
            if not group.startswith("penstock."):  # read by others, with the library of Python
                installed = {part.name: part.value for part in entry_points(group=group)}
            if group == "pytest11":  # pytest reads it, and may be told to leave a plugin out
                plugins = config.pluginmanager
                installed = {
                    name: place
                    for name, place in declared.items()
                    if plugins.has_plugin(name) or plugins.is_blocked(name)
                }
            if not declared.items() <= installed.items():
                raise pytest.UsageError(
                    f"{group} in the pyproject.toml of {distribution} is not what is installed: "
                    "run `make setup`"
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
    """A run without front doors need not import their tests; writing down what a machine may ask
    of HTTP alone takes seconds. ``--processes`` leaves out most files."""
    if config.getoption("processes") and collection_path.suffix == ".py":
        return None if _may_start_processes(collection_path) else True
    asked: str = config.getoption("markexpr")
    without_doors = " or " not in asked and "not door" in asked.split(" and ")
    return True if without_doors and _is_door(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What goes through a front door says so by where it lies. ``--rule`` chooses by tags."""
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
    """The rules of the semantics that a test is tagged with, by itself or by its module."""
    return {rule for mark in item.iter_markers("spec") for rule in mark.args}


@cache
def _may_start_processes(file: Path) -> bool:
    """Whether it has the mark ``process``, or has to do with Spark or Java."""
    return bool(_STARTING.search(f"{file}\n{file.read_text()}"))


def _is_door(path: Path) -> bool:
    """Whether its tests go through a whole realm's front door."""
    name = f"{path.relative_to(ROOT).as_posix()}/"
    below = [folder for folder in DOORS if name.startswith(f"{folder}/")]
    return bool(below) and not name.startswith(tuple(f"{folder}/" for folder in CODECS))


@pytest.fixture(scope="session", autouse=True)
def _through_a_node(request: pytest.FixtureRequest) -> Iterator[None]:
    """What ``--through-a-node`` asks for."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("through_a_node"):
            from tests.through_a_node import serve_all_through_a_node

            serve_all_through_a_node(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _through_a_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """What ``--through-a-cluster`` asks for."""
    with ExitStack() as stack:
        if request.config.getoption("through_a_cluster"):
            from tests.through_a_cluster import all_through_a_cluster

            every_s = request.config.getoption("moving_every")
            seed = request.config.getoption("moving_seed")
            stack.enter_context(all_through_a_cluster(every_s, seed))
        yield


@pytest.fixture(scope="session", autouse=True)
def _logs_on_standard_error() -> None:
    """As the first realm of a process sets them up. Without it structlog's own ``capture_logs``
    counts as a setting up, and all realms after it log on standard output, between the lines of
    the commands that tests read there."""
    configure_unless_done()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts ``penstock serve`` in a process of its own: ``serve("--log-level", "debug")``.

    All servers of a test share one data directory, so that a second one recovers the first's.
    """
    with ExitStack() as running:

        def start(*arguments: str) -> ServerProcess:
            return running.enter_context(ServerProcess(tmp_path / "realm", *arguments))

        yield start
