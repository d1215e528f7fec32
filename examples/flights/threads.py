"""Parts of the run in the main process, each on a separate thread."""

from __future__ import annotations

import threading

from examples.flights.companion import PartFailed
from examples.flights.progress import Part


class PartThread(threading.Thread):
    """Executes one part of the run, and stores its error for the main thread."""

    def __init__(self, part: Part) -> None:
        super().__init__(name=part.name, daemon=True)
        self.part = part
        self._stop_requested = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001  # `has_ended` raises it in the main thread
            self._error = error

    def work(self) -> None:
        """Do the work of the part; returns early if :attr:`stopped` is set."""
        raise NotImplementedError

    @property
    def stopped(self) -> bool:
        """Whether the run is being stopped."""
        return self._stop_requested.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether the part has ended without an error. Raises ``PartFailed`` if it failed."""
        if self.is_alive() or self.ident is None:
            return False
        if self._error is not None:
            raise PartFailed(f"{self.part.name}: {self._error}") from self._error
        return True

    def stop(self) -> None:
        """Request the end even if the work is not done, and wait for it."""
        self._stop_requested.set()
        if self.ident is not None:
            self.join(timeout=10)
