"""The command line, ``penstock``, with one module for each group of commands.

Modules here load fast: each command imports Arrow, the client and the server only when it runs and
needs them. ``penstock serve`` does not even load the command line parser.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with 0 on success, 1 if refused, 2 for wrong usage, 130 after
    Ctrl-C."""
    from penstock_server.cli.serving.plain_start import plain_start

    start = plain_start(sys.argv[1:] if arguments is None else arguments)
    if start is None:
        from penstock_server.cli.program import main as run_program

        run_program(arguments)
        return
    # A realm does not use NumPy's linear algebra. By default it starts one busy-waiting thread per
    # processor, which adds 30 ms to the start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from penstock_server.cli.serving.realm_process import run_realm

    try:
        status = run_realm(*start)
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
