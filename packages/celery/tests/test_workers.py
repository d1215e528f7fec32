"""Workers of Celery in processes of their own, over a realm in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery, chord, group

import penstock
from penstock_testing.process import ServerProcess, search_path
from tests.patience import until

pytestmark = pytest.mark.process

SOON_S = 60.0
"""Seconds in which a task has to end on a busy machine."""
FOLDER = Path(__file__).parent


class Worker:
    """``celery worker`` in a process, with one child that runs tasks."""

    def __init__(self, url: str, folder: Path, name: str, *arguments: str) -> None:
        self.name = f"{name}@test"
        self._log = (folder / f"{name}.log").open("w+")
        command = [sys.executable, "-m", "celery", "-A", "worker_tasks", "worker"]
        options = ["--hostname", self.name, "--concurrency", "1", "--loglevel", "INFO"]
        path = os.pathsep.join((search_path(), str(FOLDER)))
        self.process = subprocess.Popen(
            [*command, *options, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "REALM": url, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
            start_new_session=True,
        )

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def kill(self) -> None:
        """Kill the worker and its child with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._log.close()


def app_at(url: str, **settings: Any) -> Celery:
    """Return an application with the tasks of the workers, for the process of the tests."""
    app = Celery("tests", broker=url, backend=url, set_as_current=False)
    app.conf.update(settings)
    return app


def send(app: Celery, task: str, *arguments: Any, **options: Any) -> Any:
    return app.send_task(f"worker_tasks.{task}", arguments, **options)


def signature(app: Celery, task: str, *arguments: Any) -> Any:
    return app.signature(f"worker_tasks.{task}", arguments)


@pytest.fixture(scope="module")
def worker(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    running = Worker(server.url, tmp_path_factory.mktemp("worker"), "shared", "-E")
    try:
        yield running
    finally:
        running.end()


@pytest.fixture(scope="module")
def app(server: ServerProcess, worker: Worker) -> Iterator[Celery]:
    opened = app_at(server.url)
    yield opened
    opened.close()


def test_a_task_runs_and_its_result_or_error_comes_back(app: Celery) -> None:
    result, failed = send(app, "add", 2, 3), send(app, "fail", "no")

    assert result.get(timeout=SOON_S) == 5
    with pytest.raises(ValueError, match="no"):
        failed.get(timeout=SOON_S)
    result.forget()
    assert result.backend.get(result.backend.get_key_for_task(result.id)) is None


def test_a_task_is_tried_again(app: Celery) -> None:
    assert send(app, "third_time").get(timeout=SOON_S) == 2


def test_the_realm_holds_a_task_until_its_countdown_is_over(
    app: Celery, server: ServerProcess
) -> None:
    later = send(app, "add", 1, 1, countdown=600)
    soon = send(app, "add", 2, 2, countdown=0.5)
    with penstock.connect(server.url) as session:
        queue = session.queues.get("celery")
        held = [event.event.properties["task_id"] for event in queue.scheduled.list()]
        numbers = {event.number for event in queue.scheduled.list()}

        assert later.id in held
        assert soon.get(timeout=SOON_S) == 4
        assert app.control.inspect().scheduled() == {"shared@test": []}
        assert any(queue.scheduled.cancel(number) for number in numbers)


def test_groups_and_chords_collect_results(app: Celery) -> None:
    parts = [signature(app, "add", number, number) for number in range(4)]

    assert group(parts, app=app).apply_async().get(timeout=SOON_S) == [0, 2, 4, 6]
    assert chord(parts, app=app)(signature(app, "total")).get(timeout=SOON_S) == 12


def test_workers_answer_remote_control_and_report_events(app: Celery, worker: Worker) -> None:
    seen: list[str] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(
            connection, handlers={"*": lambda event: seen.append(event["type"])}
        )
        with receiver.consumer_context(wakeup=False) as (receiving, *_):
            send(app, "add", 1, 2).get(timeout=SOON_S)
            while "task-succeeded" not in seen:
                receiving.drain_events(timeout=SOON_S)

        assert app.control.inspect().ping() == {worker.name: {"ok": "pong"}}
        assert "task-received" in seen


def test_a_task_of_a_killed_worker_runs_elsewhere(server: ServerProcess, tmp_path: Path) -> None:
    url = f"{server.url}/killed"
    with worker_at(url, tmp_path, "first") as first, app_of(url) as app:
        result = send(app, "hang_once", str(tmp_path))
        until((tmp_path / "started").exists)
        process_id = first.process.pid
        first.kill()
        with worker_at(url, tmp_path, "second") as second:
            outcome = result.get(timeout=SOON_S)

    assert outcome == {"redelivered": True, "pid": second.process.pid}
    assert outcome["pid"] != process_id


@contextmanager
def worker_at(url: str, folder: Path, name: str) -> Iterator[Worker]:
    running = Worker(url, folder, name)
    try:
        yield running
    finally:
        running.end()


@contextmanager
def app_of(url: str) -> Iterator[Celery]:
    app = app_at(url)
    try:
        yield app
    finally:
        app.close()


def test_a_killed_realm_loses_no_task_and_the_worker_connects_again(tmp_path: Path) -> None:
    count = 20
    realm, notes = tmp_path / "realm", tmp_path / "notes"
    notes.mkdir()
    with ServerProcess(realm) as server, app_of(server.url) as app:
        port = urlsplit(server.url).port
        with worker_at(server.url, tmp_path, "worker"):
            for number in range(count):
                send(app, "note", str(notes), number)
            send(app, "stop_realm", server.pid, priority=9)
            server.wait()
            with ServerProcess(realm, "--port", str(port)) as successor:
                until(lambda: _numbers(notes) == set(range(count)))

                assert successor.is_running


def _numbers(notes: Path) -> set[int]:
    return {int(path.name.partition("-")[0]) for path in notes.iterdir()}
