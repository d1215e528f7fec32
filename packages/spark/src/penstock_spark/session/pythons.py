"""The Python that Spark starts its processes with on this machine.

It is this one, by way of a script: the process of a streaming query is forked where that can be
(``handover.py``), workers are forked by ``worker_daemon.py``, and every other process is started as
ever.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from penstock_spark.session import handover
from penstock_spark.session.cache import cache_directory, fingerprint, write_once

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that Spark starts for the source of a streaming query."""
_DAEMON: Final = "pyspark.daemon"
"""The module that Spark starts to fork the workers of tasks."""
_QUIET_DAEMON: Final = "penstock_spark.session.worker_daemon"
INTERPRETER_MAX: Final = 100
"""Length of a path, in bytes, that the first line of a script may name on every Linux kernel; and
it has no spaces."""


def python_for_spark() -> str:
    """The program to be named as Spark's Python; on systems without Linux' means this Python
    itself."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return sys.executable
    if len(os.fsencode(sys.executable)) > INTERPRETER_MAX or len(sys.executable.split()) != 1:
        return sys.executable
    program = Path(handover.__file__)
    home = (
        cache_directory()
        / f"python-{fingerprint(sys.executable, sys.version, program, _QUIET_DAEMON)}"
    )
    folder = home / "forks"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # No shell: in a folder that is gone one complains.
    script = f"""#!{sys.executable} -IS
import os, sys
python, arguments = {sys.executable!r}, sys.argv[1:]
if arguments[1:2] == [{_DAEMON!r}]:
    arguments[1] = {_QUIET_DAEMON!r}
if arguments[1:2] != [{RUNNER!r}]:
    os.execv(python, [python, *arguments])
sys.path.append({str(program.parent)!r})
import {program.stem}
{program.stem}.main(python, {str(folder)!r}, arguments)
"""
    return str(write_once(home / "python", script, mode=0o700))
