"""The timeouts of a session, and the order of the addresses that it tries. In a cluster, a node
names the address of the owner."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.client.connection.urls import Address, address_of
from penstock_core.backoff import backoff_s
from penstock_core.vocabulary.errors import Elsewhere, NoQuorum
from penstock_core.wire.native import messages as wire

CONNECT_TIMEOUT_S: Final = 5.0
"""Longest attempt to connect to one address, in seconds."""
PING_AFTER_S: Final = 10.0
"""Seconds of silence after which a session sends a ping."""
DEAD_AFTER_S: Final = 30.0
"""Seconds of silence, despite pings, after which a connection counts as lost. It also limits the
time to open a subscription again."""
DEAD_AFTER_HEARTBEATS: Final = 3
"""Number of heartbeat intervals of silence after which a connection counts as lost in a cluster.
Together these intervals are as long as a lease."""
_PAUSE_MAX_S: Final = 2.0
"""Longest pause between attempts to connect, in seconds."""
_CLUSTER_PAUSE_MAX_S: Final = 0.25
"""Longest pause between the first attempts in a cluster, in seconds. Another node takes over within
seconds."""
_WAITED_SHARE: Final = 8
"""Later pauses in a cluster may last one eighth of the time waited so far, because frequent
attempts of many sessions would slow down the node that takes over."""
_PAUSE_FIRST_S: Final = 0.05
"""The first pause, in seconds; each further one is twice as long."""

NO_REASON_RETRY_S: Final = 1.0
"""Seconds that a new session retries if its connections are closed without a reason. A node
does this while it begins or stops to serve."""
_CHECK_MIN_S: Final = 0.01
"""Shortest time between two checks of a silent connection, in seconds."""
_SHARD: Final = 0
"""The shard of a session: the whole realm is one shard."""
_SERVES_SOON: Final = (Elsewhere.code, NoQuorum.code)
"""Codes of errors that mean: a node of the cluster will serve soon."""


class SessionTerms:
    """The timeouts of a session, and the order of the addresses that it tries. Timeouts are shorter
    in a cluster, where another node can take over."""

    def __init__(self) -> None:
        self.owner: Address | None = None
        """The owner's address according to the node that was tried last; None if that node named
        none."""
        self.nodes: tuple[Address, ...] = ()
        """The known nodes of the cluster; empty without a cluster."""
        self.current_address: Address | None = None
        """The address that was tried last; while the session is connected, the address of the
        connected node."""
        self.announced_owner: Address | None = None
        """The owner's address that the connected node announced, normally its own; None before the
        announcement."""
        self.serves_soon = False
        """Whether, in the last round of attempts, a node answered that a node of the cluster will
        serve soon."""
        self.was_closed_without_reason = False
        """Whether, in the last round of attempts, a connection was closed without a reason."""
        self._heartbeat_s = 0.0
        """Heartbeat interval of the cluster in seconds; 0 without a cluster."""
        self._version = 0
        """The highest known version of the cluster's claims."""
        self._moved_to: Address | None = None
        """The present owner's address according to a standby node; None if it is not known."""
        self._detours: dict[Address, Address] = {}
        """Nodes that can relay to an owner which is tried directly, by the owner's address."""
        self._unreachable: set[Address] = set()
        """Owners that could not be reached directly."""
        self._silent: Address | None = None
        """The address of a connection that fell silent; all others are tried first."""

    def process_welcome(self, welcome: wire.Welcome) -> bool:
        """Use the heartbeat interval and the nodes in the realm's welcome. Return whether the realm
        is in a cluster, whose owners the session can follow."""
        self._heartbeat_s, self.nodes = 0.0, ()
        self._silent = self._moved_to = None
        if isinstance(welcome, wire.ClusterWelcome):
            self._heartbeat_s = welcome.heartbeat_s
            self._set_nodes(welcome.nodes)
        return bool(self.nodes)

    def accept(self, welcome: wire.Welcome) -> wire.Welcome:
        """Return the welcome.

        Raises ``Elsewhere`` if the node only relays the connection to the owner, and the owner has
        not been tried directly. The next address to try is then the owner's.
        """
        if (
            not isinstance(welcome, wire.ClusterWelcome)
            or f"{self.current_address}" not in welcome.nodes
        ):
            return welcome  # not the address of a node, such as that of a load balancer
        owner = address_of(welcome.node)
        if owner is None or owner in (self.current_address, *self._unreachable):
            return welcome
        assert self.current_address is not None, "it is among the nodes"
        self.owner, self._detours[owner] = owner, self.current_address
        raise Elsewhere(f"it relays to {owner}")

    def process_goodbye(self, goodbye: wire.Goodbye) -> None:
        """Record why a node ended the connection, and the owner of the realm if the node named
        it."""
        self.serves_soon = self.serves_soon or goodbye.code in _SERVES_SOON
        if isinstance(goodbye, wire.Redirect):
            self.owner = address_of(goodbye.address)

    def process_owners(self, owners: wire.Owners) -> None:
        """Record the owner and the nodes of the cluster as the connected node reports them."""
        self._version = max(self._version, owners.version)
        self.announced_owner = address_of(owners.owners.get(_SHARD, ""))
        self._set_nodes(owners.nodes)

    def note_owners(self, owners: wire.Owners) -> bool:
        """Record the owner and the nodes of the cluster as a standby node reports them. Return
        whether the session should drop its connection, because yet another node owns the realm."""
        if owners.version < self._version:
            return False  # an old report
        is_news, self._version = owners.version > self._version, owners.version
        self._set_nodes(owners.nodes)
        owner = address_of(owners.owners.get(_SHARD, ""))
        if not is_news or owner is None or owner in (self.current_address, self.announced_owner):
            return False
        self._moved_to, self._silent = owner, self.current_address
        return True

    def is_silent(self, silent_s: float) -> bool:
        """Return whether a connection counts as lost after ``silent_s`` seconds of silence. Its
        address is then tried last."""
        has_died = silent_s > self.dead_after_s
        if self._heartbeat_s:
            has_died = silent_s >= self.dead_after_s
        if has_died:
            self._silent = self.current_address
        return has_died

    def check_after_s(self, silent_s: float) -> float:
        """Return the seconds until the next check of a connection that has been silent for
        ``silent_s`` seconds."""
        if not self._heartbeat_s:
            return self.ping_after_s
        # In a cluster the loss is detected at the moment when the owner's lease ends, not at the
        # next ping.
        return max(_CHECK_MIN_S, min(self.ping_after_s, self.dead_after_s - silent_s))

    def places(self, configured: Sequence[Address]) -> Iterator[Address]:
        """Yield the addresses to try in one round, each once.

        The configured addresses and the known nodes come in order. If a node names the owner, the
        owner's address is next. The address of a connection that fell silent comes last; it is left
        out if other nodes answer that a node will serve soon without naming this one. The caller
        continues the iteration only if the connection to the last address failed.
        """
        self.serves_soon = self.was_closed_without_reason = False
        self._detours.clear()
        moved_to = () if self._moved_to is None else (self._moved_to,)
        addresses = (*moved_to, *configured, *self.nodes)
        waiting = deque(address for address in addresses if address != self._silent)
        tried, is_named = set[Address](), False
        while waiting:
            self.owner = None
            address = waiting.popleft()
            if is_new := address not in tried:
                tried.add(address)
                self.current_address, self.announced_owner = address, None
                yield address
            # The connection to the owner has failed, so the relaying node is used after all.
            if (relaying := self._detours.pop(address, None)) is not None:
                self._unreachable.add(address)
                waiting.appendleft(relaying)
                tried.discard(relaying)
            if not is_new:
                continue
            is_named = is_named or (self.owner is not None and self.owner == self._silent)
            if self.owner is not None and self.owner != self._silent:
                waiting.appendleft(self.owner)
        if (silent := self._silent) is not None and (is_named or not self.serves_soon):
            self.current_address, self.announced_owner = silent, None
            yield silent
            if (relaying := self._detours.pop(silent, None)) is not None:
                self._unreachable.add(silent)
                self.current_address, self.announced_owner = relaying, None
                yield relaying

    def _set_nodes(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(address for node in nodes if (address := address_of(node)) is not None)

    @property
    def ping_after_s(self) -> float:
        """Seconds of silence after which the session sends a ping."""
        return self._heartbeat_s or PING_AFTER_S

    @property
    def dead_after_s(self) -> float:
        """Seconds of silence, despite pings, after which a connection counts as lost."""
        return self._heartbeat_s * DEAD_AFTER_HEARTBEATS or DEAD_AFTER_S

    @property
    def connect_timeout_s(self) -> float:
        """Longest attempt to connect to the current address, in seconds. An address that fell
        silent gets half of the time, because it probably does not answer."""
        timeout_s = min(CONNECT_TIMEOUT_S, self._heartbeat_s or CONNECT_TIMEOUT_S)
        return timeout_s / 2 if self.current_address == self._silent else timeout_s

    def pause_s(self, session_id: str, attempt: int, waited_s: float) -> float:
        """Return the seconds to wait after the failed attempt number ``attempt``, counted from 0.

        ``waited_s`` is the time since the first attempt. The pause grows with each attempt. Half of
        it depends on the session, so that sessions that lost their connections at the same moment
        do not reconnect at the same moment.
        """
        longest_s = _PAUSE_MAX_S
        if self._heartbeat_s or self.serves_soon:
            longest_s = min(longest_s, max(_CLUSTER_PAUSE_MAX_S, waited_s / _WAITED_SHARE))
        return backoff_s(attempt, first_s=_PAUSE_FIRST_S, longest_s=longest_s, seed=session_id)
