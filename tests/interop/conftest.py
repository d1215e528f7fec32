"""A realm as a process that speaks AMQP, for clients that are not of this project."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import pytest

from penstock.testing.process import ServerProcess
from tests.interop.programs import WITHOUT_PROTON, Outcome, Tell

TOLD = "what a suite has said"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A realm that listens for AMQP and HTTP, the same for all tests of a module."""
    if importlib.util.find_spec("proton") is None:
        pytest.skip(WITHOUT_PROTON)
    directory = tmp_path_factory.mktemp("realm")
    options = ("--amqp-port", "0", "--http", "--http-port", "0")
    with ServerProcess(directory, *options) as server:
        yield server


@pytest.fixture(scope="module")
def amqp(realm: ServerProcess) -> str:
    """Where it listens for AMQP."""
    return str(realm.logged("amqp.listening")[0]["url"])


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Has the report of the run end with what a suite has said, also when all is well."""

    def tell(suite: str, found: Outcome) -> None:
        record_property(TOLD, f"{suite}: {found}")

    return tell


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    for report in reports:
        for name, line in report.user_properties:
            if name == TOLD and report.when == "call":
                terminalreporter.write_line(str(line))
