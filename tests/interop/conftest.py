"""A realm process with AMQP, for clients of other projects."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import pytest
from _pytest.runner import runtestprotocol

from penstock_testing.process import ServerProcess
from tests.interop.excused import excuse_of
from tests.interop.moving import RUNS_MAX, MovingCluster, moving_cluster
from tests.interop.programs import WITHOUT_PROTON, InteropRealm, Outcome, Tell, Whole

TOLD = "what a suite has said"
FAILOVER = (
    "failover.startupMaxReconnectAttempts=12&failover.reconnectDelay=50"
    "&failover.maxReconnectDelay=1000"
)
MOVED: pytest.StashKey[MovingCluster] = pytest.StashKey()
"""The cluster that the tests of this run use now."""


@pytest.fixture(scope="module")
def realm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InteropRealm]:
    """A realm with AMQP and HTTP for all tests of a module. With ``--through-a-cluster`` it is a
    node that does not serve, of a cluster whose owner moves."""
    if importlib.util.find_spec("proton") is None:
        pytest.skip(WITHOUT_PROTON)
    directory = tmp_path_factory.mktemp("realm")
    if request.config.getoption("through_a_cluster"):
        with moving_cluster(directory, request.config.getoption("moving_every")) as cluster:
            request.config.stash[MOVED] = cluster
            yield cluster
            del request.config.stash[MOVED]
            cluster.check()
        return
    options = ("--amqp-port", "0", "--http", "--http-port", "0")
    with ServerProcess(directory, *options) as server:
        yield server


@pytest.fixture(scope="module")
def amqp(realm: InteropRealm) -> str:
    """The URL of the realm for AMQP."""
    if isinstance(realm, MovingCluster):
        return realm.amqp
    assert isinstance(realm, ServerProcess), "one or the other"
    return str(realm.logged("amqp.listening")[0]["url"])


@pytest.fixture(scope="module")
def jms(realm: InteropRealm, amqp: str) -> str:
    """The URL for Qpid JMS. For a cluster it makes the client reconnect, as users configure it, but
    not forever if its first connection is refused."""
    return f"failover:({amqp})?{FAILOVER}" if isinstance(realm, MovingCluster) else amqp


@pytest.fixture
def failover(request: pytest.FixtureRequest) -> str:
    """The part of the URL that makes Qpid JMS reconnect; empty if the realm is one process."""
    return FAILOVER if request.config.getoption("through_a_cluster") else ""


@pytest.fixture
def run_suite(realm: InteropRealm) -> Whole:
    """Runs a suite; through a cluster, runs tests again that failed because of a handover."""
    if isinstance(realm, MovingCluster):
        return realm.run
    return lambda run, names: run(names)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run one of our tests again that failed while the owner of a cluster moved, for a reason in
    ``excused``."""
    others = [
        sibling
        for sibling in item.session.items
        if sibling.parent is item.parent and sibling != item
    ]
    if not others or not item.config.getoption("through_a_cluster"):
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports: list[pytest.TestReport] = []
    test = f"{item.path.stem.removeprefix('test_')}.{item.name}"
    for run in range(RUNS_MAX):
        cluster = item.config.stash.get(MOVED, None)
        before = 0 if cluster is None else cluster.moves
        reports = runtestprotocol(item, nextitem=others[0], log=False)  # keeps module fixtures
        cluster = item.config.stash.get(MOVED, None)
        is_met = cluster is not None and cluster.begun > before
        failed = [report.longreprtext for report in reports if report.failed]
        may_fail = all(excuse_of(test, message) for message in failed)
        if not (is_met and failed and may_fail) or run == RUNS_MAX - 1:
            break
        item.add_report_section("call", "run again", failed[0])
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.session._setupstate.teardown_exact(nextitem)
    return True


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Adds the outcome of a suite to the end of the report, even if all tests passed."""

    def tell(suite: str, outcome: Outcome) -> None:
        moved = f", {outcome.rounds} times; the owner moved {outcome.moves} times meanwhile, and "
        moved += f"{len(outcome.again)} tests that this met were run again"
        moved += "".join(f"\n  {test}: {why}" for test, why in outcome.again)
        record_property(TOLD, f"{suite}: {outcome}{moved if outcome.moves else ''}")

    return tell


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)
    ]
    for report in reports:
        for name, line in report.user_properties:
            if name == TOLD and report.when == "call":
                terminalreporter.write_line(str(line))
