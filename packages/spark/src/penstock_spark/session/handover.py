"""Starts the process that runs the source of a streaming query, in place of Spark's Python.

Spark starts one process for each query, which imports PySpark, pyarrow and the client before it
reads anything. Instead, this program requests a fork of a process that imported these modules once
(see ``penstock_spark.session.prepared``). If anything fails, it starts Python as Spark requested.

A script runs this module by its path (``penstock_spark.session.pythons``). The module must start
within milliseconds, so it imports only the standard library.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import socket
from collections.abc import Sequence

STARTED = b"\1"
"""Answer to a request that means: the process was forked. The exit code follows when the process
ends."""

ANSWER_TIMEOUT_S = 4.0
"""Seconds to wait for a fork and, the first time, for the imports before it. Spark waits ten
seconds."""


def main(python: str, folder: str, arguments: Sequence[str]) -> None:
    """Run ``arguments`` in a forked process and exit with its code. If no process can be forked,
    replace this process by the program ``python``.

    ``folder`` contains the sockets of the forking processes.
    """
    folder_descriptor = os.open(
        ".", os.O_RDONLY | os.O_DIRECTORY
    )  # a descriptor also works for a deleted folder
    try:
        link = _connect(python, folder, folder_descriptor)
        if _is_started(link, folder_descriptor):
            # If this program is killed, the forking process notices and kills the fork.
            code = link.recv(1)
            # Without Python's clean-up, which would only delay the exit.
            os._exit(code[0] if code else 1)
    except Exception:  # noqa: BLE001 - Spark must get its process in any case
        pass
    os.fchdir(folder_descriptor)
    os.execv(python, [python, *arguments])


def _connect(python: str, folder: str, folder_descriptor: int) -> socket.socket:
    """Connect to the forking process; start it if it does not run."""
    spark = os.getppid()
    name = f"{spark}-{_start_time(spark)}"
    # The address of a socket has at most about 100 bytes. A relative path always fits.
    os.chdir(folder)
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(name)
    except (FileNotFoundError, ConnectionRefusedError):
        _start_forking_process(
            python, folder, name, spark=spark, folder_descriptor=folder_descriptor
        )
        link.connect(name)
    return link


def _start_time(process: int) -> str:
    """Return the start time of a process, which distinguishes it from later processes with the same
    id."""
    with open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()


def _start_forking_process(
    python: str, folder: str, name: str, spark: int, folder_descriptor: int
) -> None:
    """Start the forking process, unless another query has just started it. Its socket accepts
    connections immediately; answers follow after its imports."""
    _remove_stale_files()
    with open(f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_listening(name):
            return
        if os.path.exists(name):
            os.unlink(name)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(name)
            listening.listen(64)
            os.set_inheritable(listening.fileno(), True)
            program = [python, "-m", "penstock_spark.session.prepared"]
            nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
            os.fchdir(folder_descriptor)
            os.posix_spawn(
                python,
                [*program, str(listening.fileno()), str(spark), os.path.join(folder, name)],
                os.environ,
                file_actions=nothing,
            )
            os.chdir(folder)


def _is_listening(name: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(name)
        except OSError:
            return False
        return True


def _remove_stale_files() -> None:
    """Remove sockets and locks of killed processes."""
    for name in os.listdir("."):
        if not os.path.exists(f"/proc/{name.partition('-')[0]}"):
            try:
                os.unlink(name)
            except FileNotFoundError:  # another process has removed it
                continue


def _is_started(link: socket.socket, folder_descriptor: int) -> bool:
    """Request a process with the streams, environment variables and working directory of this
    process. Return whether the process was started."""
    request = marshal.dumps(dict(os.environ))
    link.settimeout(ANSWER_TIMEOUT_S)
    socket.send_fds(link, [len(request).to_bytes(4, "big")], [0, 1, 2, folder_descriptor])
    link.sendall(request)
    is_started = link.recv(1) == STARTED
    link.settimeout(None)
    return is_started
