"""Bodies that a group writes into pages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock_core.vocabulary.errors import StorageFailed
from penstock_server.runtime.writer.placement import Placing
from penstock_server.storage.memory import MemoryPages
from penstock_testing.loop import simulated


class ForgetfulPages(MemoryPages):
    """Pages that accept bodies and cannot read them back."""

    async def flush(self, *, sync: bool = True) -> None:
        self._pending.clear()


@simulated
async def test_a_body_that_cannot_be_read_back_is_a_failure_of_the_disk() -> None:
    """Otherwise the events would be quarantined as damaged before any client knows that they are
    stored."""
    placing = Placing(ForgetfulPages())
    tail_batch: Any = SimpleNamespace(moved_to=None)
    placing.place(1, tail_batch, b"body")

    with pytest.raises(StorageFailed, match="cannot be read back: channel 1 has no body"):
        await placing.flush(sync=True)
