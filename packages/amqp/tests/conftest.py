"""Proton clients of a realm in memory with AMQP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock

if find_spec("proton") is None:
    # All but test_installed.py, which says why.
    collect_ignore = [
        path.name
        for path in Path(__file__).parent.glob("test_*.py")
        if "installed" not in path.name
    ]
else:
    from packages.amqp.tests.clients import Client
    from packages.amqp.tests.peers import Peer


class Connect:
    """Opens clients, and closes them at the end of the test."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url = url
        self._stack = stack

    def __call__(self, container: str = "", *, sole: bool = False) -> Client:
        return self._stack.enter_context(Client(self.url, container, sole=sole))


@pytest.fixture
def connect(realm: penstock.Realm) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield Connect(realm.listen_amqp(), stack)


class Dial:
    """Connects peers that send any frames, and disconnects them at the end of the test."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url = url
        self._stack = stack

    def __call__(self) -> Peer:
        peer = Peer(self._url)
        self._stack.callback(peer.hang_up)
        return peer


@pytest.fixture
def dial(realm: penstock.Realm) -> Iterator[Dial]:
    with ExitStack() as stack:
        yield Dial(realm.listen_amqp(), stack)
