"""Parts of the run that run in the main process, each on its own thread."""

from __future__ import annotations

import threading

from examples.flights.companion import PartFailed
from examples.flights.progress import Part


class PartThread(threading.Thread):
    """Runs one part of the run and keeps the error with which it ended."""

    def __init__(self, part: Part) -> None:
        super().__init__(name=part.name, daemon=True)
        self.part = part
        self._stop_asked = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001  # told to the main thread by `has_ended`
            self._error = error

    def work(self) -> None:
        """The work of the part."""
        raise NotImplementedError

    @property
    def stopped(self) -> bool:
        """Whether the run is being stopped."""
        return self._stop_asked.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended without an error. Raises ``PartFailed`` if there was one."""
        if self.is_alive() or self.ident is None:
            return False
        if self._error is not None:
            raise PartFailed(f"{self.part.name}: {self._error}") from self._error
        return True

    def stop(self) -> None:
        """Ask it to end soon, even if its work is not done."""
        self._stop_asked.set()
        if self.ident is not None:
            self.join(timeout=10)
