"""The command line: ``penstock``. One module for each group of commands.

Modules here load fast: Arrow, the client and the server are imported by the command that needs
them, when it runs. ``penstock serve`` does not even load the parser of the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 refused, 2 wrong usage, 130 after Ctrl-C."""
    from penstock_server.cli.serving.plain_start import plain_start

    start = plain_start(sys.argv[1:] if arguments is None else arguments)
    if start is None:
        from penstock_server.cli.program import main as run_program

        run_program(arguments)
        return
    # NumPy's linear algebra, which a realm has no use for, starts a thread for each processor, and
    # they wait for work at full speed: 30 ms of a start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from penstock_server.cli.serving.realm_process import run_realm

    try:
        status = run_realm(*start)
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
