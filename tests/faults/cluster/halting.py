"""``penstock`` as a node that stops itself in the middle of an append, once it is told to:
``python -m tests.faults.cluster.halting FILE …``

Everything is the real node (``tests.faults.clocked``). Before it sends a block to the engine, it
looks for the order that :func:`order_halt` leaves beside FILE, its clock, and sends itself SIGSTOP
if the order is there. So a block is in the hands of an owner that is frozen, on either engine.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from penstock.storage.jetstream.journal import JetStreamJournal
from penstock.storage.postgres.journal import PostgresJournal
from tests.faults import clocked

Send = Callable[..., Awaitable[Any]]

SENDS: Final = ((JetStreamJournal, "_put"), (PostgresJournal, "_insert"))
"""Methods that send a block which is already bound to its place in the journal."""


def order_path(clock: Path) -> Path:
    """The order to a node whose clock is set by ``clock``."""
    return clock.with_name("halt")


def order_halt(clock: Path) -> None:
    """Order a node to stop before its next append."""
    order_path(clock).touch()


def halting(send: Send, order: Path) -> Send:
    """Wrap ``send`` so that the process is stopped first, if it is ordered to."""

    def stop_and_send(*arguments: Any, **options: Any) -> Awaitable[Any]:
        if order.exists():
            order.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        return send(*arguments, **options)

    return stop_and_send


def obey(order: Path) -> None:
    """Have every journal of this process look for ``order``."""
    for kind, name in SENDS:
        setattr(kind, name, halting(vars(kind)[name], order))


if __name__ == "__main__":
    obey(order_path(Path(sys.argv[1])))
    clocked.main(sys.argv[1:])
