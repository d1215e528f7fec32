"""Starts ``penstock pipeline run`` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start_pipeline(
    url: str, file: Path, *arguments: str, with_group: bool = False
) -> subprocess.Popen[bytes]:
    """Start the pipeline in ``file``. With ``with_group`` it is started as the leader of a new
    process group, so that its JVM can be killed with it."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "pipeline", "run", str(file), *arguments],
        env={**os.environ, "PENSTOCK_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=with_group,
    )
