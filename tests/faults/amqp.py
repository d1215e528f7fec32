"""A publisher over AMQP 1.0: python-qpid-proton's blocking client, which nobody here wrote.

AMQP has no name and sequence for what is sent again: whoever waits for ``accepted`` and sends once
more what a lost connection has left open may publish it twice, and never loses what was accepted.
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
"""For an answer; then the connection is given up: nobody may be told that it is half-open."""
IS_HERE: Final = find_spec("proton") is not None
PORTS: Final[dict[int, int]] = {}
"""By the port of a server, the one at which it is found, where that is another one."""
OPTIONS: Final = ("--amqp-port", "0") if IS_HERE else ()
"""With which a server speaks it, on its native port, too."""


class Sender:
    """Sends one message after the other, over a new connection where one was lost."""

    def __init__(self, url: str) -> None:
        """``url``: the native one; the ports are the same. Of several addresses the next one is
        tried where one does not serve."""
        self._addresses = urlsplit(url).netloc.split(",")
        self._tried = 0
        self.connection: BlockingConnection | None = None
        self._sender: BlockingSender | None = None

    def send(self, data: bytes) -> int:
        """Returns -1 when it is accepted: AMQP tells no id. Raises ``ConnectionLost`` when nobody
        knows what became of it, ``StorageFailed`` when the realm has refused it for now."""
        from proton import Message, ProtonException
        from proton.utils import SendException

        try:
            self._open_sender().send(Message(body=data, durable=True))
        except SendException as error:
            raise StorageFailed(f"not accepted: {error}") from error
        except (ProtonException, OSError) as error:
            self.close()
            self._tried += 1
            raise ConnectionLost(f"not answered: {error!r}") from error
        return -1

    def _open_sender(self) -> BlockingSender:
        from proton.utils import BlockingConnection

        if self._sender is None:
            host, _, port = self._addresses[self._tried % len(self._addresses)].rpartition(":")
            address = f"{host}:{PORTS.get(int(port), int(port))}"
            self.connection = BlockingConnection(f"amqp://{address}", timeout=WAIT_S)
            self._sender = self.connection.create_sender(f"topic://{LOG}")
        return self._sender

    def close(self) -> None:
        """However the connection is. Proton's own close waits without an end for the other side to
        end one that is half-open, unless it is told that nothing more comes."""
        connection, self.connection, self._sender = self.connection, None, None
        if connection is not None:
            connection.timeout = 0.1
            if connection.conn is not None and connection.conn.transport is not None:
                connection.conn.transport.close_tail()
            with contextlib.suppress(Exception):
                connection.close()
