"""The Python program with which Spark starts its processes on this machine.

A script starts this Python: if possible, it forks the process of a streaming query
(``handover.py``); ``worker_daemon.py`` forks workers; all other processes are started as usual.
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
"""Bytes of a path that the first line of a script may name on every Linux kernel. The path must
not contain spaces."""


def python_for_spark() -> str:
    """Return the program to set as Spark's Python; on systems other than Linux, this Python."""
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
    # Not a shell script: a shell prints a warning in a deleted folder.
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
