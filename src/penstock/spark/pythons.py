"""The Python that Spark starts its processes with on this machine.

It is this one, by way of a script: the process of a streaming query is forked where that can be
(``handover.py``), and every other one is started as ever.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

from penstock.spark import handover
from penstock.spark.cache import cache_directory, fingerprint, write_once

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that Spark starts for the source of a streaming query."""


def python_for_spark() -> str:
    """The program to be named as Spark's Python; on systems without Linux' means this Python
    itself."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return sys.executable
    program = Path(handover.__file__)
    home = cache_directory() / f"python-{fingerprint(sys.executable, sys.version, program)}"
    folder = home / "forks"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    python = shlex.quote(sys.executable)
    hand_over = shlex.join([sys.executable, "-IS", str(program), sys.executable, str(folder)])
    script = f"""#!/bin/sh
if [ "$2" = {RUNNER} ]; then
  exec {hand_over} "$@"
fi
exec {python} "$@"
"""
    return str(write_once(home / "python", script, mode=0o700))
