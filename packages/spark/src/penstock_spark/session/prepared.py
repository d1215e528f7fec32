"""The forking process: it has imported all modules that streaming queries need, and forks the
process of each query.

Each JVM has one forking process. The first streaming query starts it (``handover.py``), and it ends
with the JVM. It runs no other code of Spark or of the client and starts no threads, because a
forked process would not have these threads.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import marshal
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import IO, Final

from msgspec import Struct

from penstock_spark.session.handover import STARTED
from penstock_spark.session.pythons import RUNNER

_REQUEST_TIMEOUT_S: Final = 5.0


class _Forked(Struct):
    """A forked process, and the connection to the program that waits for the end of the process."""

    number: int
    """Process id."""
    link: socket.socket


class Forks:
    """Forks a process for each request until the JVM ends."""

    def __init__(self, listening: socket.socket, spark: int, runner: ModuleType) -> None:
        self._listening = listening
        self._runner = runner
        self._spark = os.pidfd_open(spark)
        self._poll = select.poll()
        self._by_process: dict[int, _Forked] = {}
        """Forked processes by their pidfd."""
        self._by_link: dict[int, _Forked] = {}
        """Forked processes by the descriptor of their connection."""
        for descriptor in (listening.fileno(), self._spark):
            self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> None:
        """Fork a process for each request until the JVM has ended; then kill the forked
        processes."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._spark:
                    for forked in self._by_process.values():
                        _kill(forked)
                    return
                if descriptor == self._listening.fileno():
                    self._accept()
                elif descriptor in self._by_process:
                    self._report_end(descriptor)
                elif descriptor in self._by_link:
                    # Spark kills the waiting program when a query stops.
                    self._poll.unregister(descriptor)
                    _kill(self._by_link.pop(descriptor))

    def _accept(self) -> None:
        """Accept a connection, and fork a process for its request."""
        link, _ = self._listening.accept()
        try:
            request = _request(link)
        except (OSError, EOFError, ValueError):
            request = None
        if request is None:
            link.close()  # the requesting program then starts a process itself
            return
        streams, variables = request
        number = os.fork()
        if not number:
            self._close_all()
            link.close()
            _run(self._runner, streams, variables)
        for stream in streams:
            os.close(stream)
        forked = _Forked(number, link)
        self._by_process[process := os.pidfd_open(number)] = forked
        self._by_link[link.fileno()] = forked
        self._poll.register(process, select.POLLIN)
        self._poll.register(link, select.POLLIN)
        with contextlib.suppress(OSError):
            link.sendall(STARTED)

    def _report_end(self, process: int) -> None:
        """Send the exit code of the forked process with the pidfd ``process``."""
        forked = self._by_process.pop(process)
        self._poll.unregister(process)
        os.close(process)
        _, status = os.waitpid(forked.number, 0)
        if self._by_link.pop(forked.link.fileno(), None) is not None:
            self._poll.unregister(forked.link)
        with contextlib.suppress(OSError):
            forked.link.sendall(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
        forked.link.close()

    def _close_all(self) -> None:
        """Close the descriptors of the forking process in a forked one."""
        self._listening.close()
        for descriptor in (self._spark, *self._by_process):
            os.close(descriptor)
        for forked in self._by_process.values():
            forked.link.close()


def _kill(forked: _Forked) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(forked.number, signal.SIGTERM)


def _request(link: socket.socket) -> tuple[list[int], dict[str, str]] | None:
    """Receive a request: the standard streams and environment variables for a process.

    Return None if the process would import other modules than this process has imported, because
    its working directory or its Python path is different.
    """
    link.settimeout(_REQUEST_TIMEOUT_S)
    header, streams, _, _ = socket.recv_fds(link, 4, 4)
    with link.makefile("rb") as file:
        size = int.from_bytes(header + file.read(4 - len(header)), "big")
        variables = marshal.loads(file.read(size))
    link.settimeout(None)
    is_like_this = len(streams) == 4 and _is_here(streams[3])
    if is_like_this and variables.get("PYTHONPATH") == os.environ.get("PYTHONPATH"):
        os.close(streams.pop())
        return streams, variables
    for stream in streams:
        os.close(stream)
    return None


def _is_here(folder: int) -> bool:
    """Return whether the folder with this descriptor is the working directory of this process.
    Inodes are compared, because a deleted folder has no path."""
    here, requested = Path(".").stat(), os.fstat(folder)
    return (here.st_dev, here.st_ino) == (requested.st_dev, requested.st_ino)


class _SparkInput:
    """The stream of Spark's requests to a source. The process exits at the end of the stream.

    Spark closes the stream when the query is over, and kills the process at the same moment. The
    kill reaches a forked process later, because it goes to the waiting program first.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        content = self._file.read(size)
        if size and not content:
            os._exit(0)
        return content


def _run(runner: ModuleType, streams: list[int], variables: dict[str, str]) -> None:
    """Run Spark's program in a forked process, and exit with its code."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = [str(runner.__file__)]
        with runner.get_sock_file_to_executor(timeout=None) as file:
            runner.main(_SparkInput(file), file)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except ConnectionError:
        code = 1  # the query or the JVM has ended, and Spark does not read the answer
    except BaseException:  # noqa: BLE001 - as Python does with uncaught exceptions
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


def main(descriptor: int, spark: int, path: str) -> None:
    """Import the modules, then fork processes until the JVM with the process id ``spark`` ends.

    ``descriptor`` is that of the listening socket, whose address is ``path``.
    """
    with contextlib.suppress(OSError):  # Ctrl-C in a terminal must not end this process
        os.setsid()
    listening = socket.socket(fileno=descriptor)
    try:
        runner = importlib.import_module(RUNNER)
        for name in ("penstock_spark.source", "penstock_spark.reading.reading"):
            importlib.import_module(name)
        if threading.active_count() == 1:  # a fork would lack the other threads
            forks = Forks(listening, spark, runner)
            gc.freeze()
            forks.serve()
    finally:
        for file in (path, f"{path}.lock"):
            Path(file).unlink(missing_ok=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
