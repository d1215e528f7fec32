"""A streaming query survives kills of its cluster's owners, and stores every event once."""

from __future__ import annotations

from pathlib import Path

import pytest

from packages.spark.tests.takeovers import MOMENTS, PER_BATCH, PER_FILE, run

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.spec("X3", "N3", "N4")
def test_the_owner_is_killed_in_every_micro_batch_and_every_row_comes_once(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    batches = request.config.getoption("takeovers")
    report = run(batches, tmp_path)

    assert (report.lost, report.doubled) == (0, 0), report
    assert (report.killed, report.replayed) == (batches, batches // len(MOMENTS)), report
    assert report.from_files >= batches * PER_BATCH // PER_FILE * PER_FILE, "tasks read the files"
