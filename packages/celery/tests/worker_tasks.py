"""The tasks that the workers of the tests run. The environment variable ``REALM`` has the URL of
the realm."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from celery import Celery

import penstock_celery

app = Celery("tests", broker=os.environ.get("REALM", ""), backend=os.environ.get("REALM", ""))
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_send_sent_event=True,
    worker_prefetch_multiplier=1,
)
assert penstock_celery.SCHEMES, "the import has not registered the transport"


@app.task
def add(first: int, second: int) -> int:
    return first + second


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def fail(text: str) -> None:
    raise ValueError(text)


@app.task(bind=True, max_retries=3)
def third_time(self: Any) -> int:
    """Fail twice, and return the number of retries."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task(bind=True, acks_late=True)
def hang_once(self: Any, folder: str) -> dict[str, Any]:
    """Wait forever in the first run, so that the worker is killed in it. In the second run, return
    whether the message was redelivered, and the process id of the worker."""
    started = Path(folder, "started")
    if not started.exists():
        started.write_text(str(os.getppid()))
        threading.Event().wait()
    return {"redelivered": self.request.delivery_info["redelivered"], "pid": os.getppid()}


@app.task(acks_late=True)
def note(folder: str, number: int) -> int:
    """Create a file for each run of this task."""
    Path(folder, f"{number}-{os.urandom(4).hex()}").touch()
    return number


@app.task(acks_late=True)
def stop_realm(process_id: int) -> None:
    """Kill the realm while this task is not acknowledged."""
    os.kill(process_id, signal.SIGKILL)
