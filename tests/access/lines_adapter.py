"""The adapter of the front end of `examples/lines` for the matrix of operations and rights."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO
from urllib.parse import urlsplit

import penstock
from examples.lines.penstock_lines import FRONT_END
from penstock_core.api.operations import OPERATIONS
from penstock_core.vocabulary.errors import AccessDenied
from tests.access.matrix import CHANNEL, Caller, register

HOST = "127.0.0.1"


LINES = {"channel.publish": f"PUB {CHANNEL} text", "channel.subscribe": f"SUB {CHANNEL}"}


class LinesCaller:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def try_(self, operation: str) -> None:
        self.ask(LINES[operation])

    def ask(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()
        answer = self._stream.readline().strip()
        if answer.startswith("ERROR access-denied"):
            raise AccessDenied(answer)
        assert answer.startswith("OK"), answer


class Lines:
    name = "lines"
    # Lines can only publish and subscribe.
    without = frozenset(OPERATIONS.keys() - LINES)

    def __init__(self) -> None:
        self._ports: dict[penstock.Realm, int] = {}

    @contextmanager
    def signed_in(self, realm: penstock.Realm, user: str, password: str) -> Iterator[Caller]:
        if realm not in self._ports:
            service = FRONT_END.service(realm.listener, realm.settings)
            port = realm.loop.call(service.listen(HOST, 0))
            if (node := getattr(realm, "other_node", None)) is not None:
                port = urlsplit(node.url(self.name, f"lines://{HOST}:{port}")).port
            self._ports[realm] = port
        with (
            socket.create_connection((HOST, self._ports[realm])) as connection,
            connection.makefile("rw") as stream,
        ):
            caller = LinesCaller(stream)
            caller.ask(f"USER {user} {password}")
            yield caller


register(Lines)
