"""HTTP clients that disconnect before the answer."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from packages.server.tests.frontends.http.asking import Web

TIMEOUT_S = 30.0


def ask(web: Web, method: str, path: str, body: Any = None) -> socket.socket:
    """Send a request on a new connection; return the connection."""
    peer = socket.create_connection(web.address, timeout=TIMEOUT_S)
    content = b"" if body is None else msgspec.json.encode(body)
    head = (
        f"{method} /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    peer.sendall(head.encode() + content)
    return peer


def hang_up(peer: socket.socket) -> None:
    """Disconnect as the operating system does for a process that was killed."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
