"""How patient a session is with its realm, and where the node of a cluster has sent it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

from penstock.client.connection.urls import Address, address_of
from penstock_core.vocabulary.errors import Elsewhere, NoQuorum
from penstock_core.wire.native import messages as wire

CONNECT_TIMEOUT_S: Final = 5.0
PING_AFTER_S: Final = 10.0
DEAD_AFTER_S: Final = 30.0
"""A connection on which nothing was heard for so long, pings notwithstanding, is given up; so is
one on which a subscription cannot be opened again for so long."""
DEAD_AFTER_HEARTBEATS: Final = 3
"""In a cluster that is as long as a lease."""
_PAUSE_MAX_S: Final = 2.0
_CLUSTER_PAUSE_MAX_S: Final = 0.25
"""In a cluster another node is the owner after some seconds, and nobody waits for longer than this
at first."""
_WAITED_SHARE: Final = 8
"""Later a pause is as long as this part of the time waited so far: sessions that come back all the
time would slow down the node that takes over."""
_PAUSE_FIRST_S: Final = 0.05
_DOUBLED_MAX: Final = 16

WORDLESS_S: Final = 1.0
"""For so long a new session tries again what was closed without a word: a node of a cluster does so
to who comes in the moment in which it begins or ends to serve."""
_LOOK_MIN_S: Final = 0.01
_SHARD: Final = 0
"""The shard of a session: a cluster has one so far, which is the whole realm."""
_EXPECTED: Final = (Elsewhere.code, NoQuorum.code)


class SessionTerms:
    """Seconds to wait for this and that, and where to go: in a cluster less is waited for, because
    others can take over."""

    def __init__(self) -> None:
        self.owner: Address | None = None
        """Where the latest node that was asked has sent the session."""
        self.nodes: tuple[Address, ...] = ()
        """The nodes of the cluster that have been named; none: this is no cluster."""
        self.at: Address | None = None
        """The address that was tried last: the one of the connection, if there is one."""
        self.named: Address | None = None
        """How the node of the connection calls itself."""
        self.is_expected = False
        """Whether a node has said, when the addresses were tried last, that one will serve soon."""
        self.was_wordless = False
        """Whether a connection was closed without a word before, when they were tried last."""
        self._heartbeat_s = 0.0
        self._version = 0
        """How many claims were known to whoever knew most of them."""
        self._moved_to: Address | None = None
        """Where the owner is by now, as another node has said."""
        self._detours: dict[Address, Address] = {}
        """Owners that are tried directly, with the node that relays to each."""
        self._unreachable: set[Address] = set()
        """Owners that could not be reached directly."""
        self._silent: Address | None = None
        """Where nobody has answered; others are asked first."""

    def welcomed(self, welcome: wire.Welcome) -> bool:
        """Note what the realm asks of its clients; gives whether it is one of a cluster, whose
        owners can be followed."""
        self._heartbeat_s, self.nodes = 0.0, ()
        self._silent = self._moved_to = None
        if isinstance(welcome, wire.ClusterWelcome):
            self._heartbeat_s = welcome.heartbeat_s
            self._know(welcome.nodes)
        return bool(self.nodes)

    def accept(self, welcome: wire.Welcome) -> wire.Welcome:
        """Give the welcome. Raises ``Elsewhere`` where a node relays the connection, and the owner
        has not been tried directly."""
        if not isinstance(welcome, wire.ClusterWelcome) or f"{self.at}" not in welcome.nodes:
            return welcome  # what is behind an address that no node calls its own is its own affair
        owner = address_of(welcome.node)
        if owner is None or owner in (self.at, *self._unreachable):
            return welcome
        assert self.at is not None, "it is among the nodes"
        self.owner, self._detours[owner] = owner, self.at
        raise Elsewhere(f"it relays to {owner}")

    def dismissed(self, goodbye: wire.Goodbye) -> None:
        """Note where the session is to go, if it was told."""
        self.is_expected = self.is_expected or goodbye.code in _EXPECTED
        if isinstance(goodbye, wire.Redirect):
            self.owner = address_of(goodbye.address)

    def welcomed_by(self, owners: wire.Owners) -> None:
        """Note what the node of the connection says of the cluster."""
        self._version = max(self._version, owners.version)
        self.named = address_of(owners.owners.get(_SHARD, ""))
        self._know(owners.nodes)

    def told(self, owners: wire.Owners) -> bool:
        """Note what another node says of the cluster; gives whether the connection is to be given
        up, because its realm is owned by yet another one by now."""
        if owners.version < self._version:
            return False
        is_news, self._version = owners.version > self._version, owners.version
        self._know(owners.nodes)
        owner = address_of(owners.owners.get(_SHARD, ""))
        if not is_news or owner is None or owner in (self.at, self.named):
            return False
        self._moved_to, self._silent = owner, self.at
        return True

    def is_silent(self, silent_s: float) -> bool:
        """Whether a connection on which nothing was heard for so long is to be given up."""
        has_died = silent_s > self.dead_after_s
        if self._heartbeat_s:
            has_died = silent_s >= self.dead_after_s
        if has_died:
            self._silent = self.at
        return has_died

    def look_after_s(self, silent_s: float) -> float:
        """Seconds after which to look at a connection again on which nothing was heard for so
        long."""
        if not self._heartbeat_s:
            return self.ping_after_s
        return max(_LOOK_MIN_S, min(self.ping_after_s, self.dead_after_s - silent_s))

    def places(self, known: Sequence[Address]) -> Iterator[Address]:
        """The addresses to try, each once: those that are known in their order, and between them
        each owner that one of them has named. Where nobody has answered before comes last, and not
        at all if others say that it does not serve any more."""
        self.is_expected = self.was_wordless = False
        self._detours.clear()
        moved_to = () if self._moved_to is None else (self._moved_to,)
        waiting = deque(each for each in (*moved_to, *known, *self.nodes) if each != self._silent)
        tried, is_named = set[Address](), False
        while waiting:
            self.owner = None
            address = waiting.popleft()
            if is_new := address not in tried:
                tried.add(address)
                self.at, self.named = address, None
                yield address
            if (relaying := self._detours.pop(address, None)) is not None:  # or was in vain before
                self._unreachable.add(address)
                waiting.appendleft(relaying)
                tried.discard(relaying)
            if not is_new:
                continue
            is_named = is_named or (self.owner is not None and self.owner == self._silent)
            if self.owner is not None and self.owner != self._silent:
                waiting.appendleft(self.owner)
        if (silent := self._silent) is not None and (is_named or not self.is_expected):
            self.at, self.named = silent, None
            yield silent
            if (relaying := self._detours.pop(silent, None)) is not None:
                self._unreachable.add(silent)
                self.at, self.named = relaying, None
                yield relaying

    def _know(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(found for each in nodes if (found := address_of(each)) is not None)

    @property
    def ping_after_s(self) -> float:
        """Seconds of silence after which the session asks whether the realm is there."""
        return self._heartbeat_s or PING_AFTER_S

    @property
    def dead_after_s(self) -> float:
        """A connection on which nothing was heard for so long, pings notwithstanding, is given
        up."""
        return self._heartbeat_s * DEAD_AFTER_HEARTBEATS or DEAD_AFTER_S

    @property
    def connect_timeout_s(self) -> float:
        """How long one address may take to welcome the session."""
        patience_s = min(CONNECT_TIMEOUT_S, self._heartbeat_s or CONNECT_TIMEOUT_S)
        return patience_s / 2 if self.at == self._silent else patience_s

    def pause_s(self, session_id: str, attempt: int, waited_s: float) -> float:
        """Seconds to wait after a failed ``attempt`` to connect, counted from 0. The pause grows,
        and half of it differs from session to session: they were all cut off at once, and should
        not all come back at once."""
        longest_s = _PAUSE_MAX_S
        if self._heartbeat_s or self.is_expected:
            longest_s = min(longest_s, max(_CLUSTER_PAUSE_MAX_S, waited_s / _WAITED_SHARE))
        pause_s = min(_PAUSE_FIRST_S * (1 << min(attempt, _DOUBLED_MAX)), longest_s)
        share = crc32(f"{session_id}/{attempt}".encode()) / (1 << 32)
        return pause_s * (0.5 + share / 2)
