"""Makes changes to files one at a time.

After a failed sync it is unknown what reached the disk, so every further change is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.ports import Offload


class Changes:
    """Makes the changes to one set of files. There is one writer, which awaits each change before
    it makes the next one."""

    __slots__ = ("_offload", "_refusal", "alone", "failed", "is_busy")

    def __init__(self, refusal: str, offload: Offload) -> None:
        """``refusal`` is the beginning of the error text after a failure. ``offload`` runs blocking
        calls in a thread."""
        self._refusal = refusal
        self._offload = offload
        self.is_busy = False
        """True while a change is being made."""
        self.alone = threading.Lock()
        """Lock held during each change, because a cancelled change may still run in its thread."""
        self.failed = ""
        """The reason for refusing changes; empty until one has failed.

        A sync is never retried: after a failure, the system may report success for data that it
        has dropped.
        """

    def check(self) -> None:
        """Raise ``StorageFailed`` if an earlier change failed."""
        if self.failed:
            raise StorageFailed(f"{self._refusal}: {self.failed}")

    def check_idle(self) -> None:
        """Raise ``StorageFailed`` if an earlier change failed. Call it only between changes."""
        if self.failed:
            self.check()
        assert not self.is_busy, "one writer awaits each change before the next"

    async def make(self, call: Callable[[], None], *, inline: bool) -> None:
        """Make a change by running ``call``: on the event loop if ``inline``, because it is quick,
        otherwise in a thread.

        Raises ``StorageFailed``. If the change is interrupted midway, the content on disk is
        unknown, and all further changes are refused.
        """
        assert not self.is_busy, "one writer awaits each change before the next"
        is_settled = False
        self.is_busy = True
        try:
            if inline:
                with self.alone:
                    if self.failed:
                        self.check()
                    call()
            else:
                await self._offload(lambda: self._make(call))
            is_settled = True
        except StorageFailed:
            is_settled = True
            raise
        finally:
            self.is_busy = False
            if not is_settled:
                self.failed = self.failed or "a change was cancelled midway"

    def _make(self, call: Callable[[], None]) -> None:
        """Make a change in a thread."""
        with self.alone:
            self.check()
            call()
