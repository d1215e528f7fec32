"""Runs the integration tests of kombu or Celery against a realm:
``suite.py SOURCES URL kombu`` or ``suite.py SOURCES URL celery PART``.

``SOURCES`` is the folder of the unpacked source distributions.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HELD_BY_THE_REALM = "test_inspect.py::test_Inspect::test_scheduled"
"""A worker cannot list a task with an ETA that the realm holds, so this test runs with the
transport option ``broker_eta: false``."""
WORKER_OPTIONS = '{"broker_transport_options": {"broker_eta": false}}'
RACES = "test_tasks.py::test_task_replacement::test_replaced_task_nesting_level_0"
"""This test sends a task and clears its result afterwards, so it fails if the worker is faster."""
SLOW = (
    "test_tasks.py::test_tasks::test_expired",
    "test_tasks.py::test_tasks::test_eta",
    "test_tasks.py::test_tasks::test_retry",
    "test_tasks.py::test_tasks::test_revoke",
    "test_tasks.py::test_tasks::test_timeout",
    "test_inspect.py::test_Inspect::test_revoked",
)
"""Prefixes of tests that wait for 6 s to 45 s each."""
TASKS = ("test_tasks.py", "test_group_chains.py", "test_inspect.py")
"""The files that use the transport. Of the others, ``test_canvas.py`` takes half an hour and needs
Redis for a third of its tests; the rest test result backends of other brokers, or modules that are
independent of the transport."""
PARTS = {
    "fast tasks": (TASKS, (*SLOW, HELD_BY_THE_REALM, RACES)),
    "tasks": (TASKS, (HELD_BY_THE_REALM, RACES)),
    "held by the worker": ((HELD_BY_THE_REALM,), ()),
}
"""Selected and deselected tests of each part of Celery's suite."""
_CELERY = "t/integration/"


class Report:
    """Counts the tests and keeps the errors of those that failed."""

    def __init__(self) -> None:
        self.ran = self.skipped = 0
        self.failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a phase of a test."""
        if report.failed:
            line = str(report.longrepr).strip().splitlines()[-1]
            self.failed.setdefault(report.nodeid.replace(" ", "_"), line)
        if report.when == "setup" and report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.ran += not report.skipped
            self.skipped += report.skipped
        elif report.when == "setup" and report.failed:
            self.ran += 1


def selected(project: str, part: str) -> list[str]:
    """Return the arguments that select the tests of a part."""
    if project == "kombu":
        return [str(HERE / "kombu_cases.py")]
    tests, deselected = PARTS[part]
    options = [f"--deselect={_CELERY}{test}" for test in deselected]
    return ["-p", "celery.contrib.pytest", *options, *[_CELERY + test for test in tests]]


def run(sources: Path, url: str, project: str, part: str) -> Report:
    """Run tests of a project in the folder of its sources."""
    folder = sources / project
    os.chdir(folder)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ |= {"REALM": url, "TEST_BROKER": url, "TEST_BACKEND": url}
    os.environ["WORKER_LOGLEVEL"] = "INFO"  # tests search the worker's log
    config = Path("integration-tests-config.json")  # read by Celery's conftest.py
    config.unlink(missing_ok=True)
    if part == "held by the worker":
        config.write_text(WORKER_OPTIONS)
    sys.path.insert(0, str(folder))
    report = Report()
    options = ["-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", "-q"]
    options += ["-o", "python_classes=test_*", "-W", "ignore", "--log-level=INFO"]
    options += ["-p", "penstock_celery"]  # registers the transport
    pytest.main([*options, *selected(project, part)], plugins=[report])
    return report


def main() -> None:
    """Run the tests that the command line names, and print the outcome."""
    sources, url, project, part = [*sys.argv[1:], ""][:4]
    report = run(Path(sources), url, project, part)
    for test, reason in report.failed.items():
        sys.stdout.write(f"FAILED {test}: {reason}"[:600] + "\n")
    sys.stdout.write(f"RAN {report.ran} FAILED {len(report.failed)} IGNORED {report.skipped}\n")


if __name__ == "__main__":
    main()
