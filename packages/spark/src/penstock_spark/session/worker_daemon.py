"""Runs PySpark's daemon, which forks Python workers, without tracebacks of broken connections.

A failing task closes the connection of its worker. PySpark's worker then prints a traceback of the
broken connection, in addition to the error that the driver reports.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon


def main() -> None:
    """Run the daemon with workers that end silently when their connection breaks."""
    work = daemon.worker

    def work_quietly(sock: socket.socket, authenticated: bool) -> int:
        try:
            return work(sock, authenticated)
        except ConnectionError:
            os._exit(1)  # PySpark's exit code, without the traceback

    daemon.worker = work_quietly
    daemon.manager()


if __name__ == "__main__":
    main()
