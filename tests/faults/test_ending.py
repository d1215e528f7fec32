"""Whoever is ended takes along what it has started."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock_testing.process import ServerProcess

pytestmark = pytest.mark.process

NEVER_LISTENS = ("-c", "import signal; signal.pause()")


class Interrupted(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt


def test_a_server_whose_start_is_interrupted_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerProcess(tmp_path, program=NEVER_LISTENS)
    monkeypatch.setattr(server, "_started_or_ended", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        server.start()

    assert not server.is_running
