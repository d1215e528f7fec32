"""Begins the process that a streaming query keeps for its source, in the place of Spark's Python.

Spark starts one for each query, which imports PySpark, pyarrow and the client before anything is
read. Here the first one of a session is forked from a process that imports them once, and so is
every later one (see ``penstock_spark.session.prepared``). Whatever goes wrong on the way, Spark
gets the process that it wanted: Python, started anew.

A script runs this by its path (``penstock_spark.session.pythons``), and it must be at work within
milliseconds, so it imports neither this package nor anything that is installed.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import socket
from collections.abc import Sequence

STARTED = b"\1"
"""Answer to a request: a process was forked for it. Its exit code follows when it has ended."""


ANSWER_TIMEOUT_S = 4.0
"""So long the other end may take to fork, its imports included; Spark waits ten seconds."""


def main(python: str, folder: str, arguments: Sequence[str]) -> None:
    """Run ``arguments`` in a forked process, and end with it; in a new one where that fails."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)  # it may be gone, and have no name
    try:
        link = _linked(python, folder, here)
        if _is_started(link, here):
            # When this program is killed, the other end notices and kills the forked process.
            code = link.recv(1)
            os._exit(code[0] if code else 1)
    except Exception:  # noqa: BLE001  whatever it was, Spark has to get its process
        pass
    os.fchdir(here)
    os.execv(python, [python, *arguments])


def _linked(python: str, folder: str, here: int) -> socket.socket:
    """A connection with the process that forks, which is started if there is none."""
    spark = os.getppid()
    name = f"{spark}-{_begun(spark)}"
    # Relative paths fit into the address of a socket however long the folder's path is.
    os.chdir(folder)
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(name)
    except (FileNotFoundError, ConnectionRefusedError):
        _begin(python, folder, name, spark=spark, here=here)
        link.connect(name)
    return link


def _begun(process: int) -> str:
    """When a process began, which tells it from later ones of its number."""
    with open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()


def _begin(python: str, folder: str, name: str, spark: int, here: int) -> None:
    """Start the process that forks; it listens at once, and answers when it has its imports."""
    _sweep()
    with open(f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _listens(name):
            return
        if os.path.exists(name):
            os.unlink(name)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(name)
            listening.listen(64)
            os.set_inheritable(listening.fileno(), True)
            program = [python, "-m", "penstock_spark.session.prepared"]
            nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
            os.fchdir(here)
            os.posix_spawn(
                python,
                [*program, str(listening.fileno()), str(spark), os.path.join(folder, name)],
                os.environ,
                file_actions=nothing,
            )
            os.chdir(folder)


def _listens(name: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(name)
        except OSError:
            return False
        return True


def _sweep() -> None:
    """Remove what processes that were killed have left."""
    for name in os.listdir("."):
        if not os.path.exists(f"/proc/{name.partition('-')[0]}"):
            try:
                os.unlink(name)
            except FileNotFoundError:  # another one was faster
                continue


def _is_started(link: socket.socket, here: int) -> bool:
    """Ask for a process with the streams, the variables and the folder of this one."""
    request = marshal.dumps(dict(os.environ))
    link.settimeout(ANSWER_TIMEOUT_S)
    socket.send_fds(link, [len(request).to_bytes(4, "big")], [0, 1, 2, here])
    link.sendall(request)
    is_started = link.recv(1) == STARTED
    link.settimeout(None)
    return is_started
