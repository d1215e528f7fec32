"""The process that forks those of streaming queries, with everything they import already there.

One for each JVM, begun by its first streaming query (``handover.py``); it ends with the JVM. It
runs nothing of Spark or of the client itself and starts no thread, so that a fork is a whole
process.
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
    """A process that was forked for a program that waits for its end."""

    number: int
    link: socket.socket


class Forks:
    """Answers requests until the JVM ends."""

    def __init__(self, listening: socket.socket, spark: int, runner: ModuleType) -> None:
        self._listening = listening
        self._runner = runner
        self._spark = os.pidfd_open(spark)
        self._poll = select.poll()
        self._by_process: dict[int, _Forked] = {}
        """By the descriptor of the forked process."""
        self._by_link: dict[int, _Forked] = {}
        for descriptor in (listening.fileno(), self._spark):
            self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> None:
        """Fork on request until the JVM has ended; its processes then end as well."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._spark:
                    for each in self._by_process.values():
                        _kill(each)
                    return
                if descriptor == self._listening.fileno():
                    self._accept()
                elif descriptor in self._by_process:
                    self._ended(descriptor)
                elif descriptor in self._by_link:
                    # Whoever waits was killed, as Spark does when a query stops.
                    self._poll.unregister(descriptor)
                    _kill(self._by_link.pop(descriptor))

    def _accept(self) -> None:
        link, _ = self._listening.accept()
        try:
            found = _request(link)
        except (OSError, EOFError, ValueError):
            found = None
        if found is None:
            link.close()  # it starts a process by itself
            return
        streams, variables = found
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

    def _ended(self, process: int) -> None:
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
        """Close in a forked process what belongs to this one."""
        self._listening.close()
        for descriptor in (self._spark, *self._by_process):
            os.close(descriptor)
        for each in self._by_process.values():
            each.link.close()


def _kill(forked: _Forked) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(forked.number, signal.SIGTERM)


def _request(link: socket.socket) -> tuple[list[int], dict[str, str]] | None:
    """The streams and variables a process is to have; None for one whose imports may be others."""
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
    """Whether this process runs in that folder, which may be gone: then no path names it."""
    here, other = Path(".").stat(), os.fstat(folder)
    return (here.st_dev, here.st_ino) == (other.st_dev, other.st_ino)


class _SparkInput:
    """What Spark sends to a source. When Spark closes it, the query is over, and so is the process,
    without a word: Spark kills it in the same moment, but that takes longer than without a fork."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        found = self._file.read(size)
        if size and not found:
            os._exit(0)
        return found


def _run(runner: ModuleType, streams: list[int], variables: dict[str, str]) -> None:
    """Be the process that Spark wanted, and never return."""
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
        code = 1  # Spark no longer waits for the answer: the query has ended, or the JVM
    except BaseException:  # noqa: BLE001 - as Python does with what nobody has caught
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


def main(descriptor: int, spark: int, path: str) -> None:
    with contextlib.suppress(OSError):  # signals of a terminal are for its programs
        os.setsid()
    listening = socket.socket(fileno=descriptor)
    try:
        runner = importlib.import_module(RUNNER)
        for name in ("penstock_spark.source", "penstock_spark.reading.reading"):
            importlib.import_module(name)
        if threading.active_count() == 1:  # otherwise a fork would lack a part
            forks = Forks(listening, spark, runner)
            gc.freeze()
            forks.serve()
    finally:
        for each in (path, f"{path}.lock"):
            Path(each).unlink(missing_ok=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
