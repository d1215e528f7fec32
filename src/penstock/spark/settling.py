"""Python processes of Spark's, and the garbage they collect.

They collect after each task and each question of the driver, and look at everything they have
imported each time: ten milliseconds of a processor, of which a small micro-batch has use for a few.
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
    """Take what has been imported out of later collections: none of it is garbage. Does nothing
    outside of Spark's processes.

    They import for some tasks on, so whoever works in one calls this again and again.
    """
    if _WORKER_ONLY in os.environ and _settled.get("modules") != (modules := len(sys.modules)):
        gc.freeze()
        _settled["modules"] = modules
