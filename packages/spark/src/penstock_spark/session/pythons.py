"""Makes the program that Spark starts as Python on this machine.

The program is a script. It runs ``handover.py`` for the process of a streaming query, and
``worker_daemon.py`` for the daemon that forks workers; it starts all other processes with the
Python of this process.
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
"""Longest path, in bytes, that the first line of a script may have on every Linux kernel. The path
must not contain spaces."""


def python_for_spark() -> str:
    """Return the path of the program to set as Spark's Python. On systems other than Linux, or if
    its path cannot be in a script, it is the Python of this process."""
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
    # The program is a Python script, because a shell prints a warning in a deleted folder.
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
