"""Lockout after too many failed sign-ins, counted by user and by host (SEM A4).

Failures count for a user from all hosts, and for a host with all users. Many users may share a
host, such as the gateway of a site, so it takes many more failures to lock one. A user who has
signed in from a host before has a separate count there, and so has each user on this machine. So an
attacker who guesses names elsewhere, or other names on the same host, does not lock out anybody. An
IPv6 host is its 64-bit network, because whoever has one address there has all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address, ip_network
from itertools import islice

from msgspec import Struct

KNOWN_MAX = 10_000
"""Counts kept, and users known at a host; those that were used longest ago go first."""
LOOKED_AT = 64
"""When a count has to be dropped, the one furthest from a lock among this many of the oldest is
dropped."""
HOST_FACTOR = 10
"""How many more failures lock a host than a user."""
LOCAL_HOSTS = frozenset(("localhost", "::1"))

_S = 1_000_000

Key = tuple[str, str, str]
"""The key of a count: ``user``, ``host`` or ``pair``, then the user, then the host."""


class LockoutRules(Struct, frozen=True):
    """The settings of the lockout."""

    failures: int = 10
    """So many failures of a user within :attr:`window_s` lock, and :data:`HOST_FACTOR` times as
    many from a host; 0: never."""
    window_s: float = 600.0
    lock_s: float = 30.0
    """How long the first lock lasts; each one that follows twice as long, up to the most."""
    lock_s_max: float = 900.0


class Locked(Struct, frozen=True):
    """A lock that has just begun."""

    what: str
    """``user`` or ``host``."""
    name: str
    seconds: float


class _Count(Struct):
    failures: int = 0
    began_us: int = 0
    locks: int = 0
    until_us: int = 0


def network_of(host: str) -> str:
    """The network whose hosts share a count: an IPv4 address by itself, also as an IPv6 listener
    sees it; the 64-bit network of an IPv6 address; any other text as it is."""
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
    """The counts of one realm. Memory is bounded, whatever names strangers make up."""

    def __init__(self, rules: LockoutRules) -> None:
        self._rules = rules
        self._counts: OrderedDict[Key, _Count] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts) + len(self._known)

    def wait_s(self, user: str, host: str, now_us: int) -> float:
        """Seconds until a sign-in of ``user`` from ``host`` is checked again; 0: now. A user who is
        known at the host waits only for failures of their own."""
        keys = list(self._keys(user, host))
        own = keys[:1] if keys[0][0] == "pair" else keys
        counts = (self._counts.get(key) for key in own)
        return max((each.until_us - now_us for each in counts if each), default=0) / _S

    def failed(self, user: str, host: str, now_us: int) -> list[Locked]:
        """A password was wrong; gives the locks that begin with it. A sign-in that began before its
        user was locked does not count, for its host neither."""
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

    def passed(self, user: str, host: str) -> None:
        """``user`` has signed in from ``host``: what it failed before is forgotten there. The
        host's own count stays, or one account would be enough to try all others from it."""
        for key in self._keys(user, host):
            if key[0] != "host":
                self._counts.pop(key, None)
        where = network_of(host)
        self._known[user, where] = None
        self._known.move_to_end((user, where))
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _keys(self, user: str, host: str) -> Iterator[Key]:
        where = network_of(host)
        is_local = where in LOCAL_HOSTS or where.startswith("127.")
        if is_local or (user, where) in self._known:
            yield "pair", user, where
        else:
            yield "user", user, ""
        if not is_local:
            yield "host", "", where

    def _is_locked(self, key: Key, now_us: int) -> bool:
        count = self._counts.get(key)
        return count is not None and now_us < count.until_us

    def _forget_one(self, now_us: int) -> None:
        """Drop a count: among those unused for longest, the one furthest from a lock. So invented
        names push out invented names, and not the count of a user who is close to a lock."""

        def tells(key: Key) -> tuple[bool, int, int]:
            count = self._counts[key]
            return now_us < count.until_us, count.locks, count.failures

        del self._counts[min(islice(self._counts, LOOKED_AT), key=tells)]

    def _add(self, key: Key, most: int, now_us: int) -> float:
        """Count one more, of which ``most`` lock; gives how long it locks from now on, 0 if it does
        not."""
        rules, window_us = self._rules, int(self._rules.window_s * _S)
        count = self._counts.setdefault(key, _Count())
        self._counts.move_to_end(key)
        if len(self._counts) > KNOWN_MAX:
            self._forget_one(now_us)
        if now_us < count.until_us:
            return 0.0  # this sign-in began before the lock
        if now_us - max(count.began_us, count.until_us) > window_us:
            count.failures = count.locks = 0
        if not count.failures:
            count.began_us = now_us
        count.failures += 1
        if count.failures < most:
            return 0.0
        seconds = min(rules.lock_s * 2.0 ** min(count.locks, 32), rules.lock_s_max)
        count.failures, count.locks = 0, count.locks + 1
        count.until_us = now_us + int(seconds * _S)
        return seconds
