"""Reduces garbage collection in Spark's Python processes.

These collect after each task and each request of the driver, and each collection examines all
imported modules: ten milliseconds of processor time, against a few for a small micro-batch.
"""

from __future__ import annotations

import gc
import os
import sys

_WORKER_ONLY = "SPARK_BUFFER_SIZE"
"""Spark sets it for the Python processes it starts."""

_module_counts: dict[str, int] = {}
"""Number of modules that were loaded when the process last settled."""


def settle_down() -> None:
    """Exclude imported modules from later collections, since they are never garbage.

    Does nothing outside of Spark's processes. The first tasks import more modules, so call it in
    each task.
    """
    if _WORKER_ONLY in os.environ and _module_counts.get("modules") != (
        modules := len(sys.modules)
    ):
        gc.freeze()
        _module_counts["modules"] = modules
