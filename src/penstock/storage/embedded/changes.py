"""Changes of files: one at a time, and none any more once it is open what is on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.core.vocabulary.errors import StorageFailed
from penstock.core.vocabulary.ports import Offload


class Changes:
    """All changes of one set of files. One writer: it awaits each before the next."""

    __slots__ = ("_is_busy", "_offload", "_refusal", "alone", "failed")

    def __init__(self, refusal: str, offload: Offload) -> None:
        """``refusal`` is what is said once they take nothing more; ``offload`` runs elsewhere what
        would hold up the event loop."""
        self._refusal = refusal
        self._offload = offload
        self._is_busy = False
        self.alone = threading.Lock()
        """Held by each change: one that was cancelled may still be in its thread."""
        self.failed = ""
        """Why nothing is changed any more; empty while all is well. Asking a system again whose
        sync has failed would get a yes that means nothing."""

    def check(self) -> None:
        """Raises ``StorageFailed`` where nothing is changed any more."""
        if self.failed:
            raise StorageFailed(f"{self._refusal}: {self.failed}")

    def check_idle(self) -> None:
        """The same, for what may only be asked between two changes."""
        self.check()
        assert not self._is_busy, "one writer awaits each change before the next"

    async def make(self, call: Callable[[], None], *, inline: bool) -> None:
        """Make one, here if it is quick (``inline``), elsewhere if not. Raises ``StorageFailed``;
        where it is left midway nobody knows what is on disk, and no other one follows."""
        assert not self._is_busy, "one writer awaits each change before the next"
        is_settled = False
        self._is_busy = True
        try:
            if inline:
                self._make(call)
            else:
                await self._offload(lambda: self._make(call))
            is_settled = True
        except StorageFailed:
            is_settled = True
            raise
        finally:
            self._is_busy = False
            if not is_settled:
                self.failed = self.failed or "a change was cancelled midway"

    def _make(self, call: Callable[[], None]) -> None:
        with self.alone:
            self.check()
            call()
