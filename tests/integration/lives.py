"""A server that is killed and restarted, for tests of what survives a restart."""

from __future__ import annotations

from pathlib import Path

from penstock_testing.process import ServerProcess

WAIT_S = 120.0


class Lives:
    """Server processes one after the other, with the same data and the same port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.server = ServerProcess(directory).start()
        self.url = self.server.url

    def kill(self) -> None:
        """Kill the server and start the next one."""
        self.server.kill()
        self.start()

    def start(self) -> None:
        port = self.url.rpartition(":")[2]
        self.server.__exit__(None, None, None)
        self.server = ServerProcess(self._directory, "--port", port).start()
