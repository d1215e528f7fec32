"""Reduces garbage collection in Spark's Python processes.

These collect after each task and each request of the driver, and examine everything they have
imported each time: ten milliseconds of processor time, compared with a few for a small micro-batch.
"""

from __future__ import annotations

import gc
import os
import sys

_WORKER_ONLY = "SPARK_BUFFER_SIZE"
"""Spark sets it for the Python processes it starts."""

_settled: dict[str, int] = {}
"""Number of modules that were loaded when the process last settled."""


def settle_down() -> None:
    """Exclude what has been imported from later collections, since none of it is garbage.

    Does nothing outside of Spark's processes. They go on importing for some tasks, so call it in
    each task.
    """
    if _WORKER_ONLY in os.environ and _settled.get("modules") != (modules := len(sys.modules)):
        gc.freeze()
        _settled["modules"] = modules
