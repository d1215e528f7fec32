"""An interrupted process ends the processes that it has started."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from packages.client.tests.patience import eventually
from penstock_testing.process import ServerProcess

pytestmark = pytest.mark.process

NEVER_LISTENS = (
    "-c",
    "import signal, sys; print('here', file=sys.stderr, flush=True); signal.pause()",
)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """The signal of an alarm interrupts the test, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("interruptible")
def test_a_server_whose_start_is_interrupted_does_not_stay(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, program=NEVER_LISTENS)

    def interrupt_start() -> None:
        eventually(lambda: bool(server.lines))
        os.kill(os.getpid(), signal.SIGALRM)

    interrupting = threading.Thread(target=interrupt_start)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        server.start()
    interrupting.join()

    assert not server.is_running
