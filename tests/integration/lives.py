"""A server that is killed and started again, for tests of what outlives it."""

from __future__ import annotations

from pathlib import Path

from penstock_testing.process import ServerProcess

WAIT_S = 120.0


class Lives:
    """One server after the other on the same data and the same port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.server = ServerProcess(directory).start()
        self.url = self.server.url

    def kill(self) -> None:
        """End it by force and start the next."""
        self.server.kill()
        self.start()

    def start(self) -> None:
        port = self.url.rpartition(":")[2]
        self.server.__exit__(None, None, None)
        self.server = ServerProcess(self._directory, "--port", port).start()
