"""A transport in memory that records what an HTTP connection writes."""

from __future__ import annotations

from typing import Any

from packages.server.tests.frontends.wires import Wire


class HttpWire(Wire):
    """Records what a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def set_protocol(self, protocol: Any) -> None:
        """Ignore the new protocol."""
