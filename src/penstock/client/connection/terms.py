"""How patient a session is with its realm, and where the node of a cluster has sent it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.client.connection.urls import Address, address_of
from penstock.core.vocabulary.errors import Elsewhere, NoQuorum
from penstock.wire.native import messages as wire

CONNECT_TIMEOUT_S: Final = 5.0
PING_AFTER_S: Final = 10.0
DEAD_AFTER_S: Final = 30.0
"""A connection on which nothing was heard for so long, pings notwithstanding, is given up; so is
one on which a subscription cannot be opened again for so long."""
_DEAD_AFTER_HEARTBEATS: Final = 2.5
"""Looked at once a heartbeat, so it is the third silent one that counts."""
_PAUSE_MAX_S: Final = 2.0
_CLUSTER_PAUSE_MAX_S: Final = 0.25
"""In a cluster another node is the owner after some seconds, and nobody waits for longer."""


_EXPECTED: Final = (Elsewhere.code, NoQuorum.code)


class SessionTerms:
    """Seconds to wait for this and that: in a cluster fewer, for others can take over."""

    def __init__(self) -> None:
        self.owner: Address | None = None
        """Where the latest node that was asked has sent the session."""
        self.is_expected = False
        """Whether a node has said, when the addresses were tried last, that one will serve soon."""
        self._heartbeat_s = 0.0

    def welcomed(self, welcome: wire.Welcome) -> None:
        """Note what the realm asks of its clients."""
        self._heartbeat_s = 0.0
        if isinstance(welcome, wire.ClusterWelcome):
            self._heartbeat_s = welcome.heartbeat_s

    def dismissed(self, goodbye: wire.Goodbye) -> None:
        """Note where the session is to go, if it was told."""
        self.is_expected = self.is_expected or goodbye.code in _EXPECTED
        if isinstance(goodbye, wire.Redirect):
            self.owner = address_of(goodbye.address)

    def places(self, known: Sequence[Address]) -> Iterator[Address]:
        """The addresses to try, each once: those that are known in their order, and between them
        each owner that one of them has named."""
        self.is_expected = False
        waiting, tried = deque(known), set[Address]()
        while waiting:
            self.owner = None
            if (address := waiting.popleft()) in tried:
                continue
            tried.add(address)
            yield address
            if self.owner is not None:
                waiting.appendleft(self.owner)

    @property
    def ping_after_s(self) -> float:
        """Seconds of silence after which the session asks whether the realm is there."""
        return self._heartbeat_s or PING_AFTER_S

    @property
    def dead_after_s(self) -> float:
        """A connection on which nothing was heard for so long, pings notwithstanding, is given
        up."""
        return self._heartbeat_s * _DEAD_AFTER_HEARTBEATS or DEAD_AFTER_S

    @property
    def connect_timeout_s(self) -> float:
        """How long one address may take to welcome the session."""
        return min(CONNECT_TIMEOUT_S, self._heartbeat_s or CONNECT_TIMEOUT_S)

    @property
    def pause_max_s(self) -> float:
        """Most seconds between two attempts to reconnect."""
        is_node = self._heartbeat_s or self.is_expected
        return _CLUSTER_PAUSE_MAX_S if is_node else _PAUSE_MAX_S
