"""Commands that run until a signal stops them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C."""


@contextmanager
def stopped_by_signals() -> Iterator[Event]:
    """Yield an event that Ctrl-C or SIGTERM sets, so that the command can finish the work that it
    has begun. A second Ctrl-C ends the process immediately."""
    stopping = Event()

    def stop(number: int, frame: object) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            os._exit(INTERRUPTED)
        stopping.set()

    saved_handlers = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopping
    finally:
        for number, handler in saved_handlers.items():
            signal.signal(number, handler)
