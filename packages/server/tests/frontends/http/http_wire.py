"""A transport in memory that keeps what an HTTP connection writes."""

from __future__ import annotations

from typing import Any

from packages.server.tests.frontends.wires import Wire


class HttpWire(Wire):
    """Keeps what a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def set_protocol(self, protocol: Any) -> None:
        """It stays with the one that it has."""
