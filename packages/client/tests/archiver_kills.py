"""Runs an archiver again and again, each time in a forked process that is killed at another step.

``python -m packages.client.tests.archiver_kills URL CHANNEL TABLE FORMAT KILLS SEED BY``
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from threading import Event
from types import FrameType

import penstock
from penstock.client.archiving import archiver as archiving
from penstock.client.archiving import shared_files
from penstock.client.archiving.archiver import Archiver, ArchiveSettings
from penstock.client.archiving.lake import Lake
from penstock.client.archiving.shared_files import By
from penstock.tables import Format, Table
from penstock_core.vocabulary.choice import choice_of

STEPS = (
    "/penstock/tables/",
    "/penstock/client/archiving/",
    "/pyiceberg/table/",
    "/pyiceberg/catalog/",
)
"""Folders whose function calls are the steps."""


def copied(url: str, channel: str, lake: Lake, by: By) -> None:
    """Copy the stored events of a channel, in small commits."""
    archiving.COMMIT_ROWS_MAX = 1  # type: ignore[misc]  # each batch is a commit
    archiving.ROWS_ENOUGH = 1  # type: ignore[misc]
    shared_files.ROWS_MIN = 1  # type: ignore[misc]
    with penstock.connect(url) as session:
        Archiver(
            session,
            choice_of(channel),
            lake,
            settings=ArchiveSettings(durable="lake", compact_every=2, keep_hours=0, by=by),
            on_commit=lambda copied: None,
            on_retry=lambda channel, error: None,
        ).run(Event(), once=True)


def kill_at(step: int) -> None:
    """Kill this process at its ``step``-th step."""
    steps_left = step

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps_left
        if event == "call" and any(part in frame.f_code.co_filename for part in STEPS):
            steps_left -= 1
            if not steps_left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def killed_runs(work: Callable[[], object], runs: int, seed: int) -> int:
    """Do ``work`` in ``runs`` forked processes, one after the other, each of which is killed at a
    random step unless it ends before. Return how many were killed."""
    chance = random.Random(seed)
    killed = 0
    for _ in range(runs):
        step = int(chance.expovariate(1 / 400)) + 1
        if not (child := os.fork()):
            kill_at(step)
            work()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        else:
            assert os.waitstatus_to_exitcode(status) == 0, "the work has failed"
    return killed


def main() -> int:
    url, channel, table, format, kills, seed, by = sys.argv[1:]
    table_format: Format = "iceberg" if format == "iceberg" else "delta"
    way: By = "auto" if by == "auto" else "value"
    lake = Lake(table, table_format)
    import_module("pyiceberg.catalog.sql")  # forked processes need it
    Table.open(table, table_format)
    killed = killed_runs(lambda: copied(url, channel, lake, way), int(kills), int(seed))
    sys.stdout.write(f"{killed}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
