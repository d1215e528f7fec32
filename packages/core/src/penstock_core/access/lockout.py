"""Lockout after too many failed sign-ins, counted by user and by host (SEM A4).

Failures are counted by user, over all hosts, and by host, over all users. Many users may share a
host, such as the gateway of a site, so locking a host takes many more failures. A user who has
signed in from a host before has a separate count for that host, and so has each user on this
machine. An attacker who guesses passwords elsewhere, or for other names on the same host, therefore
does not lock these users out. An IPv6 host is counted as its 64-bit network, because the owner of
one address can use all addresses of that network.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address, ip_network
from itertools import islice

from msgspec import Struct

from penstock_core.access.rights import NAME_LENGTH_MAX

KNOWN_MAX = 10_000
"""Maximum number of counts, and of remembered pairs of user and host. Beyond this number, entries
that were used least recently are dropped."""
EXAMINED_COUNTS = 64
"""Number of oldest counts that are examined when one must be dropped. The count furthest from a
lock is dropped."""
HOST_FACTOR = 10
"""A host is locked after this many times the failures that lock a user."""
OVERLONG = "\0"
"""The user in the keys of all names that are too long for a user."""
LOCAL_HOSTS = frozenset(("localhost", "::1"))
"""Names of this machine; all addresses that begin with 127. also belong to it."""

_S = 1_000_000
"""Microseconds in a second."""

Key = tuple[str, str, str]
"""The key of a count: ``user``, ``host`` or ``pair``, then the user, then the host."""


class LockoutRules(Struct, frozen=True):
    """The settings of the lockout."""

    failures: int = 10
    """Number of failures within :attr:`window_s` that lock a user; :data:`HOST_FACTOR` times as
    many lock a host. 0 means no lockout."""
    window_s: float = 600.0
    """Time within which failures are counted together, in seconds."""
    lock_s: float = 30.0
    """Duration of the first lock, in seconds; each further lock lasts twice as long, up to
    :attr:`lock_s_max`."""
    lock_s_max: float = 900.0


class Locked(Struct, frozen=True):
    """A lock that has just begun."""

    what: str
    """The kind of the locked name: ``user`` or ``host``."""
    name: str
    seconds: float


class _Count(Struct):
    """Failed sign-ins of one user, host or pair of both."""

    failures: int = 0
    """Failures in the current window."""
    began_us: int = 0
    """Time of the first failure in the current window, in microseconds."""
    locks: int = 0
    """Number of earlier locks, which determines the duration of the next one."""
    until_us: int = 0
    """End of the last lock, in microseconds; 0 before the first lock."""


def network_of(host: str) -> str:
    """Return the network whose hosts share a count.

    For an IPv4 address this is the address itself, also if an IPv6 listener reports it as a mapped
    address. For an IPv6 address it is its 64-bit network. Other texts are returned unchanged.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return str(address)
    if (mapped := address.ipv4_mapped) is not None:
        return str(mapped)
    if address.is_loopback:
        return str(address)
    return str(ip_network((address, 64), strict=False))


class Lockout:
    """The counts of one realm. Their number is bounded, so invented names cannot fill memory."""

    def __init__(self, rules: LockoutRules) -> None:
        self._rules = rules
        self._counts: OrderedDict[Key, _Count] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts) + len(self._known)

    def wait_s(self, user: str, host: str, now_us: int) -> float:
        """Return the seconds until a sign-in of ``user`` from ``host`` is checked again; 0 if it is
        checked now."""
        # If the user has signed in from this host before, a lock of the host does not matter.
        keys = list(self._keys(user, host))
        relevant_keys = keys[:1] if keys[0][0] == "pair" else keys
        counts = (self._counts.get(key) for key in relevant_keys)
        return max((count.until_us - now_us for count in counts if count), default=0) / _S

    def failed(self, user: str, host: str, now_us: int) -> list[Locked]:
        """Count a wrong password, and return the locks that begin now. A sign-in that began before
        its user was locked does not count, neither for the user nor for the host."""
        # Guesses that were on their way when the lock began must not prolong it.
        if not self._rules.failures or self._is_locked(next(self._keys(user, host)), now_us):
            return []
        begun = []
        for key in self._keys(user, host):
            kind, *_ = key
            factor = HOST_FACTOR if kind == "host" else 1
            seconds = self._add(key, factor * self._rules.failures, now_us)
            if seconds:
                locked = Locked("host", host, seconds) if kind == "host" else None
                begun.append(locked or Locked("user", user, seconds))
        return begun

    def reset_failures(self, user: str, host: str) -> None:
        """Reset the failures of ``user`` from ``host`` after a successful sign-in. The count of the
        host is kept; otherwise an attacker with one account could reset it between guesses."""
        for key in self._keys(user, host):
            if key[0] != "host":
                self._counts.pop(key, None)
        network = network_of(host)
        self._known[user, network] = None
        self._known.move_to_end((user, network))
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _keys(self, user: str, host: str) -> Iterator[Key]:
        """Yield the keys of the counts that a failed sign-in raises; first the key of the user, or
        of the pair of user and host."""
        if len(user) > NAME_LENGTH_MAX:  # no such user exists, and keys must have bounded sizes
            user = OVERLONG
        network = network_of(host)
        is_local = network in LOCAL_HOSTS or network.startswith("127.")
        if is_local or (user, network) in self._known:
            yield "pair", user, network
        else:
            yield "user", user, ""
        if not is_local:
            yield "host", "", network

    def _is_locked(self, key: Key, now_us: int) -> bool:
        count = self._counts.get(key)
        return count is not None and now_us < count.until_us

    def _forget_one(self, now_us: int) -> None:
        """Drop one of the least recently used counts: the one that is furthest from a lock.
        Invented names therefore displace each other, not the count of a user close to a lock."""

        def closeness_to_lock(key: Key) -> tuple[bool, int, int]:
            """Return a sort key of a count: largest for the count that is closest to a lock."""
            count = self._counts[key]
            return now_us < count.until_us, count.locks, count.failures

        del self._counts[min(islice(self._counts, EXAMINED_COUNTS), key=closeness_to_lock)]

    def _add(self, key: Key, failures_max: int, now_us: int) -> float:
        """Count a failure. If it is the ``failures_max``-th, begin a lock and return its duration
        in seconds; otherwise return 0."""
        rules, window_us = self._rules, int(self._rules.window_s * _S)
        count = self._counts.setdefault(key, _Count())
        self._counts.move_to_end(key)
        if len(self._counts) > KNOWN_MAX:
            self._forget_one(now_us)
        if now_us < count.until_us:
            return 0.0  # this sign-in began before the lock
        # A quiet window, counted from the end of the last lock, also resets the length of the next
        # lock.
        if now_us - max(count.began_us, count.until_us) > window_us:
            count.failures = count.locks = 0
        if not count.failures:
            count.began_us = now_us
        count.failures += 1
        if count.failures < failures_max:
            return 0.0
        # The exponent is bounded, because a large power would overflow.
        seconds = min(rules.lock_s * 2.0 ** min(count.locks, 32), rules.lock_s_max)
        count.failures, count.locks = 0, count.locks + 1
        count.until_us = now_us + int(seconds * _S)
        return seconds
