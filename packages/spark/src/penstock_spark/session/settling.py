"""Reduces garbage collection in Spark's Python processes.

These processes collect garbage after each task and each request of the driver. A collection
examines all imported modules, which takes ten milliseconds of processor time; a small micro-batch
itself takes only a few.
"""

from __future__ import annotations

import gc
import os
import sys

_WORKER_ONLY = "SPARK_BUFFER_SIZE"
"""Environment variable that Spark sets only for the Python processes that it starts."""

_module_counts: dict[str, int] = {}
"""Number of modules that were loaded when the process last settled."""


def settle_down() -> None:
    """Exclude imported modules from later garbage collections, because they are never garbage.

    Each task calls this, because the first tasks import more modules. The function does nothing
    outside of Spark's processes.
    """
    if _WORKER_ONLY in os.environ and _module_counts.get("modules") != (
        modules := len(sys.modules)
    ):
        gc.freeze()
        _module_counts["modules"] = modules
