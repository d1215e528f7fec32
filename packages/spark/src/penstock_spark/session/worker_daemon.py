"""The process that forks Spark's Python workers, on this machine: PySpark's own, but quieter.

A task that fails closes the connection of its worker. PySpark's worker then prints a traceback of
the broken connection, next to the error that the driver reports anyway.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon


def main() -> None:
    work = daemon.worker

    def work_quietly(sock: socket.socket, authenticated: bool) -> int:
        try:
            return work(sock, authenticated)
        except ConnectionError:
            os._exit(1)  # as PySpark ends it, but without the traceback

    daemon.worker = work_quietly
    daemon.manager()


if __name__ == "__main__":
    main()
