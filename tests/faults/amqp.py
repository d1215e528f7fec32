"""A publisher over AMQP 1.0 with python-qpid-proton's blocking client, an independent
implementation.

AMQP has no name and sequence for repeated messages. A publisher that waits for ``accepted`` and
repeats what a lost connection left open may publish twice, but never loses an accepted message.
"""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from penstock_core.vocabulary.errors import ConnectionLost, StorageFailed
from tests.faults.names import LOG

if TYPE_CHECKING:
    from proton.utils import BlockingConnection, BlockingSender

WAIT_S: Final = 5.0
"""The longest wait for an answer. The connection is given up then, because it may be half-open
without notice."""
IS_HERE: Final = find_spec("proton") is not None
PORTS: Final[dict[int, int]] = {}
"""Other ports at which clients find a server, by the port it listens on."""
OPTIONS: Final = ("--amqp-port", "0") if IS_HERE else ()
"""Options for AMQP on the server's ports, including its native one."""


class Sender:
    """Sends one message at a time, and opens a new connection after a loss."""

    def __init__(self, url: str) -> None:
        """``url``: the native URL; the ports are the same. If an address does not serve, the next
        one is tried."""
        self._addresses = urlsplit(url).netloc.split(",")
        self._attempts = 0
        self.connection: BlockingConnection | None = None
        self._sender: BlockingSender | None = None

    def send(self, data: bytes) -> int:
        """Send an event. Return -1 once it is accepted, because AMQP returns no id. Raise
        ``ConnectionLost`` if its fate is unknown, ``StorageFailed`` if the realm has refused it for
        now."""
        from proton import Message, ProtonException
        from proton.utils import SendException

        try:
            self._open_sender().send(Message(body=data, durable=True))
        except SendException as error:
            raise StorageFailed(f"not accepted: {error}") from error
        except (ProtonException, OSError) as error:
            self.close()
            self._attempts += 1
            raise ConnectionLost(f"not answered: {error!r}") from error
        return -1

    def _open_sender(self) -> BlockingSender:
        from proton.utils import BlockingConnection

        if self._sender is None:
            host, _, port = self._addresses[self._attempts % len(self._addresses)].rpartition(":")
            address = f"{host}:{PORTS.get(int(port), int(port))}"
            self.connection = BlockingConnection(f"amqp://{address}", timeout=WAIT_S)
            self._sender = self.connection.create_sender(f"topic://{LOG}")
        return self._sender

    def close(self) -> None:
        """Close the connection in any state. Proton's own close waits for ever for the other side
        of a half-open connection, unless its input is marked as ended."""
        connection, self.connection, self._sender = self.connection, None, None
        if connection is not None:
            connection.timeout = 0.1
            if connection.conn is not None and connection.conn.transport is not None:
                connection.conn.transport.close_tail()
            with contextlib.suppress(Exception):
                connection.close()
